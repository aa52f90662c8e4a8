"""Differential privacy of what a client sends: clip the update, add Gaussian noise, then encode it.

    q = u min(1, C / |u|) + N(0, s^2),   s = noise C  ("local")  or  noise C / sqrt(cohort)  ("sum")

u is the whole update, all its vectors as one, over the layers that are sent. The links come after:
a code, an error feedback's residual or a skipped upload is computed from q alone, so none of them
needs noise of its own. The same holds for what SCAFFOLD and PC-FedAvg keep, because they keep what
the server decoded.

"local" protects against whoever sees the client's own frames. "sum" protects against those who see
sums over a cohort only, and asks that what is summed is q itself. `epsilon` says how much.
"""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from fedbudget import seeds
from fedbudget.algorithms.algorithm import Sent
from fedbudget.errors import UserError
from fedbudget.models.flat import Layout
from fedbudget.types import Job


@dataclass(frozen=True)
class Privacy:
    """How much a client's update may say."""

    clip: float = 0.0
    """C, the largest norm of an update; 0 = no privacy"""
    noise: float = 0.0
    """standard deviation over C: of one update ("local") or of a full cohort's sum ("sum")"""
    model: Literal["local", "sum"] = "local"
    delta: float = 1e-5
    cohort: int = 1
    """clients that a round asks, for "sum" """

    def __post_init__(self) -> None:
        if not (self.clip >= 0 and self.noise >= 0 and 0 < self.delta < 1 and self.cohort >= 1):
            raise UserError(
                f"{self}: clip and noise must be at least 0, delta between 0 and 1, cohort at least 1"
            )

    @property
    def on(self) -> bool:
        return self.clip > 0

    @property
    def std(self) -> float:
        """Of the noise on each number of one client's update."""
        shared = math.sqrt(self.cohort) if self.model == "sum" else 1.0
        return self.noise * self.clip / shared


def private(update: Sent, how: Privacy, job: Job, secret: int | None = None) -> Sent:
    """The update as it may leave the client; as it is where privacy is off.

    secret: the seed of a node's own noise; None takes the run's.
    """
    if not how.on:
        return update
    whole = torch.cat(update).double()  # so that rounding comes after the noise
    norm = torch.linalg.vector_norm(whole).item()
    if not math.isfinite(norm):
        raise UserError("the update holds numbers that are not finite")
    if norm > how.clip:
        whole *= how.clip / norm
    purpose = "privacy"
    if secret is not None:
        # a server that asks for one round twice, with two models, must not get the same noise
        purpose += hashlib.blake2b(whole.numpy().data).hexdigest()
    rng = seeds.rng(job.seed if secret is None else secret, job.round, job.client, purpose)
    whole.add_(torch.from_numpy(rng.standard_normal(len(whole))), alpha=how.std)
    return tuple(part.to(update[0].dtype) for part in whole.chunk(len(update)))


def check(
    how: Privacy,
    layout: Layout,
    *,
    weighting: str,
    codecs: Sequence[str],
    remembers: bool,
    compares: bool,
) -> None:
    """Raise UserError where a run would not keep what `how` promises.

    codecs: what updates may travel in; () = anything. remembers: whether a client adds what it kept
    back to a later update. compares: whether the server looks at single updates.
    """
    if not how.on:
        return
    if weighting != "uniform":
        raise UserError(
            "privacy needs weighting = 'uniform': a weight tells how much data a client has, and "
            "makes it count for more than its clipped update"
        )
    if layout.statistics:
        raise UserError(
            "privacy: the model has running statistics (batch norm), and noise would make their "
            "variances negative; use group or layer norm"
        )
    if how.model == "local":
        return
    if set(codecs) != {layout.raw}:
        raise UserError(
            "privacy.model = 'sum' needs updates that travel as they are, with codec raw32 and a "
            "controller that keeps it: codes of different clients do not add up, so their sum "
            "does not have the noise of all; use privacy.model = 'local' with other codecs"
        )
    if remembers:
        raise UserError(
            "privacy.model = 'sum' needs codec.feedback = 'none': what a client kept back would "
            "come in another cohort's sum, without the noise of its own"
        )
    if compares:
        raise UserError(
            "privacy.model = 'sum' needs train.screen = 'off' and train.aggregate = 'mean': the "
            "others look at every single update, and there only the sum may be seen"
        )
