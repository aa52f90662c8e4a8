"""What goes down: only the layer groups that changed since a client last saw the model.

A client that took part before still has what it was sent then, so it needs the groups from the
lowest one that changed to the highest; a new client needs all. The frame says which groups it has.
"""

from collections.abc import Sequence
from functools import cached_property

import torch
from torch import Tensor

from fedbudget import seeds
from fedbudget.algorithms.algorithm import ClientState, Sent
from fedbudget.codecs import frame
from fedbudget.errors import StateLostError
from fedbudget.models.flat import Layout
from fedbudget.types import Ack

Changed = tuple[int, ...]
"""the last round in which each layer group changed; 0 = never"""


def changed_groups(
    changed: Changed, before: Sent, after: Sent, round: int, layout: Layout
) -> Changed:
    """Compare the groups: a server optimiser may move what no client trained."""
    marks = list(changed)
    for group in range(layout.depth):
        where = layout.span(group, group + 1)
        if any(not torch.equal(a[where], b[where]) for a, b in zip(before, after, strict=True)):
            marks[group] = round
    return tuple(marks)


class Broadcast:
    """The frames of one round; clients that need the same groups share one."""

    def __init__(
        self, vectors: Sent, layout: Layout, run: int, seed: int, round: int, codec: str
    ) -> None:
        self.vectors, self.layout, self.codec = vectors, layout, codec
        self.run, self.seed, self.round = run, seed, round
        self._frames: dict[tuple[int, int], frame.Packed] = {}

    def of(self, first: int, last: int) -> frame.Packed:
        """Layer groups first..last-1."""
        groups = first, last
        if groups not in self._frames:
            where = self.layout.span(*groups)
            self._frames[groups] = frame.pack(
                [v[where] for v in self.vectors],
                self.layout,
                run=self.run,
                round=self.round,
                client=seeds.SERVER,
                seed=self._codec_seed,
                codec=self.codec,
                groups=groups,
            )
        return self._frames[groups]

    @property
    def whole(self) -> frame.Packed:
        return self.of(0, self.layout.depth)

    @cached_property
    def _codec_seed(self) -> int:
        return seeds.key(self.seed, self.round, seeds.SERVER, "codec")

    def since(self, ack: Ack | None, changed: Changed) -> frame.Packed:
        """For a client that saw the model when round `ack.round` began."""
        if ack is None:
            return self.whole
        top = self.layout.depth - 1
        news = [group for group, round in enumerate(changed) if round >= ack.round] or [top]
        return self.of(min(news), max(news) + 1)


def restored(payload: frame.Packed, layout: Layout, state: ClientState) -> Sent:
    """The whole vectors, from a frame and what the client was sent before."""
    vectors = frame.unpack(payload, layout)
    groups = payload.header.first, payload.header.last
    if groups == (0, layout.depth):
        return vectors
    whole = []
    for i, vector in enumerate(vectors):
        before = state.get(f"model{i}")
        if before is None:
            raise StateLostError("the client has lost the model it was sent before")
        mine = before.clone()
        mine[layout.span(*groups)] = vector
        whole.append(mine)
    return tuple(whole)


def kept(received: Sequence[Tensor]) -> ClientState:
    """What a client must keep so that the next frame can be partial."""
    return {f"model{i}": vector.clone() for i, vector in enumerate(received)}
