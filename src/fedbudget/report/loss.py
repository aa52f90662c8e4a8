"""Validation loss against rounds, and against what was spent to reach it."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from statistics import fmean
from typing import Any, NamedTuple

from fedbudget.report.chart import Chart, Line, Panel, in_rows
from fedbudget.report.course import line, over_seeds
from fedbudget.report.load import Loaded, by_name

Y = "validation loss (nats)"


def loss_chart(runs: Sequence[Loaded]) -> Chart:
    """Its lines' names tell the loss of their last round."""
    lines = []
    for place, (name, same) in enumerate(by_name(runs).items()):
        course = over_seeds([dict(run.losses()) for run in same])
        if course:
            label = f"{name} ({len(same)} seeds)" if len(same) > 1 else name
            last = next(reversed(course.values()))[0]
            lines.append(line(course, f"{label}: ends at {last:.3f}", place))
    text = (
        "Validation loss after each round: the mean over the seeds that reached it; the band is "
        "their range."
    )
    return Chart("loss", "Validation loss", text, [[Panel("", "round", Y, lines)]])


class Spent(NamedTuple):
    """What a loss is held against."""

    title: str
    axis: str
    units: tuple[tuple[float, str], ...]
    """largest first"""


SPENT = {
    "energy": Spent(
        "Loss by energy", "counted energy of all clients", ((1e6, "MJ"), (1e3, "kJ"), (1, "J"))
    ),
    "uplink": Spent(
        "Loss by uplink", "uplink of all clients", ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"))
    ),
    "time": Spent("Loss by time", "time of the run", ((3600, "h"), (60, "min"), (1, "s"))),
    "device time": Spent(
        "Loss by device time", "simulated time of the fleet", ((3600, "h"), (60, "min"), (1, "s"))
    ),
}


def cost_chart(runs: Sequence[Loaded]) -> Chart | None:
    """The loss against energy, bytes and time so far, each over all clients."""
    panels = []
    for what, (title, axis, units) in SPENT.items():
        lines = []
        for place, (name, same) in enumerate(by_name(runs).items()):
            if found := _against(same, what, name, place):
                lines.append(found)
        most = max((line.x[-1] for line in lines), default=0.0)
        if most > 0:
            scale, unit = next((u for u in units if most >= 2 * u[0]), units[-1])
            scaled = [replace(line, x=[x / scale for x in line.x]) for line in lines]
            panels.append(Panel(title, f"{axis} ({unit})", Y, scaled))
    if not panels:
        return None
    text = (
        "The same losses against what the run had spent by then: energy as it is counted (work by "
        "a device profile, not a meter) and bytes sent up, summed over all clients, and the time "
        "the run took on the machine it ran on; for a simulated fleet the time of its own clock. With "
        "seeds, both axes are means over those that went furthest."
    )
    rows = in_rows(panels, 2) if len(panels) > 3 else [panels]
    return Chart("cost", "Validation loss by what it cost", text, rows)


def _against(same: Sequence[Loaded], what: str, name: str, place: int) -> Line | None:
    """Loss against the amount spent until its round."""
    seeds = [(dict(run.losses()), _so_far(run, what)) for run in same]
    seeds = [(losses, spent) for losses, spent in seeds if losses and spent]
    # what one that stopped had spent would bend the line backwards where it ends
    last = max((max(losses) for losses, _ in seeds), default=0)
    seeds = [(losses, spent) for losses, spent in seeds if max(losses) == last]
    course = over_seeds([losses for losses, _ in seeds])
    if not course:
        return None
    x = [fmean(spent[round] for losses, spent in seeds if round in losses) for round in course]
    return replace(line(course, name, place), x=x)


def _so_far(run: Loaded, what: str) -> dict[int, float]:
    """By round; empty where nothing of it was counted."""
    if what == "device time":
        amounts = [float(record.get("world", {}).get("clock_s", 0.0)) for record in run.records]
    else:
        amounts = list(accumulate(_spent(record, what) for record in run.records))
    if not amounts or amounts[-1] <= 0:
        return {}
    return {int(r["round"]): amount for r, amount in zip(run.records, amounts, strict=True)}


def _spent(record: dict[str, Any], what: str) -> float:
    if what == "energy":
        counted = record.get("usage", {}).get("counted", {})
        return sum(float(use.get("energy", 0.0)) for use in counted.values())
    return float(record["up_bytes"] if what == "uplink" else record["wall_s"])
