"""PC-FedAvg: every agent keeps its own model in a private convex set, and the mean is learnt.

minimise (1/m) sum_i [ f_i(xbar) + sigma/2 |x_i - xbar|^2 ] over x_i in X_i, xbar = mean of x_i.

The paper's agent holds all m blocks. What it adds to a block that is not its own is the same for
all of them, and all agents start a round with equal blocks; so an agent needs its own block u, the
mean z of all blocks, the increment c it gives to every block, and the excess V of its own:

    r = u - z;  delta = -(gamma/m) (g - sigma r);  v = -gamma [ sigma r + rho (u - Proj u) ]
    u += delta + v;  z += delta + v/m;  c += delta;  V += v

Up go c and V. The server keeps zbar ("weights") and the common part C of all blocks ("shared"):
C += mean c, zbar += mean c + mean V / m; both go down. An agent's block is C + p_i, where its
offset p_i grows by V_i / |S| once the server has said that it used the reply, with the V_i that
the server decoded. This is the m-block algorithm exactly, in O(d) an agent.
"""

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
)
from fedbudget.algorithms.terms import Penalty


def pc_fedavg(agents: int, rho: Penalty, sigma: float = 0.0, projected: bool = False) -> Algorithm:
    """`projected` puts the own block into its set at every step, in place of the penalty."""
    return Algorithm(
        _init,
        _send,
        _start,
        partial(_step, agents=agents, rho=rho, sigma=sigma, projected=projected),
        _finish,
        partial(_aggregate, agents=agents),
        _sent,
        block,
        vectors=2,
        agents=agents,
    )


def _init(weights: Tensor) -> ServerState:
    return {"weights": weights, "shared": weights.clone()}


def _send(state: ServerState) -> Sent:
    return state["weights"], state["shared"]


def _start(run: LocalRun) -> None:
    offset = run.kept("offset") + _counted(run.kept("pending"), run.averaged_over)
    run.work["offset"] = offset
    run.work["whole block"] = run.received[1] + offset
    run.work["block"] = run.work["whole block"][..., run.part].clone()
    run.work["increment"] = torch.zeros_like(run.weights)
    run.work["excess"] = torch.zeros_like(run.weights)


def _step(
    run: LocalRun, lr: float, *, agents: int, rho: Penalty, sigma: float, projected: bool
) -> None:
    u, z = run.work["block"], run.weights
    apart = u - z
    for where in run.statistics:
        apart[..., where] = 0
    delta = (run.grads - sigma * apart).mul_(-lr / agents)
    if projected:
        there = u + delta - (lr * sigma) * apart
        v = run.projected(there, run.work["whole block"]) - u - delta
    else:
        outside = u - run.projected(u, run.work["whole block"])
        v = (sigma * apart + rho(run.round) * outside).mul_(-lr)
    for where in run.statistics:
        v[..., where] = 0
    u += delta + v
    z += delta + v / agents
    run.work["increment"] += delta
    run.work["excess"] += v


def _finish(run: LocalRun) -> tuple[Sent, ClientState]:
    increment, excess = run.work["increment"], run.work["excess"]
    for where in run.statistics:
        increment[..., where] = (run.weights - run.received[0][run.part])[..., where]
    return (increment, excess), {"offset": run.work["offset"]}


def _sent(state: ClientState, decoded: Sent, part: slice) -> ClientState:
    pending = torch.zeros_like(state["offset"])
    pending[..., part] = decoded[1]
    return {**state, "pending": pending}


def _aggregate(state: ServerState, mean: Mean, *, agents: int) -> ServerState:
    increment, excess = mean.parts
    return {
        "weights": state["weights"] + increment + excess / agents,
        "shared": state["shared"] + increment,
    }


def block(received: Sent, client: ClientState, averaged_over: Tensor | None) -> Tensor:
    """An agent's own model x_i."""
    if averaged_over is None:
        return received[1]
    return received[1] + client["offset"] + _counted(client["pending"], averaged_over)


def _counted(pending: Tensor, averaged_over: Tensor | None) -> Tensor:
    return pending if averaged_over is None else pending / averaged_over
