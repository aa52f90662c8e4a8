"""Blocks of numbers as one scale and small codes each, and uniform levels with stochastic rounding.

A body is the float32 scales of all blocks and then their codes; a number is its block's scale times
the level that its code names. `Grid` is such a format: `encode` and `decode` serve every codec that
differs only in its levels and in how it chooses codes (`uniform`, `qsgd`, `eden`, `sign`).

With levels evenly spaced over [-max, max] and rounding up or down at random, so that the mean is
right, this is the quantiser of FedPAQ (Reisizadeh et al. 2020) and of QSGD (Alistarh et al. 2017).
"""

from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import NamedTuple

import numpy as np
import torch
from numpy.random import Philox
from numpy.typing import NDArray
from torch import Tensor

from fedbudget.codecs.codec import Codec
from fedbudget.types import Buffer

Floats = NDArray[np.float32]
Bytes = NDArray[np.uint8]

ONE_BLOCK = 2**62
"""A block longer than any vector: one scale for all of it."""
_CACHED = 2**18  # numbers treated at once: more leave the cache, with fewer the calls cost more


class Grid(NamedTuple):
    """Codes 0, 1, .. for `levels`; `per` of them in a group as digits to `base`, lowest first."""

    levels: tuple[float, ...]
    base: int
    per: int
    block: int
    """numbers that share a scale; each block starts a group"""
    group: int = 1
    """bytes of a group: 1, or 3 for codes of 3 bits"""

    def blocks(self, count: int) -> int:
        return -(-count // self.block)

    def code_bytes(self, n: int) -> int:
        """Of the codes of a block of n numbers."""
        return -(-n // self.per) * self.group

    def body_bytes(self, count: int) -> int:
        """Of the scales and codes of `count` numbers."""
        whole, rest = divmod(count, self.block)
        codes = whole * self.code_bytes(self.block) + self.code_bytes(rest)
        return 4 * self.blocks(count) + codes

    def pieces(self, count: int) -> Iterator[tuple[int, int]]:
        """(blocks, numbers in each) of the groups to treat at once; the last block may be short."""
        whole, rest = divmod(count, self.block)
        group = max(1, _CACHED // self.block)
        for first in range(0, whole, group):
            yield min(group, whole - first), self.block
        if rest:
            yield 1, rest


Quantise = Callable[[Tensor, Philox, Grid], tuple[Floats, Bytes]]
"""(numbers (blocks, n), random numbers, grid) -> scales (blocks,), packed codes (blocks, bytes)"""
Turn = Callable[[Tensor, Philox], Tensor]
"""(levels (blocks, n), random numbers) -> what the scales multiply"""


def encode(vector: Tensor, seed: int, *, grid: Grid, quantise: Quantise) -> Buffer:
    """Scales, then codes."""
    x = vector.detach().to(torch.float32).contiguous()  # (d,)
    blocks = grid.blocks(len(x))
    body = np.empty(grid.body_bytes(len(x)), np.uint8)
    scales = body[: 4 * blocks].view("<f4")
    random = Philox(key=seed)
    done, row, at = 0, 0, 4 * blocks
    for rows, width in grid.pieces(len(x)):
        piece = x[done : done + rows * width].view(rows, width)
        with np.errstate(all="ignore"):  # what is not finite ends in its scale, seen below
            scales[row : row + rows], codes = quantise(piece, random, grid)
        body[at : at + codes.size] = codes.reshape(-1)
        done, row, at = done + rows * width, row + rows, at + codes.size
    if not np.isfinite(scales).all():
        raise ValueError("the vector to encode is not finite, or too large for float32")
    return memoryview(body.data)


def decode(
    body: memoryview, count: int, seed: int, *, grid: Grid, turn: Turn | None = None
) -> Tensor:
    """Levels times scales, after `turn` where the codec has one."""
    blocks, size = grid.blocks(count), grid.body_bytes(count)
    if len(body) != size:
        raise ValueError(f"a body of {len(body)} bytes; {count} numbers take {size}")
    data = np.frombuffer(body, np.uint8)
    scales = torch.from_numpy(data[: 4 * blocks].view("<f4").astype(np.float32))
    if not bool(((scales >= 0) & (scales < torch.inf)).all()):
        raise ValueError("a scale is negative or not finite")
    out = torch.empty(count)
    random = Philox(key=seed)
    done, row, at = 0, 0, 4 * blocks
    for rows, width in grid.pieces(count):
        end = at + rows * grid.code_bytes(width)
        levels = unpack(data[at:end].reshape(rows, -1), width, grid)
        if not np.isfinite(levels.sum()):
            raise ValueError(f"a code is not one of {len(grid.levels)} levels")
        values = torch.from_numpy(levels)
        if turn is not None:
            values = turn(values, random)
        piece = out[done : done + rows * width].view(rows, width)
        torch.mul(values, scales[row : row + rows, None], out=piece)
        done, row, at = done + rows * width, row + rows, end
    return out


def blockwise(grid: Grid, quantise: Quantise, turn: Turn | None = None) -> Codec:
    """The codec that a grid and a choice of codes make."""
    return Codec(
        partial(encode, grid=grid, quantise=quantise),
        partial(decode, grid=grid, turn=turn),
        grid.body_bytes,
    )


def pack(codes: Bytes, grid: Grid) -> Bytes:
    """Codes (blocks, n) as bytes (blocks, code_bytes(n)); digits after the last code are 0."""
    if grid.per == 1:
        return codes
    if short := -codes.shape[1] % grid.per:
        codes = np.pad(codes, ((0, 0), (0, short)))
    if grid.base**grid.per == 2**8 and grid.group == 1:
        return _joined(codes, grid.per)
    digits = codes.reshape(len(codes), -1, grid.per)
    number = "u1" if grid.group == 1 else "<u4"
    packed = digits[..., 0].astype(number)
    for k in range(1, grid.per):
        packed += np.multiply(digits[..., k], grid.base**k, dtype=number)
    octets = packed.view(np.uint8).reshape(*packed.shape, -1)  # (blocks, groups, 1 or 4)
    return octets[..., : grid.group].reshape(len(codes), -1)


def _joined(codes: Bytes, per: int) -> Bytes:
    """`pack` for codes of whole bits: `per` neighbours are one word, and a product slides its bytes
    together into the highest; no bits of the product's terms overlap, so nothing carries."""
    if per == 8:
        return np.packbits(codes, axis=1, bitorder="little")
    words = np.ascontiguousarray(codes).view("<u2" if per == 2 else "<u4")
    factor = words.dtype.type(0x0110 if per == 2 else 0x01041040)
    slid: Bytes = (words * factor).view(np.uint8)
    return slid[:, per - 1 :: per]


def unpack(packed: Bytes, width: int, grid: Grid) -> Floats:
    """Levels (blocks, width) of packed codes; NaN for a code that has none."""
    rows = len(packed)
    words = packed if grid.group == 1 else _halves(packed)
    return _table(grid).take(words, axis=0).reshape(rows, -1)[:, :width]


def _halves(packed: Bytes) -> NDArray[np.uint16]:
    """Groups of three bytes as pairs of 12 bits: a table of all groups would fit no cache."""
    low, middle, high = np.moveaxis(packed.reshape(len(packed), -1, 3).astype(np.uint16), -1, 0)
    return np.stack([low | (middle & 15) << 8, middle >> 4 | high << 4], axis=-1)


@cache
def _table(grid: Grid) -> Floats:
    """The levels in each byte, or half of three bytes: faster than taking numbers apart."""
    per, words = (grid.per, 2**8) if grid.group == 1 else (grid.per // 2, 2**12)
    word = np.arange(words)[:, None]
    digit = word // grid.base ** np.arange(per) % grid.base  # (words, per)
    known = (digit < len(grid.levels)) & (word < grid.base**per)
    levels = np.array(grid.levels, np.float32)
    return np.where(known, levels[np.where(known, digit, 0)], np.float32(np.nan))


def stochastic(x: Tensor, random: Philox, grid: Grid) -> tuple[Floats, Bytes]:
    """Scale max |x|; the level below or above, at random with the right mean."""
    values: Floats = x.numpy()
    top = np.abs(values).max(axis=1, keepdims=True)
    half = np.float32((len(grid.levels) - 1) / 2)
    # divided before it is multiplied: half / top overflows for a denormal top
    place = values / np.where(top > 0, top, np.float32(1))
    place *= half
    place += half
    # 16 random bits and the 8 of the code fill a float32's 24: the sum is exact and never rounds up
    bits = random.random_raw(-(-values.size // 4)).view(np.uint16)[: values.size]
    place += (bits * np.float32(2**-16)).reshape(values.shape)
    return top[:, 0], pack(place.astype(np.uint8), grid)


def uniform(bits: int, levels: int, block: int) -> Codec:
    """`levels` evenly spaced over [-max, max] of each block; an odd number has an exact 0."""
    spaced = tuple(2 * k / (levels - 1) - 1 for k in range(levels))
    grid = Grid(spaced, 2**bits, 8 // bits, block)
    return blockwise(grid, stochastic)


int8 = uniform(8, 255, 4096)
uniform4 = uniform(4, 16, ONE_BLOCK)
uniform2 = uniform(2, 4, ONE_BLOCK)
