"""Who is asked in a round. A selection is a value: init, choose, update."""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from fedbudget.types import Reply

SelectionState = dict[str, Any]
"""{"seen": {client: round asked}, "loss": {client: loss}, "failed": {client: times since its last
reply}}: plain, so a checkpoint can hold it"""


class Candidate(NamedTuple):
    """What a server may know of a client before it asks."""

    client: int
    waited: float
    """rounds since it was last asked, over the rounds between two turns if all were asked evenly"""
    loss: float | None = None
    """mean training loss of its last local run"""
    seconds: float = 0.0
    """that it will take, in its own time"""
    warmth: float = 0.0
    """0 is cold; from 1 on it throttles"""
    charge: float = 1.0
    """share of its battery"""
    failed: int = 0
    """times that it was asked in vain since its last reply"""

    @property
    def trust(self) -> float:
        """Who does not answer is asked less and less, and never given up."""
        return 0.5 ** min(self.failed, 10)


Look = Callable[[], Sequence[Candidate]]
"""asked only by selections that want to know"""


class Selection(NamedTuple):
    choose: Callable[[Look, Sequence[int], int, np.random.Generator], list[int]]
    """(candidates, clients that are there, how many, random numbers) -> the cohort"""
    learns: bool = True
    """whether it looks at what was seen of clients before"""


def init() -> SelectionState:
    return {"seen": {}, "loss": {}, "failed": {}}


def update(
    state: SelectionState, round: int, asked: Sequence[int], replies: Sequence[Reply]
) -> SelectionState:
    """What the server learns of those whom it asked, from the replies that it used."""
    seen = {**state["seen"], **{str(client): round for client in asked}}
    losses = {str(r.client): r.loss for r in replies if r.loss is not None}
    failed = dict(state.get("failed", {}))  # checkpoints of old have none
    for client in {str(client) for client in asked} - {str(r.client) for r in replies}:
        failed[client] = failed.get(client, 0) + 1
    for reply in replies:
        failed.pop(str(reply.client), None)
    return {"seen": seen, "loss": {**state["loss"], **losses}, "failed": failed}


def known(state: SelectionState, client: int, round: int, turn: float) -> Candidate:
    """Of a client, whatever its device; `turn` is the rounds between two turns of an even draw."""
    own = str(client)
    waited = (round - state["seen"].get(own, 0)) / turn
    failed = state.get("failed", {}).get(own, 0)
    return Candidate(client, waited, state["loss"].get(own), failed=failed)


def uniform() -> Selection:
    """Everyone who is there with the same chance."""
    return Selection(_uniform, learns=False)


def sparing() -> Selection:
    """Cool, charged and fast devices with a higher chance, and everyone's grows while they wait."""
    return Selection(partial(_weighted, weight=_health))


def power_of_choice(factor: int = 2) -> Selection:
    """Cho et al. 2020: of `factor` times as many drawn evenly, those with the largest loss."""
    return Selection(partial(_largest_loss, factor=factor))


def oort(alpha: float = 2.0) -> Selection:
    """Oort-like (Lai et al. 2021): by loss, less for those slower than most, more for long unseen ones.

    The published one also keeps a pool of explored clients; here all are drawn by their utility.
    """
    return Selection(partial(_weighted, weight=partial(_utility, alpha=alpha)))


def _uniform(look: Look, present: Sequence[int], size: int, rng: np.random.Generator) -> list[int]:
    chosen = rng.choice(len(present), size=min(size, len(present)), replace=False)
    return sorted(present[int(c)] for c in chosen)


Weight = Callable[[Candidate, float], float]
"""(candidate, the middle one's seconds) -> how often it is drawn"""


def _weighted(
    look: Look, present: Sequence[int], size: int, rng: np.random.Generator, *, weight: Weight
) -> list[int]:
    """Without replacement, by weight (Efraimidis and Spirakis 2006)."""
    candidates = look()
    middle = float(np.median([c.seconds for c in candidates])) if candidates else 0.0
    draws = rng.random(len(candidates))
    keys = [
        (math.log(draw) / max(1e-9, c.trust * weight(c, middle)), c.client)
        for draw, c in zip(draws, candidates, strict=True)
    ]
    return sorted(client for _, client in sorted(keys, reverse=True)[:size])


def _health(candidate: Candidate, middle: float) -> float:
    cool = max(0.05, 1 - candidate.warmth)
    fast = min(1.0, middle / candidate.seconds) if candidate.seconds > 0 else 1.0
    return cool * max(0.05, candidate.charge) * fast * candidate.waited**2


def _utility(candidate: Candidate, middle: float, *, alpha: float) -> float:
    late = (middle / candidate.seconds) ** alpha if candidate.seconds > middle > 0 else 1.0
    loss = candidate.loss if candidate.loss is not None else 10.0  # unknown ones first
    return loss * late * (1 + math.sqrt(0.1 * candidate.waited))


def _largest_loss(
    look: Look, present: Sequence[int], size: int, rng: np.random.Generator, *, factor: int
) -> list[int]:
    """Unknown losses first, unless their owners have been asked in vain."""
    drawn = set(_uniform(look, present, factor * size, rng))
    some = [c for c in look() if c.client in drawn]
    most = max((c.loss for c in some if c.loss is not None), default=1.0)

    def rank(candidate: Candidate) -> float:
        if candidate.loss is None and not candidate.failed:
            return math.inf
        return candidate.trust * (most if candidate.loss is None else candidate.loss)

    ranked = [(rank(c), tie, c.client) for c, tie in zip(some, rng.random(len(some)), strict=True)]
    return sorted(client for _, _, client in sorted(ranked, reverse=True)[:size])
