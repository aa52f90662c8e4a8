"""The figures of `reproduce pc-fedavg`."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedbudget.report.figures import COLOURS

if TYPE_CHECKING:
    from fedbudget.reproduce.pc_tables import Point

STYLES = ("-", "--", "-.", ":", (0, (5, 1)))
MARKS = ("o", "s", "^", "D", "v")


def sweep_figure(points: "Sequence[Point]", limits: Mapping[str, float], level: float) -> Figure:
    """Objective against the worst agent's infeasibility: a point a run, a line along the best."""
    figure, axes = _empty()
    shown = list(limits.values())
    for method, colour, mark in zip(_methods(points), COLOURS, MARKS, strict=False):
        same = [p for p in points if p.method == method]
        x = [max(p.final["worst_infeasibility"], 1e-6) for p in same]
        y = [p.final["objective"] for p in same]
        axes.plot(x, y, mark, color=colour, markersize=4, alpha=0.4)
        best = _front(sorted(zip(x, y, strict=True)))
        shown += [y for _, y in best]
        axes.plot(*zip(*best, strict=True), marker=mark, color=colour, markersize=5, label=method)
    for name, value in limits.items():
        axes.axhline(value, color="black", linewidth=0.8, linestyle=":")
        axes.annotate(
            f"optimum, {name}",
            (0.99, value),
            (0, 2),
            ("axes fraction", "data"),
            "offset points",
            ha="right",
            fontsize=8,
        )
    axes.axvline(level, color="grey", linewidth=0.8)
    room = 0.08 * (max(shown) - min(shown))  # runs that diverged are left outside
    axes.set_ylim(min(shown) - room, max(shown) + room)
    axes.set_xscale("log")
    axes.set_xlabel("worst agent's distance to its set")
    axes.set_ylabel("objective at the mean model")
    axes.legend(frameon=False, fontsize=8)
    return figure


def _front(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    best: list[tuple[float, float]] = []
    for x, y in points:
        if not best or y < best[-1][1]:
            best.append((x, y))
    return best


def curves_figure(points: "Sequence[Point]", key: str, title: str) -> Figure:
    """A figure by round: the mean over seeds as a line, their range as a band."""
    figure, axes = _empty()
    for method, colour, style in zip(_methods(points), COLOURS, STYLES, strict=False):
        curves = [dict(p.curve(key)) for p in points if p.method == method]
        rounds = sorted(set.intersection(*(set(c) for c in curves)))
        values = np.array([[c[r] for r in rounds] for c in curves])
        axes.plot(rounds, values.mean(0), linestyle=style, color=colour, label=method)
        axes.fill_between(rounds, values.min(0), values.max(0), color=colour, alpha=0.15)
    axes.set_xlabel("round")
    axes.set_ylabel(title)
    axes.legend(frameon=False, fontsize=8)
    return figure


def local_steps_figure(points: "Sequence[Point]") -> Figure:
    """Objective and worst infeasibility by round, for several numbers of local steps."""
    figure = Figure(figsize=(9.0, 3.6), layout="constrained")
    keys = (
        ("objective", "objective at the mean model"),
        ("worst_infeasibility", "worst agent's distance to its set"),
    )
    for axes, (key, title) in zip(figure.subplots(1, 2), keys, strict=True):
        for point, colour, style in zip(points, COLOURS, STYLES, strict=False):
            axes.plot(
                *zip(*point.curve(key), strict=True),
                linestyle=style,
                color=colour,
                label=point.method,
            )
        _plain(axes)
        axes.set_xlabel("round")
        axes.set_ylabel(title)
    figure.axes[0].legend(frameon=False, fontsize=8)
    return figure


def _methods(points: "Sequence[Point]") -> list[str]:
    return list(dict.fromkeys(p.method for p in points))


def _empty() -> tuple[Figure, Axes]:
    figure = Figure(figsize=(6.4, 4.2), layout="constrained")
    axes = figure.subplots()
    _plain(axes)
    return figure, axes


def _plain(axes: Axes) -> None:
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
