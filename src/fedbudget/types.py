"""The frozen data that flows round the loop: Knobs -> Job -> Reply -> RoundRecord."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedbudget.codecs.frame import Packed

Buffer = bytes | bytearray | memoryview


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

    def header(self) -> dict[str, Any]:
        """Everything but the payload, ready for JSON."""
        fields = {k: v for k, v in self.__dict__.items() if k != "payload"}
        return {**fields, "knobs": asdict(self.knobs)}

    @staticmethod
    def from_header(header: Mapping[str, Any], payload: "Packed") -> "Job":
        return Job(**{**header, "knobs": Knobs(**header["knobs"])}, payload=payload)


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
    """accounting ("paper", "counted", "measured") -> resource -> amount, in SI units"""
    error: str | None = None
    payload: "Packed | None" = field(default=None, repr=False)

    def header(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k != "payload"}

    @staticmethod
    def from_header(header: Mapping[str, Any], payload: "Packed | None") -> "Reply":
        return Reply(**header, payload=payload)

    @staticmethod
    def failure(job: Job, reason: str) -> "Reply":
        return Reply(job.run, job.round, job.client, error=reason)


@dataclass(frozen=True)
class RoundRecord:
    """One line of `rounds.jsonl`."""

    round: int
    """counts from 1"""
    cohort: tuple[int, ...]
    knobs: Mapping[str, Knobs]
    """by client number; one entry "*" when all clients share them"""
    train_loss: float | None
    validation: Mapping[str, float] | None
    up_bytes: int
    down_bytes: int
    usage: Mapping[str, Mapping[str, Mapping[str, float]]]
    """accounting -> client number -> resource -> amount"""
    dropped: Mapping[str, str]
    """client number -> why its reply was not used"""
    train_s: float
    """time spent waiting for replies"""
    evaluate_s: float
    wall_s: float
    """time of the whole round; what training and evaluation leave of it is overhead"""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)
