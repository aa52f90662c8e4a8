"""Top-k: the numbers of largest magnitude, as they are or by another codec; the others are 0.

What Deep Gradient Compression (Lin et al. 2018) sends; with the signs of the numbers only, Sparse
Ternary Compression (Sattler et al. 2019). Biased, and meant for error feedback.
k = ceil(d P / 100) follows from the codec's name, so it does not travel.

Positions travel as a Rice code of the gaps between them, in the parts that NumPy can write and read
at once: the low `low` bits of every gap, and the rest of each gap in unary (so many 0 bits, then
a 1). That is within a few percent of the entropy for random positions, and with `low` = 0 it is
the bitmap of the positions; the encoder takes the `low` that is smallest.
"""

import math
from fractions import Fraction
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedbudget.codecs.codec import Codec
from fedbudget.codecs.raw import raw32
from fedbudget.types import Buffer

Places = NDArray[np.int64]


def kept(count: int, percent: Fraction) -> int:
    """How many of `count` numbers are sent."""
    return math.ceil(count * percent / 100)


def _encode(vector: Tensor, seed: int, *, percent: Fraction, inner: Codec) -> Buffer:
    x = vector.detach().to(torch.float32).contiguous()
    if not bool(torch.isfinite(x).all()):
        raise ValueError("the vector to encode is not finite, or too large for float32")
    if not len(x):
        return b""
    k = kept(len(x), percent)
    places = _largest(np.abs(x.numpy()), k)
    gaps: Places = np.diff(places, prepend=-1) - 1
    low = min(range((len(x) // k).bit_length() + 1), key=partial(_coded_bytes, gaps))
    values = inner.encode(x[torch.from_numpy(places)], seed)
    low_bits = (gaps[:, None] >> np.arange(low)).astype(np.uint8) & 1  # (k, low)
    high = np.zeros(k + int((gaps >> low).sum()), np.uint8)
    high[np.cumsum((gaps >> low) + 1) - 1] = 1
    parts = (np.packbits(bits, bitorder="little") for bits in (low_bits, high))
    return b"".join([bytes([low]), values, *(p.tobytes() for p in parts)])


def _largest(sizes: NDArray[np.float32], k: int) -> Places:
    """Where the k largest are, in order; of equal ones the first are taken."""
    least = np.partition(sizes, len(sizes) - k)[len(sizes) - k]
    keep = sizes > least
    keep[np.flatnonzero(sizes == least)[: k - np.count_nonzero(keep)]] = True
    return np.flatnonzero(keep)


def _coded_bytes(gaps: Places, low: int) -> int:
    return -(-low * len(gaps) // 8) + -(-(len(gaps) + int((gaps >> low).sum())) // 8)


def _size(count: int, *, percent: Fraction, inner: Codec) -> int:
    """The most that any positions take: gaps add up to count - k, their high parts to less."""
    if not count:
        return 0
    k = kept(count, percent)
    lows = range((count // k).bit_length() + 1)
    places = min(-(-low * k // 8) + -(-(k + ((count - k) >> low)) // 8) for low in lows)
    return 1 + inner.size(k) + places


def _decode(body: memoryview, count: int, seed: int, *, percent: Fraction, inner: Codec) -> Tensor:
    if not count and not len(body):
        return torch.zeros(0)
    k = kept(count, percent)
    low = body[0] if len(body) else 0
    at_low = 1 + inner.size(k)
    at_high = at_low + -(-low * k // 8)
    longest = at_high + -(-(k + (count >> low)) // 8)
    if not (low < 32 and at_high < len(body) <= longest):
        raise ValueError(f"a body of {len(body)} bytes does not hold {k} of {count} numbers")
    data = np.frombuffer(body, np.uint8)
    ones = np.flatnonzero(np.unpackbits(data[at_high:], bitorder="little"))
    if len(ones) != k or ones[-1] // 8 != len(body) - at_high - 1:
        raise ValueError(f"{len(ones)} positions where {k} belong, or bytes after them")
    gaps = (np.diff(ones, prepend=-1) - 1) << low
    low_bits = np.unpackbits(data[at_low:at_high], count=low * k, bitorder="little")
    gaps += low_bits.reshape(k, low) @ (1 << np.arange(low))
    places = np.cumsum(gaps + 1) - 1
    if places[-1] >= count:
        raise ValueError(f"position {places[-1]} of {count} numbers")
    values = inner.decode(memoryview(bytearray(body[1:at_low])), k, seed)  # a copy is aligned
    if not bool(torch.isfinite(values).all()):
        raise ValueError("a value is not finite")
    out = torch.zeros(count)
    out[torch.from_numpy(places)] = values
    return out


def topk(percent: Fraction, inner: Codec = raw32) -> Codec:
    """The largest `percent` of the numbers, 0 < percent <= 100, written by a codec of fixed size."""
    if not inner.fixed:
        raise ValueError("a sparse codec inside a sparse one")
    return Codec(
        partial(_encode, percent=percent, inner=inner),
        partial(_decode, percent=percent, inner=inner),
        partial(_size, percent=percent, inner=inner),
        fixed=False,
    )
