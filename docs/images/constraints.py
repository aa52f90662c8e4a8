"""Draws constraints.png: each set in the plane, with points outside and where they are projected.

python docs/images/constraints.py
"""

import math
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import torch
from matplotlib.axes import Axes
from torch import Tensor

from fedbudget.constraints import (
    ConstraintSet,
    affine,
    around,
    box,
    distance,
    group_l1_ball,
    half_space,
    intersection,
    l1_ball,
    l2_ball,
    linf_ball,
    nonnegative,
    nuclear_ball,
    per_layer,
    simplex,
    top_k,
)
from fedbudget.models.flat import Layout

FILL, EDGE, MOVE, STAY = "#9ecae9", "#0072b2", "#d55e00", "#222222"  # safe for the colour-blind
REACH = 2.2
ANGLES = (20, 62, 110, 155, 200, 248, 290, 335)
LAYERS = Layout(("first", "second"), ((1,), (1,)), (0, 1))

# title, set, and the plane of its space that is drawn: (x, y) -> plane[0] x + plane[1] y
PLANE = ((1.0, 0.0), (0.0, 1.0))
PANELS: tuple[tuple[str, ConstraintSet, tuple[tuple[float, ...], ...]], ...] = (
    ("l1_ball(1.2)", l1_ball(1.2), PLANE),
    ("l2_ball(1.2)", l2_ball(1.2), PLANE),
    ("linf_ball(0.9)", linf_ball(0.9), PLANE),
    ("box([-1, -0.6], [0.6, 1])", box([-1, -0.6], [0.6, 1.0]), PLANE),
    ("simplex(1.2)", simplex(1.2), PLANE),
    ("nonnegative()", nonnegative(), PLANE),
    ("half_space([1, 2], 0.6)", half_space([1.0, 2.0], 0.6), PLANE),
    ("affine([[1, -1]], [0.2])", affine([[1.0, -1.0]], [0.2]), PLANE),
    (
        "group_l1_ball(1.4, sizes=[2, 1])\nat points (x, x, y)",
        group_l1_ball(1.4, sizes=[2, 1]),
        ((1.0, 1.0, 0.0), (0.0, 0.0, 1.0)),
    ),
    (
        "nuclear_ball(1.8, (2, 2))\nat matrices [[x, y], [y, x]]",
        nuclear_ball(1.8, (2, 2)),
        ((1.0, 0.0, 0.0, 1.0), (0.0, 1.0, 1.0, 0.0)),
    ),
    ("top_k(1), not convex", top_k(1), PLANE),
    (
        "intersection(l2_ball(1.3),\nhalf_space([1, 1], 0.3))",
        intersection(l2_ball(1.3), half_space([1.0, 1.0], 0.3)),
        PLANE,
    ),
    ("around(l1_ball(0.8),\n[0.4, -0.5])", around(l1_ball(0.8), [0.4, -0.5]), PLANE),
    (
        'per_layer(layout,\n{"first": box(-0.2, 1)})',
        per_layer(LAYERS, {"first": box(-0.2, 1.0)}),
        PLANE,
    ),
)


def draw(axes: Axes, set: ConstraintSet, plane: Tensor) -> None:
    side = torch.linspace(-REACH, REACH, 241, dtype=torch.float64)
    y, x = torch.meshgrid(side, side, indexing="ij")
    far = distance(set, torch.stack((x, y), -1) @ plane)
    axes.contourf(x, y, far, levels=[-1, 0.02], colors=[FILL])
    axes.contour(x, y, far, levels=[0.02], colors=[EDGE], linewidths=1.2)
    turns = torch.tensor([math.radians(a) for a in ANGLES], dtype=torch.float64)
    radii = torch.tensor([1.95, 1.6] * (len(ANGLES) // 2), dtype=torch.float64)
    starts = torch.stack((radii * turns.cos(), radii * turns.sin()), -1)
    ends = set.project(starts @ plane) @ torch.linalg.pinv(plane)
    for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
        if start == end:
            axes.plot(*start, "o", ms=4.5, mfc="white", mec=STAY)
            continue
        arrow = {"arrowstyle": "-|>", "color": MOVE, "lw": 1.3, "shrinkA": 0, "shrinkB": 0}
        axes.annotate("", end, start, arrowprops=arrow)
        axes.plot(*start, "o", ms=4.5, color=MOVE)


def framed(axes: Axes) -> None:
    axes.set(xlim=(-REACH, REACH), ylim=(-REACH, REACH), xticks=[-1, 0, 1], yticks=[-1, 0, 1])
    axes.set_aspect("equal")
    axes.axhline(0, color="0.8", lw=0.7, zorder=0)
    axes.axvline(0, color="0.8", lw=0.7, zorder=0)
    axes.tick_params(labelsize=7, length=2, colors="0.4")
    for spine in axes.spines.values():
        spine.set_color("0.75")


def legend(axes: Axes) -> None:
    axes.axis("off")
    marks = [
        plt.Rectangle((0, 0), 1, 1, fc=FILL, ec=EDGE),
        plt.Line2D([], [], color=MOVE, marker="o", ms=4.5, lw=1.3),
        plt.Line2D([], [], color=STAY, marker="o", ms=4.5, mfc="white", lw=0),
    ]
    words = ["the set", "a point outside, and the\nway to its projection", "a point that stays"]
    axes.legend(marks, words, loc="center", frameon=False, fontsize=10, labelspacing=1.2)


def main() -> None:
    figure, grid = plt.subplots(3, 5, figsize=(13.5, 8.8), layout="constrained")
    for axes, (title, set, plane) in zip(grid.flat, PANELS, strict=False):
        framed(axes)
        draw(axes, set, torch.tensor(plane, dtype=torch.float64))
        axes.set_title(title, fontsize=9.5, family="monospace")
    legend(grid.flat[-1])
    figure.savefig(Path(__file__).with_suffix(".png"), dpi=100)


if __name__ == "__main__":
    main()
