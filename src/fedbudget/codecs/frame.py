"""The frame: what travels, up and down. Self-describing, checked before anything is allocated.

Little-endian: magic, version, parts, first and last layer group, digest of the model's layout,
run, round, client, seed, codec name, elements per part, body length, crc32; then the length of
each part's body and the bodies. The crc covers everything else.

`pack` encodes vectors into a Packed frame; `to_bytes` writes it with its checksum when it leaves
the process, `from_bytes` reads and checks it on the other side, and `unpack` decodes the vectors.
A frame that stays in memory is never copied.
"""

import math
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from torch import Tensor

from fedbudget import codecs
from fedbudget.errors import UserError
from fedbudget.models.flat import Layout
from fedbudget.types import Buffer

MAGIC = b"FBGT"
VERSION = 1
_HEADER = struct.Struct("<4sBBHH8sQIqQ16sQQI")
_CRC_AT = _HEADER.size - 4
_PART = struct.Struct("<Q")


class FrameError(ValueError):
    """A payload that is not a valid frame, or not the expected one, and why."""


class Header(NamedTuple):
    """Who sent what, for which layer groups."""

    run: int
    round: int
    client: int
    seed: int
    codec: str
    first: int
    last: int
    """the vectors cover layer groups first..last-1"""
    size: int
    """elements of each vector"""
    digest: bytes
    """of the model's layout"""


@dataclass(frozen=True)
class Packed:
    """A header and encoded bodies; its length is what it takes on the wire."""

    header: Header
    bodies: tuple[Buffer, ...] = field(repr=False)

    def __len__(self) -> int:
        return length([len(body) for body in self.bodies])


def pack(
    vectors: Sequence[Tensor],
    layout: Layout,
    *,
    run: int,
    round: int,
    client: int,
    seed: int,
    codec: str,
    groups: tuple[int, int] | None = None,
) -> Packed:
    """One or more vectors of equal length over some layer groups, or all, encoded."""
    encode = codecs.named(codec).encode
    first, last = groups or (0, layout.depth)
    header = Header(
        *(run, round, client, seed, codec, first, last, vectors[0].numel(), layout.digest)
    )
    return Packed(header, tuple(encode(v, (seed + i) % 2**64) for i, v in enumerate(vectors)))


def length(bodies: Sequence[int]) -> int:
    """Of a frame whose bodies are so long."""
    return _HEADER.size + sum(_PART.size + body for body in bodies)


def raw_size(layout: Layout, vectors: int) -> int:
    """What a frame takes whose vectors go as they are."""
    return length([layout.size * layout.dtype.itemsize] * vectors)


def to_bytes(packed: Packed) -> bytearray:
    """As one buffer, with its checksum."""
    h = packed.header
    head = _HEADER.pack(
        *(MAGIC, VERSION, len(packed.bodies), h.first, h.last, h.digest, h.run, h.round),
        *(h.client, h.seed, h.codec.encode(), h.size, len(packed) - _HEADER.size, 0),
    )
    out = bytearray(b"".join([head, *(x for b in packed.bodies for x in (_PART.pack(len(b)), b))]))
    struct.pack_into("<I", out, _CRC_AT, _crc(memoryview(out)))
    return out


def from_bytes(payload: Buffer) -> Packed:
    """Read a frame; every length and the checksum are checked, nothing is copied."""
    view = memoryview(payload)
    if len(view) < _HEADER.size or bytes(view[:4]) != MAGIC:
        raise FrameError("not a frame")
    _, version, parts, first, last, digest, run, round, client, seed, name, count, length, crc = (
        _HEADER.unpack_from(view)
    )
    if version != VERSION:
        raise FrameError(f"frame version {version}; this is version {VERSION}")
    if length != len(view) - _HEADER.size:
        raise FrameError(f"body of {len(view) - _HEADER.size} bytes, the header says {length}")
    if crc != _crc(view):
        raise FrameError("checksum does not match")
    bodies = []
    at = _HEADER.size
    for _ in range(parts):
        start = at + _PART.size
        size = _PART.unpack_from(view, at)[0] if start <= len(view) else len(view)
        at = start + size
        if at > len(view):
            raise FrameError("a part reaches beyond the frame")
        bodies.append(view[start:at])
    if at != len(view):
        raise FrameError("bytes after the last part")
    codec = name.rstrip(b"\0").decode("ascii", errors="replace")
    header = Header(run, round, client, seed, codec, first, last, count, digest)
    return Packed(header, tuple(bodies))


def unpack(packed: Packed, layout: Layout) -> tuple[Tensor, ...]:
    """Check that the frame fits the model, then decode its vectors."""
    h = packed.header
    if h.digest != layout.digest:
        raise FrameError("it was made for another model")
    if not (packed.bodies and h.first < h.last <= layout.depth):
        raise FrameError(f"{len(packed.bodies)} parts over layer groups {h.first} to {h.last}")
    where = layout.span(h.first, h.last)
    if h.size != where.stop - where.start:
        raise FrameError(f"{h.size} elements for layer groups of {where.stop - where.start}")
    try:
        decode = codecs.named(h.codec).decode
        return tuple(
            decode(memoryview(body), h.size, (h.seed + i) % 2**64)
            for i, body in enumerate(packed.bodies)
        )
    except (ValueError, UserError) as error:
        raise FrameError(str(error)) from None


def finite(vector: Tensor) -> bool:
    """One pass: a sum is finite unless an element is not, or it overflows, which is as bad."""
    return math.isfinite(vector.sum().item())


def _crc(view: memoryview) -> int:
    return zlib.crc32(view[_HEADER.size :], zlib.crc32(view[:_CRC_AT]))
