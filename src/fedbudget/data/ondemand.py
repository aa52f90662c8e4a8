"""Clients whose data sets are loaded when they train, so that a fleet need not fit into memory."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from fedbudget.data.examples import Examples, Lazy, Numbers, as_examples
from fedbudget.errors import UserError


class OnDemand(Lazy):
    """`load(i)` gives client i's data set, of `sizes[i]` examples, each time it has work to do.

    load: any of the kinds of data sets that `train` takes, such as an (x, y) pair of tensors from
        `numpy.load(file, mmap_mode="r")`; with worker processes a function at the top of a module.

    >>> import torch
    >>> def load(i):
    ...     return torch.full((3, 2), float(i)), torch.zeros(3)
    >>> clients = OnDemand([3] * 100_000, load)
    >>> len(clients), len(clients[7])
    (100000, 3)
    """

    def __init__(self, sizes: Sequence[int], load: Callable[[int], Any]) -> None:
        self.sizes, self.load = sizes, load

    def __len__(self) -> int:
        return len(self.sizes)

    def one(self, i: int) -> Examples:
        return _Loaded(i, self.sizes[i], self.load)


@dataclass
class _Loaded:
    """One client's examples: loaded by the first batch, gone with the object or when it is sent."""

    client: int
    size: int
    load: Callable[[int], Any]
    _found: Examples | None = field(default=None, repr=False)

    def __len__(self) -> int:
        return self.size

    def batch(self, numbers: Numbers) -> tuple[Any, Tensor]:
        if self._found is None:
            self._found = as_examples(self.load(self.client))
            if len(self._found) != self.size:
                raise UserError(
                    f"client {self.client} has {len(self._found)} examples; its size was to be "
                    f"{self.size}"
                )
        return self._found.batch(numbers)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_found": None}
