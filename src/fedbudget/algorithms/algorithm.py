"""What a federated algorithm is: six functions, half for the server and half for the client.

They work on vectors (see `models.flat`). They are plain functions or `functools.partial`s, so that
an algorithm can be given to a worker process. State is returned, not kept.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from fedbudget.models.flat import FlatModel

ServerState = Mapping[str, Tensor]
"""named vectors; "weights" is the global model"""
ClientState = Mapping[str, Tensor]
"""named vectors that a client keeps from one of its rounds to the next"""


@dataclass
class LocalRun:
    """A client's work in progress; lives for one job."""

    model: FlatModel
    part: slice
    """the slice of the vector that trains"""
    received: tuple[Tensor, ...]
    """what the server sent, the global model first"""
    client: ClientState
    make_optimizer: Callable[[FlatModel, slice], torch.optim.Optimizer]
    lr_sum: float = 0.0
    """sum of the step sizes taken so far"""
    work: dict[str, Tensor] = field(default_factory=dict)
    """the algorithm's own vectors"""

    @cached_property
    def optimizer(self) -> torch.optim.Optimizer:
        """The local optimiser, made when the algorithm's step first uses it."""
        return self.make_optimizer(self.model, self.part)

    @property
    def weights(self) -> Tensor:
        return self.model.weights[self.part]

    @property
    def grads(self) -> Tensor:
        return self.model.grads[self.part]


@dataclass(frozen=True)
class Mean:
    """The cohort's updates, averaged layer by layer over those who trained the layer."""

    parts: tuple[Tensor, ...]
    cohort: int
    """replies that were accepted"""
    clients: int
    """clients there are"""
    statistics: tuple[slice, ...] = ()
    """where the vector holds running statistics of norms, which are averaged and not optimised"""


class Algorithm(NamedTuple):
    """init -> send -> [start -> step ... -> finish] -> aggregate, and again."""

    init: Callable[[Tensor], ServerState]
    """(initial weights) -> server state"""
    send: Callable[[ServerState], tuple[Tensor, ...]]
    """what goes down to the clients, the point to start from first"""
    start: Callable[[LocalRun], None]
    """before the first local step"""
    step: Callable[[LocalRun, float], None]
    """(run, step size): gradients are in `run.grads`; change `run.weights`"""
    finish: Callable[[LocalRun], tuple[tuple[Tensor, ...], ClientState]]
    """-> (what goes up, the client's state for its next round)"""
    aggregate: Callable[[ServerState, Mean], ServerState]
