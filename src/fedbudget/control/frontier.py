"""The frontier: of each setting the most steps that budgets allow, and the best of them.

Expected progress of a local run: s / (1 + B / (b G)) steps' worth of a noiseless gradient, B the
gradient noise scale (McCandlish et al. 2018); times the share of the parameters that train; times
the share of an update that a codec keeps, over 1 + noise / |S| for what it adds to the mean of |S|
updates. The model says b = 1 is always best; trials (docs) did not, and a step has costs of its own,
so the grid starts at 2.

Most resources are straight lines over steps (a + b s), so one division for all settings at once
tells how far each could go; the forecast itself then decides, for the few that matter.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from itertools import product
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedbudget.codecs.codec import Fidelity
from fedbudget.errors import UserError
from fedbudget.types import Knobs
from fedbudget.units import show

Forecast = Callable[[Knobs], Mapping[str, float]]
"""what a round with these knobs will use; no resource falls with steps"""
SLACK = 1e-9
"""relative room for rounding when a usage is compared with its budget"""
AT_ONCE = 1e280
"""steps a unit of a resource that does not rise with them"""


@dataclass(frozen=True)
class Grid:
    """The knobs to choose from; steps run from `least` to `most`."""

    layers: tuple[int, ...]
    batches: tuple[int, ...]
    codecs: tuple[str, ...]
    least: int = 10
    most: int = 1000
    above: int = 0
    """layer groups at the top that are frozen in any case"""
    written: Callable[[float, str], str] = show
    """(amount, resource) -> how people read it"""
    thrift: float = 0.02
    """share of the progress that is given away to send less: 3 bits in place of 2 brought nothing"""


@dataclass(frozen=True)
class Progress:
    """Expected progress of a round; in proportion to its steps."""

    shares: tuple[float, ...]
    """share of the parameters in the top k groups, index k - 1"""
    codecs: Mapping[str, Fidelity]
    cohort: int
    noise_scale: float

    def __call__(self, knobs: Knobs) -> float:
        steps = knobs.steps / (1 + self.noise_scale / (knobs.batch * knobs.accumulate))
        kept, noise = self.codecs[knobs.codec]
        above = self.shares[knobs.above - 1] if knobs.above else 0.0
        return (
            steps
            * (self.shares[knobs.layers + knobs.above - 1] - above)
            * kept
            / (1 + noise / self.cohort)
        )


class Choice(NamedTuple):
    """Knobs that meet every budget, and what they are expected to cost and bring."""

    knobs: Knobs
    usage: Mapping[str, float]
    progress: float
    binding: str
    """the resource that stops it from doing more; "" where only the grid's most steps do"""


class _Lines(NamedTuple):
    """Usage over steps as straight lines, (resources, settings): (budget - base) pace steps are allowed.

    Where usage is no rising line, it allows any steps if it allows the least: `pace` has no end, and
    `base` is just below the usage of the least.
    """

    resources: tuple[str, ...]
    base: NDArray[np.float64]
    """usage of no steps"""
    pace: NDArray[np.float64]
    """steps a unit of the resource"""
    gain: NDArray[np.float64]
    """progress of one step, (settings,)"""
    falling: Mapping[str, float]
    """resources of which more steps take less, and the most that was seen of each: a lower budget cannot
    be kept by taking fewer steps"""


def within(usage: Mapping[str, float], budgets: Mapping[str, float]) -> bool:
    return all(usage[r] <= b * (1 + SLACK) for r, b in budgets.items())


def farthest(
    forecast: Forecast, start: Knobs, reach: int, budgets: Mapping[str, float]
) -> Knobs | None:
    """The most steps from those of `start` to `reach` that fit; by bisection where `reach` does not."""
    at = partial(replace, start)
    if within(forecast(there := at(steps=reach)), budgets):
        return there
    if not within(forecast(start), budgets):
        return None
    low, high = start.steps, reach - 1
    while low < high:
        middle = (low + high + 1) // 2
        if within(forecast(at(steps=middle)), budgets):
            low = middle
        else:
            high = middle - 1
    return at(steps=low)


