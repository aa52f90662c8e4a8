"""Server optimisers: what the server makes of the mean update (FedOpt, Reddi et al. 2021)."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor


class ServerOptimizer(NamedTuple):
    """State as named vectors, and a step that adds to the weights."""

    init: Callable[[Tensor], Mapping[str, Tensor]]
    step: Callable[[Mapping[str, Tensor], Tensor], tuple[Tensor, Mapping[str, Tensor]]]
    """(state, mean update) -> (what to add to the weights, new state)"""
    ahead: Callable[[Mapping[str, Tensor]], Tensor] | None = None
    """(state with the weights) -> where clients start from; None = at the weights"""

    def start(self, state: Mapping[str, Tensor]) -> Tensor:
        return self.ahead(state) if self.ahead else state["weights"]


def plain(lr: float = 1.0) -> ServerOptimizer:
    """FedAvg: the mean itself."""
    return ServerOptimizer(_nothing, partial(_plain, lr=lr))


def momentum(beta: float, lr: float = 1.0) -> ServerOptimizer:
    """FedAvgM: v <- beta v + mean, weights += lr v."""
    return ServerOptimizer(
        partial(_zeros, names=("momentum",)), partial(_momentum, beta=beta, lr=lr)
    )


def nesterov(beta: float, lr: float = 1.0) -> ServerOptimizer:
    """FedACG (Kim et al. 2024): the same steps, and clients start where the momentum leads.

    Their local runs then undo what of it overshoots, which FedAvgM learns of a round later.
    """
    return momentum(beta, lr)._replace(ahead=partial(_ahead, beta=beta, lr=lr))


def adam(lr: float, betas: tuple[float, float] = (0.9, 0.99), eps: float = 1e-3) -> ServerOptimizer:
    """FedAdam: eps bounds how much a small second moment can enlarge a step."""
    return ServerOptimizer(
        partial(_zeros, names=("first", "second")),
        partial(_adaptive, lr=lr, betas=betas, eps=eps, yogi=False),
    )


def yogi(lr: float, betas: tuple[float, float] = (0.9, 0.99), eps: float = 1e-3) -> ServerOptimizer:
    """FedYogi: the second moment grows and shrinks by at most (1 - beta2) of the square."""
    return ServerOptimizer(
        partial(_zeros, names=("first", "second")),
        partial(_adaptive, lr=lr, betas=betas, eps=eps, yogi=True),
    )


def _nothing(weights: Tensor) -> Mapping[str, Tensor]:
    return {}


def _zeros(weights: Tensor, *, names: tuple[str, ...]) -> Mapping[str, Tensor]:
    return {name: torch.zeros_like(weights) for name in names}


def _plain(
    state: Mapping[str, Tensor], mean: Tensor, *, lr: float
) -> tuple[Tensor, Mapping[str, Tensor]]:
    return (mean if lr == 1.0 else lr * mean), {}


def _momentum(
    state: Mapping[str, Tensor], mean: Tensor, *, beta: float, lr: float
) -> tuple[Tensor, Mapping[str, Tensor]]:
    v = beta * state["momentum"] + mean
    return lr * v, {"momentum": v}


def _ahead(state: Mapping[str, Tensor], *, beta: float, lr: float) -> Tensor:
    return state["weights"] + lr * beta * state["momentum"]


def _adaptive(
    state: Mapping[str, Tensor],
    mean: Tensor,
    *,
    lr: float,
    betas: tuple[float, float],
    eps: float,
    yogi: bool,
) -> tuple[Tensor, Mapping[str, Tensor]]:
    square = mean * mean
    first = betas[0] * state["first"] + (1 - betas[0]) * mean
    if yogi:
        second = state["second"] - (1 - betas[1]) * square * torch.sign(state["second"] - square)
    else:
        second = betas[1] * state["second"] + (1 - betas[1]) * square
    return lr * first / (second.sqrt() + eps), {"first": first, "second": second}
