"""Nodes of a Flower app in this process, and a small model that they train."""

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg
from flwr.supercore.task_identity import TaskIdentity
from torch import nn

from fedbudget.control.controller import Controller, fixed
from fedbudget.flower import Budgeted, budget_mod, freeze
from fedbudget.flower.mod import RECORD
from fedbudget.types import Knobs

BATCH = (torch.randn(8, 4, generator=torch.Generator().manual_seed(0)), torch.arange(8) % 3)


def identify() -> None:
    """Messages want to know their run; a run id may need all 64 bits."""
    TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = 2**63 + 7, 1, 1


def net() -> nn.Module:
    """Two layer groups, running statistics and a counter."""
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))


def change(node: int, name: str, shape: tuple[int, ...]) -> np.ndarray:
    """What a node's training adds to an array: any fixed numbers."""
    rng = np.random.default_rng([node, *name.encode()])
    return (rng.normal(size=shape) * 0.1).astype("float32")


def examples(node: int) -> int:
    return 10 * node


def client(mods) -> ClientApp:
    """An app whose training is a known change of the layers it was told to train."""
    app = ClientApp(mods=mods)

    @app.train()
    def train(msg: Message, context: Context) -> Message:
        model = net()
        freeze(model, msg)
        still = {n for n, p in model.named_parameters() if not p.requires_grad}
        new = {}
        for name, array in msg.content["arrays"].items():
            moves = name not in still and not name.endswith("tracked")
            added = change(context.node_id, name, array.shape) if moves else 0
            new[name] = Array(np.asarray(array.numpy() + added))
        metrics = {"train_loss": 0.5, "num-examples": examples(context.node_id)}
        content = {"arrays": ArrayRecord(new), "metrics": MetricRecord(metrics)}
        return Message(RecordDict(content), reply_to=msg)

    @app.evaluate()
    def evaluate(msg: Message, context: Context) -> Message:
        metrics = MetricRecord({"eval_loss": 0.25, "eval_acc": 0.75, "num-examples": 4})
        return Message(RecordDict({"metrics": metrics}), reply_to=msg)

    return app


class FakeGrid:
    """Nodes in this process; `tamper` has a function for the replies of some of them."""

    def __init__(self, nodes: int = 3, mods=(budget_mod,), tamper=None) -> None:
        identify()
        self.nodes = list(range(1, nodes + 1))
        self.app = client(list(mods))
        self.tamper = tamper or {}
        self.seen: list[Message] = []

    def get_node_ids(self):
        return self.nodes

    def send_and_receive(self, messages, *, timeout=None):
        return [reply for m in messages if (reply := self._answer(m)) is not None]

    def _answer(self, message):
        self.seen.append(message)
        node = message.metadata.dst_node_id
        context = Context(1, node, {"partition-id": node - 1}, RecordDict(), {})
        reply = self.app(message, context)
        if message.metadata.message_type != "train":
            return reply
        return self.tamper.get(node, lambda m: m)(reply)


def always(knobs: Knobs):
    return lambda costs, limits, base, cohort: fixed(knobs)


def each(*knobs: Knobs):
    """Client i gets knobs[i]."""
    keep = Controller(dict, lambda state, client: knobs[client], lambda state, replies: state)
    return lambda costs, limits, base, cohort: keep


def budgeted(strategy=None, **settings) -> Budgeted:
    known = {
        "model": net(),
        "example": BATCH,
        "budget": {"energy": "100%"},
        "steps": 20,
        "batch": 4,
    }
    known["controller"] = always(Knobs(2, 20, 4))
    inner = strategy or FedAvg(fraction_evaluate=0.0)
    return Budgeted(inner, **(known | settings))


def start(strategy, grid, rounds=2, **settings):
    initial = ArrayRecord(net().state_dict())
    return strategy.start(grid, initial, num_rounds=rounds, **settings)


def numbers(arrays: ArrayRecord) -> dict[str, np.ndarray]:
    return {name: array.numpy() for name, array in arrays.items()}


def with_report(**changes):
    """A tamperer that changes what the mod reports."""

    def tamper(reply):
        report = {**reply.content[RECORD], **changes}
        kept = {k: v for k, v in report.items() if v is not None}
        reply.content = RecordDict({**reply.content, RECORD: ConfigRecord(kept)})
        return reply

    return tamper


def truncated(reply):
    return with_report(frame=reply.content[RECORD]["frame"][:-5])(reply)


def from_node(node, tamper):
    """Error replies are made from a reply: give them their sender back."""

    def keep(reply):
        answer = tamper(reply)
        if answer is not None:
            answer.metadata.__dict__["_src_node_id"] = node
        return answer

    return keep
