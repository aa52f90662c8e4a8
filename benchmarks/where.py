"""Where the time of a client goes: a local run by kind of work, as shares and as a picture."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from measure import table
from torch.profiler import ProfilerActivity, profile

from fedbudget.algorithms.fedavg import fedavg
from fedbudget.bench import NEVER, gpt_plan
from fedbudget.control.controller import fixed
from fedbudget.data.examples import Arrays, Parts
from fedbudget.engines.embedded import InProcess
from fedbudget.models.cnn import cnn
from fedbudget.plan import Plan
from fedbudget.rounds import first_state, one_round
from fedbudget.task import classify
from fedbudget.threads import one_thread
from fedbudget.types import Knobs

PICTURE = Path(__file__).resolve().parents[1] / "docs/images/profile.png"
KINDS = {
    "matrix products": ("addmm", "::mm", "bmm", "linear"),
    "convolutions": ("conv",),
    "attention": ("attention",),
    "optimiser": ("_fused_",),
    "copies, sums, zeros": ("copy_", "cat", "fill_", "zero_", "add", "sub", "div", "mul", "index"),
    "norms, activations, loss": ("norm", "gelu", "relu", "softmax", "nll", "dropout", "pool"),
}
REST = "the rest: Python, dispatch, frames"


def images(steps: int) -> Plan:
    """pfl-research's CIFAR-10 shape: 50 images a client, batch 10."""
    rng = torch.Generator().manual_seed(0)
    data = Arrays(torch.randn(300, 3, 32, 32, generator=rng), torch.arange(300) % 10)
    return Plan(
        name="images",
        seed=0,
        rounds=NEVER,
        cohort=6,
        model=partial(cnn, 3, 10),
        clients=Parts(data, [torch.arange(50 * i, 50 * i + 50).numpy() for i in range(6)]),
        validation=None,
        algorithm=fedavg(),
        controller=fixed(Knobs(4, steps, 10)),
        task=classify(),
        lr=0.1,
    )


CASES: dict[str, Callable[[], Plan]] = {
    "W1, GPT 2x128": partial(gpt_plan, 2, 128, 4),
    "W2, GPT 6x256": partial(gpt_plan, 6, 256, 1),
    "CNN, 50 images": partial(images, 5),
}


def shares(plan: Plan) -> dict[str, float]:
    """Of a round of six clients: self time of torch's operators by kind, and what is left."""
    with one_thread(), InProcess(plan) as engine:
        state = first_state(plan)
        layout = engine.host.model.layout
        one_round(plan, engine, layout, state, 1)
        whole = torch.profiler.record_function("whole round")
        with profile(activities=[ProfilerActivity.CPU]) as seen, whole:
            one_round(plan, engine, layout, state, 2)
    events = {event.key: event for event in seen.key_averages()}
    took = events["whole round"].cpu_time_total
    found = dict.fromkeys(KINDS, 0.0)
    for key, event in events.items():
        kind = next((k for k, words in KINDS.items() if any(w in key for w in words)), None)
        if kind is not None and key.startswith("aten::"):
            found[kind] += event.self_cpu_time_total / took
    return {**found, REST: max(0.0, 1 - sum(found.values()))}


def run(repeat: int, quick: bool = False) -> dict[str, Any]:
    found = {}
    for name, make in CASES.items():
        rows = [shares(make()) for _ in range(repeat)]
        found[name] = {kind: sorted(row[kind] for row in rows)[repeat // 2] for kind in rows[0]}
    if not quick:
        draw(found)
    return found


def draw(found: dict[str, dict[str, float]]) -> None:
    """A bar a workload, from left to right what takes it."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    colours = ["#0072B2", "#56B4E9", "#009E73", "#E69F00", "#F0E442", "#CC79A7", "#999999"]
    figure, axes = pyplot.subplots(figsize=(9, 3.2))
    names = list(found)[::-1]
    left = [0.0] * len(names)
    for kind, colour in zip([*KINDS, REST], colours, strict=True):
        widths = [100 * found[name][kind] for name in names]
        axes.barh(names, widths, left=left, color=colour, label=kind, edgecolor="white")
        for y, (start, width) in enumerate(zip(left, widths, strict=True)):
            if width >= 6:
                axes.text(start + width / 2, y, f"{width:.0f}%", ha="center", va="center")
        left = [a + b for a, b in zip(left, widths, strict=True)]
    axes.set_xlim(0, 100)
    axes.set_xlabel("share of a round's time, one core (%)")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(ncols=3, loc="lower center", bbox_to_anchor=(0.45, 1.02), frameon=False)
    figure.savefig(PICTURE, dpi=150, bbox_inches="tight")
    pyplot.close(figure)


def section(found: dict[str, Any]) -> list[str]:
    kinds = list(next(iter(found.values())))
    rows = [[name, *(f"{100 * own[kind]:.0f}%" for kind in kinds)] for name, own in found.items()]
    return [
        "A round of six clients in one process, by torch's profiler: each operator's own time, forward "
        "and backward together. The profiler itself adds to what is left over.",
        "",
        *table(["workload", *kinds], rows),
        "",
        "![Where the time of a round goes](images/profile.png)",
    ]
