"""The least objective over an l1 ball: what the agents' sets allow, by a method of its own.

With sigma = 0 the mean of the agents' models can be any point of the mean of their sets; for l1
balls that is the ball of the mean radius. A shared model that obeys every agent has the least
radius. Accelerated projected gradient (FISTA with restarts) on all the agents' data, in float64.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from fedbudget.constraints import l1_ball
from fedbudget.data.examples import Examples


def least(
    clients: Sequence[Examples], classes: int, radius: float, iterations: int = 400
) -> tuple[float, Tensor]:
    """(objective, model) of softmax regression: weights (classes x inputs) and biases, flat."""
    x, y, share = _stacked(clients)
    ball = l1_ball(radius)
    size = classes * (x.shape[1] + 1)
    step = 2.0 / _largest_eigenvalue(x, share)  # the logits' curvature is at most a half
    w = torch.zeros(size)
    ahead, momentum, before = w, 1.0, float("inf")
    for _ in range(iterations):
        value, gradient = _loss(ahead, x, y, share, classes)
        new = ball.project(ahead - step * gradient)
        if value > before:  # it overshot: start the momentum again
            ahead, momentum, before = w, 1.0, float("inf")
            continue
        following = (1 + (1 + 4 * momentum**2) ** 0.5) / 2
        ahead = new + (momentum - 1) / following * (new - w)
        w, momentum, before = new, following, value
    return _loss(w, x, y, share, classes)[0], w


def _stacked(clients: Sequence[Examples]) -> tuple[Tensor, Tensor, Tensor]:
    """All inputs and targets, and each example's share of (1/m) sum_i mean loss of agent i."""
    parts = [part.batch(np.arange(len(part))) for part in clients]
    x = torch.cat([p[0].flatten(1) for p in parts])
    y = torch.cat([p[1] for p in parts])
    share = torch.cat([torch.full((len(p[1]),), 1 / len(p[1]) / len(parts)) for p in parts])
    return x, y, share


def _loss(w: Tensor, x: Tensor, y: Tensor, share: Tensor, classes: int) -> tuple[float, Tensor]:
    weights, biases = w[:-classes].view(classes, -1), w[-classes:]
    logits = x @ weights.T + biases
    value = float((F.cross_entropy(logits, y, reduction="none") * share).double().sum())
    away = torch.softmax(logits, 1)
    away[torch.arange(len(y)), y] -= 1
    away *= share[:, None]
    return value, torch.cat([(away.T @ x).flatten(), away.sum(0)])


def _largest_eigenvalue(x: Tensor, share: Tensor, iterations: int = 20) -> float:
    """Of sum share x x', the constant input of the biases included."""
    v = torch.ones(x.shape[1] + 1)
    for _ in range(iterations):
        v = v / v.norm()
        z = (x @ v[:-1] + v[-1]) * share
        v = torch.cat([x.T @ z, z.sum()[None]])
    return float(v.norm())
