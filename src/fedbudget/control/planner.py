"""The planner: of all knobs the budgets allow, those with the most expected progress.

It knows what a round will cost before it is run, so budgets hold from the first round on. What it
does not know it learns: a factor per client and resource, from what the client reports. It keeps
its choice until that breaks a budget or another is clearly better.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial

from fedbudget.codecs import chosen
from fedbudget.control.controller import Controller, ControlState
from fedbudget.control.frontier import Forecast, Frontier, Grid, Progress, within
from fedbudget.errors import UserError
from fedbudget.resources.budget import each_class, of_client
from fedbudget.resources.costs import Costs, fidelity
from fedbudget.types import Accounting, Knobs, Reply

BETTER = 1.05
"""how much better another choice must be before knobs change"""
LEARN = 0.2
"""weight of a new report in a client's factor"""
ROOM = 0.05
"""share of a budget that is left free where usage is read from clocks and sensors: they scatter"""
EXACT = ("communication", "downlink")
"""resources that do not scatter, however they are known, and of which a round may take less: an upload
that was skipped says nothing of the next one"""
OFFSET = ("memory",)
"""resources of which a part does not shrink with the knobs: what a process holds besides the model"""


@dataclass(frozen=True, eq=False)  # hashed by identity: it is the key of a cache
class Planner:
    frontier: Frontier
    classes: Sequence[Mapping[str, float]]
    accounting: Accounting

    def budgets_of(self, client: int) -> Mapping[str, float]:
        return of_client(self.classes, client)

    def aims_of(self, client: int) -> Mapping[str, float]:
        return aims(self.budgets_of(client), self.accounting)

    def roomy(self, resource: str) -> bool:
        return self.accounting == "measured" and resource not in EXACT

    def least_of(self, resource: str) -> float:
        """The least that a factor can be."""
        by_bytes = EXACT if self.accounting == "measured" else (*EXACT, "time")
        return 1.0 if resource in by_bytes else 0.0


def aims(budgets: Mapping[str, float], accounting: Accounting) -> Mapping[str, float]:
    """Budgets, with room for scatter."""
    if accounting != "measured":
        return budgets
    return {r: b if r in EXACT else (1 - ROOM) * b for r, b in budgets.items()}


@dataclass(frozen=True)
class Search:
    """What the planner may choose from, whatever the model."""

    batches: tuple[int, ...] = (2, 4, 8, 16, 32)
    codecs: tuple[str, ...] = ("raw32", "int8", "eden4", "eden3", "eden2", "eden1.6", "eden1")
    least_steps: int = 10
    most_steps: int = 1000
    noise_scale: float = 16.0
    thrift: float = Grid.thrift

    def __post_init__(self) -> None:
        if not self.batches or min(self.batches) < 1:
            raise UserError(
                f"batches = {list(self.batches)}: name batch sizes to choose from, each at least 1"
            )
        if not self.codecs:
            raise UserError("codecs is empty: name some to choose from, such as 'eden2'")
        for name in self.codecs:
            chosen(name, "codecs")
        if not 1 <= self.least_steps <= self.most_steps:
            raise UserError(
                f"least_steps = {self.least_steps}: it must be from 1 to most_steps, which is "
                f"{self.most_steps}"
            )
        if not 0 < self.noise_scale < math.inf:
            raise UserError(f"noise_scale = {self.noise_scale}: it must be finite and above 0")
        if not 0 <= self.thrift < 1:
            raise UserError(f"thrift = {self.thrift}: it must be a share from 0 to below 1")

    def over(self, known: Costs, layers: int, cohort: int) -> tuple[Grid, Progress]:
        """The grid and the progress model for one model with at most `layers` groups trained."""
        depths = tuple(range(1, layers + 1))
        steps = (self.least_steps, self.most_steps)
        grid = Grid(
            depths, self.batches, self.codecs, *steps, written=known.written, thrift=self.thrift
        )
        total = known.shape.parameters[-1]
        shares = tuple(p / total for p in known.shape.parameters)
        known_codecs = {codec: fidelity(codec) for codec in self.codecs}
        return grid, Progress(shares, known_codecs, cohort, self.noise_scale)


def planner(
    forecast: Forecast,
    grid: Grid,
    progress: Progress,
    classes: Sequence[Mapping[str, float]],
    accounting: Accounting = "counted",
) -> Controller:
    """A controller whose choices are affordable from round 1; refuses budgets nothing can meet.

    `classes` has the budgets of each device class; client i is of class i modulo their number.
    Measured budgets are met by the forecast until a client has told what it measures; then by that.
    """
    frontier = Frontier(forecast, grid, progress)
    plan = Planner(frontier, classes, accounting)
    each_class(classes, frontier.knobs)
    return Controller(_init, partial(_knobs, plan), partial(_update, plan))


