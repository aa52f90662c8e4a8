"""The node's half of budgets for a Flower app: knobs come with the message, an encoded update goes back.

`Budgeted` on the server adds a ConfigRecord to each train message. `budget_mod` takes the arrays out
of the app's reply and puts a frame in their place: the update of the layers that were to train,
written by the codec that the server chose, with what the work has taken.

    app = ClientApp(mods=[budget_mod])

Put it first: mods after it (clipping, noise) then still see arrays.
"""

import logging
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, overload

import numpy as np
import torch
from flwr.app import (
    Array,
    ConfigRecord,
    Context,
    Error,
    Message,
    MessageType,
    RecordDict,
)
from flwr.clientapp.typing import ClientAppCallable
from torch import Tensor, nn

from fedbudget.codecs import frame
from fedbudget.models.flat import Layout
from fedbudget.types import Knobs

RECORD = "fedbudget"
"""the ConfigRecord's name, in messages and in replies"""
FRAME = "frame"
DOWNLINK = "downlink"
MEASURED = ("time", "cpu_time", "process_peak_memory")
"""seconds, CPU seconds of the process, and the most bytes it has held since it started"""
FAILED_PRECONDITION = 6
"""Flower's code for a mod that cannot work with what it was given"""
LOG = logging.getLogger("flwr")


@dataclass(frozen=True)
class Order:
    """What the server asks of one node in one round."""

    run: int
    round: int
    client: int
    seed: int
    """of the codec's random numbers"""
    knobs: Knobs
    names: tuple[str, ...]
    groups: tuple[int, ...]
    """the layer group of each named array"""

    @property
    def trained(self) -> range:
        """The layer groups that train."""
        return range(*self.knobs.groups(self.groups[-1] + 1))

    def to_record(self) -> ConfigRecord:
        values = {**asdict(self), **asdict(self.knobs)}
        values |= {"names": list(self.names), "groups": list(self.groups)}
        return ConfigRecord({key: value for key, value in values.items() if key != "knobs"})

    @staticmethod
    def of(msg: Message) -> "Order | None":
        """The order in a message; None where there is none."""
        record = msg.content.config_records.get(RECORD) if msg.has_content() else None
        if record is None:
            return None
        values: dict[str, Any] = dict(record)
        knobs = Knobs(**{field.name: values[field.name] for field in fields(Knobs)})
        return Order(
            run=values["run"],
            round=values["round"],
            client=values["client"],
            seed=values["seed"],
            knobs=knobs,
            names=tuple(values["names"]),
            groups=tuple(values["groups"]),
        )

    def layout(self, arrays: Mapping[str, Array]) -> Layout:
        """The server's layout of the model, from the arrays that came."""
        shapes = tuple(tuple(arrays[name].shape) for name in self.names)
        double = arrays[self.names[0]].dtype == "float64"
        return Layout(self.names, shapes, self.groups, torch.float64 if double else torch.float32)


@overload
def knobs_of(msg: Message, default: Knobs) -> Knobs: ...
@overload
def knobs_of(msg: Message, default: None = None) -> Knobs | None: ...
def knobs_of(msg: Message, default: Knobs | None = None) -> Knobs | None:
    """The knobs that a train message asks for; `default` where no budget is at work."""
    order = Order.of(msg)
    return default if order is None else order.knobs


def freeze(model: nn.Module, msg: Message) -> None:
    """Let only those layers of the model train that the message asks for.

    Call it after `model.train()`: norms in frozen layers are put to evaluation, as their statistics
    are not sent. Without a budget in the message the model is left as it is.
    """
    order = Order.of(msg)
    if order is None:
        return
    trains = {n: g in order.trained for n, g in zip(order.names, order.groups, strict=True)}
    for name, parameter in model.named_parameters():
        if name in trains:
            parameter.requires_grad_(trains[name])
    for prefix, module in model.named_modules():
        held = (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False))
        own = [f"{prefix}.{name}".lstrip(".") for name, _ in held]
        if (known := [trains[name] for name in own if name in trains]) and not any(known):
            module.training = False


