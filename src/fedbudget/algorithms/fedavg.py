"""FedAvg (McMahan et al. 2017): clients train from the global model, the server adds the mean."""

from collections.abc import Sequence
from functools import partial

from torch import Tensor

from fedbudget.algorithms.algorithm import (
    Algorithm,
    ClientState,
    LocalRun,
    Mean,
    Sent,
    ServerState,
    Term,
)
from fedbudget.algorithms.server import ServerOptimizer, plain


def fedavg(server: ServerOptimizer | None = None, terms: Sequence[Term] = ()) -> Algorithm:
    """With a server optimiser FedAvgM, FedACG, FedAdam or FedYogi; with terms FedProx or penalised."""
    optimizer = server or plain()
    return Algorithm(
        partial(_init, server=optimizer),
        partial(_send, server=optimizer),
        _start,
        partial(descend, terms=tuple(terms)),
        _finish,
        partial(_aggregate, server=optimizer),
        rest=_rest,
    )


def _init(weights: Tensor, *, server: ServerOptimizer) -> ServerState:
    return {"weights": weights, **server.init(weights)}


def _send(state: ServerState, *, server: ServerOptimizer) -> Sent:
    return (server.start(state),)


def _rest(state: ServerState) -> Sent:
    return (state["weights"],)


def _start(run: LocalRun) -> None:
    pass


def descend(run: LocalRun, lr: float, *, terms: Sequence[Term]) -> None:
    """One step of the local optimiser down the gradient and the terms."""
    for term in terms:
        term(run)
    run.optimizer(lr)


def _finish(run: LocalRun) -> tuple[Sent, ClientState]:
    return (run.weights - run.received[0][run.part],), {}


def _aggregate(state: ServerState, mean: Mean, *, server: ServerOptimizer) -> ServerState:
    return {**state, **server_step(state, mean, server)}


def server_step(state: ServerState, mean: Mean, server: ServerOptimizer) -> ServerState:
    """The weights and the server optimiser's own state after the mean update."""
    step, kept = server.step(state, mean.parts[0])
    for where in mean.statistics:
        step[where] = mean.parts[0][where]
        for vector in kept.values():
            vector[where] = 0.0
    weights = state["weights"] + step
    # what nobody trained stays where the clients had it: there the others learnt what goes with it
    start = server.start(state)
    for where in mean.untrained:
        weights[where] = start[where]
        for name, vector in kept.items():
            vector[where] = 0.0 if server.ahead else state[name][where]
    return {"weights": weights, **kept}
