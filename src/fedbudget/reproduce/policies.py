"""What others do under constraints, beside the planner: one fleet, the same budgets, one table.

Each policy has three trials on seed 0: of step sizes, or where it is a grid search over knobs, of
batches at the middle step size. The best one goes on with the other seeds, with 30% of the clients
dropping out, and with every device class joined by one at half of its budgets.
`CASES` is the list to add a policy to.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from fedbudget.build import build, prepare
from fedbudget.config import Config, find_config, load
from fedbudget.control.frontier import Forecast
from fedbudget.control.room import room
from fedbudget.errors import UserError
from fedbudget.files import write
from fedbudget.protocols import DROP, halved
from fedbudget.report.load import Loaded, load_run
from fedbudget.report.robustness import CONDITIONS, robustness_sheet
from fedbudget.report.sheets import Sheet, spread
from fedbudget.report.standing import budgets
from fedbudget.report.tables import SHORT, change, comparison
from fedbudget.report.target import cost_to, default_target, target_sheet
from fedbudget.training import train_all
from fedbudget.types import Knobs

PRESET = "policies"
STEP_SIZES = (2e-3, 4e-3, 8e-3)
QUICK = (
    *("rounds=2", "workers=1", "model.size=1x16", "model.context=32", "data.validation=0.02"),
    *("train.steps=8", "control.least_steps=1", "control.whole_rounds=1"),
)
"""that it works, not what comes out: of letters, nothing is learnt in two rounds"""
MOST_STEPS = 1000


@dataclass(frozen=True)
class Case:
    """A policy: what is changed in the preset."""

    name: str
    changes: tuple[str, ...]
    batches: tuple[int, ...] = ()
    """knobs to try, each with the most steps that the poorest class can afford"""


CASES = (
    Case("fedavg", ("control.controller=fixed", "codec.name=raw32")),
    Case("static", ("control.controller=static",), batches=(2, 4, 8)),
    Case("fedpaq", ("control.controller=fedpaq",)),
    Case("adaptive", ("control.controller=adaptive",)),
    Case("heterofl", ("control.controller=heterofl",)),
    Case("cocofl", ("control.controller=cocofl",)),
    Case("fedpart", ("control.controller=rotation",)),
    Case(
        "cafl-l",  # with the numbers of configs/classes.toml, whose counted budgets they meet
        (
            *("control.controller=cafl-l", "control.preserve_tokens=false"),
            *("control.eta=0.09", "control.epsilon=0.0"),
        ),
    ),
    Case("planner", ("control.controller=planner",)),
    Case("planner-choice", ("control.controller=planner", "world.select=power-of-choice")),
)


class Trial(NamedTuple):
    lr: float
    batch: int = 0
    """0: the preset's"""

    def __str__(self) -> str:
        return f"batch-{self.batch}-lr-{self.lr:g}" if self.batch else f"lr-{self.lr:g}"


def trials(case: Case) -> list[Trial]:
    """As many for each."""
    if case.batches:
        return [Trial(STEP_SIZES[1], batch) for batch in case.batches]
    return [Trial(lr) for lr in STEP_SIZES]


@dataclass(frozen=True)
class Fleet:
    """The preset's devices: what a round costs them, and their budgets in each condition."""

    forecast: Forecast
    base: Knobs
    limits: Mapping[str, Sequence[Mapping[str, float]]]
    """condition -> class -> resource -> limit"""
    overrides: tuple[str, ...]

    def config(self, case: Case, trial: Trial, condition: str, seed: int) -> Config:
        """Budgets are numbers: as shares they would change with a case's own base knobs."""
        limits = self.limits[condition]
        lists = [f"budget.{r}={[own[r] for own in limits]}" for r in limits[0]]
        drop = [f"train.drop={DROP}"] if condition.startswith("+drop") else []
        own = (*case.changes, *self._knobs(trial, limits), f"train.lr={trial.lr}")
        named = (f'name="{case.name}{condition}"', f"seed={seed}")
        return load(find_config(PRESET), [*self.overrides, *lists, *drop, *own, *named])

    def _knobs(self, trial: Trial, limits: Sequence[Mapping[str, float]]) -> list[str]:
        if trial.batch == 0:
            return []
        poorest = {r: min(own[r] for own in limits) for r in limits[0]}
        most = replace(self.base, batch=trial.batch, steps=MOST_STEPS)
        fits = room(self.forecast, most, poorest)
        if fits is None:
            raise UserError(f"batch {trial.batch} fits the poorest class with no number of steps")
        return [f"train.{key}={getattr(fits, key)}" for key in ("steps", "batch", "accumulate")]


