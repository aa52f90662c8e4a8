"""How well constrained agents do: the objective at the mean model, the distance to their sets.

It needs every agent's data and set, so it happens on the device side; only numbers leave it.
"""

import math
from collections.abc import Callable, Iterator, Mapping

import torch
from torch import Tensor

from fedbudget.algorithms.algorithm import ClientState, Sent, counted
from fedbudget.data.examples import Examples, in_order
from fedbudget.models.flat import FlatModel
from fedbudget.plan import Plan
from fedbudget.task import Score, evaluate_batch
from fedbudget.types import Ack

Kept = Callable[[int], ClientState]
"""client -> its valid state"""
BATCH = 2048
MOST_SCORED = 100
"""agents whose own model is tried on the validation data"""


def assess(
    plan: Plan, model: FlatModel, sent: Sent, acks: Mapping[int, Ack], kept: Kept
) -> dict[str, float]:
    """objective = (1/m) sum_i f_i(mean model); infeasibility = distance of an agent's own model."""
    distances = []
    for agent, own in personal_models(plan, model, sent, acks, kept):
        assert plan.constraints is not None
        apart = own - plan.constraints[agent].project(own)
        distances.append(float(torch.linalg.vector_norm(apart)))
    return {
        "objective": objective(plan, model, sent[0]),
        "infeasibility": math.fsum(distances) / len(distances),
        "worst_infeasibility": max(distances),
    }


def personal_models(
    plan: Plan, model: FlatModel, sent: Sent, acks: Mapping[int, Ack], kept: Kept
) -> Iterator[tuple[int, Tensor]]:
    """Each agent's own model; the shared one where the algorithm has no other."""
    for agent in range(len(plan.clients)):
        ack = acks.get(agent)
        over = counted(ack.counts, model.layout) if ack else None
        yield agent, plan.algorithm.personal(sent, kept(agent), over)


def objective(plan: Plan, model: FlatModel, weights: Tensor) -> float:
    """Mean over agents of the mean loss on their own training data."""
    losses = []
    for examples in plan.clients:
        total = score(plan, model, weights, examples)
        losses.append(total.loss / total.size)
    return math.fsum(losses) / len(losses)


def score(plan: Plan, model: FlatModel, weights: Tensor, examples: Examples) -> Score:
    """A model on a whole data set."""
    model.weights.copy_(weights)
    model.eval()
    scores = [
        evaluate_batch(plan.task, model.module, *examples.batch(numbers))
        for numbers in in_order(examples, BATCH)
    ]
    return Score(
        math.fsum(s.loss for s in scores),
        math.fsum(s.correct for s in scores),
        sum(s.size for s in scores),
    )


def final(
    plan: Plan, model: FlatModel, sent: Sent, acks: Mapping[int, Ack], kept: Kept
) -> tuple[dict[str, float], Iterator[tuple[int, Tensor]]]:
    """Figures of the agents' own models when a run ends, as they are and put into their sets.

    Returns the models too: projected where the plan says so.
    """
    assert plan.constraints is not None
    sets = plan.constraints
    mean = torch.zeros_like(sent[0])
    accuracies: list[float] = []
    projected_accuracies: list[float] = []
    sparsities: list[float] = []
    validation = plan.validation
    for agent, own in personal_models(plan, model, sent, acks, kept):
        inside = sets[agent].project(own)
        mean += inside / len(sets)
        sparsities.append(float((inside == 0).double().mean()))
        if validation is not None and plan.task.accuracy and agent < MOST_SCORED:
            for where, weights in ((accuracies, own), (projected_accuracies, inside)):
                found = score(plan, model, weights, validation)
                where.append(found.correct / found.size)
    figures = {
        "projected_objective": objective(plan, model, mean),
        "projected_sparsity": math.fsum(sparsities) / len(sparsities),
    }
    if accuracies and validation is not None:
        figures["personal_accuracy"] = math.fsum(accuracies) / len(accuracies)
        figures["projected_personal_accuracy"] = math.fsum(projected_accuracies) / len(accuracies)
        found = score(plan, model, mean, validation)
        figures["projected_accuracy"] = found.correct / found.size
    models = personal_models(plan, model, sent, acks, kept)
    if plan.final_projection:
        return figures, ((agent, sets[agent].project(own)) for agent, own in models)
    return figures, models