def _init() -> ControlState:
    return {"factors": {}, "chosen": {}, "largest": {}}


def _knobs(plan: Planner, state: ControlState, client: int) -> Knobs:
    factors = _factors(plan, state, client)
    limits = ((r, _limit(r, b, factors)) for r, b in plan.aims_of(client).items())
    kept = state["chosen"].get(str(client))
    return _decided(plan, Knobs(**kept) if kept else None, *limits)


def _limit(resource: str, budget: float, factors: Mapping[str, float]) -> float:
    """The most that may be forecast. With an excess, usage is at least the forecast and that."""
    limit = budget / factors.get(resource, 1.0)
    if resource in OFFSET and f"{resource}+" in factors:
        return max(1e-9 * budget, min(limit, budget - factors[f"{resource}+"]))
    return limit


def _factors(plan: Planner, state: ControlState, client: int) -> Mapping[str, float]:
    """What was reported over what was forecast, and as "memory+" less it.

    Of a client that has not measured yet it is the largest that others have.
    """
    known: Mapping[str, Mapping[str, float]] = state["factors"]
    if plan.accounting != "measured" or str(client) in state["chosen"]:
        return known.get(str(client), {})
    return state.get("largest") or _largest(known)  # checkpoints of old have none


def _largest(factors: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Of each resource, over all clients."""
    found: dict[str, float] = {}
    for own in factors.values():
        for resource, factor in own.items():
            if factor > found.get(resource, -math.inf):
                found[resource] = factor
    return found


@lru_cache(maxsize=4096)
def _decided(plan: Planner, kept: Knobs | None, *limits: tuple[str, float]) -> Knobs:
    """Asked for twice a round: before it, and when what came of it is compared with the forecast.

    Clients with the same budgets, factors and knobs share one search. Where there is room for
    scatter, knobs that a client has may use it up before they change.
    """
    frontier, budgets = plan.frontier, dict(limits)
    whole = {r: b / (1 - ROOM) if plan.roomy(r) else b for r, b in limits}
    if kept is None or not within(frontier.usage(kept), whole):
        kept, enough = None, 0.0
    else:
        enough = BETTER * frontier.progress(kept)
    try:
        best = frontier.knobs(budgets, enough)
    except UserError:
        # a machine with other work to do may be slower than any knobs can make up for, and reports
        # may be wrong: one device must not end the run for all
        return _least(frontier, budgets) if kept is None else kept
    if kept is not None and (best is None or frontier.progress(best) < enough):
        return kept
    assert best is not None
    return best


def _least(frontier: Frontier, budgets: Mapping[str, float]) -> Knobs:
    """The setting that is least over the budgets."""

    def over(knobs: Knobs) -> float:
        usage = frontier.usage(knobs)
        return max(usage[r] / b for r, b in budgets.items())

    return min(frontier.settings, key=over)


def _learnt(before: float, seen: float) -> float:
    """A budget was nearly broken: believe the worse report at once, the better slowly."""
    return seen if seen > before else (1 - LEARN) * before + LEARN * seen


def _update(plan: Planner, state: ControlState, replies: Sequence[Reply]) -> ControlState:
    """Learn each client's factors from what it reports."""
    factors = dict(state["factors"])
    chosen = dict(state["chosen"])
    for reply in replies:
        knobs = _knobs(plan, state, reply.client)
        expected = plan.frontier.usage(reply.knobs or knobs)
        known = dict(factors.get(str(reply.client), {}))
        for resource, used in reply.usage.get(plan.accounting, {}).items():
            if resource in plan.budgets_of(reply.client) and expected[resource] > 0:
                seen = max(plan.least_of(resource), used / expected[resource])
                known[resource] = _learnt(known.get(resource, 1.0), seen)
                if resource in OFFSET and plan.accounting == "measured":
                    excess, more = f"{resource}+", used - expected[resource]
                    known[excess] = _learnt(known.get(excess, more), more)
        known = {r: f for r, f in known.items() if abs(f - 1) > 1e-6}
        factors.pop(str(reply.client), None)
        if known:
            factors[str(reply.client)] = known
        chosen[str(reply.client)] = dict(vars(knobs))
    largest = _largest(factors) if plan.accounting == "measured" else {}
    return {"factors": factors, "chosen": chosen, "largest": largest}
