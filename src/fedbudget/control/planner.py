"""The planner: of all knobs the budgets allow, those with the most expected progress.

It knows what a round will cost before it is run, so budgets hold from the first round on. What it
does not know it learns: a factor per client and resource, from what the client reports. It keeps
its choice until that breaks a budget or another is clearly better.

Expected progress of a local run: s / (1 + B / (b G)) steps' worth of a noiseless gradient, B the
gradient noise scale (McCandlish et al. 2018); times the share of the parameters that train; over
1 + NMSE / |S| for the noise that a codec adds to the mean of |S| updates. The model says b = 1
is always best; trials (docs) did not, and a step has costs of its own, so the grid starts at 2.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache, partial
from typing import NamedTuple

from fedbudget.control.controller import Controller, ControlState
from fedbudget.errors import UserError
from fedbudget.resources.budget import of_client
from fedbudget.resources.costs import Costs
from fedbudget.types import Knobs, Reply
from fedbudget.units import show

Forecast = Callable[[Knobs], Mapping[str, float]]
"""what a round with these knobs will use"""
SLACK = 1e-9
"""relative room for rounding when a usage is compared with its budget"""
THRIFT = 0.02
"""progress that is not worth more uplink: 3 bits in place of 2 brought nothing (docs/results)"""
BETTER = 1.05
"""how much better another choice must be before knobs change"""
LEARN = 0.5
"""weight of a new report in a client's factor"""


@dataclass(frozen=True)
class Grid:
    """The knobs to choose from; steps run from `least` to `most`."""

    layers: tuple[int, ...]
    batches: tuple[int, ...]
    codecs: tuple[str, ...]
    least: int = 10
    most: int = 1000


@dataclass(frozen=True)
class Progress:
    """Expected progress of a round."""

    shares: tuple[float, ...]
    """share of the parameters in the top k groups, index k - 1"""
    noise: Mapping[str, float]
    """NMSE of each codec"""
    cohort: int
    noise_scale: float

    def __call__(self, knobs: Knobs) -> float:
        steps = knobs.steps / (1 + self.noise_scale / (knobs.batch * knobs.accumulate))
        codec = 1 + self.noise[knobs.codec] / self.cohort
        return steps * self.shares[knobs.layers - 1] / codec


class Choice(NamedTuple):
    """Knobs that meet every budget, and what they are expected to cost and bring."""

    knobs: Knobs
    usage: Mapping[str, float]
    progress: float
    binding: str
    """the resource that stops it from doing more"""


@dataclass(frozen=True, eq=False)  # hashed by identity: it is the key of a cache
class Planner:
    forecast: Forecast
    grid: Grid
    progress: Progress
    classes: Sequence[Mapping[str, float]]
    accounting: str

    def budgets_of(self, client: int) -> Mapping[str, float]:
        return of_client(self.classes, client)


@dataclass(frozen=True)
class Search:
    """What the planner may choose from, whatever the model."""

    batches: tuple[int, ...] = (2, 4, 8, 16, 32)
    codecs: tuple[str, ...] = ("raw32", "int8", "eden4", "eden3", "eden2", "eden1.6", "eden1")
    least_steps: int = 10
    most_steps: int = 1000
    noise_scale: float = 16.0

    def over(self, known: Costs, layers: int, cohort: int) -> tuple[Grid, Progress]:
        """The grid and the progress model for one model with at most `layers` groups trained."""
        depths = tuple(range(1, layers + 1))
        grid = Grid(depths, self.batches, self.codecs, self.least_steps, self.most_steps)
        total = known.shape.parameters[-1]
        shares = tuple(p / total for p in known.shape.parameters)
        noise = {codec: known.noise(codec) for codec in self.codecs}
        return grid, Progress(shares, noise, cohort, self.noise_scale)


def planner(
    forecast: Forecast,
    grid: Grid,
    progress: Progress,
    classes: Sequence[Mapping[str, float]],
    accounting: str = "counted",
) -> Controller:
    """A controller whose choices are affordable from round 1; refuses budgets nothing can meet.

    `classes` has the budgets of each device class; client i is of class i modulo their number.
    """
    plan = Planner(forecast, grid, progress, classes, accounting)
    for limits in classes:
        affordable(forecast, grid, progress, limits)
    return Controller(_init, partial(_knobs, plan), partial(_update, plan))