def _up(value: float, digits: int = 3) -> float:
    """To so many digits, not below the value: what a sentence names as the least must do as a budget."""
    if value <= 0 or not math.isfinite(value):
        return value
    unit = 10.0 ** (math.floor(math.log10(value)) + 1 - digits)
    return math.ceil(round(value / unit, 6)) * unit


def why_not(
    forecast: Forecast,
    settings: Sequence[Knobs],
    budgets: Mapping[str, float],
    written: Callable[[float, str], str] = show,
) -> str:
    """The sentence that says which budgets no setting can meet, and their least values."""
    short = []
    for resource, budget in budgets.items():
        knobs = min(settings, key=lambda x: forecast(x)[resource])
        if (least := forecast(knobs)[resource]) > budget * (1 + SLACK):
            often = f" accumulate={knobs.accumulate}" if knobs.accumulate > 1 else ""
            short.append(
                f"{resource} <= {written(budget, resource)}; the least is "
                f"{written(_up(least), resource)}, at layers={knobs.layers} steps={knobs.steps} "
                f"batch={knobs.batch}{often} codec={knobs.codec}"
            )
    if short:
        return "no setting meets " + "; nor ".join(short)
    return (
        "no setting meets all budgets at once, though each alone can be met: loosen one of "
        + ", ".join(budgets)
    )


def affordable(
    forecast: Forecast, grid: Grid, progress: Progress, budgets: Mapping[str, float]
) -> list[Choice]:
    """Every setting that fits, with its most steps: the choice first, the others by progress."""
    return Frontier(forecast, grid, progress).all(budgets)


