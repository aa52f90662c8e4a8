"""What an engine is, and the device side that the embedded engines share."""

import math
from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from functools import cached_property, partial
from typing import Protocol, Self

from safetensors.torch import load, save
from torch import Tensor

from fedbudget.algorithms.algorithm import ClientState, Sent
from fedbudget.client import Agent, train_client
from fedbudget.data.examples import Numbers, in_order
from fedbudget.engines import assess
from fedbudget.engines.assess import Figures
from fedbudget.errors import StateLostError
from fedbudget.hardware import moved, place
from fedbudget.models.flat import FlatModel
from fedbudget.plan import Plan
from fedbudget.resources.meters import sensors
from fedbudget.task import Score, evaluate_batch
from fedbudget.threads import one_thread
from fedbudget.types import Ack, Job, Reply

Versions = Mapping[int, ClientState]
"""round -> what a client kept after it: the state that the server's last Ack names, and a newer one
that the server may not have used"""


def pack(versions: Versions) -> bytes:
    """A client's state as bytes, to cross a pipe or lie on a disk."""
    return save({f"{r}/{name}": t for r, state in versions.items() for name, t in state.items()})


def unpack(body: bytes) -> Versions:
    versions: dict[int, dict[str, Tensor]] = {}
    for key, tensor in load(body).items():
        round, _, name = key.partition("/")
        versions.setdefault(int(round), {})[name] = tensor
    return versions


class Engine(Protocol):
    """Runs jobs in any order; a failure is a Reply too. Client state stays on this side."""

    kind: str
    """how clients train: one by one ("loop") or many at once ("batched")"""
    states: MutableMapping[int, Versions]
    """what clients keep from round to round; a checkpoint holds it, no algorithm's server sees it"""
    late: int
    """replies so far that came after their round had ended"""

    def available(self, round: int) -> Sequence[int]:
        """The clients that a round can be given to, in order."""
        ...

    def run(self, jobs: Sequence[Job]) -> Iterator[Reply]: ...

    def evaluate(self, weights: Tensor) -> dict[str, float] | None: ...

    def saved(self, acks: Mapping[int, Ack]) -> None:
        """A checkpoint holds these acks: no older state will be asked for again."""
        ...

    def assess(self, sent: Sent, acks: Mapping[int, Ack]) -> dict[str, float]:
        """Objective and infeasibility, for a plan with constraint sets."""
        ...

    def final(
        self, sent: Sent, acks: Mapping[int, Ack]
    ) -> tuple[Figures, Iterator[tuple[int, Tensor]]]:
        """The agents' own models when a run with constraint sets ends, and their figures."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *error: object) -> None: ...


def validation_batches(plan: Plan) -> list[Numbers]:
    """Which examples each batch of an evaluation has; none without a validation set."""
    return [] if plan.validation is None else in_order(plan.validation, plan.eval_batch)


class Host:
    """One process's model and data, used for one client after another."""

    def __init__(self, plan: Plan, worker: int = 0) -> None:
        self.plan = plan
        where = place(plan.accelerator, worker)
        self.sensors = sensors(where.type == "cpu")  # before the model: memory counts from here
        self.model = plan.build_model(where)
        self.batches = validation_batches(plan)

    def train(self, job: Job, versions: Versions) -> tuple[Reply, Versions]:
        plan = self.plan
        valid = job.ack.round if job.ack else 0
        state = versions.get(valid, {})
        try:
            agent = Agent(
                self.model,
                plan.clients[job.client],
                plan.task,
                plan.recipe,
                plan.meter_of(job.client),
                plan.constraints[job.client].project if plan.constraints else None,
                self.sensors,
            )
            reply, new = train_client(job, agent, plan.algorithm, state)
        except Exception as error:  # whatever a client's model or data raises, the round goes on
            return Reply.failure(job, describe(error), isinstance(error, StateLostError)), versions
        return reply, {r: s for r, s in ((valid, state), (job.round, new)) if s}

    def score(self, weights: Tensor, batches: Iterable[int]) -> list[Score]:
        """Score some of the validation batches."""
        assert self.plan.validation is not None
        self.model.weights.copy_(weights)
        self.model.eval()
        self.sensors.last = None
        where = self.model.weights.device
        scores = []
        for i in batches:
            x, y = self.plan.validation.batch(self.batches[i])
            x, y = moved(x, where), moved(y, where)
            scores.append(evaluate_batch(self.plan.task, self.model.module, x, y))
        return scores


class Agents:
    """The part of an embedded engine that looks at all agents' own models."""

    kind = "loop"
    late = 0
    plan: Plan
    states: MutableMapping[int, Versions]

    def available(self, round: int) -> Sequence[int]:
        return range(len(self.plan.clients))

    def saved(self, acks: Mapping[int, Ack]) -> None:
        pass

    @cached_property
    def _model(self) -> FlatModel:
        return self.plan.build_model()

    def assess(self, sent: Sent, acks: Mapping[int, Ack]) -> dict[str, float]:
        with one_thread():
            return assess.assess(self.plan, self._model, sent, acks, partial(self._valid, acks))

    def final(
        self, sent: Sent, acks: Mapping[int, Ack]
    ) -> tuple[Figures, Iterator[tuple[int, Tensor]]]:
        with one_thread():
            return assess.final(self.plan, self._model, sent, acks, partial(self._valid, acks))

    def _valid(self, acks: Mapping[int, Ack], client: int) -> ClientState:
        ack = acks.get(client)
        return self.states.get(client, {}).get(ack.round, {}) if ack else {}


def describe(error: BaseException) -> str:
    """One line that names the error."""
    return f"{type(error).__name__}: {error}".splitlines()[0][:300]


def metrics(scores: Sequence[Score], accuracy: bool) -> dict[str, float]:
    """Mean loss and accuracy; exact sums, so that no engine's split of the batches shows."""
    count = sum(s.size for s in scores)
    found = {"loss": math.fsum(s.loss for s in scores) / count}
    if accuracy:
        found["accuracy"] = math.fsum(s.correct for s in scores) / count
    return found
