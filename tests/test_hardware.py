"""Accelerators and precisions: what is asked for is there, or a sentence says so."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from conftest import softmax_plan, text_plan
from fedbudget import client, hardware, rounds
from fedbudget.algorithms.fedavg import fedavg
from fedbudget.algorithms.pc_fedavg import pc_fedavg
from fedbudget.algorithms.scaffold import scaffold
from fedbudget.algorithms.terms import constant, penalty, prox
from fedbudget.client import Recipe
from fedbudget.constraints import l2_ball
from fedbudget.downlink import Broadcast
from fedbudget.engines.choose import suits
from fedbudget.engines.embedded import InProcess
from fedbudget.engines.engine import Host
from fedbudget.errors import UserError
from fedbudget.types import Ack, Job, Knobs
from fedbudget.uplink import Uplink

ABSENT = [name for name in ("cuda", "mps", "xpu") if not hardware.count(name)]


@pytest.mark.parametrize("name", ABSENT)
def test_an_accelerator_that_is_not_there_is_refused(name):
    with pytest.raises(UserError, match=rf"accelerator = '{name}': torch finds none"):
        Host(text_plan(accelerator=name))


def test_workers_share_the_accelerators_evenly(monkeypatch):
    monkeypatch.setattr(hardware, "count", lambda name: 2)
    assert [hardware.place("cuda", worker).index for worker in range(4)] == [0, 1, 0, 1]
    assert hardware.place("cpu", 3) == torch.device("cpu")


def test_batches_are_moved_however_they_are_nested():
    batch = {"ids": torch.zeros(2), "more": [torch.ones(1), (torch.ones(3), "text")]}
    there = hardware.moved(batch, torch.device("meta"))
    assert there["ids"].device.type == there["more"][1][0].device.type == "meta"
    assert there["more"][1][1] == "text"


@pytest.mark.parametrize(
    ("trial", "said"),
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGILL)", "it ended with -4"),
        ("raise ValueError('no such thing')", "no such thing"),
    ],
)
def test_a_trial_that_dies_is_a_sentence(trial, said):
    with pytest.raises(UserError, match=f"bfloat16 does not work on this CPU .*{said}"):
        hardware.bfloat16_gain(trial)


def test_bfloat16_is_refused_where_it_is_slower(monkeypatch):
    monkeypatch.setattr(hardware, "bfloat16_gain", lambda: 0.4)
    hardware.check_precision("float32", "cpu")
    hardware.check_precision("bfloat16", "cuda")
    with pytest.raises(UserError, match=r"0\.40 times as fast"):
        hardware.check_precision("bfloat16", "cpu")
    monkeypatch.setattr(hardware, "bfloat16_gain", lambda: 1.6)
    hardware.check_precision("bfloat16", "cpu")


def test_it_is_tried_for_real_in_a_process_of_its_own():
    try:
        assert hardware.bfloat16_gain() > 0
    except UserError as error:
        assert "bfloat16" in str(error)


def test_products_in_bfloat16_train_weights_in_float32():
    try:
        hardware.bfloat16_gain()
    except UserError as error:  # it would end this process
        pytest.skip(str(error))
    ends = []
    for precision in ("float32", "bfloat16"):
        plan = text_plan(recipe=Recipe(precision=precision))
        with InProcess(plan) as engine:
            layout = engine.host.model.layout
            ends.append(
                [*rounds.run(plan, engine, layout, rounds.first_state(plan))][-1][1].weights
            )
    assert ends[1].dtype == torch.float32
    assert not torch.equal(*ends)
    torch.testing.assert_close(*ends, rtol=0.1, atol=0.05)


def test_agents_are_trained_one_by_one_where_the_batched_engine_would_not_do_as_told():
    plan = softmax_plan(cohort=3)
    many = replace(plan, clients=[plan.clients[i % 3] for i in range(9)], cohort=9)
    assert suits(many)
    assert not suits(replace(many, accelerator="cuda"))
    assert not suits(replace(many, recipe=Recipe(precision="bfloat16")))


@pytest.fixture
def elsewhere(monkeypatch):
    """A device that is not the CPU: it computes shapes only, and refuses tensors from elsewhere."""
    seeded = []
    monkeypatch.setattr(hardware, "count", lambda name: 1)
    monkeypatch.setattr(torch.Tensor, "item", lambda self: 1.0)
    monkeypatch.setattr(torch.Tensor, "cpu", lambda self: torch.zeros(self.shape, dtype=self.dtype))
    monkeypatch.setattr(
        torch, "get_device_module", lambda device: SimpleNamespace(manual_seed=seeded.append)
    )
    return seeded


@pytest.mark.parametrize(
    "algorithm",
    [
        fedavg(terms=[prox(0.1), penalty(constant(1.0))]),
        scaffold(),
        pc_fedavg(4, constant(1.0), 0.1),
        pc_fedavg(4, constant(1.0), projected=True),
    ],
)
def test_a_client_trains_where_it_is_told_and_sends_from_the_cpu(elsewhere, algorithm):
    sets = [l2_ball(1.0)] * 4 if algorithm.vectors else None
    plan = text_plan(algorithm=algorithm, accelerator="meta", constraints=sets)
    plan = replace(plan, recipe=Recipe(clip=1.0, keeps_model=True, uplink=Uplink("error")))
    host = Host(plan)
    layout = host.model.layout
    sent = algorithm.send(algorithm.init(torch.zeros(layout.size)))
    versions = {}
    for round, ack in ((1, None), (2, Ack(1, (3,) * layout.depth)), (3, Ack(2, (0, 3, 3)))):
        payload = Broadcast(sent, layout, plan.run, 3, round, "raw32").whole
        job = Job(plan.run, round, 1, 3, Knobs(2, 2, 2, codec="eden2"), 0.1, payload, ack)
        reply, versions = host.train(job, versions)
        assert reply.error is None
        assert reply.payload is not None
        assert versions[round]
        assert {t.device.type for state in versions.values() for t in state.values()} == {"cpu"}
    assert host.model.weights.device.type == "meta"
    assert len(elsewhere) == 3
    assert host.score(torch.zeros(layout.size), range(1))[0].size > 0


def test_a_batch_that_was_left_behind_is_noticed(elsewhere, monkeypatch):
    """What the test above relies on."""
    monkeypatch.setattr(client, "moved", lambda batch, device: batch)
    host = Host(text_plan(accelerator="meta"))
    payload = Broadcast((torch.zeros(host.model.layout.size),), host.model.layout, 1, 3, 1, "raw32")
    reply, _ = host.train(Job(1, 1, 1, 3, Knobs(2, 2, 2), 0.1, payload.whole), {})
    assert "device" in reply.error
