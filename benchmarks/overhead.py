"""Overhead of a round of six clients that train nothing, beside a plain copy-and-average loop.

Both run interleaved in this process on one thread; the figure is the ratio of medians. Also what a
checkpoint costs beside the round it is of.
    python benchmarks/overhead.py [--out docs/benchmarks.md] [--repeat 60]
"""

import argparse
import platform
import statistics
import tempfile
import time
from functools import partial
from pathlib import Path

import torch

import fedbudget
from fedbudget.algorithms.fedavg import fedavg
from fedbudget.control.controller import fixed
from fedbudget.data.examples import Texts
from fedbudget.engines.embedded import InProcess
from fedbudget.models.gpt import GPT
from fedbudget.plan import Plan
from fedbudget.rounds import first_state, one_round
from fedbudget.runs import RunFolder
from fedbudget.task import classify
from fedbudget.types import Knobs

CLIENTS = 6
STEPS = 60
"""of a local run, as in the presets"""


def plain_round(
    weights: dict[str, torch.Tensor], model: torch.nn.Module
) -> dict[str, torch.Tensor]:
    """What anyone would write first: copy the weights in, (train), add them up, divide."""
    sums = {name: torch.zeros_like(value) for name, value in weights.items()}
    for _ in range(CLIENTS):
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter.copy_(weights[name])
            for name, parameter in model.named_parameters():
                sums[name] += parameter
    return {name: total / CLIENTS for name, total in sums.items()}


def made(size: str, steps: int) -> Plan:
    """A GPT on a text of one letter, without evaluation."""
    layers, width = map(int, size.split("x"))
    tokens = torch.zeros(2000, dtype=torch.uint8)
    return Plan(
        name="overhead",
        seed=0,
        rounds=10**6,
        cohort=CLIENTS,
        model=partial(GPT, 65, 128, layers, width, width // 32),
        clients=Texts(tokens, 128, [[(0, 2000)]] * CLIENTS),
        validation=None,
        algorithm=fedavg(),
        controller=fixed(Knobs(layers + 2, steps, 16)),
        task=classify(),
        lr=1e-3,
    )


def measure(size: str, repeat: int) -> dict[str, float]:
    torch.set_num_threads(1)
    plan = made(size, steps=0)
    engine, state = InProcess(plan), first_state(plan)
    layout = engine.host.model.layout
    model = plan.model()
    weights = {name: p.detach().clone() for name, p in model.named_parameters()}
    ours, plain = [], []
    for i in range(repeat + 5):
        started = time.perf_counter()
        _, state = one_round(plan, engine, layout, state, i + 1)
        between = time.perf_counter()
        weights = plain_round(weights, model)
        ended = time.perf_counter()
        if i >= 5:
            ours.append(between - started)
            plain.append(ended - between)
    ratios = [a / b for a, b in zip(ours, plain, strict=True)]
    quarters = statistics.quantiles(ratios, n=4)
    return {
        "parameters": layout.size,
        "ours_ms": 1e3 * statistics.median(ours),
        "plain_ms": 1e3 * statistics.median(plain),
        "ratio": statistics.median(ratios),
        "low": quarters[0],
        "high": quarters[2],
    }


def checkpoint(size: str, repeat: int, steps: int = 2) -> dict[str, float]:
    """Seconds of a checkpoint and of a round's training, in turn; a few steps stand for a round's."""
    torch.set_num_threads(1)
    plan = made(size, steps)
    engine, state = InProcess(plan), first_state(plan)
    layout = engine.host.model.layout
    saving, training = [], []
    with tempfile.TemporaryDirectory() as place:
        folder = RunFolder.create(Path(place) / "run", "")
        for i in range(repeat + 1):
            record, state = one_round(plan, engine, layout, state, i + 1)
            started = time.perf_counter()
            folder.append(record)
            folder.save_checkpoint(state, engine.states)
            if i:
                saving.append(time.perf_counter() - started)
                training.append(record.train_s * STEPS / steps)
    return {
        "save_ms": 1e3 * statistics.median(saving),
        "round_s": statistics.median(training),
        "ratio": statistics.median(a / b for a, b in zip(saving, training, strict=True)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--repeat", type=int, default=60)
    arguments = parser.parse_args()
    lines = [
        "# Benchmarks",
        "",
        "Ratios, measured in one run; absolute times are of the machine below. Made by `make bench`.",
        "",
        f"Machine: {platform.machine()}, {platform.system()}, Python {platform.python_version()}, "
        f"torch {torch.__version__}, fedbudget {fedbudget.__version__}, one thread.",
        "",
        "## Overhead of a round",
        "",
        "Six clients that train nothing, in-process: the global model is framed, each client loads it "
        "and frames its update, which is checked and averaged. "
        "Beside it a plain loop that copies the weights in and averages them.",
        "",
        "| model | parameters | fedbudget ms | plain ms | ratio (quartiles) |",
        "|---|---|---|---|---|",
    ]
    for size in ("2x128", "6x256"):
        m = measure(size, arguments.repeat)
        lines.append(
            f"| {size} | {m['parameters']:,} | {m['ours_ms']:.1f} | {m['plain_ms']:.1f} | "
            f"{m['ratio']:.2f} ({m['low']:.2f} to {m['high']:.2f}) |"
        )
        print(lines[-1], flush=True)
    lines += [
        "",
        "## A checkpoint",
        "",
        f"A round's line and checkpoint, written and synced, beside the training of {CLIENTS} clients x "
        f"{STEPS} steps of batch 16 on one core (extrapolated from two steps each).",
        "",
        "| model | checkpoint ms | training s | share of the round |",
        "|---|---|---|---|",
    ]
    for size in ("2x128", "6x256"):
        c = checkpoint(size, max(3, arguments.repeat // 12))
        lines.append(f"| {size} | {c['save_ms']:.1f} | {c['round_s']:.1f} | {c['ratio']:.2%} |")
        print(lines[-1], flush=True)
    if arguments.out is not None:
        arguments.out.write_text("\n".join(lines) + "\n")
        print(f"wrote {arguments.out}")


if __name__ == "__main__":
    main()
