"""PC-FedAvg's theorem 3.4 by numbers: how fast objective and infeasibility fall with the rounds.

For each horizon R a run of R rounds with rho = sqrt(R) and a step size of c / sqrt(R), as the
theorem has them. Its bounds hold for an iterate drawn uniformly from the run, so what is measured
is the mean over the run's rounds: F(xbar) - F* above zero (upper bound) and below (lower bound:
the problem is constrained, so F may lie below F*), and the worst agent's squared distance.
Promised: O(R^-1/2) for both sides of the objective, O(R^-1) for the squared distance.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import numpy as np
import torch
from matplotlib.figure import Figure

from fedbudget import rounds, seeds
from fedbudget.algorithms import terms
from fedbudget.algorithms.pc_fedavg import pc_fedavg
from fedbudget.client import Recipe
from fedbudget.constraints import l1_ball
from fedbudget.control.controller import fixed
from fedbudget.data.examples import Arrays
from fedbudget.engines.embedded import InProcess
from fedbudget.files import write
from fedbudget.models.softmax import Softmax
from fedbudget.plan import Plan
from fedbudget.report.figures import COLOURS
from fedbudget.report.tables import spread
from fedbudget.reproduce import optimum
from fedbudget.task import classify
from fedbudget.types import Knobs

AGENTS, INPUTS, CLASSES, EXAMPLES = 5, 8, 3, 60
RADII = (0.5, 1.0, 1.5, 2.0, 2.5)
STEP = 2.0
"""the step size is this over sqrt(R)"""
THEORY = {"above": -0.5, "below": -0.5, "squared": -1.0}
NAMES = {
    "above": "objective above the optimum",
    "below": "objective below the optimum",
    "squared": "worst agent's squared distance",
}


@dataclass(frozen=True)
class Measured:
    """Means over the rounds of one run."""

    horizon: int
    seed: int
    above: float
    below: float
    squared: float


def problem(seed: int) -> list[Arrays]:
    """Five agents whose classes lie differently, in eight dimensions."""
    rng = seeds.rng(seed, 0, seeds.SERVER, "rates")
    centres = rng.normal(size=(CLASSES, INPUTS))
    clients = []
    for _ in range(AGENTS):
        y = rng.integers(CLASSES, size=EXAMPLES)
        own = centres + 0.7 * rng.normal(size=(CLASSES, INPUTS))
        x = own[y] + rng.normal(size=(EXAMPLES, INPUTS))
        clients.append(Arrays(torch.from_numpy(x).float(), torch.from_numpy(y)))
    return clients


def measure(horizon: int, seed: int) -> Measured:
    """One run of `horizon` rounds, five local steps of batch 12 each."""
    clients = problem(seed)
    best, _ = optimum.least(clients, CLASSES, fmean(RADII), 2000)
    plan = Plan(
        name="rates",
        seed=seed,
        rounds=horizon,
        cohort=AGENTS,
        model=_softmax,
        clients=clients,
        validation=None,
        algorithm=pc_fedavg(AGENTS, terms.horizon(1.0, horizon)),
        controller=fixed(Knobs(1, 5, 12)),
        task=classify(),
        lr=STEP / horizon**0.5,
        recipe=Recipe(optimizer="sgd"),
        constraints=[l1_ball(radius) for radius in RADII],
    )
    above, below, squared = [], [], []
    with InProcess(plan) as engine:
        layout = plan.build_model().layout
        for record, _ in rounds.run(plan, engine, layout, rounds.first_state(plan)):
            assert record.validation is not None
            apart = record.validation["objective"] - best
            above.append(max(0.0, apart))
            below.append(max(0.0, -apart))
            squared.append(record.validation["worst_infeasibility"] ** 2)
    return Measured(horizon, seed, fmean(above), fmean(below), fmean(squared))


def _softmax() -> Softmax:
    return Softmax(INPUTS, CLASSES)


def slope(found: Sequence[Measured], key: str) -> float:
    """Of the logarithm against that of the rounds, by least squares over the means of the seeds."""
    horizons = sorted({m.horizon for m in found})
    means = [fmean(getattr(m, key) for m in found if m.horizon == h) for h in horizons]
    kept = [(h, v) for h, v in zip(horizons, means, strict=True) if v > 0]
    if len(kept) < 2:
        return float("nan")
    x, y = np.log([h for h, _ in kept]), np.log([v for _, v in kept])
    return float(np.polyfit(x, y, 1)[0])


def table(found: Sequence[Measured]) -> str:
    horizons = sorted({m.horizon for m in found})
    lines = [
        f"| mean over the rounds | {' | '.join(f'R = {h}' for h in horizons)} | slope | theory |"
    ]
    lines.append("|" + "---|" * (len(horizons) + 3))
    for key, name in NAMES.items():
        cells = [
            spread([getattr(m, key) for m in found if m.horizon == h], ".4f") for h in horizons
        ]
        ends = [f"{slope(found, key):.2f}", f"{THEORY[key]:g} or less"]
        lines.append("| " + " | ".join([name, *cells, *ends]) + " |")
    return "\n".join(lines) + "\n"


def figure(found: Sequence[Measured]) -> Figure:
    """Log-log, the promised slope as a dotted line through the first point."""
    out = Figure(figsize=(6.4, 4.2), layout="constrained")
    axes = out.subplots()
    horizons = sorted({m.horizon for m in found})
    for (key, name), colour in zip(NAMES.items(), COLOURS, strict=False):
        means = [fmean(getattr(m, key) for m in found if m.horizon == h) for h in horizons]
        label = f"{name}: slope {slope(found, key):.2f}"
        axes.plot(horizons, means, "o-", color=colour, label=label)
        promised = [means[0] * (h / horizons[0]) ** THEORY[key] for h in horizons]
        axes.plot(horizons, promised, ":", color=colour, linewidth=1)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("rounds R")
    axes.set_ylabel("mean over the run's rounds")
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8)
    return out


def run(out: Path, quick: bool) -> str:
    """Measure, write table and figure; returns the table."""
    horizons = (8, 16, 32) if quick else (16, 32, 64, 128, 256, 512, 1024)
    found = [measure(h, seed) for h in horizons for seed in range(1 if quick else 3)]
    out.mkdir(parents=True, exist_ok=True)
    figure(found).savefig(out / "rates.png", dpi=120)
    text = table(found)
    write(out / "rates.md", text.encode())
    return text
