"""FedAvg (McMahan et al. 2017): clients train from the global model, the server adds the mean."""

from functools import partial

from torch import Tensor

from fedbudget.algorithms.algorithm import Algorithm, ClientState, LocalRun, Mean, ServerState
from fedbudget.algorithms.server import ServerOptimizer, plain


def fedavg(server: ServerOptimizer | None = None) -> Algorithm:
    """With a server optimiser it is FedAvgM, FedAdam or FedYogi."""
    optimizer = server or plain()
    return Algorithm(
        partial(_init, server=optimizer),
        _send,
        _start,
        _step,
        _finish,
        partial(_aggregate, server=optimizer),
    )


def _init(weights: Tensor, *, server: ServerOptimizer) -> ServerState:
    return {"weights": weights, **server.init(weights)}


def _send(state: ServerState) -> tuple[Tensor, ...]:
    return (state["weights"],)


def _start(run: LocalRun) -> None:
    pass


def _step(run: LocalRun, lr: float) -> None:
    for group in run.optimizer.param_groups:
        group["lr"] = lr
    run.optimizer.step()


def _finish(run: LocalRun) -> tuple[tuple[Tensor, ...], ClientState]:
    return (run.weights - run.received[0][run.part],), {}


def _aggregate(state: ServerState, mean: Mean, *, server: ServerOptimizer) -> ServerState:
    kept = {name: value for name, value in state.items() if name != "weights"}
    step, kept_now = server.step(kept, mean.parts[0])
    for where in mean.statistics:
        step[where] = mean.parts[0][where]
    return {"weights": state["weights"] + step, **kept_now}