def fleet(overrides: Sequence[str]) -> Fleet:
    ready = prepare(load(find_config(PRESET), overrides))
    assert ready.known is not None
    own = ready.limits
    poorer = [*own, *(halved(limits, "counted") for limits in own)]
    limits = {name: poorer if name == "+half" else own for name in CONDITIONS}
    return Fleet(ready.known.forecast, ready.base, limits, tuple(overrides))


@dataclass(frozen=True)
class Found:
    """All runs of one case."""

    case: Case
    tried: Mapping[Trial, float]
    """loss of each trial on seed 0"""
    best: Trial | None
    """None where no trial fits the budgets"""
    runs: Mapping[str, Sequence[Loaded]]
    """by condition"""
    refused: Mapping[str, str]
    """condition -> why there are no runs"""


class Bench:
    """Trains what is not there yet, in `out`."""

    def __init__(self, own: Fleet, out: Path, seeds: int) -> None:
        self.fleet = own
        self.out = out
        self.seeds = seeds

    def found(self, case: Case) -> Found:
        tried: dict[Trial, float] = {}
        refused: dict[str, str] = {}
        for trial in trials(case):
            try:
                (run,) = self._trained(case, trial, "", seeds=1)
            except _RefusedError as why:
                refused[""] = str(why)
                continue
            tried[trial] = run.summary["validation"]["loss"]
        if not tried:
            return Found(case, {}, None, {}, dict.fromkeys(CONDITIONS, refused[""]))
        best = min(tried, key=lambda trial: tried[trial])
        runs: dict[str, Sequence[Loaded]] = {}
        refused = {}
        for condition in CONDITIONS:
            try:
                runs[condition] = self._trained(case, best, condition, self.seeds)
            except _RefusedError as why:
                refused[condition] = str(why)
        return Found(case, tried, best, runs, refused)

    def _trained(self, case: Case, trial: Trial, condition: str, seeds: int) -> list[Loaded]:
        """OUT/NAME/TRIAL/seed-i; what a policy cannot do within the budgets is refused."""
        places: dict[Path, Config] = {}
        try:
            for seed in range(seeds):
                folder = self.out / f"{case.name}{condition}" / str(trial) / f"seed-{seed}"
                places[folder] = self.fleet.config(case, trial, condition, seed)
            first = next(iter(places))
            if not (first / "config.toml").exists():
                build(places[first])
        except UserError as why:
            raise _RefusedError(why) from None
        train_all(places)
        return [load_run(place) for place in places]


class _RefusedError(Exception):
    """A policy has nothing that fits."""


def table(found: Sequence[Found]) -> Sheet:
    """A row a policy: quality, budgets, cost to FedAvg's target, robustness; the first is FedAvg."""
    reference = found[0].runs[""]
    target, at = default_target(reference)
    rows = [_row(own, reference, target) for own in found]
    text = (
        "loss: validation, mean of the last 5 evaluations, ± over seeds; step size: the best on "
        "seed 0 of those tried. budgets: the worst client and round of all seeds over its own "
        "budget, and the rounds with any client over. target: FedAvg's mean loss at round "
        f"{at}, {target:.4g}: by how many seeds it was reached, in which round, and with what share "
        "of the energy and uplink that FedAvg took, over all clients. 30% drop out, half the fleet "
        "at half: change of the loss, and of the budgets what was broken."
    )
    columns = (
        *("policy", "step size", "tried", "loss", "against FedAvg", "budgets"),
        *("target reached", "round", "energy", "uplink"),
        *(CONDITIONS[name] for name in list(CONDITIONS)[1:]),
    )
    return Sheet(columns, rows, text, "policies under the same budgets")


