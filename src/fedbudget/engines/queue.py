"""The queue of a round's jobs."""

from bisect import insort
from collections.abc import Callable, Sequence

from fedbudget.types import Job

AHEAD = 4
"""jobs for each worker that may be under way or done before the oldest one is"""


class Queue:
    """Jobs of a round, the longest first, but none far ahead of the oldest that is not done.

    Replies are added up in the jobs' order, so those that come early are held: `ahead` bounds them.
    """

    def __init__(self, jobs: Sequence[Job], ahead: int, work: Callable[[Job], float]) -> None:
        self.jobs, self.ahead = jobs, ahead
        self.place = {job.client: i for i, job in enumerate(jobs)}
        self.works = [work(job) for job in jobs]
        self.left = set(range(len(jobs)))
        """not done"""
        self.waiting = list(range(len(jobs)))
        self.oldest = 0

    def take(self) -> Job | None:
        """The longest of those that may start; of equals the first."""
        while self.oldest not in self.left and self.oldest < len(self.jobs):
            self.oldest += 1
        near = [i for i in self.waiting[: self.ahead] if i < self.oldest + self.ahead]
        if not near:
            return None
        chosen = max(near, key=lambda i: self.works[i])
        self.waiting.remove(chosen)
        return self.jobs[chosen]

    def put_back(self, job: Job) -> None:
        insort(self.waiting, self.place[job.client])

    def done(self, job: Job) -> None:
        self.left.discard(self.place[job.client])
