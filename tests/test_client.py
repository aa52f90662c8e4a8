"""The local loop against torch's own way of doing it."""

import copy
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from conftest import blobs, softmax_plan, text_plan
from fedbudget import seeds
from fedbudget.client import Agent, Recipe, factor, train_client
from fedbudget.codecs import frame
from fedbudget.data.examples import draw
from fedbudget.models.flat import FlatModel
from fedbudget.task import classify
from fedbudget.types import Job, Knobs


def job_for(model: FlatModel, knobs: Knobs, lr: float = 0.05) -> Job:
    down = frame.pack(
        [model.weights.clone()], model.layout, run=1, round=2, client=-1, seed=0, codec="raw32"
    )
    return Job(1, 2, 7, 11, knobs, lr, down)


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8, bias=False), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))


@pytest.mark.parametrize(
    "recipe",
    [
        Recipe("sgd", momentum=0.9, weight_decay=0.1, clip=0.5),
        Recipe("adamw", weight_decay=0.1, clip=0.5, warmup=0.3, schedule="cosine"),
    ],
)
def test_a_local_run_equals_torchs_own_loop(recipe):
    flat, reference = FlatModel(net()), net()
    knobs = Knobs(layers=2, steps=6, batch=10, accumulate=2)
    job = job_for(flat, knobs)
    agent = Agent(flat, blobs(), classify(), recipe)
    reply, _ = train_client(job, agent, softmax_plan().algorithm, {})

    if recipe.optimizer == "sgd":
        optimizer = torch.optim.SGD(reference.parameters(), 1.0, 0.9, weight_decay=0.1)
    else:
        optimizer = torch.optim.AdamW(reference.parameters(), weight_decay=0.1)
    batches = draw(blobs(), 10, seeds.rng(11, 2, 7, "batches"))
    before = copy.deepcopy(reference.state_dict())
    for step in range(6):
        optimizer.zero_grad()
        for _ in range(2):
            x, y = next(batches)
            (F.cross_entropy(reference(x), y) / 2).backward()
        nn.utils.clip_grad_norm_(reference.parameters(), 0.5)
        for group in optimizer.param_groups:
            group["lr"] = 0.05 * factor(recipe, step, 6)
        optimizer.step()
    update = flat.layout.named(frame.unpack(reply.payload, flat.layout)[0])
    for name, value in reference.state_dict().items():
        if "num_batches" not in name:  # running statistics travel too, untouched by weight decay
            torch.testing.assert_close(update[name], value - before[name], atol=1e-6, rtol=1e-4)


def test_only_the_trained_layers_are_sent():
    plan = text_plan()
    flat = plan.build_model()
    reply, _ = train_client(
        job_for(flat, Knobs(1, 2, 4)),
        Agent(flat, plan.clients[0], plan.task, plan.recipe),
        plan.algorithm,
        {},
    )
    (update,) = frame.unpack(reply.payload, flat.layout)
    assert len(update) == flat.layout.size - flat.layout.top(1).start
    assert len(reply.payload) == 4 * len(update) + len(reply.payload) % 4 + 88


def test_the_schedule_warms_up_and_comes_down():
    recipe = Recipe(warmup=0.1, schedule="cosine")
    factors = [factor(recipe, i, 60) for i in range(60)]
    assert factors[:7] == pytest.approx([1 / 6, 2 / 6, 3 / 6, 4 / 6, 5 / 6, 1, 1])
    assert factors[6:] == sorted(factors[6:], reverse=True)
    assert factors[-1] == pytest.approx(0.1, abs=0.01)


def test_a_loss_that_explodes_says_where():
    plan = softmax_plan()
    flat = plan.build_model()
    agent = Agent(flat, plan.clients[0], plan.task, Recipe("sgd"))
    with pytest.raises(Exception, match=r"training loss became (nan|inf) at local step"):
        train_client(job_for(flat, Knobs(1, 40, 5), lr=1e38), agent, plan.algorithm, {})


class Clock:
    """Stands still but for the losses of `slow`, so that a busy machine changes nothing."""

    def __init__(self):
        self.now = 100.0

    def perf_counter(self) -> float:
        return self.now


def slow(pause_s: float, clock: Clock):
    """A task whose loss takes its time."""
    task = classify()

    def loss(module, x, y):
        clock.now += pause_s
        return task.loss(module, x, y)

    return task._replace(loss=loss)


def test_a_local_run_ends_before_its_time_is_up_and_sends_what_it_has(monkeypatch):
    clock = Clock()
    monkeypatch.setattr("fedbudget.client.time", clock)

    def count(knobs, up, down, read=None):
        return {"counted": {"steps": float(knobs.steps)}}

    def trained(knobs, task, seconds=None):
        flat = FlatModel(net())
        job = replace(job_for(flat, knobs), seconds=seconds)
        agent = Agent(flat, blobs(), task, Recipe("sgd"), meter=count)
        return train_client(job, agent, softmax_plan().algorithm, {}).reply

    asked = Knobs(layers=2, steps=1000, batch=10)
    cut = trained(asked, slow(0.02, clock), seconds=0.2)
    assert cut.knobs == replace(asked, steps=9)  # a tenth would not be done within 98% of the time
    assert cut.seconds == pytest.approx(9 * 0.02)
    assert cut.usage["counted"]["steps"] == cut.knobs.steps
    same = trained(cut.knobs, classify())  # the update is that of a run of so many steps
    assert frame.to_bytes(cut.payload) == frame.to_bytes(same.payload)
    assert cut.loss == pytest.approx(same.loss)
    assert trained(replace(asked, steps=3), classify(), seconds=60).knobs is None
    assert trained(asked, slow(0.02, clock), seconds=0.001).knobs.steps == 1
    assert trained(replace(asked, steps=9), slow(0.02, clock), seconds=0.2).knobs is None


def test_every_example_comes_once_before_any_comes_again():
    batches = draw(blobs(30), 7, seeds.rng(0, 0, 0, "batches"))
    seen = torch.cat([next(batches)[0] for _ in range(30)])[:210]
    for i in range(7):
        assert len(torch.unique(seen[i * 30 : (i + 1) * 30], dim=0)) == 30
