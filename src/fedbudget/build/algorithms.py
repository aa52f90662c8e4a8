"""The algorithm that a config names, its penalty, and how large its steps may be."""

from collections.abc import Callable
from functools import partial

import numpy as np
import torch

from fedbudget.algorithms import server, terms
from fedbudget.algorithms.algorithm import Algorithm
from fedbudget.algorithms.fedavg import fedavg
from fedbudget.algorithms.pc_fedavg import pc_fedavg
from fedbudget.algorithms.scaffold import scaffold
from fedbudget.algorithms.server import ServerOptimizer
from fedbudget.algorithms.terms import Penalty
from fedbudget.config import Config
from fedbudget.control import stepsize
from fedbudget.control.stepsize import StepRule
from fedbudget.data.examples import Examples
from fedbudget.errors import UserError
from fedbudget.threads import one_thread
from fedbudget.types import Knobs

CONSTRAINED = ("pc-fedavg", "penalised-fedavg", "penalised-fedprox", "penalised-scaffold")
TWO_VECTORS = ("pc-fedavg", "scaffold", "penalised-scaffold")
"""algorithms that send two vectors each way"""
PLAIN_SGD = TWO_VECTORS
"""algorithms whose formulas are those of plain SGD on the clients"""
STABLE = 2.0
"""gradient descent diverges where step size x curvature is above this"""


def algorithm(config: Config, clients: int) -> Algorithm:
    train, name = config.train, config.algorithm
    if name in PLAIN_SGD and (train.optimizer, train.momentum, train.weight_decay) != ("sgd", 0, 0):
        raise UserError(
            f"algorithm = {name!r} takes plain gradient steps: set train.optimizer = 'sgd', with "
            "train.momentum and train.weight_decay 0"
        )
    if name in PLAIN_SGD and train.weighting != "uniform":
        raise UserError(f"algorithm = {name!r} needs train.weighting = 'uniform'")
    if name in TWO_VECTORS and train.normalise != "none":
        raise UserError(
            f"algorithm = {name!r} sends a second vector that does not grow with work: set "
            "train.normalise = 'none'"
        )
    if name in PLAIN_SGD and (train.aggregate != "mean" or train.screen == "clip"):
        raise UserError(
            f"algorithm = {name!r} needs the mean of what clients sent, as they sent it: set "
            "train.aggregate = 'mean', and train.screen to drop or off"
        )
    if train.aggregate != "mean" and train.weighting != "uniform":
        raise UserError(
            f"train.aggregate = {train.aggregate!r} knows no weights: set train.weighting = 'uniform'"
        )
    extra = []
    if name.endswith("fedprox"):
        extra.append(terms.prox(train.mu))
    if name.startswith("penalised"):
        extra.append(terms.penalty(penalty(config)))
    if name == "pc-fedavg":
        table = config.constraints
        return pc_fedavg(clients, penalty(config), table.sigma, table.projected)
    if name.endswith("scaffold"):
        return scaffold(_server(config), extra)
    return fedavg(_server(config), extra)


def penalty(config: Config) -> Penalty:
    table = config.constraints
    match table.schedule:
        case "growing":
            return terms.growing(table.rho)
        case "horizon":
            return terms.horizon(table.rho, config.rounds)
        case _:
            return terms.constant(table.rho)


def lr_cap(config: Config, clients: int) -> Callable[[int], float] | None:
    """The largest step size that the penalty's curvature allows, by round."""
    if config.algorithm not in CONSTRAINED or config.constraints.safe_step == 0:
        return None
    return partial(_cap, config=config, clients=clients)


def _cap(round: int, *, config: Config, clients: int) -> float:
    curvature = _curvature(config, clients, round)
    return config.constraints.safe_step / curvature if curvature > 0 else float("inf")


def _curvature(config: Config, clients: int, round: int) -> float:
    """Of the penalty and the pull to the mean, as MATH's rule has it; the loss comes on top."""
    table = config.constraints
    rho = 0.0 if table.projected else penalty(config)(round)
    pull = table.sigma * (1 - 1 / clients) if config.algorithm == "pc-fedavg" else 0.0
    return rho + pull


def step_warning(config: Config, some: list[Examples], m: int) -> str | None:
    """A sentence when gamma (rho + sigma (1 - 1/m) + L/m) is 2 or more in the last round."""
    if config.algorithm not in CONSTRAINED:
        return None
    last = config.rounds
    cap = lr_cap(config, m)
    lr = min(config.train.lr, cap(last)) if cap else config.train.lr
    curvature = _curvature(config, m, last)
    loss = 0.0
    if config.model.kind == "softmax":
        loss = max(smoothness(part) for part in some)
        curvature += loss / m if config.algorithm == "pc-fedavg" else loss
    if lr * curvature < STABLE:
        return None
    known = f", the loss's own {loss:.3g} included" if loss else ""
    return (
        f"train.lr = {lr:.3g} is too large for a curvature of {curvature:.3g} in round {last}"
        f"{known}: steps above {STABLE / curvature:.3g} overshoot; lower train.lr or "
        "constraints.rho, or set constraints.safe_step = 1.5"
    )


def smoothness(examples: Examples) -> float:
    """An upper bound of a softmax regression's curvature: half the largest eigenvalue of x x'."""
    numbers = np.arange(min(len(examples), 512))
    x, _ = examples.batch(numbers)
    x = torch.cat([x.reshape(len(x), -1).double(), torch.ones(len(x), 1, dtype=torch.double)], 1)
    with one_thread():
        v = torch.ones(x.shape[1], dtype=torch.double)
        for _ in range(30):
            v = x.T @ (x @ (v / v.norm()))
    return float(v.norm() / len(x) / 2)


def step_rule(name: str, base: Knobs) -> StepRule | None:
    match name:
        case "square-root":
            return stepsize.square_root(base)
        case "linear":
            return stepsize.linear(base)
        case "tokens":
            return stepsize.tokens(base)
        case _:
            return None


def _server(config: Config) -> ServerOptimizer:
    train = config.train
    match train.server:
        case "momentum":
            return server.momentum(train.server_momentum, train.server_lr)
        case "nesterov":
            return server.nesterov(train.server_momentum, train.server_lr)
        case "adam":
            return server.adam(train.server_lr)
        case "yogi":
            return server.yogi(train.server_lr)
        case _:
            return server.plain(train.server_lr)