def _row(own: Found, reference: Sequence[Loaded], target: float) -> list[str]:
    if own.best is None:
        why = own.refused[""]
        return [own.case.name, "-", "-", "-", "-", f"cannot: {why}", *("-",) * 6]
    same = own.runs[""]
    costs = {run.seed: cost for run in same if (cost := cost_to(run, target))}
    first = {run.seed: cost for run in reference if (cost := cost_to(run, target))}
    pairs = [(costs[seed], first[seed]) for seed in costs if seed in first]
    shares = (
        spread([100 * mine[what] / other[what] for mine, other in pairs], ".0f") + "%"
        for what in ("energy", "uplink")
    )
    return [
        own.case.name,
        f"{own.best.lr:g}" + (f", batch {own.best.batch}" if own.best.batch else ""),
        str(len(own.tried)),
        spread([run.summary["validation"]["loss"] for run in same], ".3f"),
        change(same, reference),
        _kept(same),
        f"{len(costs)} of {len(same)}",
        spread([cost["rounds"] for cost in costs.values()], ".0f"),
        *(shares if pairs else ("-", "-")),
        *(_harder(own, name) for name in list(CONDITIONS)[1:]),
    ]


def _kept(runs: Sequence[Loaded]) -> str:
    """The worst use of each budget that was broken, or of all the worst."""
    worst: dict[str, float] = {}
    over: dict[str, float] = {}
    for resource in budgets(runs[0].summary):
        uses = [budgets(run.summary)[resource] for run in runs]
        worst[resource] = max(use["worst_ratio"] for use in uses)
        over[resource] = fmean(use["rounds_over"] for use in uses)
    broken = [r for r in worst if over[r] > 0]
    if not broken:
        return f"kept, {max(worst.values()):.2f}"
    rounds = max(run.summary["rounds_done"] for run in runs)
    cells = (f"{SHORT.get(r, r)} {worst[r]:.2f} ({over[r]:.3g}/{rounds})" for r in broken)
    return ", ".join(cells)


def _harder(own: Found, condition: str) -> str:
    if condition in own.refused:
        return f"cannot: {own.refused[condition]}"
    runs = own.runs[condition]
    kept = _kept(runs)
    return f"{change(runs, own.runs[''])}, {kept.split(',')[0] if kept[:4] == 'kept' else kept}"


def tuning(found: Sequence[Found]) -> Sheet:
    rows = [
        [own.case.name, str(trial), f"{loss:.3f}", "taken" if trial == own.best else ""]
        for own in found
        for trial, loss in own.tried.items()
    ]
    return Sheet(("policy", "trial", "loss", ""), rows, "Seed 0.", "what was tried")


def run(
    out: Path,
    seeds: int = 3,
    quick: bool = False,
    overrides: Sequence[str] = (),
    cases: Sequence[Case] = CASES,
) -> list[str]:
    """Train what is not there yet; policies.md into `out`; the lines to print. FedAvg comes first."""
    own = fleet([*(QUICK if quick else ()), *overrides])
    bench = Bench(own, out, 1 if quick else seeds)
    found = [bench.found(case) for case in cases]
    plain = [run for case in found for run in case.runs.get("", ())]
    every = [run for case in found for same in case.runs.values() for run in same]
    target, _ = default_target(plain)
    sheets = [
        *(table(found), tuning(found), comparison(plain)),
        *(target_sheet(plain, target), robustness_sheet(every)),
    ]
    lines = [sheet.markdown() for sheet in sheets]
    write(out / "policies.md", "\n".join(lines).encode())
    return lines[:1]
