"""fedbudget itself: `rounds.one_round` on the engine that `choose` picks for the workload.

python ours.py FOLDER [--workers N]
"""

import argparse
import time

import torch
from line import Line
from plans import plan_of
from workload import Workload, save

import fedbudget
from fedbudget.engines.choose import choose
from fedbudget.rounds import first_state, one_round


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder")
    parser.add_argument("--workers", type=int, default=1)
    given = parser.parse_args()
    torch.set_num_threads(1)
    line = Line()
    load = Workload(given.folder)
    plan = plan_of(load.settings)
    layout = plan.build_model().layout
    first = state = first_state(plan)
    with choose(plan, given.workers) as engine:
        one_round(plan, engine, layout, first, 1)  # the first one fills caches
        line.say(ready=True, version=f"fedbudget {fedbudget.__version__}", engine=engine.kind)
        number = 0
        for command in line.commands():
            if command["op"] == "save":
                save(command["path"], layout.named(state.weights))
                line.say()
                continue
            number = number + 1 if load.goes_on else 1
            before = state if load.goes_on else first
            started = time.perf_counter()
            record, state = one_round(plan, engine, layout, before, number)
            seconds = time.perf_counter() - started
            valid = (record.validation or {}).get("loss")
            line.say(seconds=seconds, loss=record.train_loss, validation=valid)


if __name__ == "__main__":
    main()
