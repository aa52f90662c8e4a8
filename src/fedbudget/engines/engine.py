"""What an engine is, and the device side that the embedded engines share."""

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol, Self

from torch import Tensor

from fedbudget.algorithms.algorithm import ClientState
from fedbudget.client import Agent, train_client
from fedbudget.data.examples import Numbers, in_order
from fedbudget.plan import Plan
from fedbudget.task import Score, evaluate_batch
from fedbudget.types import Job, Reply


class Engine(Protocol):
    """Runs jobs in any order; a failure is a Reply too. Client state stays on this side."""

    states: dict[int, ClientState]
    """what clients keep from round to round; a checkpoint holds it, no algorithm's server sees it"""

    def run(self, jobs: Sequence[Job]) -> Iterator[Reply]: ...

    def evaluate(self, weights: Tensor) -> dict[str, float] | None: ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *error: object) -> None: ...


def validation_batches(plan: Plan) -> list[Numbers]:
    """Which examples each batch of an evaluation has; none without a validation set."""
    return [] if plan.validation is None else in_order(plan.validation, plan.eval_batch)


class Host:
    """One process's model and data, used for one client after another."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.model = plan.build_model()
        self.batches = validation_batches(plan)

    def train(self, job: Job, state: ClientState) -> tuple[Reply, ClientState]:
        plan = self.plan
        try:
            agent = Agent(self.model, plan.clients[job.client], plan.task, plan.recipe, plan.meter)
            return train_client(job, agent, plan.algorithm, state)
        except Exception as error:  # whatever a client's model or data raises, the round goes on
            return Reply.failure(job, describe(error)), state

    def score(self, weights: Tensor, batches: Iterable[int]) -> list[Score]:
        """Score some of the validation batches."""
        assert self.plan.validation is not None
        self.model.weights.copy_(weights)
        self.model.eval()
        return [
            evaluate_batch(
                self.plan.task, self.model.module, *self.plan.validation.batch(self.batches[i])
            )
            for i in batches
        ]


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
