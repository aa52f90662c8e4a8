"""What a sweep says, as numbers and tables: `reproduce pc-fedavg`."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean
from typing import Any

from fedbudget.report.sheets import spread

OURS = "PC-FedAvg"
LEVEL = 0.3
"""worst-agent infeasibility at which objectives are compared"""


@dataclass(frozen=True)
class Point:
    """One run of a method."""

    method: str
    rho: float
    step: float
    seed: int
    summary: Mapping[str, Any]
    records: Sequence[Mapping[str, Any]]

    @property
    def final(self) -> Mapping[str, float]:
        """The figures after the last round."""
        found: Mapping[str, float] = self.records[-1]["validation"]
        return found

    def curve(self, key: str) -> list[tuple[int, float]]:
        return [(r["round"], r["validation"][key]) for r in self.records if r["validation"]]


def at_level(points: Sequence[Point], level: float = LEVEL) -> float | None:
    """The objective at a worst infeasibility, on the line through the sweep's best points."""
    front: list[tuple[float, float]] = []
    for p in sorted(points, key=lambda p: p.final["worst_infeasibility"]):
        if not front or p.final["objective"] < front[-1][1]:
            front.append((p.final["worst_infeasibility"], p.final["objective"]))
    if not front or front[0][0] > level:
        return None
    for (x0, y0), (x1, y1) in pairwise(front):
        if x0 <= level < x1:
            near = max(x0, 1e-6)
            share = (math.log(level) - math.log(near)) / (math.log(x1) - math.log(near))
            return y0 + share * (y1 - y0)
    return front[-1][1]


def tables(
    dataset: str,
    radius: tuple[float, float],
    limits: Mapping[str, float],
    sweep: Sequence[Point],
    repeated: Sequence[Point],
    chosen: Mapping[str, Point],
) -> Iterator[str]:
    yield f"### {dataset}: l1 radii {radius[0]:.4g} to {radius[1]:.4g}"
    yield ""
    yield (
        f"Least objective of one model that obeys every agent: {limits['least radius']:.3f}; "
        f"of a mean of models that each obey their own agent: {limits['mean radius']:.3f}."
    )
    yield ""
    gap = limits["least radius"] - limits["mean radius"]
    ours = at_level([p for p in sweep if p.method == OURS])
    yield (
        f"| method, at worst infeasibility {LEVEL} (sweep, one seed) | objective | PC-FedAvg is "
        "below by | of the oracle gap |"
    )
    yield "|---|---|---|---|"
    for method in chosen:
        value = at_level([p for p in sweep if p.method == method])
        if value is None:
            yield f"| {method} | not reached | | |"
            continue
        below = f"{1 - ours / value:.0%}" if ours is not None and method != OURS else ""
        reached = (limits["least radius"] - value) / gap
        yield f"| {method} | {value:.3f} | {below} | {reached:.0%} |"
    yield ""
    yield (
        "| method | rho | step | objective | mean infeasibility | worst infeasibility | accuracy "
        "of the mean | of own models | projected: objective | accuracy of the mean | of own "
        "models | sparsity |"
    )
    yield "|" + "---|" * 12
    for method, at in chosen.items():
        same = [p for p in repeated if p.method == method]
        personal = [p.summary["personal"] for p in same]
        cells = [
            *(method, f"{at.rho:g}", f"{at.step:g}x"),
            *(_spread(same, key) for key in ("objective", "infeasibility", "worst_infeasibility")),
            _spread(same, "accuracy"),
            *(
                spread([p[key] for p in personal], ".3f")
                for key in (
                    *("personal_accuracy", "projected_objective", "projected_accuracy"),
                    *("projected_personal_accuracy", "projected_sparsity"),
                )
            ),
        ]
        yield "| " + " | ".join(cells) + " |"
    yield ""
    yield from _bytes(repeated)


def _bytes(repeated: Sequence[Point]) -> Iterator[str]:
    """What an agent sends, against the m blocks of the paper's form."""
    ours = [p for p in repeated if p.method == OURS]
    up = fmean(p.summary["wire"]["up_bytes"] for p in ours)
    agents, rounds = ours[0].summary["clients"], ours[0].summary["rounds"]
    each = up / agents / rounds
    blocks = each / 2 * agents
    yield (
        f"PC-FedAvg sends {each / 1e3:.1f} kB up an agent and round (2 vectors); all {agents} "
        f"blocks would be {blocks / 1e3:.1f} kB."
    )
    yield ""


def _spread(points: Sequence[Point], key: str) -> str:
    return spread([p.final[key] for p in points], ".3f")
