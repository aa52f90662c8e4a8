"""PC-FedAvg by the number of agents: the O(d) form of our batched engine beside m blocks an agent.

Softmax regression 784 x 10, an l1 ball an agent, everybody in every round, 5 local steps of batch 64,
from 10 to 10,000 agents; and the paper's form, in which every agent holds a block for every agent, up
to 300. Every agent has 60 images of MNIST, drawn with replacement, as numbers into one array. Times
are CPU seconds of one thread, because other work on the machine must not count; "process" is its
memory but for files that it maps.
    python benchmarks/bench.py agents                                   # into docs/benchmarks.md
    python benchmarks/agents.py growth [--out docs/results/agents]      # table and figure
"""

import argparse
import platform
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from measure import table
from torch import Tensor, nn
from torch.nn import functional as F

from fedbudget import constraints, seeds
from fedbudget.algorithms import terms
from fedbudget.algorithms.algorithm import Algorithm
from fedbudget.algorithms.pc_fedavg import pc_fedavg
from fedbudget.client import Recipe
from fedbudget.control.controller import fixed
from fedbudget.data.examples import Arrays, Parts, draw
from fedbudget.data.sources import mnist
from fedbudget.engines.batched import Batched
from fedbudget.engines.choose import suits
from fedbudget.models.softmax import Softmax
from fedbudget.plan import Plan
from fedbudget.rounds import State, first_state, one_round
from fedbudget.task import classify
from fedbudget.types import Knobs

FEATURES, CLASSES, BATCH, OWN = 784, 10, 64, 60
NUMBERS = FEATURES * CLASSES + CLASSES
SIGMA, LR, RADII = 0.1, 0.5, (20.0, 100.0)
SIZES = (10, 30, 100, 300, 1000, 3000, 10_000)
BLOCKS_UP_TO = 300
NEVER = 10**6
TEXT = (
    "PC-FedAvg, softmax regression 784 x 10, an l1 ball an agent, everybody in every round, 5 local "
    "steps of batch 64: CPU time of one thread; beside it the paper's form with a block for "
    "every agent in every agent, whose result is the same."
)


def outside() -> Softmax:
    """A start with an l1 norm near 190, which no agent's set has: every projection has work."""
    model = Softmax(FEATURES, CLASSES)
    nn.init.normal_(model.linear.weight, std=0.03)
    return model


def make_plan(
    images: Arrays,
    agents: int,
    algorithm: Algorithm,
    steps: int,
    cohort: int | None = None,
    own: int = OWN,
) -> Plan:
    rng = np.random.default_rng(0)
    numbers = [rng.integers(len(images), size=own) for _ in range(agents)]
    radii = np.linspace(*RADII, agents)
    return Plan(
        name="agents",
        seed=0,
        rounds=NEVER,
        cohort=cohort or agents,
        model=outside,
        clients=Parts(images, numbers),
        validation=None,
        algorithm=algorithm,
        controller=fixed(Knobs(1, steps, BATCH)),
        task=classify(),
        lr=LR,
        recipe=Recipe("sgd"),
        constraints=[constraints.l1_ball(float(r)) for r in radii],
        evaluate_every=NEVER,
    )


def memory_mb() -> float:
    """What the process has in memory of its own, files it maps left out."""
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        return float("nan")
    return int(status.split("RssAnon:")[1].split()[0]) / 1024


def blocks_round(plan: Plan, blocks: Tensor, number: int, steps: int) -> Tensor:
    """The paper's round: agent i steps all m blocks (m, d); the server takes each block's mean."""
    agents, rho = len(blocks), float(np.sqrt(number))
    mean = torch.zeros_like(blocks)
    module = plan.model()
    assert plan.constraints is not None
    for i in range(agents):
        mine = blocks.clone()
        batches = draw(plan.clients[i], BATCH, seeds.rng(0, number, i, "batches"))
        for _ in range(steps):
            z = mine.mean(0)
            with torch.no_grad():
                module.linear.weight.copy_(z[: FEATURES * CLASSES].view(CLASSES, FEATURES))
                module.linear.bias.copy_(z[FEATURES * CLASSES :])
            x, y = next(batches)
            loss = F.cross_entropy(module(x), y)
            weight, bias = torch.autograd.grad(loss, list(module.parameters()))
            g = torch.cat([weight.flatten(), bias])
            apart = mine[i] - z
            outside = mine[i] - plan.constraints[i].project(mine[i])
            mine -= LR / agents * (g - SIGMA * apart)
            mine[i] -= LR * (SIGMA * apart + rho * outside)
        mean += mine / agents
    return mean


