"""train_client: the local training loop of one client. `engines.chunk` is the one of many at once."""

import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from fedbudget import downlink, seeds, uplink
from fedbudget.algorithms.algorithm import Algorithm, ClientState, LocalRun, counted
from fedbudget.codecs import frame
from fedbudget.data.examples import Examples, draw
from fedbudget.errors import UserError
from fedbudget.hardware import moved
from fedbudget.models.flat import FlatModel
from fedbudget.optimizers import Optimizer, Runs, adamw, sgd
from fedbudget.privacy import Privacy, private
from fedbudget.resources.meters import Sensors, measured, same_memory
from fedbudget.task import Task
from fedbudget.types import Job, Knobs, Reply
from fedbudget.uplink import Uplink

ROOM = 0.02
"""share of a budget of measured time that stays free: the last step may take longer than others"""


@dataclass(frozen=True)
class Recipe:
    """How a client optimises; the papers' settings are in the presets."""

    optimizer: str = "adamw"
    weight_decay: float = 0.0
    betas: tuple[float, float] = (0.9, 0.999)
    momentum: float = 0.0
    clip: float = 0.0
    """largest gradient norm; 0 = no clipping"""
    warmup: float = 0.0
    """share of the local run in which the step size rises"""
    schedule: str = "constant"
    """within a local run: "constant" or "cosine" (down to a tenth)"""
    precision: str = "float32"
    """of the products; "bfloat16" keeps weights, gradients and optimiser in float32"""
    uplink: Uplink = field(default_factory=Uplink)
    """what a client keeps back of an update and sends later"""
    keeps_model: bool = False
    """whether a client keeps the model it was sent: for partial downlinks, and to skip uploads"""
    privacy: Privacy = field(default_factory=Privacy)
    """what is done to an update before it is encoded"""
    privacy_seed: int | None = field(default=None, repr=False)
    """the seed of a node's own noise, which nobody else should know; None takes the run's"""


Usage = Mapping[str, Mapping[str, float]]
"""accounting -> resource -> amount"""


class Meter(Protocol):
    """Usage by a device's profile; `read` is what was measured, in no accounting yet."""

    def __call__(
        self,
        knobs: Knobs,
        up_bytes: int,
        down_bytes: int,
        read: Mapping[str, float] | None = None,
        /,
    ) -> Usage: ...


@dataclass(frozen=True)
class Agent:
    """What a device has: its data, its model and what it was told once. Never sent anywhere."""

    model: FlatModel
    examples: Examples
    task: Task
    recipe: Recipe
    meter: Meter | None = None
    project: Callable[[Tensor], Tensor] | None = None
    """onto its private constraint set"""
    sensors: Sensors | None = None
    """what measures its work"""


class Steps(NamedTuple):
    """A local run: how far it came."""

    done: int
    loss: float | None
    """mean over the steps"""


class Trained(NamedTuple):
    reply: Reply
    state: ClientState


def train_client(job: Job, agent: Agent, algorithm: Algorithm, state: ClientState) -> Trained:
    """Train as the job says and encode the update. Raises on failure; an engine makes it a Reply."""
    sensors = agent.sensors
    begun = sensors.start(same_memory(job.knobs)) if sensors else None
    started = time.perf_counter()
    knobs, model, recipe = job.knobs, agent.model, agent.recipe
    layout = model.layout
    place = model.weights.device
    received = downlink.restored(job.payload, layout, state)
    model.weights.copy_(received[0])
    part = model.freeze(knobs.layers, knobs.above)
    run = LocalRun(
        model.weights[part],
        model.grads[part],
        part,
        tuple(vector.to(place) for vector in received),
        {name: vector.to(place) for name, vector in state.items()},
        partial(_optimizer, recipe, model, part),
        job.round,
        counted(job.ack.counts, layout).to(place) if job.ack else None,
        _beside(agent.project, place),
        tuple(
            slice(s.start - part.start, s.stop - part.start)
            for s in layout.statistic_slices
            if part.start <= s.start < part.stop
        ),
    )
    algorithm.start(run)
    steps = _local_steps(run, job, agent, algorithm, _until(job, started))
    used = replace(knobs, steps=steps.done)
    update, kept = algorithm.finish(run)
    # encoded, and kept until the next round, on the CPU
    run.received, run.client = received, state
    update = tuple(vector.cpu() for vector in update)
    kept = {name: vector.cpu() for name, vector in kept.items()}
    update = private(update, recipe.privacy, job, recipe.privacy_seed)
    payload, held_back = uplink.encode(job, run, update, layout, recipe.uplink)
    if algorithm.sent is not None:
        kept = algorithm.sent(kept, frame.unpack(payload, layout), part)
    kept = {**kept, **held_back, **(downlink.kept(received) if recipe.keeps_model else {})}
    read = sensors.since(begun) if sensors and begun else None
    reply = Reply(
        job.run,
        job.round,
        job.client,
        examples=1 if recipe.privacy.on else len(agent.examples),
        loss=None if recipe.privacy.on else steps.loss,
        seconds=time.perf_counter() - started,
        usage=reported(agent.meter, used, len(payload), len(job.payload), read),
        knobs=used if used != knobs else None,
        payload=payload,
    )
    return Trained(reply, kept)


