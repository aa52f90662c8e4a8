"""Our engine on Flower's simulation: the time it adds to a round, and the bytes that cross.

In one simulation, in turn: a round of Flower's own FedAvg whose clients load the model and send it
back, and a round of ours whose clients load it and send an update of zeros. Then the presets, a few
steps a round, with Flower's own count of each message beside our records.
    python benchmarks/bench.py flower
"""

import time
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.serverapp.strategy import FedAvg
from measure import ratio, show, table
from stock import make, with_stock

from fedbudget import rounds
from fedbudget.bench import gpt_plan, spread
from fedbudget.build import build
from fedbudget.config import find_config, load
from fedbudget.flower.simulation import simulate
from fedbudget.plan import Plan
from fedbudget.tables import FleetTable
from fedbudget.types import RoundRecord

SIZES = ("2x128", "6x256")
PRESETS = ("fedavg", "cafl-l", "planner")
FEW = ("rounds=3", "train.steps=4", "train.evaluate_every=3")


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


def overhead(size: str, repeat: int) -> dict[str, list[float]]:
    plan = gpt_plan(*map(int, size.split("x")), steps=0)
    with TemporaryDirectory() as disk:
        ours, theirs = simulate(
            *(plan, Path(disk), 2, FleetTable(), partial(in_turn, size, plan, repeat)),
            app=partial(with_stock, size),
        )
    return {"ours": ours, "theirs": theirs}


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


def wire(preset: str) -> dict[str, Any]:
    plan = build(load(find_config(preset), FEW))
    with TemporaryDirectory() as disk:
        grid, records = simulate(plan, Path(disk), 2, FleetTable(), partial(counted, plan))
    ours = {way: sum(getattr(r, f"{way}_bytes") for r in records) for way in ("down", "up")}
    theirs = {"down": grid.down, "up": grid.up}
    return {"ours": ours, "theirs": theirs, "messages": grid.messages}


def run(repeat: int, quick: bool = False) -> dict[str, Any]:
    return {
        "rounds": {size: overhead(size, repeat) for size in SIZES},
        "bytes": {preset: wire(preset) for preset in PRESETS},
    }


def section(found: dict[str, Any]) -> list[str]:
    rounds = [
        [
            size,
            *(f"{1e3 * spread(one[who]).median:.0f}" for who in ("ours", "theirs")),
            show(ratio(one["ours"], one["theirs"])),
        ]
        for size, one in found["rounds"].items()
    ]
    sizes = []
    for preset, one in found["bytes"].items():
        for way, theirs in one["theirs"].items():
            ours = one["ours"][way]
            more = f"{100 * (theirs / ours - 1):+.2f}%"
            rest = f"{(theirs - ours) / one['messages']:.0f}"
            sizes.append([preset, way, f"{ours:,}", f"{theirs:,}", more, rest])
    return [
        "Rounds of six clients that train nothing, in one Flower simulation, in turn: ours, and "
        "Flower's own FedAvg with the same model. Flower looks for messages every 100 ms.",
        "",
        *table(["model", "ours ms", "Flower's FedAvg ms", "ratio (quartiles)"], rounds),
        "",
        "Bytes of train messages and their replies over three rounds: our records beside Flower's "
        "own count (`count_bytes` of every record). The rest is the header with job or usage.",
        "",
        *table(
            ["preset", "way", "our records", "Flower's messages", "difference", "bytes a message"],
            sizes,
        ),
    ]
