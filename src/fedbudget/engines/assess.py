"""How well constrained agents do: the objective at the mean model, the distance to their sets.

It needs every agent's data and set, so it happens on the device side; only numbers leave it.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from fedbudget.algorithms.algorithm import ClientState, Sent, averaged_over
from fedbudget.constraints import stack
from fedbudget.data.examples import Examples, in_order
from fedbudget.data.together import joined, starts
from fedbudget.models.flat import FlatModel, Layout
from fedbudget.plan import Plan
from fedbudget.task import Score, evaluate_batch
from fedbudget.types import Ack

Kept = Callable[[int], ClientState]
"""client -> its valid state"""
BATCH = 2048
NUMBERS = 1 << 17
"""weights of agents' own models that are looked at together"""
MOST_SCORED = 100
"""agents whose own model is tried on the validation data"""
MOST_LISTED = 1000
"""agents that a summary has figures of, one by one"""
Figures = dict[str, float | dict[str, list[float]]]
"""of all agents together, and under "agents" of each"""


class Own(NamedTuple):
    """Some agents' own models, and the nearest ones in their sets; (agents, numbers)."""

    agents: range
    models: Tensor
    inside: Tensor


def assess(
    plan: Plan, model: FlatModel, sent: Sent, acks: Mapping[int, Ack], kept: Kept
) -> dict[str, float]:
    """objective = (1/m) sum_i f_i(mean model); infeasibility = distance of an agent's own model."""
    distances: list[float] = []
    for own in personal_models(plan, model.layout, sent, acks, kept):
        apart = own.models - own.inside
        distances += torch.linalg.vector_norm(apart, dim=-1).tolist()
    return {
        "objective": objective(plan, model, sent[0]),
        "infeasibility": math.fsum(distances) / len(distances),
        "worst_infeasibility": max(distances),
    }


def personal_models(
    plan: Plan, layout: Layout, sent: Sent, acks: Mapping[int, Ack], kept: Kept
) -> Iterator[Own]:
    """Each agent's own model, some at a time; the shared one where the algorithm has no other."""
    assert plan.constraints is not None
    some = max(1, NUMBERS // layout.size)
    for first in range(0, len(plan.clients), some):
        agents = range(first, min(first + some, len(plan.clients)))
        models = sent[0].new_empty((len(agents), layout.size))
        states = [kept(agent) for agent in agents]
        # one that lost its state counts as new: the server will learn of it when it asks
        known = [agent in acks and bool(state) for agent, state in zip(agents, states, strict=True)]
        for old in (True, False):
            rows = [i for i in range(len(agents)) if known[i] == old]
            if rows:
                names = states[rows[0]] if old else ()
                state = {name: torch.stack([states[i][name] for i in rows]) for name in names}
                over = averaged_over([acks[agents[i]] if old else None for i in rows], layout)
                models[rows] = plan.algorithm.personal(sent, state, over)
        sets = stack([plan.constraints[agent] for agent in agents])
        yield Own(agents, models, sets.project(models))


def objective(plan: Plan, model: FlatModel, weights: Tensor) -> float:
    """Mean over agents of the mean loss on their own training data."""
    losses: list[float] = []
    if plan.task.losses is None:
        for examples in plan.clients:
            total = score(plan, model, weights, examples)
            losses.append(total.loss / total.size)
    else:
        model.weights.copy_(weights)
        model.eval()
        for some in _about(BATCH, plan.clients):
            losses += _mean_losses(plan.task.losses, model, some)
    return math.fsum(losses) / len(losses)


def _about(size: int, clients: Sequence[Examples]) -> Iterator[list[Examples]]:
    """Clients in groups that end when they have `size` examples."""
    group: list[Examples] = []
    count = 0
    for i in range(len(clients)):
        group.append(clients[i])
        count += len(group[-1])
        if count >= size or i == len(clients) - 1:
            yield group
            group, count = [], 0


def _mean_losses(
    losses: Callable[[nn.Module, Any, Tensor], Tensor], model: FlatModel, parts: list[Examples]
) -> list[float]:
    """Each part's mean loss, from batches that reach over parts."""
    whole, ends = joined(parts), starts(parts).tolist()
    with torch.no_grad():
        found = [losses(model.module, *whole.batch(n)).double() for n in in_order(whole, BATCH)]
    each = torch.cat(found)
    return [float(each[a:b].mean()) for a, b in pairwise(ends)]


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
) -> tuple[Figures, Iterator[tuple[int, Tensor]]]:
    """Figures of the agents' own models when a run ends, as they are and put into their sets.

    Returns the models too: projected where the plan says so.
    """
    assert plan.constraints is not None
    mean = torch.zeros_like(sent[0])
    accuracies: list[float] = []
    projected_accuracies: list[float] = []
    sparsities: list[float] = []
    distances: list[float] = []
    validation = plan.validation
    for own in personal_models(plan, model.layout, sent, acks, kept):
        mean += (own.inside / len(plan.constraints)).sum(0)
        sparsities += (own.inside == 0).double().mean(-1).tolist()
        distances += torch.linalg.vector_norm(own.models - own.inside, dim=-1).tolist()
        if validation is not None and plan.task.accuracy:
            for agent, *both in zip(own.agents, own.models, own.inside, strict=True):
                if agent < MOST_SCORED:
                    for where, weights in zip(
                        (accuracies, projected_accuracies), both, strict=True
                    ):
                        found = score(plan, model, weights, validation)
                        where.append(found.correct / found.size)
    figures: Figures = {
        "projected_objective": objective(plan, model, mean),
        "projected_sparsity": math.fsum(sparsities) / len(sparsities),
    }
    agents = {"distance": distances[:MOST_LISTED]}
    if all(set.convex for set in plan.constraints):  # else it may be the very number of the set
        agents["projected_sparsity"] = sparsities[:MOST_LISTED]
    figures["agents"] = agents
    if accuracies and validation is not None:
        figures["personal_accuracy"] = math.fsum(accuracies) / len(accuracies)
        figures["projected_personal_accuracy"] = math.fsum(projected_accuracies) / len(accuracies)
        found = score(plan, model, mean, validation)
        figures["projected_accuracy"] = found.correct / found.size
    again = personal_models(plan, model.layout, sent, acks, kept)
    return figures, (
        pair
        for own in again
        for pair in zip(
            own.agents, own.inside if plan.final_projection else own.models, strict=True
        )
    )
