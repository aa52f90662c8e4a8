"""What a federated algorithm is: a few functions, some for the server and some for the client.

They work on vectors (see `models.flat`). They are plain functions or `functools.partial`s, so that
an algorithm can be given to a worker process. State is returned, not kept. A client's functions
are elementwise over the last dimension, so that they serve one agent, (n,), or many, (agents, n).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from fedbudget.errors import StateLostError, UserError
from fedbudget.models.flat import Layout
from fedbudget.optimizers import Optimizer
from fedbudget.types import Ack

ServerState = Mapping[str, Tensor]
"""named vectors; "weights" is the global model"""
ClientState = Mapping[str, Tensor]
"""named vectors over the whole model that a client keeps from one of its rounds to the next"""
Sent = tuple[Tensor, ...]
"""vectors on their way down (over the whole model) or up (over the part that trains)"""


@dataclass
class LocalRun:
    """A client's work in progress; lives for one job."""

    weights: Tensor
    """(..., n): the part of the model that trains; a step changes it in place"""
    grads: Tensor
    """(..., n)"""
    part: slice
    """where that part lies in the whole vector"""
    received: Sent
    """what the server sent, the point to start from first; each over the whole model"""
    client: ClientState
    make_optimizer: Callable[[], Optimizer]
    round: int = 1
    averaged_over: Tensor | None = None
    """replies that the client's last update was averaged with, (..., 1) or (..., whole model);
    None before its first"""
    project: Callable[[Tensor], Tensor] | None = None
    """the nearest model in the client's constraint set; over the whole vector"""
    statistics: tuple[slice, ...] = ()
    """where `weights` holds running statistics of norms, which no gradient moves"""
    lr_sum: float = 0.0
    """sum of the step sizes taken so far"""
    work: dict[str, Tensor] = field(default_factory=dict)
    """the algorithm's own vectors"""

    @cached_property
    def optimizer(self) -> Optimizer:
        """The local optimiser, made when the algorithm's step first uses it."""
        return self.make_optimizer()

    def kept(self, name: str) -> Tensor:
        """A vector of the client's state, (..., whole model); zeros before its first round."""
        if name in self.client:
            return self.client[name]
        if self.averaged_over is not None:
            raise StateLostError(f"the client has lost its state ({name}) of an earlier round")
        whole = self.received[0]
        return whole.new_zeros((*self.weights.shape[:-1], *whole.shape[-1:]))

    def projected(self, point: Tensor, model: Tensor | None = None) -> Tensor:
        """Nearest point of the constraint set to (..., n), the frozen rest as in `model`.

        That is the model the server sent, unless the client has its own, (..., whole model).
        """
        if self.project is None:
            raise UserError("the algorithm needs a constraint set, and the client has none")
        whole = self.received[0] if model is None else model
        if point.shape[-1] == whole.shape[-1]:
            return self.project(point)
        whole = whole.expand(*point.shape[:-1], -1).clone()
        whole[..., self.part] = point
        return self.project(whole)[..., self.part]


Term = Callable[[LocalRun], None]
"""adds the gradient of a further part of the objective to `run.grads`"""


def counted(counts: Sequence[int], layout: Layout) -> Tensor:
    """Replies by layer group as a vector: (1,) where all are equal, else (whole model,)."""
    if len(set(counts)) == 1:
        return torch.tensor([max(1.0, counts[0])], dtype=layout.dtype)
    whole = torch.ones(layout.size, dtype=layout.dtype)
    for group, count in enumerate(counts):
        whole[layout.span(group, group + 1)] = max(1, count)
    return whole


def averaged_over(acks: Sequence[Ack | None], layout: Layout) -> Tensor | None:
    """The replies behind each agent's last update, (agents, 1) or (agents, whole model).

    All agents have an ack, or none has.
    """
    known = [ack.counts for ack in acks if ack is not None]
    if not known:
        return None
    distinct = {counts: counted(counts, layout) for counts in set(known)}
    width = max(len(vector) for vector in distinct.values())
    return torch.stack([distinct[counts].expand(width) for counts in known])


@dataclass(frozen=True)
class Mean:
    """The cohort's updates, averaged layer by layer over those who trained the layer."""

    parts: Sent
    cohort: int
    """replies that were accepted"""
    clients: int
    """clients there are"""
    averaged_over: Tensor
    """replies that each number is the mean of: (1,) or (whole model,)"""
    statistics: tuple[slice, ...] = ()
    """where the vector holds running statistics of norms, which are averaged and not optimised"""
    untrained: tuple[slice, ...] = ()
    """layer groups that nobody trained: they stay as they are, and so does what is kept of them"""


def _global(received: Sent, client: ClientState, averaged_over: Tensor | None) -> Tensor:
    return received[0]


class Algorithm(NamedTuple):
    """init -> send -> [start -> step ... -> finish -> sent] -> aggregate, and again."""

    init: Callable[[Tensor], ServerState]
    """(initial weights) -> server state"""
    send: Callable[[ServerState], Sent]
    """what goes down to the clients, the point to start from first"""
    start: Callable[[LocalRun], None]
    """before the first local step"""
    step: Callable[[LocalRun, float], None]
    """(run, step size): gradients are in `run.grads`; change `run.weights`"""
    finish: Callable[[LocalRun], tuple[Sent, ClientState]]
    """-> (what goes up, the client's state for its next round)"""
    aggregate: Callable[[ServerState, Mean], ServerState]
    sent: Callable[[ClientState, Sent, slice], ClientState] | None = None
    """(state, what the server will decode, the part it covers) -> the state to keep"""
    personal: Callable[[Sent, ClientState, Tensor | None], Tensor] = _global
    """(what goes down, client state, averaged_over) -> the client's own model"""
    vectors: int = 1
    """how many a client sends"""
    agents: int = 0
    """the number of clients it is made for, each with a constraint set; 0 = any, without"""
    rest: Callable[[ServerState], Sent] | None = None
    """what would go down if no round followed: the model itself, where `send` is ahead of it"""

    def last(self, state: ServerState) -> Sent:
        """What clients' own models are made of when a round has ended."""
        return (self.rest or self.send)(state)
