"""Deal examples to clients. Each function returns one entry per client."""

from collections.abc import Hashable, Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from fedbudget.data.examples import Numbers
from fedbudget.errors import UserError

Span = tuple[int, int]


def contiguous(length: int, clients: int, overlap: int = 0) -> list[list[Span]]:
    """Equal neighbouring spans of a text; each reaches `overlap` tokens into the next (CAFL 5.1).

    >>> contiguous(100, 2, overlap=10)
    [[(0, 60)], [(50, 100)]]
    """
    cuts = np.linspace(0, length, clients + 1).astype(int).tolist()
    return [[(a, min(b + overlap, length))] for a, b in pairwise(cuts)]


def blocks(length: int, clients: int, block: int, rng: np.random.Generator) -> list[list[Span]]:
    """The text cut into blocks that are dealt at random: the IID split of a text."""
    starts = rng.permutation(np.arange(0, length - block + 1, block))
    return [[(int(a), int(a) + block) for a in np.sort(starts[i::clients])] for i in range(clients)]


def iid(n: int, clients: int, rng: np.random.Generator) -> list[Numbers]:
    """Equal shares of a random order."""
    return [np.sort(part) for part in np.array_split(rng.permutation(n), clients)]


def dirichlet(
    labels: npt.NDArray[np.int64], clients: int, alpha: float, rng: np.random.Generator
) -> list[Numbers]:
    """Each class is split over the clients in proportions drawn from Dirichlet(alpha)."""
    parts: list[list[Numbers]] = [[] for _ in range(clients)]
    for label in np.unique(labels):
        numbers = rng.permutation(np.flatnonzero(labels == label))
        shares = rng.dirichlet(np.full(clients, alpha))
        cuts = np.round(np.cumsum(shares)[:-1] * len(numbers)).astype(int)
        for part, piece in zip(parts, np.split(numbers, cuts), strict=True):
            part.append(piece)
    return [np.sort(np.concatenate(part)) for part in parts]


def shards(
    labels: npt.NDArray[np.int64], clients: int, per_client: int, rng: np.random.Generator
) -> list[Numbers]:
    """Sorted by label, cut into shards, `per_client` shards each (McMahan et al. 2017)."""
    pieces = np.array_split(np.argsort(labels, kind="stable"), clients * per_client)
    order = rng.permutation(len(pieces)).reshape(clients, per_client)
    return [np.sort(np.concatenate([pieces[i] for i in row])) for row in order]


def by_key(keys: Sequence[Hashable]) -> list[Numbers]:
    """A client for each distinct key, in order of first appearance."""
    numbers: dict[Hashable, list[int]] = {}
    for i, k in enumerate(keys):
        numbers.setdefault(k, []).append(i)
    return [np.array(n, dtype=np.int64) for n in numbers.values()]


def check_sizes(sizes: Sequence[int], least: int = 1, hint: str = "") -> None:
    """Refuse a partition that leaves a client with too little data."""
    poor = [(i, n) for i, n in enumerate(sizes) if n < least]
    if poor:
        i, n = poor[0]
        more = f" (and {len(poor) - 1} more clients)" if len(poor) > 1 else ""
        raise UserError(
            f"data: client {i} has {n} examples{more}, at least {least} needed; "
            f"use fewer clients{hint}"
        )
