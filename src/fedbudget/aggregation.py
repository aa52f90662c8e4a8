"""What becomes of a cohort's updates: held against each other, then averaged layer by layer.

Each comes in the jobs' order and leaves in an order that follows from the updates alone, so a sum
does not depend on which arrived first.

With work w_i behind update i, FedNova (Wang et al. 2020) averages the updates per unit of work and
gives the mean back the mean work: D_g = (sum p_i w_i) (sum p_i D_i,g / w_i), for each layer group g
over those who trained it, p_i their weights over the sum of these.
"""

import math
from bisect import insort
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from fedbudget.models.flat import Layout
from fedbudget.types import Job, Reply

FEWEST = 4
"""updates from which on some can be called out of line"""
WINDOW = 5
"""updates that are held until there is something to compare them with"""
MOST_EXAMPLES = 100
"""times the cohort's median that a client may claim, of examples where they are weights, and of work"""


class Update(NamedTuple):
    """A reply that was checked, and what it decodes to."""

    job: Job
    reply: Reply
    vectors: tuple[Tensor, ...]
    weight: float
    work: float = 1.0
    """that `vectors` were divided by"""


class Size(NamedTuple):
    """What an update is compared by."""

    update: float
    """root mean square of its numbers"""
    claim: float
    """examples it claims to be the mean of; 0 where that does not matter"""
    work: float = 0.0
    """that it claims to have done"""


@dataclass(frozen=True)
class Screening:
    """What to do with an update that is far larger than those of its cohort."""

    action: str = "drop"
    """"off", "drop" or "clip" (to the largest size that is allowed)"""
    factor: float = 10.0
    """times the cohort's median size, in root mean square, that is allowed"""


@dataclass
class Screen:
    """Lets updates through as they come; holds those out of line until the cohort is known."""

    how: Screening
    weights: bool
    """whether the weights are the clients' own claims"""
    held: list[tuple[Update, Size]] = field(default_factory=list)
    seen: int = 0
    """updates so far"""
    known: tuple[list[float], ...] = field(default_factory=lambda: tuple([] for _ in Size._fields))
    """their sizes but for zeros, each sorted: a median must not take longer the larger the cohort"""
    refused: dict[int, str] = field(default_factory=dict)
    """client -> why"""

    def offer(self, update: Update) -> list[Update]:
        """Those that can be used now."""
        if self.how.action == "off":
            return [update]
        size = self._size(update)
        self.seen += 1
        for known, own in zip(self.known, size, strict=True):
            if own > 0:
                insort(known, own)
        self.held.append((update, size))
        return self._release() if self.seen >= WINDOW else []

    def rest(self) -> list[Update]:
        """What is left when the cohort is known: clipped or refused where it is out of line."""
        if self.seen < FEWEST:
            ready, self.held = [update for update, _ in self.held], []
            return ready
        ready = self._release()
        for update, size in self.held:
            times = self._times(size)
            if times.claim > MOST_EXAMPLES:
                self.refused[update.job.client] = (
                    f"it claims {update.weight:g} examples, {times.claim:.3g} times the cohort's "
                    "median"
                )
            elif times.work > MOST_EXAMPLES:
                self.refused[update.job.client] = (
                    f"it claims {times.work:.3g} times the work of the cohort's median"
                )
            elif self.how.action == "clip":
                shorter = tuple(v * (self.how.factor / times.update) for v in update.vectors)
                ready.append(update._replace(vectors=shorter))
            else:
                self.refused[update.job.client] = (
                    f"its update is {times.update:.3g} times the size of the cohort's median"
                )
        self.held = []
        return ready

    def _release(self) -> list[Update]:
        fits = [self._in_line(size) for _, size in self.held]
        ready = [update for (update, _), fit in zip(self.held, fits, strict=True) if fit]
        self.held = [held for held, fit in zip(self.held, fits, strict=True) if not fit]
        return ready

    def _in_line(self, size: Size) -> bool:
        times = self._times(size)
        claims = max(times.claim, times.work)
        return times.update <= self.how.factor and claims <= MOST_EXAMPLES

    def _times(self, own: Size) -> Size:
        """Each size over the cohort's median; 0 where there is nothing to compare with."""
        pairs = zip(own, self.known, strict=True)
        return Size(*(size / _median(known) if known else 0.0 for size, known in pairs))

    def _size(self, update: Update) -> Size:
        """All vectors together: one of them may be next to nothing in honest updates."""
        squares = math.fsum(torch.dot(v, v).item() for v in update.vectors)
        numbers = sum(v.numel() for v in update.vectors)
        claim = update.weight if self.weights else 0.0
        return Size(math.sqrt(squares / numbers), claim, update.work)


def _median(known: Sequence[float]) -> float:
    """Of sorted numbers."""
    middle = len(known) // 2
    return known[middle] if len(known) % 2 else (known[middle - 1] + known[middle]) / 2


class Aggregate(Protocol):
    """A mean in the making, layer by layer over those who trained the layer."""

    counts: list[int]
    """updates by layer group"""

    def add(self, vectors: Sequence[Tensor], groups: tuple[int, int], weight: float) -> None:
        """An update of some layer groups: the first, and the one after the last."""
        ...

    def mean(self) -> tuple[Tensor, ...]: ...


