"""All randomness: a stream for each (seed, round, client, purpose).

A stream's key is a hash of its name, so any engine, in any order and after any resume, draws the
same numbers for the same purpose.
"""

import hashlib
import struct
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

SERVER = -1
"""The client number of draws that belong to no client."""


def key(seed: int, round: int, client: int, purpose: str) -> int:
    """64-bit key of one stream."""
    name = struct.pack("<Qqq", seed % 2**64, round, client) + purpose.encode()
    return int.from_bytes(hashlib.blake2b(name, digest_size=8).digest(), "little")


def rng(seed: int, round: int, client: int, purpose: str) -> np.random.Generator:
    """A counter-based (Philox) NumPy generator for one purpose."""
    return np.random.Generator(np.random.Philox(key=key(seed, round, client, purpose)))


@contextmanager
def torch_seeded(
    seed: int, round: int, client: int, purpose: str, device: torch.device | None = None
) -> Iterator[None]:
    """Torch's own generator (initial weights, dropout) on one stream, and then as it was before."""
    stream = key(seed, round, client, purpose)
    if device is not None and device.type != "cpu":
        # each run on an accelerator starts a stream of its own; nothing else draws from it
        torch.get_device_module(device).manual_seed(stream)
    # torch.manual_seed would also queue a call for every absent accelerator, and keep it
    before = torch.default_generator.get_state()
    torch.default_generator.manual_seed(stream)
    try:
        yield
    finally:
        torch.default_generator.set_state(before)
