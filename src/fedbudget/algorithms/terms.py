"""Further parts of a client's objective, each as the gradient it adds."""

import math
from collections.abc import Callable
from functools import partial

from fedbudget.algorithms.algorithm import LocalRun, Term

Penalty = Callable[[int], float]
"""round, counting from 1 -> rho"""


def prox(mu: float) -> Term:
    """FedProx (Li et al. 2020): mu/2 |w - w0|^2."""
    return partial(_prox, mu=mu)


def _prox(run: LocalRun, *, mu: float) -> None:
    run.grads.add_(run.weights - run.received[0][run.part], alpha=mu)


def penalty(rho: Penalty) -> Term:
    """rho/2 dist^2(w, X) to the client's own constraint set."""
    return partial(_penalty, rho=rho)


def _penalty(run: LocalRun, *, rho: Penalty) -> None:
    run.grads.add_(run.weights - run.projected(run.weights), alpha=rho(run.round))


def constant(rho: float) -> Penalty:
    """The same in every round."""
    return partial(_constant, rho=rho)


def growing(rho: float) -> Penalty:
    """rho sqrt(r + 1), r counting from 0."""
    return partial(_growing, rho=rho)


def horizon(rho: float, rounds: int) -> Penalty:
    """rho sqrt(R): constant, from the number of rounds (theorem 3.4 of PC-FedAvg)."""
    return constant(rho * math.sqrt(rounds))


def _constant(round: int, *, rho: float) -> float:
    return rho


def _growing(round: int, *, rho: float) -> float:
    return rho * math.sqrt(round)
