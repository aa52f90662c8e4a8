"""SCAFFOLD (Karimireddy et al. 2020, option II): control variates undo the drift of local steps.

The server keeps c, client i keeps c_i; a local step goes down grad + c - c_i. Afterwards
c_i+ = c_i - c + (w0 - w) / (sum of the step sizes), which plain SGD makes the mean gradient of the
local run. Up go w - w0 and c_i+ - c_i; the client keeps what the server decoded of the latter, so
that c stays the mean of the c_i whatever a codec loses.
"""

from collections.abc import Sequence
from functools import partial

import torch
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
from fedbudget.algorithms.fedavg import descend, server_step
from fedbudget.algorithms.server import ServerOptimizer, plain


def scaffold(server: ServerOptimizer | None = None, terms: Sequence[Term] = ()) -> Algorithm:
    """For plain SGD on the clients; terms make the penalised and the proximal variant."""
    optimizer = server or plain()
    return Algorithm(
        partial(_init, server=optimizer),
        partial(_send, server=optimizer),
        _start,
        partial(_step, terms=tuple(terms)),
        _finish,
        partial(_aggregate, server=optimizer),
        _sent,
        vectors=2,
        rest=_rest,
    )


def _init(weights: Tensor, *, server: ServerOptimizer) -> ServerState:
    return {"weights": weights, "control": torch.zeros_like(weights), **server.init(weights)}


def _send(state: ServerState, *, server: ServerOptimizer) -> Sent:
    return server.start(state), state["control"]


def _rest(state: ServerState) -> Sent:
    return state["weights"], state["control"]


def _start(run: LocalRun) -> None:
    run.work["correction"] = run.received[1][run.part] - run.kept("control")[..., run.part]


def _step(run: LocalRun, lr: float, *, terms: Sequence[Term]) -> None:
    run.grads.add_(run.work["correction"])
    descend(run, lr, terms=terms)


def _finish(run: LocalRun) -> tuple[Sent, ClientState]:
    update = run.weights - run.received[0][run.part]
    control = torch.zeros_like(update)
    if run.lr_sum > 0:
        control = -update / run.lr_sum - run.received[1][run.part]
        for where in run.statistics:
            control[..., where] = 0
    return (update, control), {"control": run.kept("control")}


def _sent(state: ClientState, decoded: Sent, part: slice) -> ClientState:
    control = state["control"].clone()
    control[..., part] += decoded[1]
    return {**state, "control": control}


def _aggregate(state: ServerState, mean: Mean, *, server: ServerOptimizer) -> ServerState:
    share = mean.averaged_over / mean.clients
    control = state["control"] + share * mean.parts[1]
    return {**state, **server_step(state, mean, server), "control": control}
