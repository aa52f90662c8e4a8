"""All randomness: a stream for each (seed, round, client, purpose).

A stream's key is a hash of its name, so any engine, in any order and after any resume, draws the
same numbers for the same purpose.
"""

import hashlib
import struct

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


def torch_rng(seed: int, round: int, client: int, purpose: str) -> torch.Generator:
    """The same for code that draws with torch."""
    return torch.Generator().manual_seed(key(seed, round, client, purpose))
