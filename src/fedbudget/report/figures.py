"""Figures from run folders, for papers (PNG, SVG, PDF) and for the HTML page."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import matplotlib
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fedbudget.report.load import Loaded, by_name

# Okabe-Ito: told apart by colour-blind readers
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
STYLES = ("-", "--", "-.", (0, (1, 1)), (0, (5, 1, 1, 1, 1, 1)), (0, (8, 2)), "-")
"""for lines that lie on each other, and for print in grey"""

COARSE = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100)
FINE = (0.1, 0.15, 0.2, 0.3, 0.5, 0.7, 1, 1.5, 2, 3, 5, 7, 10)
"""ticks of a log scale"""


class Picture(NamedTuple):
    name: str
    """part of a file's name"""
    caption: str
    figure: Figure


def pictures(runs: Sequence[Loaded]) -> list[Picture]:
    """All that the runs have something to show for; the loss is always first."""
    from fedbudget.report import course

    found = [
        Picture(
            "loss",
            "Validation loss after each round; the band is the range over seeds.",
            loss_figure(runs),
        )
    ]
    if figure := course.usage_figure(runs):
        text = (
            "Usage over budget, the worst client of each round and seed; the black line is the "
            "budget. Counted and the papers' proxies (paper) are different units."
        )
        found.append(Picture("usage", text, figure))
    if figure := course.duals_figure(runs):
        text = "Duals that the knobs of each round came from, mean over the clients"
        found.append(Picture("duals", f"{text}; the band is their range.", figure))
    if figure := course.knobs_figure(runs):
        text = "Knobs by round: the middle client; the band is the range over clients."
        found.append(Picture("knobs", text, figure))
    return found


@contextmanager
def style(size: float = 10) -> Iterator[None]:
    with matplotlib.rc_context({"font.size": size, "svg.fonttype": "none"}):
        yield


def loss_figure(runs: Sequence[Loaded]) -> Figure:
    """Validation loss against rounds: the mean over seeds as a line, its range as a band."""
    with style():
        figure = Figure(figsize=(6.4, 3.8), layout="constrained")
        axes = figure.subplots()
        for i, (name, same) in enumerate(by_name(runs).items()):
            curves = [dict(run.losses()) for run in same]
            rounds = sorted(set.intersection(*(set(c) for c in curves))) if curves else []
            if not rounds:
                continue
            values = np.array([[c[r] for r in rounds] for c in curves])  # (seeds, rounds)
            mean = values.mean(0)
            label = f"{name} ({len(same)} seeds)" if len(same) > 1 else name
            axes.plot(
                *(rounds, mean),
                color=colour(i),
                label=f"{label}: {mean[-1]:.2f}",
                marker="o" if len(rounds) == 1 else None,
            )
            if len(same) > 1:
                axes.fill_between(rounds, values.min(0), values.max(0), color=colour(i), alpha=0.2)
        tidy(axes, "validation loss (nats)")
        axes.set_xlabel("round")
        if axes.lines:
            axes.legend(frameon=False)
    return figure


def colour(i: int) -> str:
    return COLOURS[i % len(COLOURS)]


def tidy(axes: Axes, y: str = "", title: str = "") -> None:
    """Rounds across, a light grid, no box."""
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
    axes.set_ylabel(y)
    if title:
        axes.set_title(title, loc="left")
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)


def legend_below(figure: Figure, columns: int = 4) -> None:
    """The lines' names once, from all panels."""
    known: dict[str, Artist] = {}
    for axes in figure.axes:
        handles, labels = axes.get_legend_handles_labels()
        known |= {label: handle for handle, label in zip(handles, labels, strict=True)}
    if known:
        figure.legend(
            list(known.values()),
            list(known),
            loc="outside lower center",
            ncols=min(columns, len(known)),
            frameon=False,
        )


def ratio_axis(axes: Axes) -> None:
    """Usage over budget: the limit drawn, log scale where values are far apart, plain ticks."""
    axes.axhline(1, color="black", linewidth=1, zorder=1)
    low, high = axes.dataLim.ymin, axes.dataLim.ymax
    if low > 0 and high > 4:
        axes.set_yscale("log")
        low, high = axes.get_ylim()
        steps = FINE if high < 8 * low else COARSE
        axes.set_yticks([t for t in steps if low < t < high], minor=False)
        axes.set_yticks([], minor=True)
        axes.yaxis.set_major_formatter(plain)
    else:
        axes.set_ylim(0, max(high, 1) * 1.1)


def plain(value: float, position: float | None) -> str:
    return f"{value:g}"
