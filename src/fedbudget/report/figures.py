"""Figures from run folders, for papers (PNG, SVG, PDF) and for the HTML page."""

from collections.abc import Sequence

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fedbudget.report.load import Loaded, by_name

# Okabe-Ito: told apart by colour-blind readers
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")


def loss_figure(runs: Sequence[Loaded]) -> Figure:
    """Validation loss against rounds: the mean over seeds as a line, its range as a band."""
    with matplotlib.rc_context({"font.size": 10, "svg.fonttype": "none"}):
        figure = Figure(figsize=(6.4, 3.8), layout="constrained")
        axes = figure.subplots()
        for (name, same), colour in zip(by_name(runs).items(), _cycle(), strict=False):
            curves = [dict(run.losses()) for run in same]
            rounds = sorted(set.intersection(*(set(c) for c in curves))) if curves else []
            if not rounds:
                continue
            values = np.array([[c[r] for r in rounds] for c in curves])  # (seeds, rounds)
            mean = values.mean(0)
            label = f"{name} ({len(same)} seeds)" if len(same) > 1 else name
            axes.plot(
                *(rounds, mean),
                color=colour,
                label=f"{label}: {mean[-1]:.2f}",
                marker="o" if len(rounds) == 1 else None,
            )
            if len(same) > 1:
                axes.fill_between(rounds, values.min(0), values.max(0), color=colour, alpha=0.2)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_xlabel("round")
        axes.set_ylabel("validation loss")
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
        if axes.lines:
            axes.legend(frameon=False)
    return figure


def _cycle() -> list[str]:
    return list(COLOURS) * 10
