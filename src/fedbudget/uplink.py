"""What goes up: the encoded update, and what a client keeps of it for its next one.

error       error feedback: what the codec lost is added to the next update (`codecs.feedback`)
momentum    Deep Gradient Compression (Lin et al. 2018): error feedback on a momentum of the
            updates, u = m u + update, v += u; what is sent of v is cleared in both
skip        LAG-style (Chen et al. 2018): an update that would move the model less than a share of
            how far the model moved by itself since the client last saw it, a round, is kept back
            and added to the next
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fedbudget import seeds
from fedbudget.algorithms.algorithm import ClientState, LocalRun, Sent
from fedbudget.codecs import NOTHING, frame
from fedbudget.codecs.feedback import compensated, remainder
from fedbudget.models.flat import Layout
from fedbudget.types import Job


@dataclass(frozen=True)
class Uplink:
    """How a client sends."""

    feedback: Literal["none", "error", "momentum"] = "none"
    momentum: float = 0.9
    """of "momentum" """
    skip: float = 0.0
    """0 sends every update; needs feedback"""


def encode(
    job: Job, run: LocalRun, update: Sent, layout: Layout, how: Uplink
) -> tuple[frame.Packed, ClientState]:
    """The update as a frame, and what is kept back, over the whole model."""
    kept: dict[str, Tensor] = {}
    if how.feedback != "none":
        update = tuple(_compensated(run, i, u, how, kept) for i, u in enumerate(update))
    payload = frame.pack(
        update,
        layout,
        run=job.run,
        round=job.round,
        client=job.client,
        seed=seeds.key(job.seed, job.round, job.client, "codec"),
        codec=NOTHING if _little(job, run, update, how) else job.knobs.codec,
        groups=job.knobs.groups(layout.depth),
    )
    if how.feedback != "none":
        for i, (put_in, got) in enumerate(zip(update, frame.unpack(payload, layout), strict=True)):
            kept[f"residual{i}"][run.part] = remainder(put_in, got)
            if how.feedback == "momentum":
                kept[f"momentum{i}"][run.part] *= got == 0
    return payload, kept


def kept_back(payload: frame.Packed) -> bool:
    """Whether a reply says that its update would have changed little."""
    return payload.header.codec == NOTHING


def _compensated(
    run: LocalRun, i: int, update: Tensor, how: Uplink, kept: dict[str, Tensor]
) -> Tensor:
    kept[f"residual{i}"] = run.kept(f"residual{i}").clone()
    if how.feedback == "momentum":
        velocity = run.kept(f"momentum{i}").clone()
        velocity[run.part] = how.momentum * velocity[run.part] + update
        kept[f"momentum{i}"] = velocity
        update = velocity[run.part]
    return compensated(update, kept[f"residual{i}"][run.part])


def _little(job: Job, run: LocalRun, update: Sent, how: Uplink) -> bool:
    """Whether the model moves more by itself."""
    if how.skip == 0 or job.ack is None:
        return False
    moved = torch.linalg.vector_norm(run.received[0] - run.kept("model0")).item()
    rounds = max(1, job.round - job.ack.round)
    return bool(torch.linalg.vector_norm(update[0]) < how.skip * moved / rounds)
