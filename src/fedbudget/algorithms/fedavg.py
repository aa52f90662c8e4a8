"""FedAvg (McMahan et al. 2017): clients train from the global model, the server adds the mean update."""

from torch import Tensor

from fedbudget.algorithms.algorithm import Algorithm, ClientState, LocalRun, Mean, ServerState


def fedavg() -> Algorithm:
    return Algorithm(_init, _send, _start, _step, _finish, _aggregate)


def _init(weights: Tensor) -> ServerState:
    return {"weights": weights}


def _send(server: ServerState) -> tuple[Tensor, ...]:
    return (server["weights"],)


def _start(run: LocalRun) -> None:
    pass


def _step(run: LocalRun, lr: float) -> None:
    for group in run.optimizer.param_groups:
        group["lr"] = lr
    run.optimizer.step()


def _finish(run: LocalRun) -> tuple[tuple[Tensor, ...], ClientState]:
    return (run.weights - run.received[0][run.part],), {}


def _aggregate(server: ServerState, mean: Mean) -> ServerState:
    return {"weights": server["weights"] + mean.parts[0]}
