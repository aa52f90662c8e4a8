"""Frames between the server and its worker processes: bodies in memory that both map, the rest as JSON.

A box is written by one side when the other has no more use for what was in it: the server fills a
worker's before it gives a job, the worker its own before it answers, and the server copies that.
"""

import json
import mmap
import os
import tempfile
from collections.abc import Mapping, Sequence
from multiprocessing import reduction
from multiprocessing.connection import Connection
from typing import Any

from fedbudget.codecs.frame import Header, Packed
from fedbudget.types import Buffer

ROOM = 1 << 30
"""bytes of a box; a page takes memory only when it is used"""
ALIGNED = 64
SHARED = hasattr(reduction, "DupFd")
"""not on Windows: everything goes through the pipe there"""


class Box:
    """Memory that two processes map. It has no name, so nothing is left behind, however they end."""

    def __init__(self, room: int = ROOM) -> None:
        self._file = _unnamed(room) if SHARED else -1
        self._view = self._mapped()

    def _mapped(self) -> memoryview:
        return memoryview(mmap.mmap(self._file, 0) if self._file >= 0 else bytearray())

    def __getstate__(self) -> Any:
        return reduction.DupFd(self._file) if SHARED else None

    def __setstate__(self, state: Any) -> None:
        self._file = state.detach() if SHARED else -1
        self._view = self._mapped()

    def __del__(self) -> None:
        if self._file >= 0:
            os.close(self._file)

    def put(self, bodies: Sequence[Buffer]) -> bool:
        """Whether there is room for them."""
        places = _places([len(body) for body in bodies])
        if places and places[-1].stop > len(self._view):
            return False
        for body, place in zip(bodies, places, strict=True):
            self._view[place] = memoryview(body).cast("B")
        return True

    def look(self, sizes: Sequence[int]) -> tuple[memoryview, ...]:
        """What was put, until something else is."""
        return tuple(self._view[place] for place in _places(sizes))


def _unnamed(room: int) -> int:
    """A file of zeros in memory, or where there is no such thing on disk."""
    if hasattr(os, "memfd_create"):
        file = os.memfd_create("fedbudget")
    else:
        with tempfile.TemporaryFile() as opened:
            file = os.dup(opened.fileno())
    os.ftruncate(file, room)
    return file


def _places(sizes: Sequence[int]) -> list[slice]:
    places, at = [], 0
    for size in sizes:
        places.append(slice(at, at + size))
        at += -(-size // ALIGNED) * ALIGNED
    return places


def send(pipe: Connection, box: Box, about: Mapping[str, Any], packed: Packed | None) -> None:
    """A message, and a frame where there is one; what the box cannot hold goes through the pipe."""
    if packed is None:
        pipe.send_bytes(json.dumps({**about, "frame": None}).encode())
        return
    boxed = box.put(packed.bodies)
    head = {**packed.header._asdict(), "digest": packed.header.digest.hex()}
    sizes = [len(body) for body in packed.bodies]
    pipe.send_bytes(json.dumps({**about, "frame": head, "sizes": sizes, "boxed": boxed}).encode())
    if not boxed:
        for body in packed.bodies:
            pipe.send_bytes(body)


def receive(pipe: Connection, box: Box, keep: bool) -> tuple[dict[str, Any], Packed | None]:
    """A message and its frame; one to keep is copied, another lasts until the next is sent."""
    about = json.loads(pipe.recv_bytes())
    head = about.pop("frame", None)
    if head is None:
        return about, None
    sizes, boxed = about.pop("sizes"), about.pop("boxed")
    bodies: Sequence[Buffer] = box.look(sizes) if boxed else [pipe.recv_bytes() for _ in sizes]
    if keep and boxed:
        bodies = [bytearray(body) for body in bodies]
    header = Header(**{**head, "digest": bytes.fromhex(head["digest"])})
    return about, Packed(header, tuple(bodies))
