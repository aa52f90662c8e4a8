"""Scaled sign: a bit for each number, and the mean |x| of each block of 8192.

Biased, and it needs error feedback to converge (Karimireddy et al. 2019, "Error feedback fixes
signSGD"); the mean |x| is the scale with the least squared error.
"""

import numpy as np
from numpy.random import Philox
from torch import Tensor

from fedbudget.codecs.uniform import Bytes, Floats, Grid, blockwise, pack


def _quantise(x: Tensor, random: Philox, grid: Grid) -> tuple[Floats, Bytes]:
    values: Floats = x.numpy()
    # in double precision: a block of large numbers has a larger sum
    scale = np.abs(values).mean(axis=1, dtype=np.float64).astype(np.float32)
    return scale, pack((values >= 0).view(np.uint8), grid)


sign = blockwise(Grid((-1.0, 1.0), 2, 8, 8192), _quantise)
