"""Small plans that train in a second, and the data sets where they are at hand."""

import os
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import settings

from fedbudget.algorithms.fedavg import fedavg
from fedbudget.control.controller import fixed
from fedbudget.data.examples import Arrays, Parts, Texts, Windows
from fedbudget.data.files import cache_folder
from fedbudget.models.gpt import GPT
from fedbudget.models.softmax import Softmax
from fedbudget.plan import Plan
from fedbudget.task import classify
from fedbudget.types import Knobs

settings.register_profile("default", deadline=None)  # a loaded machine is not a failure
settings.load_profile("default")


def text_plan(**changes) -> Plan:
    """A one-layer GPT on a text that repeats itself, four clients."""
    tokens = torch.arange(4000, dtype=torch.int64).remainder(11).to(torch.uint8)
    settings = {
        "name": "tiny",
        "seed": 3,
        "rounds": 3,
        "cohort": 3,
        "model": partial(GPT, 11, 16, 1, 16, 2, 0.1),
        "clients": Texts(tokens, 16, [[(i * 900, (i + 1) * 900)] for i in range(4)]),
        "validation": Windows(tokens, 16, ((3600, 4000),), 16),
        "algorithm": fedavg(),
        "controller": fixed(Knobs(3, 4, 4)),
        "task": classify(),
        "lr": 1e-2,
    }
    return Plan(**(settings | changes))


def blobs(n: int = 120, seed: int = 0) -> Arrays:
    """Three separable clusters in four dimensions."""
    rng = np.random.default_rng(seed)
    y = np.arange(n) % 3
    x = rng.normal(size=(n, 4)) + 3 * np.eye(4)[y]
    return Arrays(torch.tensor(x, dtype=torch.float32), torch.tensor(y))


def softmax_plan(**changes) -> Plan:
    """Softmax regression with plain SGD, three unequal clients."""
    data = blobs()
    parts = [np.arange(0, 60), np.arange(60, 100), np.arange(100, 120)]
    settings = {
        "name": "softmax",
        "seed": 1,
        "rounds": 2,
        "cohort": 3,
        "model": partial(Softmax, 4, 3),
        "clients": Parts(data, parts),
        "validation": blobs(60, seed=1),
        "algorithm": fedavg(),
        "controller": fixed(Knobs(1, 2, 20)),
        "task": classify(),
        "lr": 0.1,
    }
    return Plan(**(settings | changes))


def data_folder(name: str) -> Path:
    for folder in (os.environ.get("FEDBUDGET_DATA"), cache_folder()):
        if folder and any((Path(folder) / name).glob("*")):
            return Path(folder)
    pytest.skip(f"{name} is not here: set FEDBUDGET_DATA to a folder that has it")
