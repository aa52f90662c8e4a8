"""What a profile predicts, beside what was measured: sentences, a table, a figure."""

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator
from rich.table import Table

from fedbudget.config import find_config, load
from fedbudget.errors import UserError
from fedbudget.profile import LONG, SHORT, Profile, measure, save
from fedbudget.report.figures import COLOURS, MARKERS, style
from fedbudget.report.write import PICTURES
from fedbudget.resources.fitted import Trial
from fedbudget.terminal import console, say
from fedbudget.units import show

SPOILED = 0.8
"""CPU time over wall time, below which other work was running"""
BAND = 0.1
"""relative error that the figure shows as near enough"""


class Pair(NamedTuple):
    layers: int
    measured: float
    predicted: float

    @property
    def error(self) -> float:
        return abs(self.predicted / self.measured - 1)


def pairs(profile: Profile, trials: Sequence[Trial], resource: str) -> list[Pair]:
    """Of time or memory, where it was measured."""
    found = []
    for trial in trials:
        amount = trial.seconds if resource == "time" else trial.bytes
        if amount > 0:
            found.append(Pair(trial.knobs.layers, amount, profile.predicted(trial.knobs)[resource]))
    return found


def run(name: str, changes: Sequence[str], out: Path, plot: Path | None) -> None:
    """`fedbudget profile`: measure, write, print."""
    if out.suffix != ".toml":
        raise UserError(f"--out {out}: a profile is a .toml file")
    if plot is not None and plot.suffix not in PICTURES:
        raise UserError(f"--plot {plot}: {plot.suffix!r} is not one of {', '.join(PICTURES)}")
    profile = measure(load(find_config(name), changes), out.stem)
    save(profile, out)
    console().print(table(profile))
    for resource in ("time", "memory"):
        if pairs(profile, profile.trials, resource):
            say(f"{resource}: {off(profile, resource)}")
    if profile.share < SPOILED:
        say(
            f"Other work was running: this had {profile.share:.0%} of a core. Times are those of a "
            "machine with nothing else to do, but caches were shared: measure again when it is idle."
        )
    if plot is not None:
        plot.parent.mkdir(parents=True, exist_ok=True)
        figure(profile).savefig(plot, dpi=160)
    say(f"wrote {out}{f', {plot}' if plot else ''}; use it: --set budget.device={out}")


def off(profile: Profile, resource: str) -> str:
    """How well the fit tells what it was made from, and what it has not seen."""
    seen, new = (pairs(profile, t, resource) for t in (profile.trials, profile.checks))
    text = f"median error {statistics.median(p.error for p in seen):.1%}"
    return text + (f", unseen {statistics.median(p.error for p in new):.1%}" if new else "")


def table(profile: Profile) -> Table:
    """A row for each k and batch; a sample's time is without what a run takes whatever its steps."""
    joules = any(trial.joules for trial in profile.trials)
    columns = ("layers", "batch", "ms a sample", "fitted", "peak memory", "fitted")
    found = Table(title=f"{profile.device.name}: measured, and as fitted")
    for column in (*columns, *(["mJ a sample"] if joules else [])):
        found.add_column(column, justify="right")
    alone = [t for t in profile.trials if t.knobs.accumulate == 1]
    short = {(t.knobs.layers, t.knobs.batch): t for t in alone if t.knobs.steps == SHORT}
    for long in (t for t in alone if t.knobs.steps == LONG):
        less = short[long.knobs.layers, long.knobs.batch]
        samples = (LONG - SHORT) * long.knobs.batch
        after, before = (profile.predicted(t.knobs) for t in (long, less))
        found.add_row(
            *(str(long.knobs.layers), str(long.knobs.batch)),
            f"{1e3 * (long.seconds - less.seconds) / samples:.3g}",
            f"{1e3 * (after['time'] - before['time']) / samples:.3g}",
            show(long.bytes, "memory") if long.bytes else "-",
            show(after["memory"], "memory") if long.bytes else "-",
            *([f"{1e3 * (long.joules - less.joules) / samples:.3g}"] if joules else []),
        )
    return found


def figure(profile: Profile) -> Figure:
    """Predicted against measured: on the line is right, in the band near enough."""
    units = {"time": ("ms", 1e3), "memory": ("MB", 1e-6)}
    known = [r for r in units if pairs(profile, profile.trials, r)]
    with style(9):
        sheet = Figure(figsize=(4.4 * len(known), 4.6), layout="constrained")
        every = sheet.subplots(1, len(known), squeeze=False)[0]
        for axes, resource in zip(every, known, strict=True):
            unit, scale = units[resource]
            _panel(axes, profile, resource, scale)
            axes.set_title(f"{resource}: {off(profile, resource)}")
            axes.set_xlabel(f"measured, {unit}")
            axes.set_ylabel(f"predicted, {unit}")
        every[0].legend(frameon=False, loc="upper left")
    return sheet


def _panel(axes: Axes, profile: Profile, resource: str, scale: float) -> None:
    depth = len(profile.shape.parameters)
    rows = sorted({t.knobs.layers for t in profile.trials})
    every: list[float] = []
    for trials, seen in ((profile.trials, True), (profile.checks, False)):
        known = pairs(profile, trials, resource)
        for i, k in enumerate(rows):
            x = [scale * p.measured for p in known if p.layers == k]
            y = [scale * p.predicted for p in known if p.layers == k]
            every += x + y
            colour, marker = COLOURS[i % len(COLOURS)], MARKERS[i % len(MARKERS)]
            face = "none" if seen else colour
            name = f"{k} of {depth} layer groups" if seen else None
            axes.plot(x, y, marker, color=colour, mfc=face, ms=5, label=name)
    low, high = 0.8 * min(every), 1.25 * max(every)
    ends = [low, high]
    below, above = ([f * e for e in ends] for f in (1 - BAND, 1 + BAND))
    axes.fill_between(ends, below, above, color="0.9", lw=0)
    axes.plot(ends, ends, color="0.6", lw=0.8, zorder=1.5)
    axes.plot([], [], "o", color="0.3", ms=5, label="filled: not used for the fit")
    axes.plot([], [], color="0.9", lw=6, label=f"within {BAND:.0%}")
    axes.set(xscale="log", yscale="log", xlim=ends, ylim=ends, aspect="equal")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.set_major_formatter("{x:g}")
        axis.set_minor_formatter("")
