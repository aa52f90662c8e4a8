"""Charts drawn by matplotlib, for papers: PNG, SVG, PDF."""

import math
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import matplotlib
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fedbudget.report.chart import Chart, Line, Panel, Strip
from fedbudget.report.load import Loaded
from fedbudget.report.loss import loss_chart

# Okabe-Ito: told apart by colour-blind readers
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
STYLES = (*("-", "--", "-.", (0, (1, 1)), (0, (5, 1, 1, 1, 1, 1)), (0, (8, 2)), (0, (3, 1))),)
"""for lines that lie on each other, and for print in grey"""
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
COUNTED = ("round", "agent")
"""x axes without fractions"""
WIDTH = {1: 6.4, 2: 8.4, 3: 11.0}
"""inches of a figure by its columns"""

INSIDE = 5
"""names that have room among the curves"""

COARSE = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100)
FINE = (0.1, 0.15, 0.2, 0.3, 0.5, 0.7, 1, 1.5, 2, 3, 5, 7, 10)
"""ticks of a log scale"""


@contextmanager
def style(size: float = 10) -> Iterator[None]:
    with matplotlib.rc_context({"font.size": size, "svg.fonttype": "none"}):
        yield


def drawn(chart: Chart) -> Figure:
    """All panels of a chart on one sheet, the lines' names once."""
    columns = max(len(row) for row in chart.rows)
    alone = len(chart.panels) == 1 and chart.panels[0].strip is None
    with style(10 if alone else 9):
        heights = [3.8 if alone else max(map(_height, row)) for row in chart.rows]
        size = (WIDTH.get(columns, 3.6 * columns), sum(heights) + (0 if alone else 0.5))
        figure = Figure(figsize=size, layout="constrained")
        grid = figure.subplots(
            len(chart.rows), columns, squeeze=False, gridspec_kw={"height_ratios": heights}
        )
        for axes_of, panels in zip(grid, chart.rows, strict=True):
            for axes in axes_of[len(panels) :]:
                axes.set_visible(False)
            for axes, panel in zip(axes_of, panels, strict=False):
                _panel(axes, panel, size[0] / columns)
        if alone and 0 < len(chart.panels[0].lines) <= INSIDE:
            figure.axes[0].legend(frameon=False)
        else:
            legend_below(figure)
    return figure


def _height(panel: Panel) -> float:
    """inches"""
    return 0.8 + 0.22 * len(panel.strip.rows) if panel.strip else 2.5


def _panel(axes: Axes, panel: Panel, width: float) -> None:
    title = textwrap.fill(panel.title, int(width * 11))  # letters that fit beside the axis
    tidy(axes, panel.y, title.replace("$", r"\$"))
    axes.set_xlabel(panel.x)
    if panel.x not in COUNTED:
        axes.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
    if panel.strip:
        _strip(axes, panel.strip)
        return
    for line in panel.lines:
        _line(axes, line)
    if panel.categories:
        axes.set_yticks(range(len(panel.categories)), panel.categories)
        axes.set_ylim(-0.5, len(panel.categories) - 0.5)
    elif panel.limit is not None:
        axes.axhline(panel.limit, color="black", linewidth=1, zorder=1)
    if panel.log:
        _log(axes)
    elif panel.zero:
        high = max(axes.dataLim.ymax, panel.limit or 0.0, 2.0 if panel.whole else 0.0)
        axes.set_ylim(0, high * 1.1 if high > 0 else 1)
    if panel.whole:
        axes.yaxis.set_major_locator(MaxNLocator(6, integer=True))


def _line(axes: Axes, line: Line) -> None:
    """A course and its band; a single point is a dot."""
    look: dict[str, Any] = {"color": colour(line.place), "linestyle": dashes(line.place)}
    if len(line.x) == 1:
        look["marker"] = "o"
    label = line.name.replace("$", r"\$")
    label = " " + label if label.startswith("_") else label  # matplotlib hides such names
    if line.points:
        place = line.place % len(MARKERS)
        look |= {"linestyle": "none", "marker": MARKERS[place], "markersize": 4, "clip_on": False}
        if line.banded:
            axes.vlines(line.x, line.low, line.high, color=colour(line.place), linewidth=1)
    drawstyle: Any = "steps-mid" if line.steps else "default"
    axes.plot(line.x, line.y, drawstyle=drawstyle, linewidth=1.6, label=label, **look)
    if line.banded and not line.points:
        how: Any = "mid" if line.steps else None
        band = {"color": colour(line.place), "alpha": 0.18, "linewidth": 0, "step": how}
        axes.fill_between(line.x, line.low, line.high, **band)


def _strip(axes: Axes, strip: Strip) -> None:
    shades = LinearSegmentedColormap.from_list("strip", ["#ffffff", COLOURS[0]])
    rows = range(len(strip.rows))
    if strip.x:
        axes.pcolormesh(strip.x, rows, strip.shares, cmap=shades, vmin=0, vmax=1, shading="nearest")
    axes.set_yticks(rows, [name.replace("$", r"\$") for name in strip.rows])
    axes.grid(visible=False)
    for row in rows[1:]:
        axes.axhline(row - 0.5, color="white", linewidth=2)


def loss_figure(runs: Sequence[Loaded]) -> Figure:
    """Validation loss against rounds: the mean over seeds as a line, its range as a band."""
    return drawn(loss_chart(runs))


def colour(place: int) -> str:
    return COLOURS[place % len(COLOURS)]


def dashes(place: int) -> Any:
    """Past the last colour they begin again with other dashes."""
    return STYLES[(place + place // len(COLOURS)) % len(STYLES)]


def tidy(axes: Axes, y: str = "", title: str = "") -> None:
    """Rounds across, a light grid, no box."""
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
    axes.set_ylabel(y)
    if title:
        axes.set_title(title, loc="left")
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)


def legend_below(figure: Figure, columns: int = 4) -> None:
    """The lines' names once, from all panels; long ones in fewer columns, many make it higher."""
    known: dict[str, Artist] = {}
    for axes in figure.axes:
        handles, labels = axes.get_legend_handles_labels()
        known |= {label: handle for handle, label in zip(handles, labels, strict=True)}
    if known:
        width, height = figure.get_size_inches()
        longest = max(map(len, known)) + 7  # and the line before it
        columns = max(1, min(columns, len(known), int(width * 12 / longest)))
        figure.set_size_inches(width, height + 0.2 * (math.ceil(len(known) / columns) - 1))
        figure.legend(
            list(known.values()),
            list(known),
            loc="outside lower center",
            ncols=columns,
            frameon=False,
        )


def _log(axes: Axes) -> None:
    """A log scale with plain ticks."""
    axes.set_yscale("log")
    low, high = axes.get_ylim()
    if COARSE[0] <= low and high <= 2 * COARSE[-1]:
        steps = FINE if high < 8 * low else COARSE
        axes.set_yticks([t for t in steps if low < t < high], minor=False)
        axes.set_yticks([], minor=True)
        axes.yaxis.set_major_formatter(plain)


def plain(value: float, position: float | None) -> str:
    return f"{value:g}"
