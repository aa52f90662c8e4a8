"""Several clients' examples as one set, so that many clients' batches are read at once."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedbudget.data.examples import Arrays, Examples, Numbers, Part

_OFTEN = 8
"""times that an example is drawn from which on a copy of all pays; it leaves the processor's cache"""


def starts(parts: Sequence[Examples]) -> Numbers:
    """Where each part begins in `joined(parts)`, and the end of the last: (parts + 1,)."""
    return np.concatenate(([0], np.cumsum([len(p) for p in parts], dtype=np.int64)))


def joined(parts: Sequence[Examples]) -> Examples:
    """The parts one after another; nothing is copied."""
    same = [p for p in parts if isinstance(p, Part) and p.base is getattr(parts[0], "base", None)]
    if len(same) == len(parts):
        return Part(same[0].base, np.concatenate([p.numbers for p in same]))
    return _Several(tuple(parts))


@dataclass(frozen=True)
class _Several:
    """Parts that have nothing in common but the shape of their examples."""

    parts: tuple[Examples, ...]

    @cached_property
    def _starts(self) -> Numbers:
        return starts(self.parts)

    def __len__(self) -> int:
        return int(self._starts[-1])

    def batch(self, numbers: Numbers) -> tuple[Tensor, Tensor]:
        owners = np.searchsorted(self._starts, numbers, side="right") - 1
        cuts = np.flatnonzero(np.diff(owners)) + 1  # numbers of one part come in a row
        x, y = [], []
        for run in np.split(np.arange(len(numbers)), cuts):
            owner = owners[run[0]]
            inputs, targets = self.parts[owner].batch(numbers[run] - self._starts[owner])
            x.append(inputs)
            y.append(targets)
        return torch.cat(x), torch.cat(y)


class Batch(NamedTuple):
    """A batch of each part."""

    x: Tensor
    """(parts, examples, ...)"""
    y: Tensor
    """(parts, examples, ...)"""
    share: Tensor | None = None
    """what each example counts for in its batch, (parts, examples); None where all count alike"""


def draw_together(
    parts: Sequence[Examples],
    batch: int,
    count: int,
    rngs: Sequence[np.random.Generator],
    shares: bool = False,
) -> Iterator[Batch]:
    """`count` batches of each part, those of `draw`; one may lie in the memory of the one before.

    With `shares`, parts that are no larger than a batch are yielded whole every time, with the
    share that each example has of the batch: nothing is copied then.
    """
    orders = [_order(len(p), count * batch, rng) for p, rng in zip(parts, rngs, strict=True)]
    numbers = np.stack(orders).reshape(len(parts), count, batch).swapaxes(0, 1)
    whole, begins = joined(parts), starts(parts)
    longest = int(np.diff(begins).max())
    if shares and longest <= batch:
        yield from _whole(whole, begins, longest, numbers)
        return
    numbers += begins[:-1, None]
    if numbers.size >= _OFTEN * len(whole):  # bytes become floats once
        whole = _Reused(*whole.batch(np.arange(len(whole))))
    for at in numbers:
        x, y = whole.batch(at.ravel())
        yield Batch(x.view(*at.shape, *x.shape[1:]), y.view(*at.shape, *y.shape[1:]))


def _whole(whole: Examples, begins: Numbers, longest: int, numbers: Numbers) -> Iterator[Batch]:
    """Parts filled up to the longest with examples that count for nothing."""
    _, parts, batch = numbers.shape
    own = np.minimum(np.arange(longest), np.diff(begins)[:, None] - 1)  # (parts, longest)
    x, y = whole.batch((begins[:-1, None] + own).ravel())
    x, y = x.view(parts, longest, *x.shape[1:]), y.view(parts, longest, *y.shape[1:])
    slots = numbers + longest * np.arange(parts)[:, None]
    for at in slots:
        often = np.bincount(at.ravel(), minlength=parts * longest).reshape(parts, longest)
        yield Batch(x, y, torch.from_numpy(often / batch).to(x.dtype))


def _order(size: int, count: int, rng: np.random.Generator) -> Numbers:
    """The first `count` numbers of `draw`: one permutation after another."""
    passes = [rng.permutation(size) for _ in range(-(-count // size))]
    return np.concatenate(passes)[:count]


class _Reused(Arrays):
    """Batches in the memory of the one before: fresh pages cost more than the copy into them."""

    @cached_property
    def _room(self) -> Tensor:
        return self.x.new_empty(0)

    def batch(self, numbers: Numbers) -> tuple[Tensor, Tensor]:
        at = torch.from_numpy(numbers)
        self._room.resize_(len(at), *self.x.shape[1:])
        return torch.index_select(self.x, 0, at, out=self._room), self.y.index_select(0, at)
