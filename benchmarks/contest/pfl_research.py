"""pfl-research as its guides set it up: FederatedAveraging on a SimulatedBackend.

    python pfl_research.py FOLDER [--processes N]
More processes as "Fast distributed simulations" has it: PFL_WORKER_RANK and PFL_WORKER_ADDRESSES. One
`run` goes on for ever; a callback at the end of each central iteration waits for the next command.
Iteration 0, after which pfl also evaluates every user, does not count.
"""

import argparse
import itertools
import os
import socket
import subprocess
import sys
import time
import types
from collections.abc import Iterator
from functools import partial
from typing import Any

import pfl
import torch
from line import Line
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByUser
from pfl.algorithm import FederatedAveraging, NNAlgorithmParams
from pfl.callback.base import TrainingProcessCallback
from pfl.callback.central_evaluation import CentralEvaluationCallback
from pfl.data import FederatedDataset
from pfl.data.dataset import Dataset
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from workload import Workload, loss_of, optimizer, save

NEVER = 10**9


def loss(self: torch.nn.Module, x: Any, y: Any, eval: bool = False) -> torch.Tensor:
    self.eval() if eval else self.train()
    return loss_of(self, x, y)


@torch.no_grad()
def metrics(self: torch.nn.Module, x: Any, y: Any, eval: bool = True) -> dict[str, Weighted]:
    self.eval() if eval else self.train()
    return {"loss": Weighted(loss_of(self, x, y).item() * len(x), len(x))}


class Waits(TrainingProcessCallback):
    """Between two iterations: says how long the last took, and waits for the next command."""

    def __init__(self, line: Line, load: Workload, follower: subprocess.Popen[str] | None) -> None:
        self.line, self.load, self.follower = line, load, follower
        self.commands = line.commands()
        self.started: float | None = None
        self.last: dict[str, torch.Tensor] = {}

    def after_central_iteration(
        self, aggregate_metrics: Metrics, model: Any, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        ended = time.perf_counter()
        self.last = {n: v.detach().clone() for n, v in model.variable_map.items()}
        if self.started is None:
            self.line.say(ready=True, version=f"pfl {pfl.__version__}")
        else:
            self.line.say(seconds=ended - self.started)
        if self.started is None or not self.load.goes_on:
            for name, variable in model.variable_map.items():
                variable.data.copy_(self.load.weights[name])
        for command in self.commands:
            if command["op"] == "save":
                save(command["path"], self.last)
                self.line.say()
                continue
            if self.follower is not None:  # it must not train ahead while we wait
                assert self.follower.stdin is not None
                self.follower.stdin.write('{"op": "round"}\n')
                self.follower.stdin.flush()
            self.started = time.perf_counter()
            return False, Metrics()
        if self.follower is not None:
            self.follower.terminate()
        os._exit(0)  # without the other process there is nobody to say goodbye to


def users(load: Workload) -> Iterator[int]:
    """Cohort after cohort; the first is that of the iteration that does not count."""
    yield from load.cohort(1)
    for number in itertools.count(1):
        yield from load.cohort(number)


def second(folder: str) -> subprocess.Popen[str]:
    """The other process of two, on a free port."""
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port = probe.getsockname()[1]
    os.environ["PFL_WORKER_ADDRESSES"] = f"localhost:{port},localhost:{port + 1}"
    follower = subprocess.Popen(
        [sys.executable, __file__, folder, "--follow"],
        env={**os.environ, "PFL_WORKER_RANK": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    )
    os.environ["PFL_WORKER_RANK"] = "0"
    return follower


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder")
    parser.add_argument("--processes", type=int, default=1, choices=(1, 2))
    parser.add_argument("--follow", action="store_true")
    given = parser.parse_args()
    line = Line()
    follower = second(given.folder) if given.processes == 2 else None
    torch.set_num_threads(1)
    load = Workload(given.folder)
    x, y = load.data()
    rows = {client: i for i, client in enumerate(load.clients)}
    dataset = FederatedDataset(
        lambda user: Dataset(raw_data=[x[rows[user]], y[rows[user]]]), partial(next, users(load))
    )
    module = load.model()
    module.loss = types.MethodType(loss, module)
    module.metrics = types.MethodType(metrics, module)
    model = PyTorchModel(
        module,
        local_optimizer_create=lambda parameters, lr: optimizer(load.settings, parameters, lr),
        central_optimizer=torch.optim.SGD(module.parameters(), lr=1.0),
    )
    waits = Waits(line, load, follower)
    callbacks: list[Any] = [waits]
    every = load.settings.get("evaluate_every")
    valid = load.validation()
    if every and valid is not None:
        evaluation = NNEvalHyperParams(local_batch_size=load.settings["eval_batch"])
        callbacks = [
            CentralEvaluationCallback(Dataset(raw_data=[*valid]), evaluation, every),
            waits,
        ]
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=NEVER,
            evaluation_frequency=NEVER,
            train_cohort_size=len(load.cohort(1)),
            val_cohort_size=0,
        ),
        backend=SimulatedBackend(dataset, dataset, [WeightByUser()]),
        model=model,
        model_train_params=NNTrainHyperParams(
            local_num_epochs=None,
            local_num_steps=load.steps,
            local_learning_rate=load.lr,
            local_batch_size=load.batch,
        ),
        model_eval_params=NNEvalHyperParams(local_batch_size=load.batch),
        callbacks=callbacks,
    )


if __name__ == "__main__":
    main()
