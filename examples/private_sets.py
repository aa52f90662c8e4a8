"""Both worlds: agents with private constraint sets AND resource budgets.

Eight hospitals learn one small network. Each keeps its own copy within a limit of its own (an l2
ball of its own radius, which nobody else learns), and within a tenth of the plain uplink and half
the energy. The planner turns the knobs, the codec writes what PC-FedAvg sends.

python examples/private_sets.py [rounds]
"""

import sys

import torch
from torch import nn

import fedbudget as fb
from fedbudget.algorithms.pc_fedavg import pc_fedavg
from fedbudget.algorithms.terms import growing
from fedbudget.client import Recipe
from fedbudget.constraints import contains, l2_ball

AGENTS = 8


def make_model() -> nn.Module:
    return nn.Sequential(nn.Linear(20, 16), nn.Tanh(), nn.Linear(16, 3))


def patients(seed: int, number: int = 400) -> tuple[torch.Tensor, torch.Tensor]:
    """Three conditions, seen a little differently in each hospital."""
    rng = torch.Generator().manual_seed(seed)
    centres = torch.randn(3, 20, generator=torch.Generator().manual_seed(1))
    y = torch.randint(3, (number,), generator=rng)
    shift = 0.3 * torch.randn(20, generator=rng)
    return centres[y] + shift + torch.randn(number, 20, generator=rng), y


def main(rounds: int = 60) -> fb.Run:
    radii = torch.linspace(3.0, 6.0, AGENTS)
    sets = [l2_ball(float(r)) for r in radii]
    run = fb.train(
        make_model,
        [patients(seed) for seed in range(10, 10 + AGENTS)],
        validation=patients(99, 2000),
        rounds=rounds,
        steps=10,
        batch=40,
        lr=0.5,
        recipe=Recipe(optimizer="sgd"),
        algorithm=pc_fedavg(agents=AGENTS, rho=growing(0.3), sigma=0.1),
        constraints=sets,
        final_projection=True,
        budget=fb.Budget(communication="20%", energy="50%"),
        controller=fb.planner(batches=(5, 10, 20, 40)),
    )
    run.table()
    own = [run.personal(agent) for agent in range(AGENTS)]
    flat = [torch.cat([p.detach().flatten() for p in m.parameters()]) for m in own]
    inside = all(bool(contains(s, w)) for s, w in zip(sets, flat, strict=True))
    print(f"every agent's own model is in its own set: {inside}")
    print({name: round(value, 3) for name, value in run.figures.items()})
    return run


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 60)