def budget_mod(msg: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """Send an encoded update in place of arrays, and say what the work has taken.

    Messages that are not for training or come without an order pass through, as do error replies.
    """
    order = Order.of(msg)
    if order is None or msg.metadata.message_type.split(".")[0] != MessageType.TRAIN:
        return call_next(msg, context)
    if len(msg.content.array_records) != 1:
        return _refusal(msg, f"{len(msg.content.array_records)} ArrayRecords came, not one")
    received = dict(next(iter(msg.content.array_records.values())))
    started, started_cpu = time.perf_counter(), time.process_time()
    reply = call_next(msg, context)
    if reply.has_error():
        return reply
    if len(reply.content.array_records) != 1:
        found = len(reply.content.array_records)
        return _refusal(msg, f"the app's reply has {found} ArrayRecords; it must have one")
    name, trained = next(iter(reply.content.array_records.items()))
    try:
        payload = _encoded(order, received, trained)
    except ValueError as error:
        return _refusal(msg, str(error))
    took = (time.perf_counter() - started, time.process_time() - started_cpu, _peak_memory())
    report = ConfigRecord(
        {
            FRAME: payload,
            DOWNLINK: sum(len(array.data) for array in received.values()),
            **dict(zip(MEASURED, took, strict=True)),
        }
    )
    others = {key: record for key, record in reply.content.items() if key != name}
    reply.content = RecordDict({**others, RECORD: report})
    return reply


def flat(arrays: Mapping[str, Array], layout: Layout, groups: range | None = None) -> Tensor:
    """Arrays as one vector over some layer groups, or all, in the layout's order; (n,)"""
    pieces = []
    for name, shape, group in zip(layout.names, layout.shapes, layout.groups, strict=True):
        if groups is not None and group not in groups:
            continue
        if name not in arrays:
            raise ValueError(f"the array {name!r} is missing")
        if tuple(arrays[name].shape) != shape:
            raise ValueError(f"the array {name!r} has shape {arrays[name].shape}, not {shape}")
        pieces.append(torch.from_numpy(arrays[name].numpy()).reshape(-1).to(layout.dtype))
    return torch.cat(pieces)


def _encoded(order: Order, received: Mapping[str, Array], trained: Mapping[str, Array]) -> bytes:
    """The frame with the update of the layers that were to train."""
    layout = order.layout(received)
    update = flat(trained, layout, order.trained) - flat(received, layout, order.trained)
    if not frame.finite(update):
        raise ValueError("the trained arrays hold numbers that are not finite")
    if changed := _changed_though_frozen(order, received, trained):
        LOG.warning(
            "budget_mod: %s has changed but was to stay frozen, so its change is not sent; "
            "call fedbudget.flower.freeze(model, msg) before training",
            changed,
        )
    about = {"run": order.run, "round": order.round, "client": order.client, "seed": order.seed}
    groups = order.trained.start, order.trained.stop
    packed = frame.pack([update], layout, **about, codec=order.knobs.codec, groups=groups)
    return bytes(frame.to_bytes(packed))


def _changed_though_frozen(
    order: Order, received: Mapping[str, Array], trained: Mapping[str, Array]
) -> str | None:
    """A frozen array that the app has trained all the same: work that no budget has counted."""
    for name, group in zip(order.names, order.groups, strict=True):
        statistics = name.endswith(("running_mean", "running_var"))
        if group in order.trained or statistics or name not in trained:
            continue
        if not np.array_equal(received[name].numpy(), trained[name].numpy()):
            return name
    return None


def _refusal(msg: Message, reason: str) -> Message:
    return Message(Error(FAILED_PRECONDITION, f"budget_mod: {reason}"), reply_to=msg)


def _peak_memory() -> float:
    """The most the process has held since it started, in bytes; 0 where the system does not tell."""
    if sys.platform == "win32":
        return 0.0
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return float(peak if sys.platform == "darwin" else peak * 1024)
