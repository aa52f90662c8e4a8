"""Our engine on Flower's simulation: the time it adds to a round, and the bytes that cross.

In one simulation, in turn: a round of Flower's own FedAvg whose clients load the model and send it
back, and a round of ours whose clients load it and send an update of zeros. Then the presets, a few
steps a round, with Flower's own count of each message beside our records.
    python benchmarks/flower.py [--out docs/benchmarks.md] [--repeat 30]
"""

import argparse
import statistics
import time
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.serverapp.strategy import FedAvg
from page import replace_section
from stock import make, with_stock

from fedbudget import rounds
from fedbudget.algorithms.fedavg import fedavg
from fedbudget.build import build
from fedbudget.config import find_config, load
from fedbudget.control.controller import fixed
from fedbudget.data.examples import Texts
from fedbudget.flower.simulation import simulate
from fedbudget.plan import Plan
from fedbudget.tables import FleetTable
from fedbudget.task import classify
from fedbudget.types import Knobs, RoundRecord

HEADING = "## On Flower"
CLIENTS = 6
FEW = ("rounds=3", "train.steps=4", "train.evaluate_every=3")


def empty_plan(size: str) -> Plan:
    """Six clients that train nothing."""
    return Plan(
        name="empty",
        seed=0,
        rounds=10**6,
        cohort=CLIENTS,
        model=partial(make, size),
        clients=Texts(torch.zeros(2000, dtype=torch.uint8), 128, [[(0, 2000)]] * CLIENTS),
        validation=None,
        algorithm=fedavg(),
        controller=fixed(Knobs(int(size.split("x")[0]) + 2, 0, 16)),
        task=classify(),
        lr=1e-3,
    )


def in_turn(size: str, plan: Plan, repeat: int, engine) -> tuple[list[float], list[float]]:
    layout = plan.build_model().layout
    state = rounds.first_state(plan)
    arrays = ArrayRecord(make(size).state_dict())
    strategy = FedAvg(fraction_evaluate=0.0)
    ours, theirs = [], []
    with engine() as clients:
        for i in range(repeat + 3):
            started = time.perf_counter()
            _, state = rounds.one_round(plan, clients, layout, state, i + 1)
            between = time.perf_counter()
            config = ConfigRecord({"server-round": i + 1})
            messages = [
                Message(RecordDict({"arrays": arrays, "config": config}), node, "train.stock")
                for node in clients.fleet.nodes.values()
            ]
            replies = clients.grid.send_and_receive(messages, timeout=600)
            arrays, _ = strategy.aggregate_train(i + 1, replies)
            ended = time.perf_counter()
            if i >= 3:
                ours.append(between - started)
                theirs.append(ended - between)
    return ours, theirs


def overhead(size: str, repeat: int) -> str:
    plan = empty_plan(size)
    with TemporaryDirectory() as disk:
        ours, theirs = simulate(
            *(plan, Path(disk), 2, FleetTable(), partial(in_turn, size, plan, repeat)),
            app=partial(with_stock, size),
        )
    ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
    low, middle, high = statistics.quantiles(ratios, n=4)
    ms = [1e3 * statistics.median(times) for times in (ours, theirs)]
    return f"| {size} | {ms[0]:.0f} | {ms[1]:.0f} | {middle:.2f} ({low:.2f} to {high:.2f}) |"


class Counting:
    """A Grid that adds up Flower's own sizes of what it carries."""

    def __init__(self, grid) -> None:
        self.grid = grid
        self.down = self.up = self.messages = 0

    def get_node_ids(self) -> Iterable[int]:
        return self.grid.get_node_ids()

    def push_messages(self, messages):
        messages = list(messages)
        for message in messages:
            if message.metadata.message_type == "train":
                self.down += size_of(message)
                self.messages += 1
        return self.grid.push_messages(messages)

    def pull_messages(self, ids):
        replies = list(self.grid.pull_messages(ids))
        for message in replies:
            if message.has_content() and "reply" in message.content:
                self.up += size_of(message)
        return replies


def size_of(message: Message) -> int:
    return sum(record.count_bytes() for record in message.content.values())


def counted(plan: Plan, engine) -> tuple[Counting, list[RoundRecord]]:
    layout = plan.build_model().layout
    with engine() as clients:
        clients.grid = Counting(clients.grid)
        first = rounds.first_state(plan)
        records = [record for record, _ in rounds.run(plan, clients, layout, first)]
        return clients.grid, records


def wire(preset: str) -> list[str]:
    plan = build(load(find_config(preset), FEW))
    with TemporaryDirectory() as disk:
        grid, records = simulate(plan, Path(disk), 2, FleetTable(), partial(counted, plan))
    lines = []
    for way, theirs in (("down", grid.down), ("up", grid.up)):
        ours = sum(getattr(record, f"{way}_bytes") for record in records)
        header = (theirs - ours) / grid.messages
        lines.append(
            f"| {preset} | {way} | {ours:,} | {theirs:,} | {100 * (theirs / ours - 1):+.2f}% | "
            f"{header:.0f} |"
        )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--repeat", type=int, default=30)
    arguments = parser.parse_args()
    lines = [
        HEADING,
        "",
        "Rounds of six clients that train nothing, in one Flower simulation, in turn: ours, and "
        "Flower's own FedAvg with the same model. Flower looks for messages every 100 ms.",
        "",
        "| model | ours ms | Flower's FedAvg ms | ratio (quartiles) |",
        "|---|---|---|---|",
    ]
    for size in ("2x128", "6x256"):
        lines.append(overhead(size, arguments.repeat))
        print(lines[-1], flush=True)
    lines += [
        "",
        "Bytes of train messages and their replies over three rounds: our records beside Flower's "
        "own count (`count_bytes` of every record). The rest is the header with job or usage.",
        "",
        "| preset | way | our records | Flower's messages | difference | bytes a message |",
        "|---|---|---|---|---|---|",
    ]
    for preset in ("fedavg", "cafl-l", "planner"):
        for line in wire(preset):
            lines.append(line)
            print(line, flush=True)
    if arguments.out is not None:
        replace_section(arguments.out, HEADING, "\n".join(lines))
        print(f"wrote {arguments.out}")


if __name__ == "__main__":
    main()
