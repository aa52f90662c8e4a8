"""The batched engine: many small agents in one process, a chunk of them at a time.

A chunk's local training is `chunk.train_chunk`; its numbers are the loop's up to rounding. It is
for plans that `choose.suits` names: a small model, data in arrays, and links that keep nothing from
round to round (no error feedback, no skipped uploads, no partial downlinks). A chunk that
raises is given to the loop, client by client, so that an error reaches the client it belongs to.
"""

from collections.abc import Iterator, MutableMapping, Sequence
from typing import Any

from fedbudget.engines.chunk import train_chunk
from fedbudget.engines.embedded import InProcess
from fedbudget.engines.engine import Versions
from fedbudget.engines.gradients import gradients
from fedbudget.engines.rows import MAPPED_ABOVE, Rows
from fedbudget.plan import Plan
from fedbudget.threads import one_thread
from fedbudget.types import Job, Reply

NUMBERS = 1 << 17
"""weights trained at once: they stay in the processor's cache"""
FEWEST, MOST = 16, 64
"""agents of a chunk"""


class Batched(InProcess):
    """Agents chunk by chunk; their state in arrays."""

    kind = "batched"

    def __init__(self, plan: Plan, mapped_above: int = MAPPED_ABOVE) -> None:
        super().__init__(plan)
        self.rows = Rows(len(plan.clients), mapped_above)
        self.states: MutableMapping[int, Versions] = self.rows
        self.layout = self.host.model.layout
        self.gradients = gradients(plan.build_model(), plan.task)
        self.chunk = min(MOST, max(FEWEST, NUMBERS // self.layout.size))

    def run(self, jobs: Sequence[Job]) -> Iterator[Reply]:
        for chunk in self._chunks(jobs):
            with one_thread():
                replies = self._train(chunk)
            yield from replies

    def _chunks(self, jobs: Sequence[Job]) -> Iterator[list[Job]]:
        """Jobs that can be one, nearly in their order: replies that are early wait in memory."""
        waiting: dict[Any, list[Job]] = {}
        for job in jobs:
            alike = waiting.setdefault(self._key(job), [])
            alike.append(job)
            if len(alike) == self.chunk:
                yield list(alike)
                alike.clear()
        yield from (alike for alike in waiting.values() if alike)

    def _key(self, job: Job) -> Any:
        """What jobs of a chunk have in common."""
        names = self.rows.names(job.client, job.ack.round) if job.ack else ()
        same = (job.run, job.round, job.seed, job.knobs, job.lr, id(job.payload))
        return (*same, job.ack is None, names)

    def _train(self, jobs: list[Job]) -> list[Reply]:
        clients = [job.client for job in jobs]
        valid = [job.ack.round if job.ack else 0 for job in jobs]
        state = self.rows.gather(clients, valid)
        try:
            replies, done, kept = train_chunk(
                jobs, self.plan, self.layout, self.gradients, state, self.host.sensors
            )
        except Exception:
            return self._one_by_one(jobs)
        self.rows.put([clients[i] for i in done], [valid[i] for i in done], jobs[0].round, kept)
        return replies

    def _one_by_one(self, jobs: list[Job]) -> list[Reply]:
        """The loop, which knows whose an error is."""
        return list(super().run(jobs))
