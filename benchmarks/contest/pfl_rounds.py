"""pfl-research as its guides set it up: FederatedAveraging on a SimulatedBackend.

One `run` goes on for ever; a callback at the end of each central iteration waits for the next
command. Iteration 0, after which pfl also evaluates every user, does not count.
"""

import itertools
import os
import subprocess
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
from pfl.internal.ops.selector import get_default_framework_module as get_ops
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


def run(folder: str, follower: subprocess.Popen[str] | None, processes: int) -> None:
    line = Line()
    torch.set_num_threads(1)
    load = Workload(folder)
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
    shared = get_ops().distributed.world_size
    assert shared == processes, f"pfl has {shared} processes in place of {processes}"
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
