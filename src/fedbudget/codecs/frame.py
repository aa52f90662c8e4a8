"""The frame: what travels, up and down. Self-describing, checked before anything is allocated.

Layout, little-endian: magic, version, parts, first and last layer group, digest of the model's
layout, run, round, client, seed, codec name, elements per part, body length, crc32; then the
length of each part's body and the bodies. The crc covers everything else.
"""

import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedbudget import codecs
from fedbudget.errors import UserError
from fedbudget.models.flat import Layout
from fedbudget.types import Payload

MAGIC = b"FBGT"
VERSION = 1
_HEADER = struct.Struct("<4sBBHH8sQIqQ16sQQI")
_CRC_AT = _HEADER.size - 4
_PART = struct.Struct("<Q")


class FrameError(ValueError):
    """A payload that is not a valid frame, and why."""


@dataclass(frozen=True)
class Frame:
    """A decoded frame: who sent what, for which layer groups."""

    run: int
    round: int
    client: int
    seed: int
    codec: str
    first: int
    last: int
    """the vector covers layer groups first..last-1"""
    parts: tuple[Tensor, ...]


def encode(
    vectors: Sequence[Tensor],
    layout: Layout,
    *,
    run: int,
    round: int,
    client: int,
    seed: int,
    codec: str,
    first: int = 0,
    last: int | None = None,
) -> bytearray:
    """One or more vectors of equal length over the same layer groups, as one frame."""
    last = layout.depth if last is None else last
    encoder = codecs.named(codec).encode
    bodies = [encoder(v, seed + i) for i, v in enumerate(vectors)]
    length = sum(_PART.size + len(b) for b in bodies)
    head = _HEADER.pack(
        *(MAGIC, VERSION, len(vectors), first, last, layout.digest, run, round, client, seed),
        *(codec.encode(), len(vectors[0]), length, 0),
    )
    frame = bytearray(head)
    for body in bodies:
        frame += _PART.pack(len(body))
        frame += body
    frame[_CRC_AT : _HEADER.size] = struct.pack("<I", _crc(memoryview(frame)))
    return frame


def decode(payload: Payload, layout: Layout, limit: int | None = None) -> Frame:
    """Check everything, then decode; raises FrameError with the reason."""
    view = memoryview(payload)
    if limit is not None and len(view) > limit:
        raise FrameError(f"{len(view)} bytes, more than the {limit} allowed")
    if len(view) < _HEADER.size or bytes(view[:4]) != MAGIC:
        raise FrameError("not a frame")
    fields = _HEADER.unpack_from(view)
    _, version, parts, first, last, digest, run, round, client, seed, name, count, length, crc = (
        fields
    )
    if version != VERSION:
        raise FrameError(f"frame version {version}; this is version {VERSION}")
    if length != len(view) - _HEADER.size:
        raise FrameError(f"body of {len(view) - _HEADER.size} bytes, the header says {length}")
    if crc != _crc(view):
        raise FrameError("checksum does not match")
    if digest != layout.digest:
        raise FrameError("it was made for another model")
    if not (parts > 0 and first < last <= layout.depth):
        raise FrameError(f"{parts} parts over layer groups {first} to {last} of {layout.depth}")
    where = layout.span(first, last)
    if count != where.stop - where.start:
        raise FrameError(f"{count} elements for layer groups of {where.stop - where.start}")
    try:
        codec = codecs.named(name.rstrip(b"\0").decode())
    except (UnicodeDecodeError, UserError):
        raise FrameError(f"unknown codec {name!r}") from None
    vectors = []
    at = _HEADER.size
    for i in range(parts):
        end = at + _PART.size
        size = _PART.unpack_from(view, at)[0] if end <= len(view) else len(view)
        if end + size > len(view):
            raise FrameError("a part reaches beyond the frame")
        try:
            vectors.append(codec.decode(view[end : end + size], count, (seed + i) % 2**64))
        except ValueError as error:
            raise FrameError(str(error)) from None
        at = end + size
    if at != len(view):
        raise FrameError("bytes after the last part")
    return Frame(run, round, client, seed, name.rstrip(b"\0").decode(), first, last, tuple(vectors))


def finite(vector: Tensor) -> bool:
    """One pass: a sum is finite unless an element is not (or the sum overflows, which is as bad)."""
    return bool(torch.isfinite(vector.sum()))


def _crc(view: memoryview) -> int:
    return zlib.crc32(view[_HEADER.size :], zlib.crc32(view[:_CRC_AT]))
