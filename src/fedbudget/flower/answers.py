"""Nodes' replies: checked, decoded, and made whole for a strategy that knows nothing of frames."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flwr.app import Array, ArrayRecord, Message, RecordDict
from torch import Tensor

from fedbudget.aggregation import Accumulator
from fedbudget.codecs import frame
from fedbudget.flower.mod import DOWNLINK, FRAME, MEASURED, RECORD
from fedbudget.models.flat import Layout
from fedbudget.resources.costs import Costs
from fedbudget.rounds import checked
from fedbudget.types import Job, Reply

MOST_EXAMPLES = 2**53
"""a larger claim would take the mean over, or overflow it"""
Signature = tuple[str, frozenset[tuple[str, int]]]


@dataclass(frozen=True)
class Answer:
    """A reply that can be used."""

    job: Job
    message: Message
    update: Tensor
    """over the layer groups that the job asked for"""
    weight: float
    reply: Reply
    signature: Signature
    """of its metrics: strategies refuse a round whose replies have different ones"""


@dataclass(frozen=True)
class Sent:
    """A round that is under way."""

    number: int
    arrays: ArrayRecord
    weights: Tensor
    """the arrays as one vector"""
    key: str
    """under which the arrays were sent"""
    jobs: Mapping[int, Job]
    """by node id"""
    started: float
    sent: float

    @property
    def down_bytes(self) -> int:
        """Of the arrays, to each node."""
        return array_bytes(self.arrays)


def read_answers(
    sent: Sent, replies: Sequence[Message], costs: Costs, weighted_by: str
) -> tuple[list[Answer], dict[int, str]]:
    """Replies that can be used, by client number, and why other nodes have none, by node id."""
    why = dict.fromkeys(sent.jobs, "no reply came")
    found: dict[int, Answer] = {}
    for message in replies:
        node = message.metadata.src_node_id
        if node not in sent.jobs:
            why[node] = "nobody had asked it"
            continue
        try:
            found[node] = _read(message, sent, sent.jobs[node], costs, weighted_by)
        except frame.FrameError as error:
            why[node] = str(error)
        except Exception as error:  # whatever a node sends, the round goes on
            why[node] = f"{type(error).__name__}: {error}"
    common = Counter(a.signature for a in found.values()).most_common(1)
    used = []
    for node, answer in sorted(found.items(), key=lambda item: item[1].job.client):
        if answer.signature == common[0][0]:
            used.append(answer)
            del why[node]
        else:
            why[node] = "its metrics have other names or lengths than those of most replies"
    return used, why


def _read(message: Message, sent: Sent, job: Job, costs: Costs, weighted_by: str) -> Answer:
    """What a node answered; FrameError with the reason where it cannot be used."""
    if message.has_error():
        reason = str(message.error.reason).strip()
        raise frame.FrameError(reason or f"error {message.error.code} without a reason")
    content = message.content
    report: dict[str, Any] = dict(content.config_records.get(RECORD) or {})
    if FRAME not in report:
        raise frame.FrameError("it has no frame; is budget_mod among the ClientApp's mods?")
    if content.array_records:
        raise frame.FrameError("it has arrays besides its frame")
    body = report[FRAME]
    if not isinstance(body, bytes):
        raise frame.FrameError(f"its frame is of type {type(body).__name__}, not bytes")
    if len(content.metric_records) != 1:
        raise frame.FrameError(f"it has {len(content.metric_records)} MetricRecords, not one")
    name, metrics = next(iter(content.metric_records.items()))
    if name == sent.key:
        raise frame.FrameError(f"its metrics are called {name!r}, as the arrays are")
    weight = _number(dict(metrics), weighted_by)
    if not 0 < weight <= MOST_EXAMPLES:
        raise frame.FrameError(f"it claims {weight:g} {weighted_by}")
    measured = {key: _amount(report, key) for key in MEASURED}
    down = int(_amount(report, DOWNLINK))
    if down != sent.down_bytes:
        raise frame.FrameError(f"it says that {down} bytes came; {sent.down_bytes} were sent")
    packed = frame.from_bytes(bytearray(body))  # a copy, because decoders want it writable
    if packed.header.codec != job.knobs.codec:
        raise frame.FrameError(f"it is written by {packed.header.codec}, not {job.knobs.codec}")
    losses = [v for k, v in metrics.items() if "loss" in k and isinstance(v, int | float)]
    reply = Reply(
        *(job.run, job.round, job.client),
        examples=max(1, round(weight)),
        loss=float(losses[0]) if losses and math.isfinite(losses[0]) else None,
        seconds=measured["time"],
        usage={**costs.meter(job.knobs, len(body), down), "measured": measured},
        payload=packed,
    )
    (update,) = checked(job, reply, costs.layout, 1)
    if not frame.finite(
        sent.weights[costs.layout.span(*job.knobs.groups(costs.layout.depth))] + update
    ):
        raise frame.FrameError("the model with it is not finite")
    shape = frozenset((k, len(v) if isinstance(v, list) else -1) for k, v in metrics.items())
    return Answer(job, message, update, weight, reply, (name, shape))


def make_whole(
    answers: Sequence[Answer], sent: Sent, layout: Layout, twins: Mapping[str, str]
) -> None:
    """Put a whole model into each reply, in place of its frame.

    A layer that a node did not train becomes the weighted mean of those who trained it; where nobody
    did, and for arrays outside the layout, it is the server's. `twins` has second names of tied arrays.
    """
    weights = sent.weights
    total = math.fsum(answer.weight for answer in answers)
    mean = Accumulator(layout)
    for answer in answers:
        groups = answer.job.knobs.groups(layout.depth)
        mean.add([answer.update], groups, answer.weight / total)
    filled = weights + mean.mean()[0]
    for answer in answers:
        part = layout.span(*answer.job.knobs.groups(layout.depth))
        vector = filled.clone()
        vector[part] = weights[part] + answer.update
        found = {name: Array(t.numpy()) for name, t in layout.named(vector).items()}
        whole = {
            name: found.get(twins.get(name, name), given) for name, given in sent.arrays.items()
        }
        content = answer.message.content
        others = {name: record for name, record in content.items() if name != RECORD}
        answer.message.content = RecordDict({**others, sent.key: ArrayRecord(whole)})


def array_bytes(arrays: ArrayRecord) -> int:
    """What arrays take on the wire."""
    return sum(len(array.data) for array in arrays.values())


def sent_bytes(message: Message) -> int:
    """The length of a reply's frame; 0 where it has none."""
    if not message.has_content():
        return 0
    report = message.content.config_records.get(RECORD)
    body = report.get(FRAME) if report is not None else None
    return len(body) if isinstance(body, bytes) else 0


def _number(record: Mapping[str, Any], key: str) -> float:
    if key not in record:
        raise frame.FrameError(f"it says nothing about {key}")
    value = record[key]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise frame.FrameError(f"its {key} is {value!r}, not a number")
    if not math.isfinite(value):
        raise frame.FrameError(f"its {key} is {value}")
    return float(value)


def _amount(report: Mapping[str, Any], key: str) -> float:
    value = _number(report, key)
    if value < 0:
        raise frame.FrameError(f"its {key} is {value:g}: no usage is below zero")
    return value
