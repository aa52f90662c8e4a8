"""What many registered clients cost, and what a larger cohort does: time of a round and memory.

    python registered.py clients N     # N registered, cohort 100, a tiny model
    python registered.py cohort N      # a cohort of N, a model of 7 MB
Each case is a process of its own, so that its peak of memory is its own.
"""

import json
import statistics
import subprocess
import sys
import time
from itertools import pairwise
from typing import Any

from measure import in_turn, ratio, show, table

from fedbudget.bench import spread

ROUNDS, COHORT = 8, 100
CLIENTS = (1000, 100_000)
COHORTS = (10, 100)


def many_clients(count: int) -> dict[str, float]:
    import torch
    from torch import nn

    import fedbudget as fb
    from fedbudget.resources.meters import held

    x = torch.randn(4 * count, 16, generator=torch.Generator().manual_seed(0))
    y = (x.sum(1) > 0).long()
    ends: list[float] = []
    one_peak()
    fb.train(
        model=nn.Sequential(nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 2)),
        clients=[(x[4 * i : 4 * i + 4], y[4 * i : 4 * i + 4]) for i in range(count)],
        validation=(x[:200], y[:200]),
        rounds=ROUNDS,
        cohort=COHORT,
        steps=2,
        batch=4,
        lr=0.01,
        optimizer="sgd",
        quiet=True,
        on_round=lambda record: ends.append(time.process_time()),
    )
    rounds = [after - before for before, after in pairwise(ends)]
    return {"round_s": statistics.median(rounds), "peak_mb": 1e-6 * held()["HWM"]}


def one_peak() -> None:
    """Without the clients' meter of memory, which begins the peak anew for each of them."""
    from fedbudget.engines import engine
    from fedbudget.resources.meters import Sensors

    engine.sensors = lambda cpu: Sensors(None)


def large_cohort(count: int) -> dict[str, float]:
    """The most that three rounds hold above the data, and beside what importing took."""
    import torch
    from torch import nn

    from fedbudget.algorithms.fedavg import fedavg
    from fedbudget.client import Recipe
    from fedbudget.control.controller import fixed
    from fedbudget.data.examples import Arrays, Parts
    from fedbudget.engines.choose import choose
    from fedbudget.plan import Plan
    from fedbudget.resources.meters import begin_anew, give_back, held
    from fedbudget.rounds import first_state, one_round
    from fedbudget.task import classify
    from fedbudget.types import Knobs

    one_peak()
    torch.set_num_threads(1)
    rng = torch.Generator().manual_seed(0)
    data = Arrays(torch.randn(4 * count, 784, generator=rng), torch.zeros(4 * count).long())
    parts = [torch.arange(4 * i, 4 * i + 4).numpy() for i in range(count)]
    plan = Plan(
        name="cohort",
        seed=0,
        rounds=10**6,
        cohort=count,
        model=lambda: nn.Sequential(
            *(
                nn.Linear(784, 1024),
                nn.ReLU(),
                nn.Linear(1024, 1024),
                nn.ReLU(),
                nn.Linear(1024, 10),
            )
        ),
        clients=Parts(data, parts),
        validation=None,
        algorithm=fedavg(),
        controller=fixed(Knobs(3, 1, 4)),
        task=classify(),
        lr=0.01,
        recipe=Recipe("sgd"),
    )
    give_back()
    baseline = held()["RSS"]
    layout = plan.build_model().layout
    state = first_state(plan)
    with choose(plan) as engine:
        begin_anew()
        for number in range(1, 4):
            _, state = one_round(plan, engine, layout, state, number)
        return {"above_mb": 1e-6 * (held()["HWM"] - baseline), "model_mb": 4e-6 * layout.size}


def apart(case: str, count: int) -> dict[str, float]:
    """A case in a process of its own."""
    command = [sys.executable, __file__, case, str(count)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def run(repeat: int, quick: bool = False) -> dict[str, Any]:
    found: dict[str, list[dict[str, float]]] = {}

    def once(case: str, count: int) -> float:
        found.setdefault(f"{case} {count}", []).append(apart(case, count))
        return 0.0

    cases = [("clients", n) for n in CLIENTS] + [("cohort", n) for n in COHORTS]
    in_turn({f"{c} {n}": lambda c=c, n=n: once(c, n) for c, n in cases}, repeat)
    return {
        name: {key: [one[key] for one in ones] for key in ones[0]} for name, ones in found.items()
    }


def section(found: dict[str, Any]) -> list[str]:
    few, many = (found[f"clients {n}"] for n in CLIENTS)
    small, large = (found[f"cohort {n}"] for n in COHORTS)
    clients = [
        [
            f"{n:,}",
            f"{1e3 * spread(one['round_s']).median:.0f}",
            show(ratio(one["round_s"], few["round_s"])),
            f"{spread(one['peak_mb']).median:.0f}",
        ]
        for n, one in zip(CLIENTS, (few, many), strict=True)
    ]
    cohorts = [
        [
            n,
            f"{spread(one['above_mb']).median:.1f}",
            show(ratio(one["above_mb"], small["above_mb"])),
        ]
        for n, one in zip(COHORTS, (small, large), strict=True)
    ]
    model = f"{small['model_mb'][0]:.1f}"
    return [
        f"`fedbudget.train` with a cohort of {COHORT} and a model of 154 numbers, by the clients "
        f"registered; {len(few['round_s'])} repetitions, each a process of its own.",
        "",
        *table(["registered", "CPU ms a round", "to the fewest", "peak memory, MB"], clients),
        "",
        f"The most memory that three rounds hold with a model of {model} MB, above the process with "
        "its data, by the cohort: updates are added up as they come.",
        "",
        *table(["cohort", "MB above", "to the smallest"], cohorts),
    ]


if __name__ == "__main__":
    cases = {"clients": many_clients, "cohort": large_cohort}
    print(json.dumps(cases[sys.argv[1]](int(sys.argv[2]))))