def a_round(plan: Plan, engine: Batched, state: State, number: int) -> tuple[float, State]:
    started = time.process_time()
    _, state = one_round(plan, engine, engine.layout, state, number)
    return time.process_time() - started, state


def one_size(images: Arrays, agents: int, repeat: int) -> dict[str, float]:
    """A round's time and memory; the paper's form too, where it ends today."""
    plan = make_plan(images, agents, pc_fedavg(agents, terms.growing(1.0), SIGMA), 5)
    assert suits(plan)
    begin = first_state(plan)
    times = []
    with Batched(plan) as engine:
        _, state = a_round(plan, engine, begin, 1)
        mean = state.weights
        for number in range(2, 2 + max(3, min(repeat, 1000 // agents))):
            took, state = a_round(plan, engine, state, number)
            times.append(took)
        started = time.process_time()
        engine.assess(plan.algorithm.send(state.server), state.acks)
        row = {
            "agents": agents,
            "round_s": statistics.median(times),
            "assess_s": time.process_time() - started,
            "state_mb": engine.rows.bytes / 1e6,
            "mapped": engine.rows.mapped,
            "memory_mb": memory_mb(),
        }
    if agents <= BLOCKS_UP_TO:
        started = time.process_time()
        blocks = blocks_round(plan, begin.weights.repeat(agents, 1), 1, 5)
        row["blocks_s"] = time.process_time() - started
        moved = (mean - begin.weights).norm()
        assert (blocks.mean(0) - mean).norm() < 1e-3 * moved  # in float32, a mean of m blocks
    return row


def run(repeat: int, quick: bool = False, most: int = SIZES[-1]) -> dict[str, Any]:
    """Both by the number of agents."""
    most = min(30, most) if quick else most
    torch.set_num_threads(1)
    images = mnist().train
    return {"rows": [one_size(images, agents, repeat) for agents in SIZES if agents <= most]}


def section(found: dict[str, Any]) -> list[str]:
    rows = []
    for r in found["rows"]:
        state = f"{r['state_mb']:,.0f} MB{' (mapped)' if r['mapped'] else ''}"
        rows.append(
            [
                f"{r['agents']:,.0f}",
                f"{r['round_s']:.2f}",
                f"{1e3 * r['round_s'] / r['agents']:.2f}",
                f"{r['assess_s']:.2f}",
                state,
                f"{r['memory_mb']:,.0f} MB",
                f"{r['blocks_s']:,.2f}" if "blocks_s" in r else "-",
                f"{blocks_mb(r['agents']):,.0f} MB",
            ]
        )
    head = ["agents", "CPU s a round", "ms an agent", "assess, s", "agents' state", "process"]
    return [TEXT, "", *table([*head, "m blocks, CPU s", "m blocks, state"], rows)]


def blocks_mb(agents: float) -> float:
    """Every agent holds a block for every agent."""
    return agents**2 * NUMBERS * 4 / 1e6


def draw_figure(rows: list[dict[str, float]], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
    agents = [r["agents"] for r in rows]
    seconds = [r["round_s"] for r in rows]
    left.loglog(agents, seconds, "o-", label="O(d) form, batched engine")
    straight = [seconds[-1] * m / agents[-1] for m in agents]
    left.loglog(agents, straight, ":", color="grey", label="proportional to the agents")
    slow = [r for r in rows if "blocks_s" in r]
    left.loglog([r["agents"] for r in slow], [r["blocks_s"] for r in slow], "s-", label="m blocks")
    left.set(xlabel="agents", ylabel="CPU seconds a round", title="Time of a round")
    right.loglog(agents, [r["state_mb"] for r in rows], "o-", label="O(d) form, two versions")
    right.loglog(agents, [blocks_mb(m) for m in agents], "s-", label="m blocks an agent")
    right.set(xlabel="agents", ylabel="MB", title="All agents' state")
    for axes in (left, right):
        axes.grid(alpha=0.3)
        axes.legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", nargs="?", default="growth", choices=("growth",))
    parser.add_argument("--out", type=Path, default=Path("docs/results/agents"))
    parser.add_argument("--repeat", type=int, default=15)
    parser.add_argument("--most", type=int, default=SIZES[-1])
    given = parser.parse_args()
    found = run(given.repeat, most=given.most)
    given.out.mkdir(parents=True, exist_ok=True)
    about = f"torch {torch.__version__}, {platform.machine()}, one thread"
    text = "\n".join([*section(found)[2:], "", about, ""])
    (given.out / "growth.md").write_text(text)
    print(text)
    draw_figure(found["rows"], given.out / "agents.png")


if __name__ == "__main__":
    main()
