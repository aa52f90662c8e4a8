"""Floats as they are: 4 or 8 bytes each, little-endian."""

from functools import partial

import numpy as np
import torch
from torch import Tensor

from fedbudget.codecs.codec import Codec
from fedbudget.types import Buffer


def _encode(vector: Tensor, seed: int, *, kind: str) -> Buffer:
    return memoryview(np.ascontiguousarray(vector.numpy(), dtype=kind).view(np.uint8).data)


def _decode(body: memoryview, count: int, seed: int, *, kind: str) -> Tensor:
    if len(body) != _size(count, kind=kind):
        raise ValueError(f"{len(body)} bytes do not hold {count} floats of type {kind}")
    values = np.frombuffer(body, dtype=kind)
    # torch warns of memory it must not write to, so bytes are copied and a bytearray is not
    return torch.from_numpy(values if values.flags.writeable else values.copy())


def _size(count: int, *, kind: str) -> int:
    return count * np.dtype(kind).itemsize


def _raw(kind: str) -> Codec:
    return Codec(
        partial(_encode, kind=kind), partial(_decode, kind=kind), partial(_size, kind=kind)
    )


raw32 = _raw("<f4")
raw64 = _raw("<f8")
