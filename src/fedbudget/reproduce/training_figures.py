"""Figures 2, 3 and 4 of the CAFL-L paper from real runs, with both accountings side by side."""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Protocol

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedbudget.report import figures
from fedbudget.report.figures import STYLES, colour, legend_below, style, tidy
from fedbudget.report.load import Loaded, by_name
from fedbudget.units import show

WHAT = {
    "energy": "energy a client and round",
    "communication": "uplink a client and round",
    "memory": "memory of a client",
    "temperature": "temperature",
}
PAPER_UNIT = "proxy, no unit"
TITLES = {"paper": "paper proxy", "counted": "counted"}


class Measured(Protocol):
    @property
    def budgets(self) -> Mapping[str, Mapping[str, float]]: ...

    def course(self, run: Loaded, accounting: str, resource: str) -> dict[int, float]: ...


def usage_figure(runs: Sequence[Loaded], by: Measured, resources: Sequence[str]) -> Figure:
    """A row a resource; the papers' proxy left, counted right; the budget as a black line."""
    with style(9):
        figure = Figure(figsize=(8.4, 2.7 * len(resources) + 0.5), layout="constrained")
        panels = figure.subplots(len(resources), 2, squeeze=False)
        for i, resource in enumerate(resources):
            for j, accounting in enumerate(TITLES):
                axes = panels[i, j]
                for k, (name, same) in enumerate(by_name(runs).items()):
                    courses = [by.course(run, accounting, resource) for run in same]
                    rounds = sorted(set.intersection(*(set(c) for c in courses)))
                    if not rounds:
                        continue
                    values = np.array([[c[r] for r in rounds] for c in courses])
                    look = {"color": colour(k), "linestyle": STYLES[k], "label": name}
                    marker = "o" if len(rounds) == 1 else None
                    axes.plot(rounds, values.mean(0), linewidth=1.6, marker=marker, **look)
                    band = (values.min(0), values.max(0))
                    axes.fill_between(rounds, *band, color=colour(k), alpha=0.15, linewidth=0)
                limit = by.budgets[accounting][resource]
                axes.axhline(limit, color="black", linewidth=1, label="budget", zorder=1)
                heat = "above ambient" if resource == "temperature" else ""
                y = PAPER_UNIT if accounting == "paper" else heat  # the ticks have their units
                tidy(axes, y, f"{WHAT[resource]}: {TITLES[accounting]}")
                axes.set_xlabel("round")
                _scale(axes, partial(amount, resource=resource, accounting=accounting))
        legend_below(figure)
    return figure


def _scale(axes: Axes, write: Callable[[float, float | None], str]) -> None:
    """From zero, or a log scale where values are far apart; ticks that can be read."""
    low, high = axes.dataLim.ymin, axes.dataLim.ymax
    if low > 0 and high > 6 * low:
        axes.set_yscale("log")
        axes.set_ylabel(", ".join(filter(None, (axes.get_ylabel(), "log scale"))))
        low, high = axes.get_ylim()
        decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        steps = [m * 10.0**e for e in decades for m in (1, 2, 5)]
        axes.set_yticks([t for t in steps if low < t < high], minor=False)
        axes.set_yticks([], minor=True)
    else:
        axes.set_ylim(0, high * 1.1)
    axes.yaxis.set_major_formatter(write)


def amount(value: float, position: float | None = None, *, resource: str, accounting: str) -> str:
    """With its unit; the proxies have none, and table 1 prints large ones in 1e6."""
    if value == 0:
        return "0"
    if accounting != "paper":
        return show(value, resource)
    return f"{value / 1e6:.3g}e6" if value >= 1e4 else f"{value:.3g}"


def loss_figure(runs: Sequence[Loaded], printed: Mapping[str, float]) -> Figure:
    """Validation loss by round, and where the papers' runs ended."""
    figure = figures.loss_figure(runs)
    axes = figure.axes[0]
    for (name, loss), dashes in zip(printed.items(), ("--", ":"), strict=True):
        axes.axhline(
            loss, color="grey", linestyle=dashes, linewidth=1, label=f"paper, {name}: {loss:.2f}"
        )
    for legend in (axes.get_legend(), *figure.legends):
        if legend is not None:
            legend.remove()
    with style(10):
        legend_below(figure, columns=2)
    return figure
