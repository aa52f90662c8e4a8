"""The workloads as fedbudget's plans, and as the folders that every contestant reads."""

import json
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from workload import make_model, save

from fedbudget import seeds
from fedbudget.algorithms.fedavg import fedavg
from fedbudget.client import Recipe
from fedbudget.control.controller import fixed
from fedbudget.data import partition
from fedbudget.data.examples import Arrays, Examples, Parts, Texts, draw
from fedbudget.data.files import UnreachableError
from fedbudget.data.sources import Text, cifar10, mnist, python_topics, tiny_shakespeare
from fedbudget.plan import Plan
from fedbudget.rounds import sample
from fedbudget.task import classify
from fedbudget.types import Knobs

NEVER = 10**6
CONTEXT = 128


def gpt(layers: int, width: int, steps: int, cohort: int = 6) -> dict[str, Any]:
    """W1 is 2 x 128, W2 is 6 x 256: six of 16 clients, batch 16, AdamW."""
    model = {"kind": "gpt", "layers": layers, "width": width, "context": CONTEXT}
    counts = {"clients": 16, "cohort": cohort, "steps": steps, "batch": 16}
    return {"model": model, **counts, "lr": 1e-3, "optimizer": "adamw"}


def softmax(own: int, cohort: int = 100, clients: int = 1000, steps: int = 20) -> dict[str, Any]:
    """W3: `own` images of MNIST a client, 20 steps of batch 64, SGD."""
    counts = {"clients": clients, "cohort": cohort, "steps": steps, "batch": 64, "own": own}
    return {"model": {"kind": "softmax"}, **counts, "lr": 0.5, "optimizer": "sgd"}


def cifar(
    rounds: int, cohort: int = 50, dropout: bool = True, clients: int = 1000
) -> dict[str, Any]:
    """pfl-research's CIFAR-10 benchmark, IID, without noise: configs/baseline.yaml of its repository."""
    counts = {"clients": clients, "cohort": cohort, "steps": 5, "batch": 10, "rounds": rounds}
    central = {"evaluate_every": 10, "eval_batch": 10_000} if rounds > 1 else {}
    model = {"kind": "cnn", "dropout": dropout}
    return {"model": model, **counts, **central, "lr": 0.1, "optimizer": "sgd"}


def plan_of(settings: dict[str, Any]) -> Plan:
    """What fedbudget runs; the same in every process."""
    clients, valid, model = materials(settings)
    make = partial(make_model, model)
    plan = Plan(
        name="benchmark",
        seed=0,
        rounds=NEVER,
        cohort=settings["cohort"],
        model=make,
        clients=clients,
        validation=valid,
        algorithm=fedavg(),
        controller=fixed(Knobs(1, settings["steps"], settings["batch"])),
        task=classify(),
        lr=settings["lr"],
        recipe=Recipe(settings["optimizer"]),
        evaluate_every=settings.get("evaluate_every", NEVER),
        eval_batch=500,
    )
    depth = plan.build_model().layout.depth
    knobs = Knobs(depth, settings["steps"], settings["batch"])
    return Plan(**{**plan.__dict__, "controller": fixed(knobs)})


def materials(settings: dict[str, Any]) -> tuple[Any, Examples | None, dict[str, Any]]:
    """Clients, validation, and the model's settings with what the data decide."""
    model, clients = settings["model"], settings["clients"]
    if model["kind"] == "gpt":
        text = a_text()
        spans = partition.contiguous(len(text.tokens), clients, overlap=48)
        known = {**model, "vocabulary": len(text.vocabulary)}
        return Texts(text.tokens, CONTEXT, spans), None, known
    rng = np.random.default_rng(0)
    if model["kind"] == "softmax":
        images = mnist().train
        numbers = [rng.integers(len(images), size=settings["own"]) for _ in range(clients)]
        return Parts(images, numbers), None, model
    data = cifar10()
    mean, std = moments(data.train.x)
    train, test = (Arrays(scaled(a.x, mean, std), a.y) for a in (data.train, data.test))
    parts = partition.iid(len(train), clients, rng)
    return Parts(train, parts), test if settings["rounds"] > 1 else None, model


def a_text() -> Text:
    """Tiny Shakespeare, or where it cannot be had the help texts of Python."""
    try:
        return tiny_shakespeare()
    except UnreachableError:
        return python_topics()


def moments(images: Tensor) -> tuple[Tensor, Tensor]:
    """Of each channel of (N, C, H, W) bytes."""
    channels = images.permute(1, 0, 2, 3).reshape(3, -1).float()
    return channels.mean(1), channels.std(1, unbiased=False)


def scaled(images: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """Normalised by channel, (N, H, W, C), as pfl's benchmark has them."""
    return ((images.permute(0, 2, 3, 1).float() - mean) / std).contiguous()


def write(settings: dict[str, Any], folder: Path) -> None:
    """The folder: settings, first weights, and the batches that each client's first round trains on."""
    folder.mkdir(parents=True, exist_ok=True)
    plan = plan_of(settings)
    rounds = settings.get("rounds", 1)
    cohorts = [sample(plan, number) for number in range(1, rounds + 1)]
    known = sorted({client for cohort in cohorts for client in cohort})
    _, _, model = materials(settings)
    about = {**settings, "model": model, "cohorts": cohorts, "known": known}
    first = plan.build_model()
    save(str(folder / "weights.npz"), first.layout.named(first.weights))
    batches = [first_batches(plan, client, max(1, settings["steps"])) for client in known]
    for i, name in enumerate(("x", "y")):
        np.save(folder / f"{name}.npy", torch.stack([pair[i] for pair in batches]).numpy())
    if isinstance(plan.validation, Arrays):
        np.save(folder / "valid_x.npy", plan.validation.x.numpy())
        np.save(folder / "valid_y.npy", plan.validation.y.numpy())
    (folder / "settings.json").write_text(json.dumps(about))


def first_batches(plan: Plan, client: int, steps: int) -> tuple[Tensor, Tensor]:
    """One after another, as `train_client` would draw them in round 1."""
    knobs = plan.controller.knobs(plan.controller.init(), client)
    order = seeds.rng(plan.seed, 1, client, "batches")
    pairs = list(islice(draw(plan.clients[client], knobs.batch, order), steps))
    return torch.cat([x for x, _ in pairs]), torch.cat([y for _, y in pairs])
