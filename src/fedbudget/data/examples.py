"""Examples by number: the only thing the training loop asks of data.

Large arrays are held once; a client's part is a range or a list of numbers into them, made when
it is asked for, so that a hundred thousand clients cost no more than their numbers.
"""

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol, overload

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedbudget.errors import UserError

Numbers = npt.NDArray[np.int64]


class Examples(Protocol):
    """A data set: its size, and inputs and targets of some of its examples."""

    def __len__(self) -> int: ...

    def batch(self, numbers: Numbers) -> tuple[Any, Tensor]: ...


@dataclass(frozen=True)
class Windows:
    """Windows of `context` tokens and their successors, inside spans of a text."""

    tokens: Tensor
    context: int
    spans: tuple[tuple[int, int], ...]
    stride: int = 1

    @cached_property
    def _ends(self) -> Numbers:
        """Running count of windows after each span."""
        sizes = [max(0, (b - a - 1 - self.context) // self.stride + 1) for a, b in self.spans]
        return np.cumsum(sizes)

    def __len__(self) -> int:
        return int(self._ends[-1])

    def batch(self, numbers: Numbers) -> tuple[Tensor, Tensor]:
        span = np.searchsorted(self._ends, numbers, side="right")
        before = np.concatenate(([0], self._ends))[span]
        starts = np.array([a for a, _ in self.spans])[span] + (numbers - before) * self.stride
        at = torch.from_numpy(starts)[:, None] + torch.arange(self.context + 1)
        ids = self.tokens[at].long()  # (B, T + 1)
        return ids[:, :-1].contiguous(), ids[:, 1:].contiguous()


@dataclass(frozen=True)
class Arrays:
    """Inputs and targets as tensors; bytes are scaled to 0..1 when a batch is drawn."""

    x: Tensor
    y: Tensor

    def __len__(self) -> int:
        return len(self.y)

    def batch(self, numbers: Numbers) -> tuple[Tensor, Tensor]:
        at = torch.from_numpy(numbers)
        x = self.x.index_select(0, at)  # copies rows: several times as fast as x[at]
        return (x.float().div_(255) if x.dtype == torch.uint8 else x), self.y.index_select(0, at)


@dataclass(frozen=True)
class FromDataset:
    """Any map-style data set of (input, target) pairs: torch's, or Hugging Face's of two columns."""

    dataset: Any

    def __len__(self) -> int:
        return len(self.dataset)

    def batch(self, numbers: Numbers) -> tuple[Any, Tensor]:
        from torch.utils.data import default_collate

        x, y = default_collate([_pair(self.dataset[int(n)]) for n in numbers])
        return x, y


def _pair(item: Any) -> tuple[Any, Any]:
    parts = list(item.values()) if isinstance(item, dict) else item
    if not isinstance(parts, list | tuple) or len(parts) != 2:
        raise UserError(
            "a data set's items must be (input, target) pairs or have two columns; "
            f"this one is a {type(item).__name__}"
            + (f" of {len(parts)}" if isinstance(parts, list | tuple) else "")
        )
    x, y = (torch.as_tensor(p) if isinstance(p, list) else p for p in parts)
    if hasattr(x, "getbands"):  # a PIL image: channels first, 0..1
        pixels = torch.from_numpy(np.array(x)).float() / 255
        x = pixels[None] if pixels.dim() == 2 else pixels.permute(2, 0, 1)
    return x, y


@dataclass(frozen=True)
class Part:
    """Some examples of a larger set."""

    base: Examples
    numbers: Numbers

    def __len__(self) -> int:
        return len(self.numbers)

    def batch(self, numbers: Numbers) -> tuple[Any, Tensor]:
        return self.base.batch(self.numbers[numbers])


class Lazy(Sequence[Examples]):
    """A client's examples, made when they are asked for."""

    @abstractmethod
    def one(self, i: int) -> Examples: ...

    @overload
    def __getitem__(self, i: int) -> Examples: ...
    @overload
    def __getitem__(self, i: slice) -> Sequence[Examples]: ...
    def __getitem__(self, i: int | slice) -> Examples | Sequence[Examples]:
        if isinstance(i, slice):
            return [self.one(j) for j in range(*i.indices(len(self)))]
        return self.one(range(len(self))[i])


class Parts(Lazy):
    """Clients as parts of one set: all numbers in one array, cut at bounds."""

    def __init__(self, base: Examples, parts: Sequence[Numbers]) -> None:
        self.base = base
        self.numbers = np.concatenate(parts)
        self.bounds = np.concatenate(([0], np.cumsum([len(p) for p in parts])))

    def __len__(self) -> int:
        return len(self.bounds) - 1

    def one(self, i: int) -> Examples:
        return Part(self.base, self.numbers[self.bounds[i] : self.bounds[i + 1]])


class Texts(Lazy):
    """Clients as spans of one text."""

    def __init__(
        self, tokens: Tensor, context: int, spans: Sequence[Sequence[tuple[int, int]]]
    ) -> None:
        self.tokens, self.context = tokens, context
        self.spans = [tuple(s) for s in spans]

    def __len__(self) -> int:
        return len(self.spans)

    def one(self, i: int) -> Examples:
        return Windows(self.tokens, self.context, self.spans[i])


def as_examples(data: Any) -> Examples:
    """What a user hands in: Examples, an (x, y) pair of tensors, or a torch Dataset."""
    if hasattr(data, "column_names"):  # Hugging Face: it has a `batch` of another meaning
        return FromDataset(data)
    if hasattr(data, "batch") and hasattr(data, "__len__"):
        return data  # type: ignore[no-any-return]
    if isinstance(data, tuple) and len(data) == 2:
        x, y = torch.as_tensor(data[0]), torch.as_tensor(data[1])
        if len(x) != len(y):
            raise UserError(f"a data set has {len(x)} inputs and {len(y)} targets")
        return Arrays(x, y)
    if not (hasattr(data, "__len__") and hasattr(data, "__getitem__")):
        raise UserError(
            f"a {type(data).__name__} is no data set here: give a torch Dataset with a length, "
            "or an (inputs, targets) pair of tensors"
        )
    return FromDataset(data)


def draw(examples: Examples, batch: int, rng: np.random.Generator) -> Iterator[tuple[Any, Tensor]]:
    """Batches without end: each example once, in random order, before any comes again."""
    waiting = np.empty(0, dtype=np.int64)
    while True:
        while len(waiting) < batch:
            waiting = np.concatenate([waiting, rng.permutation(len(examples))])
        yield examples.batch(waiting[:batch])
        waiting = waiting[batch:]


def in_order(examples: Examples, batch: int) -> list[Numbers]:
    """The numbers of each batch of one pass."""
    return [np.arange(i, min(i + batch, len(examples))) for i in range(0, len(examples), batch)]