class Accumulator:
    """A weighted mean; one update in memory."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.sums: list[Tensor] = []
        self.weights = [0.0] * layout.depth
        self.counts = [0] * layout.depth

    def add(self, vectors: Sequence[Tensor], groups: tuple[int, int], weight: float) -> None:
        if not self.sums:
            size, dtype = self.layout.size, self.layout.dtype
            self.sums = [torch.zeros(size, dtype=dtype) for _ in vectors]
        where = self.layout.span(*groups)
        for total, vector in zip(self.sums, vectors, strict=True):
            total[where].add_(vector, alpha=weight)
        for group in range(*groups):
            self.weights[group] += weight
            self.counts[group] += 1

    def mean(self) -> tuple[Tensor, ...]:
        for first, last in _runs(self.weights):
            if self.weights[first] > 0:
                for total in self.sums:
                    total[self.layout.span(first, last)].div_(self.weights[first])
        return tuple(self.sums)


class Robust:
    """Number by number, the mean without the largest and the smallest; a cohort's updates in memory.

    trim: the share left out at each end; 0.5 is the median.
    """

    def __init__(self, layout: Layout, trim: float) -> None:
        self.layout = layout
        self.trim = trim
        self.updates: list[tuple[tuple[int, int], tuple[Tensor, ...]]] = []
        self.counts = [0] * layout.depth

    def add(self, vectors: Sequence[Tensor], groups: tuple[int, int], weight: float) -> None:
        self.updates.append((groups, tuple(vectors)))
        for group in range(*groups):
            self.counts[group] += 1

    def mean(self) -> tuple[Tensor, ...]:
        vectors = len(self.updates[0][1])
        size, dtype = self.layout.size, self.layout.dtype
        found = tuple(torch.zeros(size, dtype=dtype) for _ in range(vectors))
        cuts = sorted({edge for groups, _ in self.updates for edge in groups})
        for first, last in pairwise(cuts):
            where = self.layout.span(first, last)
            inside = [(own, u) for own, u in self.updates if own[0] <= first and last <= own[1]]
            for i, whole in enumerate(found):
                rows = []
                for own, update in inside:
                    offset = self.layout.span(*own).start
                    rows.append(update[i][where.start - offset : where.stop - offset])
                if rows:
                    whole[where] = trimmed(torch.stack(rows), self.trim)
        return found


class Work:
    """The local work behind updates: they are averaged per unit of it, and their mean gets it back.

    Running statistics of norms are left alone: they do not grow with work.
    """

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.sums = [0.0] * layout.depth
        self.weights = [0.0] * layout.depth

    def per_unit(
        self, vectors: tuple[Tensor, ...], groups: tuple[int, int], work: float
    ) -> tuple[Tensor, ...]:
        if work in (0.0, 1.0):  # an update without work has nothing in it
            return vectors
        part = self.layout.span(*groups)
        found = tuple(vector / work for vector in vectors)
        for where in self.layout.statistic_slices:
            if part.start <= where.start < part.stop:
                own = slice(where.start - part.start, where.stop - part.start)
                for new, old in zip(found, vectors, strict=True):
                    new[own] = old[own]
        return found

    def add(self, groups: tuple[int, int], weight: float, work: float) -> None:
        """Of an update that is let in."""
        for group in range(*groups):
            self.sums[group] += weight * work
            self.weights[group] += weight

    def effective(self, mean: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """The mean per unit of work, in place, times the mean work of those who trained each group."""
        pairs = zip(self.sums, self.weights, strict=True)
        factors = [total / weight if weight > 0 else 1.0 for total, weight in pairs]
        for vector in mean:
            kept = [vector[where].clone() for where in self.layout.statistic_slices]
            for first, last in _runs(factors):
                if factors[first] != 1.0:
                    vector[self.layout.span(first, last)].mul_(factors[first])
            for where, statistic in zip(self.layout.statistic_slices, kept, strict=True):
                vector[where] = statistic
        return mean


def local_work(step_sizes: Sequence[float], momentum: float = 0.0) -> float:
    """FedNova's |a|_1: the sum over a local run's gradients of their factors in its update.

    A gradient of step j is in every later step's momentum too: step size_k momentum^(k - j).

    >>> local_work([1.0] * 5)
    5.0
    >>> local_work([1.0] * 3, 0.5)  # 1 + (1 + 1/2) + (1 + 1/2 + 1/4)
    4.25
    """
    total = reach = 0.0
    for size in step_sizes:
        reach = 1 + momentum * reach
        total += size * reach
    return total


def trimmed(rows: Tensor, trim: float) -> Tensor:
    """(updates, n) -> (n,)

    >>> trimmed(torch.tensor([[1.0], [2.0], [3.0], [1e9]]), 0.25)
    tensor([2.5000])
    """
    out = min(int(trim * len(rows)), (len(rows) - 1) // 2)
    return torch.sort(rows, dim=0).values[out : len(rows) - out].mean(dim=0)


def _runs(values: Sequence[float]) -> list[tuple[int, int]]:
    """Neighbours of equal value, as (first, last + 1)."""
    runs, first = [], 0
    for last in range(1, len(values) + 1):
        if last == len(values) or values[last] != values[first]:
            runs.append((first, last))
            first = last
    return runs