def affordable(
    forecast: Forecast, grid: Grid, progress: Progress, budgets: Mapping[str, float]
) -> list[Choice]:
    """Every (layers, batch, codec) with the most steps the budgets allow; the choice first.

    That is the one with the most progress, in the code with the least uplink that brings almost as
    much; the others follow by progress.
    """
    found = []
    for layers in grid.layers:
        for batch in grid.batches:
            for codec in grid.codecs:
                at = partial(Knobs, layers, batch=batch, codec=codec)
                steps = _most_steps(forecast, at, grid, budgets)
                if steps is None:
                    continue
                knobs = at(steps=steps)
                usage = forecast(knobs)
                found.append(
                    Choice(knobs, usage, progress(knobs), _binding(forecast, knobs, grid, budgets))
                )
    if not found:
        raise UserError(why_not(forecast, grid, budgets))
    ranked = sorted(found, key=lambda c: -c.progress)
    best = ranked[0]
    alike = [
        c
        for c in ranked
        if (c.knobs.layers, c.knobs.batch) == (best.knobs.layers, best.knobs.batch)
        and c.progress >= (1 - THRIFT) * best.progress
    ]
    choice = min(alike, key=lambda c: c.usage.get("communication", 0.0))
    return [choice, *(c for c in ranked if c is not choice)]


def why_not(forecast: Forecast, grid: Grid, budgets: Mapping[str, float]) -> str:
    """The sentence that says which budget no setting can meet, and its least value."""
    settings = [
        Knobs(k, grid.least, b, codec=c)
        for k in grid.layers
        for b in grid.batches
        for c in grid.codecs
    ]
    for resource, budget in budgets.items():
        knobs = min(settings, key=lambda x: forecast(x)[resource])
        if (least := forecast(knobs)[resource]) > budget:
            return (
                f"no setting meets {resource} <= {show(budget, resource)}; the least is "
                f"{show(least, resource)}, at layers={knobs.layers} steps={knobs.steps} "
                f"batch={knobs.batch} codec={knobs.codec}"
            )
    return "no setting meets all budgets at once, though each alone can be met: loosen one of " + (
        ", ".join(budgets)
    )


def _fits(usage: Mapping[str, float], budgets: Mapping[str, float]) -> bool:
    return all(usage[r] <= b * (1 + SLACK) for r, b in budgets.items())


def _most_steps(
    forecast: Forecast, at: Callable[..., Knobs], grid: Grid, budgets: Mapping[str, float]
) -> int | None:
    """Usage grows with steps, so the most that fits is found by bisection."""
    low, high = grid.least, grid.most
    if not _fits(forecast(at(steps=low)), budgets):
        return None
    while low < high:
        middle = (low + high + 1) // 2
        if _fits(forecast(at(steps=middle)), budgets):
            low = middle
        else:
            high = middle - 1
    return low


def _binding(forecast: Forecast, knobs: Knobs, grid: Grid, budgets: Mapping[str, float]) -> str:
    """The resource that one more step would break; else the one nearest to its limit."""
    if knobs.steps < grid.most:
        more = forecast(Knobs(**{**asdict(knobs), "steps": knobs.steps + 1}))
        broken = [r for r, b in budgets.items() if more[r] > b * (1 + SLACK)]
        if broken:
            return max(broken, key=lambda r: more[r] / budgets[r])
    usage = forecast(knobs)
    return max(budgets, key=lambda r: usage[r] / budgets[r])


def _init() -> ControlState:
    return {"factors": {}, "chosen": {}}


def _knobs(plan: Planner, state: ControlState, client: int) -> Knobs:
    factors = state["factors"].get(str(client), {})
    limits = tuple((r, b / factors.get(r, 1.0)) for r, b in plan.budgets_of(client).items())
    best = _best(plan, limits)
    kept = state["chosen"].get(str(client))
    if kept is not None:
        now = Knobs(**kept)
        fits = _fits(plan.forecast(now), dict(limits))
        if fits and best.progress < BETTER * plan.progress(now):
            return now
    return best.knobs


@lru_cache(maxsize=4096)
def _best(plan: Planner, limits: tuple[tuple[str, float], ...]) -> Choice:
    """Clients with the same budgets and factors share one search."""
    return affordable(plan.forecast, plan.grid, plan.progress, dict(limits))[0]


def _update(plan: Planner, state: ControlState, replies: Sequence[Reply]) -> ControlState:
    """Learn each client's factors from what it reports."""
    factors = dict(state["factors"])
    chosen = dict(state["chosen"])
    for reply in replies:
        knobs = _knobs(plan, state, reply.client)
        expected = plan.forecast(knobs)
        known = dict(factors.get(str(reply.client), {}))
        for resource, used in reply.usage.get(plan.accounting, {}).items():
            if resource in plan.budgets_of(reply.client) and expected[resource] > 0:
                seen = used / expected[resource]
                before = known.get(resource, 1.0)
                # a budget was nearly broken: believe the worse report at once, the better slowly
                new = seen if seen > before else (1 - LEARN) * before + LEARN * seen
                known[resource] = new
        known = {r: f for r, f in known.items() if abs(f - 1) > 1e-6}
        if known:
            factors[str(reply.client)] = known
        chosen[str(reply.client)] = asdict(knobs)
    return {"factors": factors, "chosen": chosen}
