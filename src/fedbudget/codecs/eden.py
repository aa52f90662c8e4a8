"""EDEN (Vargaftik et al. 2022): a random rotation, then the nearest of few levels.

A randomly rotated block looks like Gaussian noise, whatever it was, so the Lloyd-Max levels of
N(0, 1) suit it: y = T D x with random signs D and an orthonormal T, z = y / rms(y), q the nearest
levels. It is decoded as S D T q with S = |x|^2 / <y, q>, which makes the mean right (the least
squares scale <y, q> / |q|^2 would shrink every update).

T is its own inverse. For a full block of 2^14 it is the Hadamard matrix, applied as three small
matrix products: H(2^14) = H(16) x H(32) x H(32) (Kronecker), 160 operations a number and no pass
that a cache cannot hold. A shorter last block, of any length n, is turned by the discrete Hartley
transform, T[j, k] = (cos + sin)(2 pi j k / n) / sqrt(n): orthonormal for every n, with entries of
at most sqrt(2 / n), so it mixes as well and nothing is padded.
"""

import math
from functools import cache

import numpy as np
import torch
from numpy.random import Philox
from torch import Tensor

from fedbudget.codecs.codec import Codec
from fedbudget.codecs.uniform import Bytes, Floats, Grid, blockwise, pack, unpack

BLOCK = 2**14
POSITIVE_LEVELS = {
    2: (0.7978845608028654,),
    3: (1.2240063619249615,),
    4: (0.45278003463649213, 1.5104176084990957),
    8: (0.24509417894422167, 0.7560052812058773, 1.343909278505, 2.1519457045369874),
    16: (
        0.1283950298511473,
        0.3880482994902915,
        0.656759118532465,
        0.9423404564869629,
        1.2562311973471776,
        1.618046386021882,
        2.069017226531385,
        2.732589570995161,
    ),
}
"""Lloyd-Max levels of N(0, 1) above zero, by number of levels; the others mirror them."""
_SIGNS = Grid((1.0, -1.0), 2, 8, BLOCK)


def rotate(x: Tensor) -> Tensor:
    """T x of each row; T is orthonormal and its own inverse. x is overwritten."""
    rows, n = x.shape
    if n != BLOCK:
        spectrum = np.fft.fft(x.numpy().astype(np.float64))
        hartley = (spectrum.real - spectrum.imag) / math.sqrt(n)
        return torch.from_numpy(hartley.astype(np.float32))
    x = x.contiguous()
    y = torch.empty_like(x)  # the only new memory: fresh pages cost as much as the products
    torch.mm(x.view(-1, 32), _hadamard(32), out=y.view(-1, 32))
    inner = _hadamard(32).expand(rows * 16, 32, 32)
    torch.bmm(inner, y.view(-1, 32, 32), out=x.view(-1, 32, 32))
    outer = _hadamard(16).expand(rows, 16, 16)
    torch.bmm(outer, x.view(rows, 16, 1024), out=y.view(rows, 16, 1024))
    return y


@cache
def _hadamard(n: int) -> Tensor:
    """Sylvester's matrix, orthonormal, (n, n)."""
    h = torch.ones(1, 1)
    while len(h) < n:
        h = torch.cat([torch.cat([h, h], 1), torch.cat([h, -h], 1)])
    return h / math.sqrt(n)


def _signs(shape: torch.Size, random: Philox) -> Tensor:
    """+1 or -1: bit i of the stream, least significant first in its 64-bit words, is number i's."""
    words = random.random_raw(-(-shape.numel() // 64)).astype("<u8", copy=False)
    bits = words.view(np.uint8).reshape(1, -1)
    return torch.from_numpy(unpack(bits, shape.numel(), _SIGNS).reshape(shape))


def _quantise(x: Tensor, random: Philox, grid: Grid) -> tuple[Floats, Bytes]:
    y = rotate(_signs(x.shape, random).mul_(x))
    n = x.shape[1]
    # in double precision: the squares of very large or small numbers are no float32
    norm = torch.linalg.vector_norm(y, dim=1, keepdim=True, dtype=torch.float64)
    rms = (norm / math.sqrt(n)).to(torch.float32)  # (blocks, 1)
    z: Floats = y.div_(torch.where(rms > 0, rms, 1)).numpy()
    levels = np.array(grid.levels, np.float32)
    first, *others = (levels[1:] + levels[:-1]) / 2
    codes: Bytes = (z > first).view(np.uint8)
    above = np.empty(z.shape, np.bool_)
    for boundary in others:
        codes += np.greater(z, boundary, out=above).view(np.uint8)
    packed = pack(codes, grid)
    z *= unpack(packed, n, grid)
    dot = z.sum(axis=1)  # <y, q> / rms
    # dot > 0 unless rms = 0: some |z| is at least 1, and no level has the other sign
    return np.where(dot == 0, 0, n * rms[:, 0].numpy() / dot).astype(np.float32), packed


def _turn(levels: Tensor, random: Philox) -> Tensor:
    return rotate(levels).mul_(_signs(levels.shape, random))


def _eden(levels: int, per: int, group: int = 1) -> Codec:
    above = POSITIVE_LEVELS[levels]
    zero = (0.0,) * (levels % 2)
    grid = Grid((*(-v for v in reversed(above)), *zero, *above), levels, per, BLOCK, group)
    return blockwise(grid, _quantise, _turn)


eden4 = _eden(16, 2)
eden3 = _eden(8, 8, 3)
eden2 = _eden(4, 4)
eden1_6 = _eden(3, 5)
eden1 = _eden(2, 8)