@dataclass(frozen=True, eq=False)  # hashed by identity: it is the key of a cache
class Frontier:
    forecast: Forecast
    grid: Grid
    progress: Progress

    @cached_property
    def settings(self) -> tuple[Knobs, ...]:
        """Layers, batch and codec, each with the least steps."""
        grid = self.grid
        return tuple(
            Knobs(k, grid.least, b, codec=c, above=grid.above)
            for k, b, c in product(grid.layers, grid.batches, grid.codecs)
        )

    @cached_property
    def _siblings(self) -> dict[tuple[int, int], list[int]]:
        """Settings that differ in their codec only, by (layers, batch)."""
        found: dict[tuple[int, int], list[int]] = {}
        for i, start in enumerate(self.settings):
            found.setdefault((start.layers, start.batch), []).append(i)
        return found

    def usage(self, knobs: Knobs) -> Mapping[str, float]:
        """As the forecast says; what was asked for lately is not counted again."""
        return _usage(self, knobs)

    def best(self, budgets: Mapping[str, float]) -> Choice:
        knobs = self.knobs(budgets)
        assert knobs is not None
        return self._choice(knobs, budgets)

    def knobs(self, budgets: Mapping[str, float], enough: float = 0.0) -> Knobs | None:
        """The most progress, in the code with the least uplink that brings almost as much.

        None where nothing can bring `enough`; knobs that bring less may still be found.
        """
        reach = self._reach(budgets)
        hopes = reach * self._lines.gain
        if hopes.max() < enough:  # a search takes longer than knowing that
            return None
        known: dict[int, Knobs | None] = {}
        while (i := int(hopes.argmax())) not in known:  # a hope is no less than the truth
            if hopes[i] == 0:
                raise UserError(self.why_not(budgets))
            known[i] = found = self._farthest(i, int(reach[i]), budgets)
            hopes[i] = self.progress(found) if found else 0.0
        top = known[i]
        if top is None:
            raise UserError(self.why_not(budgets))
        enough = (1 - self.grid.thrift) * self.progress(top)
        alike = []
        for i in self._siblings[top.layers, top.batch]:
            if hopes[i] >= enough:
                other = known[i] if i in known else self._farthest(i, int(reach[i]), budgets)
                if other and self.progress(other) >= enough:
                    alike.append(other)
        return min(alike, key=lambda knobs: self.usage(knobs).get("communication", 0.0))

    def all(self, budgets: Mapping[str, float]) -> list[Choice]:
        best = self.best(budgets)
        reach = self._reach(budgets)
        found = [self._farthest(i, int(n), budgets) for i, n in enumerate(reach) if n]
        others = (self._choice(k, budgets) for k in found if k is not None and k != best.knobs)
        return [best, *sorted(others, key=lambda c: -c.progress)]

    def why_not(self, budgets: Mapping[str, float]) -> str:
        return why_not(self.usage, self.settings, budgets, self.grid.written)

    @cached_property
    def _lines(self) -> _Lines:
        low, high = self.grid.least, self.grid.most
        at = sorted({low + (high - low) * k // 4 for k in range(5)})
        forecasts = [[self.forecast(replace(s, steps=n)) for s in self.settings] for n in at]
        resources = tuple(forecasts[0][0])
        seen = np.array([[[u[r] for r in resources] for u in row] for row in forecasts], float)
        slope = (seen[-1] - seen[0]) / max(1, high - low)
        steps = np.array(at, float)[:, None, None] - low
        straight = np.isclose(seen, seen[0] + slope * steps, rtol=1e-9, atol=0).all(axis=0)
        rises = straight & (slope > 0)
        gain = [self.progress(replace(start, steps=1)) for start in self.settings]
        base = np.where(rises, seen[0] - slope * low, np.nextafter(seen[0], -math.inf))
        pace = np.divide(1, slope, out=np.full_like(slope, AT_ONCE), where=rises)
        less = np.diff(seen, axis=0) < -SLACK * seen[:-1]  # (steps, settings, resources)
        most = seen.max(axis=(0, 1))
        falling = {r: float(most[i]) for i, r in enumerate(resources) if less[..., i].any()}
        return _Lines(resources, base.T.copy(), pace.T.copy(), np.array(gain), falling)

    def _reach(self, budgets: Mapping[str, float]) -> NDArray[np.int64]:
        """The steps that no straight resource forbids, for each setting; 0 where even `least` are."""
        budgets = {r: b for r, b in budgets.items() if b < math.inf}
        if not budgets:
            return np.full(len(self.settings), self.grid.most)
        for resource, most in self._lines.falling.items():
            if budgets.get(resource, math.inf) < most:
                raise UserError(
                    f"{resource} falls with the number of steps; the planner takes steps away until a "
                    "budget is met, so a resource with a budget must not fall as steps are added"
                )
        base, pace = _rows(self, tuple(budgets))
        limits = np.array([[b] for b in budgets.values()]) * (1 + SLACK)
        steps = ((limits - base) * pace).min(axis=0)
        # a little more than the division says: the forecast decides about the last step
        steps = np.minimum(steps * (1 + 1e-9) + 1e-6, self.grid.most)
        steps[steps < self.grid.least] = 0
        found: NDArray[np.int64] = steps.astype(int)
        return found

    def _farthest(self, i: int, reach: int, budgets: Mapping[str, float]) -> Knobs | None:
        return farthest(self.usage, self.settings[i], reach, budgets)

    def _choice(self, knobs: Knobs, budgets: Mapping[str, float]) -> Choice:
        usage = self.usage(knobs)
        return Choice(knobs, usage, self.progress(knobs), self._binding(knobs, budgets))

    def _binding(self, knobs: Knobs, budgets: Mapping[str, float]) -> str:
        """The resource that one more step would break; none where only the grid forbids that step."""
        try:
            more = self.usage(replace(knobs, steps=knobs.steps + 1))
        except UserError:  # a user's resource may end where the grid does
            if knobs.steps < self.grid.most:
                raise
            return ""
        broken = [r for r, b in budgets.items() if more[r] > b * (1 + SLACK)]
        if not broken and knobs.steps >= self.grid.most:
            return ""
        return max(broken or budgets, key=lambda r: more[r] / budgets[r])


@lru_cache(maxsize=64)
def _rows(
    frontier: Frontier, resources: tuple[str, ...]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Base and pace of some resources; budgets name the same ones each time."""
    lines = frontier._lines
    known = [lines.resources.index(r) for r in resources]
    return lines.base[known], lines.pace[known]


@lru_cache(maxsize=2**14)
def _usage(frontier: Frontier, knobs: Knobs) -> Mapping[str, float]:
    return frontier.forecast(knobs)