def reported(
    meter: Meter | None, knobs: Knobs, up: int, down: int, read: Mapping[str, float] | None
) -> Usage:
    """What a client says of its usage; without a profile, what was measured alone."""
    if meter is not None:
        return meter(knobs, up, down, read)
    return {"measured": measured(read, up, down)} if read is not None else {}


def _until(job: Job, started: float) -> float:
    """When the last step must be done: what follows takes about as long as what was before the first."""
    if job.seconds is None:
        return math.inf
    return 2 * started - time.perf_counter() + (1 - ROOM) * job.seconds


def _local_steps(
    run: LocalRun, job: Job, agent: Agent, algorithm: Algorithm, until: float
) -> Steps:
    """The optimiser steps of one local run; none begins that would not be done by `until` if it took as
    long as the one before."""
    knobs = job.knobs
    order = seeds.rng(job.seed, job.round, job.client, "batches")
    batches = draw(agent.examples, knobs.batch, order)
    agent.model.train()
    total, done, latest = 0.0, 0, 0.0
    place = run.weights.device
    with seeds.torch_seeded(job.seed, job.round, job.client, "dropout", place):
        for step in range(knobs.steps):
            begun = time.perf_counter()
            if done and begun + latest > until:
                break
            run.grads.zero_()
            total += _accumulate(batches, agent, knobs.accumulate)
            if not math.isfinite(total):
                raise UserError(f"the training loss became {total} at local step {step + 1}")
            clip(run.grads, agent.recipe.clip)
            lr = job.lr * factor(agent.recipe, step, knobs.steps)
            algorithm.step(run, lr)
            run.lr_sum += lr
            done += 1
            latest = time.perf_counter() - begun
    return Steps(done, total / done if done else None)


def _accumulate(batches: Iterator[tuple[Any, Tensor]], agent: Agent, micro_batches: int) -> float:
    """Gradients of the mean loss over the micro-batches, into the model's gradient vector."""
    total = 0.0
    place = agent.model.weights.device
    for _ in range(micro_batches):
        x, y = next(batches)
        if place.type != "cpu":
            x, y = moved(x, place), moved(y, place)
        if agent.recipe.precision == "bfloat16":
            with torch.autocast(place.type, torch.bfloat16):
                loss = agent.task.loss(agent.model.module, x, y) / micro_batches
        else:
            loss = agent.task.loss(agent.model.module, x, y) / micro_batches
        torch.autograd.backward(loss)
        total += loss.item()
    return total


def _beside(
    project: Callable[[Tensor], Tensor] | None, place: torch.device
) -> Callable[[Tensor], Tensor] | None:
    """A projection for tensors on a device; sets themselves stay on the CPU."""
    if project is None or place.type == "cpu":
        return project
    return lambda point: project(point.cpu()).to(place)


def clip(grads: Tensor, largest: float) -> None:
    """Shorten a gradient, or each row of (agents, n), to the largest norm; 0 leaves all alone."""
    if largest > 0:
        norm = torch.linalg.vector_norm(grads, dim=-1, keepdim=True)
        grads.mul_(torch.clamp(largest / (norm + 1e-6), max=1.0))


def factor(recipe: Recipe, step: int, steps: int) -> float:
    """Warm-up, then constant or cosine, within one local run (CAFL's code: 10% and cosine)."""
    warm = math.ceil(recipe.warmup * steps)
    if step < warm:
        return (step + 1) / warm
    if recipe.schedule == "cosine":
        done = (step - warm) / max(1, steps - warm)
        return 0.1 + 0.45 * (1 + math.cos(math.pi * done))
    return 1.0


def _optimizer(recipe: Recipe, model: FlatModel, part: slice) -> Optimizer:
    runs = model.parameter_slices(part)
    return optimizer(recipe, [(model.weights[run], model.grads[run]) for run in runs])


def optimizer(recipe: Recipe, runs: Runs) -> Optimizer:
    match recipe.optimizer:
        case "adamw":
            return adamw(runs, recipe.betas, recipe.weight_decay)
        case "sgd":
            return sgd(runs, recipe.momentum, recipe.weight_decay)
        case other:
            raise UserError(f"train.optimizer = {other!r}; it is adamw or sgd")
