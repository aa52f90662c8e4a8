"""What a codec is: a pair of functions."""

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor

from fedbudget.types import Buffer


class Codec(NamedTuple):
    """A vector as bytes and back; the seed names the random numbers both sides share."""

    encode: Callable[[Tensor, int], Buffer]
    """(vector, seed) -> body"""
    decode: Callable[[memoryview, int, int], Tensor]
    """(body, number of elements, seed) -> vector; may raise ValueError, must check lengths first"""
    size: Callable[[int], int]
    """number of elements -> bytes of their body, or the most it can have; budgets go by it"""
    fixed: bool = True
    """whether a body always has that size, whatever the elements are"""


class Fidelity(NamedTuple):
    """What one encode and decode makes of a vector x: a share of x, and noise across it."""

    kept: float
    """that share: 1 where a code is unbiased, less where it leaves numbers out or shrinks them"""
    noise: float
    """squared, over that of the share kept; a cohort's mean averages it away"""
