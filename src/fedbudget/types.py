"""The frozen data that flows round the loop: Knobs -> Job -> Reply -> RoundRecord."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from fedbudget.codecs.frame import Packed

Buffer = bytes | bytearray | memoryview
Accounting = Literal["paper", "counted", "measured"]
"""what budgets can be about"""
DROPPED_OUT = "it dropped out"
"""why a reply did not come that the config wants to be lost"""


@dataclass(frozen=True)
class Knobs:
    """What a controller can turn on a device."""

    layers: int
    """how many layer groups train, counted from the top; the rest is frozen"""
    steps: int
    """optimiser steps of one local run"""
    batch: int
    """examples of one micro-batch"""
    accumulate: int = 1
    """micro-batches accumulated per optimiser step"""
    codec: str = "raw32"
    """how the update is written on the wire"""
    above: int = 0
    """layer groups at the top that are frozen as well: those that train are the next ones"""

    def groups(self, depth: int) -> tuple[int, int]:
        """The layer groups that train, of a model with `depth`: the first, and the one after the last."""
        last = depth - self.above
        return last - self.layers, last


@dataclass(frozen=True)
class Ack:
    """The last reply of a client that the server used: its state of that round is the valid one."""

    round: int
    counts: tuple[int, ...]
    """replies that were averaged, by layer group"""


@dataclass(frozen=True)
class Job:
    """One client's work for one round, and the only thing an engine carries to it."""

    run: int
    round: int
    client: int
    seed: int
    knobs: Knobs
    lr: float
    payload: "Packed" = field(repr=False)
    """the frame with what the server sends down"""
    ack: Ack | None = None
    """None: no reply of this client has been used yet"""
    seconds: float | None = None
    """a budget of measured time: the device stops before it is up and sends what it has"""

    def header(self) -> dict[str, Any]:
        """Everything but the payload, ready for JSON."""
        fields = {k: v for k, v in self.__dict__.items() if k != "payload"}
        ack = asdict(self.ack) if self.ack else None
        return {**fields, "knobs": asdict(self.knobs), "ack": ack}

    @staticmethod
    def from_header(header: Mapping[str, Any], payload: "Packed") -> "Job":
        ack = header["ack"]
        known = Ack(ack["round"], tuple(ack["counts"])) if ack else None
        fields = {**header, "knobs": Knobs(**header["knobs"]), "ack": known}
        return Job(**fields, payload=payload)


@dataclass(frozen=True)
class Reply:
    """What came back: an update, or the reason why there is none."""

    run: int
    round: int
    client: int
    examples: int = 0
    """size of the client's data set, for weighting by examples"""
    loss: float | None = None
    """mean training loss of the local run"""
    seconds: float = 0.0
    usage: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """accounting ("paper", "counted", "measured", "estimated") -> resource -> amount, in SI units"""
    error: str | None = None
    lost: bool = False
    """the client no longer has the state that the job's ack names"""
    knobs: Knobs | None = None
    """what it turned instead of the job's knobs: a device that keeps a budget of its own, or whose time
    was up before its last step"""
    payload: "Packed | None" = field(default=None, repr=False)

    def header(self) -> dict[str, Any]:
        fields = {k: v for k, v in self.__dict__.items() if k != "payload"}
        return {**fields, "knobs": asdict(self.knobs) if self.knobs else None}

    @staticmethod
    def from_header(header: Mapping[str, Any], payload: "Packed | None") -> "Reply":
        knobs = Knobs(**header["knobs"]) if header["knobs"] else None
        return Reply(**{**header, "knobs": knobs}, payload=payload)

    @staticmethod
    def failure(job: Job, reason: str, lost: bool = False) -> "Reply":
        return Reply(job.run, job.round, job.client, error=reason, lost=lost)


@dataclass(frozen=True)
class RoundRecord:
    """One line of `rounds.jsonl`."""

    round: int
    """counts from 1"""
    cohort: tuple[int, ...]
    knobs: Mapping[str, Knobs]
    """by client number; one entry "*" when all clients share them"""
    duals: Mapping[str, Mapping[str, float]]
    """client number (or "*") -> resource -> the multiplier its knobs came from; {} without duals"""
    train_loss: float | None
    validation: Mapping[str, float] | None
    up_bytes: int
    down_bytes: int
    usage: Mapping[str, Mapping[str, Mapping[str, float]]]
    """accounting -> client number -> resource -> amount"""
    dropped: Mapping[str, str]
    """client number -> why its reply was not used"""
    flagged: Mapping[str, str]
    """client number -> what is not credible in its report of usage"""
    skipped: tuple[int, ...]
    """clients that kept their update back because it would have changed little"""
    late: int
    """replies to earlier rounds that came too late to be used"""
    train_s: float
    """time spent waiting for replies"""
    evaluate_s: float
    wall_s: float
    """time of the whole round; what training and evaluation leave of it is overhead"""
    world: Mapping[str, Any] = field(default_factory=dict)
    """of a simulated fleet: its clock, and how those who were asked fared; {} without one"""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)
