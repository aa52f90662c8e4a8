"""What travels: partial and coded downlinks, feedback, momentum correction and skipped uploads."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from conftest import blobs, softmax_plan
from fedbudget import rounds
from fedbudget.algorithms.fedavg import fedavg
from fedbudget.algorithms.scaffold import scaffold
from fedbudget.algorithms.server import momentum, nesterov
from fedbudget.client import Recipe
from fedbudget.codecs import frame
from fedbudget.control.controller import Controller, fixed
from fedbudget.data.examples import Arrays, Parts
from fedbudget.engines.embedded import InProcess
from fedbudget.plan import Plan
from fedbudget.task import custom
from fedbudget.types import Knobs
from fedbudget.uplink import Uplink
from test_rounds import train

HEADER = 82
"""bytes of a frame's header; each vector adds 8 for its length"""


def three_layers(width=32):
    return nn.Sequential(nn.Linear(4, width), nn.Linear(width, width), nn.Linear(width, 3))


def link_plan(**changes) -> Plan:
    """Three layer groups, six clients, three of them a round."""
    data = blobs()
    settings = {
        "model": three_layers,
        "clients": Parts(data, [np.arange(20 * i, 20 * i + 20) for i in range(6)]),
        "rounds": 8,
        "cohort": 3,
        "controller": fixed(Knobs(1, 2, 8)),
        "recipe": Recipe(optimizer="sgd", keeps_model=True),
        "changed_only": True,
    }
    return softmax_plan(**(settings | changes))


def in_full(plan):
    return replace(plan, changed_only=False, recipe=replace(plan.recipe, keeps_model=False))


class Overheard(InProcess):
    """Remembers the jobs and the replies."""

    def __init__(self, plan):
        super().__init__(plan)
        self.jobs, self.replies = [], []

    def run(self, jobs):
        self.jobs.append(list(jobs))
        self.replies.append([])
        for reply in super().run(jobs):
            self.replies[-1].append(reply)
            yield reply


def by_round(*layers):
    """Everybody trains as many layers as the round says; the last number stays."""

    def knobs(state, client):
        return Knobs(layers[min(state["round"], len(layers)) - 1], 2, 8)

    return Controller(lambda: {"round": 1}, knobs, lambda s, _: {"round": s["round"] + 1})


# down


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"controller": by_round(3, 1, 2, 1)},
        {"controller": by_round(3, 3, 1, 1, 1, 1, 1, 1, 2), "rounds": 10},
        {"drop": 0.4, "controller": by_round(2, 1)},
        {"algorithm": scaffold()},
        {"algorithm": fedavg(momentum(0.8)), "controller": by_round(3, 1)},
        {"algorithm": fedavg(nesterov(0.8)), "controller": by_round(3, 1)},
    ],
    ids=["frozen", "varying", "late", "drop-outs", "scaffold", "momentum", "nesterov"],
)
def test_what_did_not_change_need_not_travel(changes):
    """The same bits as with whole models, in fewer bytes."""
    plan = link_plan(**changes)
    engine = Overheard(plan)
    partial_, a = train(plan, engine)
    full, b = train(in_full(plan))
    for key, vector in b.server.items():
        assert torch.equal(a.server[key], vector), key
    assert [r.validation for r in partial_] == [r.validation for r in full]
    assert [r.up_bytes for r in partial_] == [r.up_bytes for r in full]
    ratio = sum(r.down_bytes for r in partial_) / sum(r.down_bytes for r in full)
    assert ratio < 0.8


def test_a_new_client_gets_all_and_a_known_one_the_layers_that_changed():
    plan = link_plan()
    engine = Overheard(plan)
    train(plan, engine)
    layout = plan.build_model().layout
    seen = set()
    for jobs in engine.jobs:
        for job in jobs:
            first = layout.depth - 1 if job.client in seen else 0
            assert job.payload.header.first == first
            where = layout.span(first, layout.depth)
            assert len(job.payload) == HEADER + 8 + 4 * (where.stop - where.start)
            assert (job.ack is None) == (job.client not in seen)
        seen |= {job.client for job in jobs}
    assert len(seen) == 6


def test_a_client_that_was_away_gets_the_layers_that_changed_meanwhile():
    plan = link_plan(controller=by_round(1, 3, 1), rounds=12)
    engine = Overheard(plan)
    train(plan, engine)
    seen, late = {}, 0
    for round, jobs in enumerate(engine.jobs, 1):
        for job in jobs:
            if job.client in seen:
                # all layers changed in round 2; whoever saw the model as round 3 began has them
                missed = seen[job.client] <= 2 < round
                assert job.payload.header.first == (0 if missed else 2)
                late += missed and round > 3
        seen |= {job.client: round for job in jobs}
    assert late > 0


@pytest.mark.parametrize("algorithm", [fedavg(), fedavg(momentum(0.9)), fedavg(nesterov(0.9))])
def test_layers_that_nobody_trained_are_sent_once(algorithm):
    plan = link_plan(algorithm=algorithm, controller=by_round(3, 1), cohort=6)
    engine = Overheard(plan)
    train(plan, engine)
    assert [jobs[0].payload.header.first for jobs in engine.jobs] == [0, 0] + [2] * 6


def test_a_client_that_lost_its_model_is_refused_once_and_then_gets_all():
    plan = link_plan(cohort=6, rounds=6)
    engine = Overheard(plan)
    layout = plan.build_model().layout
    refused = {}
    for record, state in rounds.run(plan, engine, layout, rounds.first_state(plan)):
        if record.dropped:
            refused[record.round] = dict(record.dropped)
        if record.round == 2:
            del engine.states[4]
    assert refused == {3: {"4": "StateLostError: the client has lost the model it was sent before"}}
    firsts = [jobs[4].payload.header.first for jobs in engine.jobs]
    assert firsts == [0, 2, 2, 0, 2, 2]


@pytest.mark.parametrize("changed_only", [False, True])
def test_a_coded_downlink_takes_a_quarter_of_the_bytes_and_trains(changed_only):
    plan = link_plan(
        down_codec="int8",
        changed_only=changed_only,
        controller=fixed(Knobs(3, 8, 8)),
        rounds=12,
        cohort=6,
    )
    records, state = train(plan)
    full, exact = train(in_full(replace(plan, down_codec="")))
    ratio = sum(r.down_bytes for r in records) / sum(r.down_bytes for r in full)
    assert 0.25 < ratio < 0.3
    assert not torch.equal(state.weights, exact.weights)
    assert records[-1].validation["loss"] < 0.5 * records[0].validation["loss"]
    assert records[-1].validation["loss"] == pytest.approx(full[-1].validation["loss"], rel=0.2)


def test_a_coded_and_partial_downlink_is_what_each_client_was_sent():
    """A lower layer is decoded once and kept; the update starts where the client starts."""
    plan = link_plan(down_codec="int8", cohort=6, rounds=4)
    engine = Overheard(plan)
    train(plan, engine)
    layout = plan.build_model().layout
    first = frame.unpack(engine.jobs[0][0].payload, layout)[0]
    last = frame.unpack(engine.jobs[-1][0].payload, layout)[0]
    kept = engine.states[0][4]["model0"]
    assert torch.equal(kept[layout.span(0, 2)], first[layout.span(0, 2)])
    assert torch.equal(kept[layout.top(1)], last)


# bytes


@pytest.mark.parametrize("codec", ["raw32", "int8", "eden2", "topk10%"])
@pytest.mark.parametrize("changed_only", [False, True])
def test_bytes_in_the_records_are_those_of_the_frames(codec, changed_only):
    plan = link_plan(
        controller=fixed(Knobs(2, 2, 8, codec=codec)),
        changed_only=changed_only,
        drop=0.2,
        algorithm=scaffold(),
    )
    engine = Overheard(plan)
    records, _ = train(plan, engine)
    for record, jobs, replies in zip(records, engine.jobs, engine.replies, strict=True):
        up = [frame.to_bytes(r.payload) for r in replies]
        down = [frame.to_bytes(j.payload) for j in jobs]
        assert record.up_bytes == sum(map(len, up)) == sum(len(r.payload) for r in replies)
        assert record.down_bytes == sum(map(len, down)) == sum(len(j.payload) for j in jobs)
        assert len(jobs) == len(record.cohort) - len(record.dropped)


# up


class Point(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.at = nn.Parameter(torch.zeros(size, dtype=torch.float64))

    def forward(self, x):
        return self.at


def bowl(model, x, y):
    """1/2 sum of x (w - y)^2: x the curvatures, y the optimum."""
    return 0.5 * (x * (model(x) - y).square()).sum(-1).mean()


SIZE = 20


def bowls(clients, codec, uplink, curvatures=None, **changes) -> Plan:
    rng = np.random.default_rng(8)
    x = torch.tensor(rng.uniform(0.2, 1, (clients, SIZE)))
    if curvatures is not None:
        x *= torch.tensor(curvatures, dtype=torch.float64)[:, None]
    y = torch.tensor(rng.normal(size=(clients, SIZE)))
    settings = {
        "name": "bowls",
        "seed": 4,
        "rounds": 12,
        "cohort": clients,
        "model": partial(Point, SIZE),
        "clients": Parts(Arrays(x, y), [np.array([i]) for i in range(clients)]),
        "validation": None,
        "algorithm": fedavg(),
        "controller": fixed(Knobs(1, 3, 1, codec=codec)),
        "task": custom(bowl),
        "lr": 0.2,
        "recipe": Recipe(optimizer="sgd", uplink=uplink, keeps_model=uplink.skip > 0),
    }
    return Plan(**(settings | changes))


def updates_of(plan, engine):
    """What each client's training gave in each round, from what it was sent: client -> updates."""
    layout = plan.build_model().layout
    found = {}
    for jobs in engine.jobs:
        for job in jobs:
            (w,) = frame.unpack(job.payload, layout)
            x, y = plan.clients[job.client].batch(np.zeros(1, int))
            at = w.clone()
            for _ in range(job.knobs.steps):
                at -= job.lr * x[0] * (at - y[0])
            found.setdefault(job.client, {})[job.round] = at - w
    return found


def decoded(plan, engine):
    layout = plan.build_model().layout
    return {
        (r.client, r.round): frame.unpack(r.payload, layout)[0].double()
        for replies in engine.replies
        for r in replies
    }


@pytest.mark.parametrize("codec", ["topk10%", "sign", "int8"])
@pytest.mark.parametrize("cohort", [4, 2])
def test_with_error_feedback_all_that_was_trained_arrives_but_the_last_residual(codec, cohort):
    plan = bowls(4, codec, Uplink("error"), cohort=cohort)
    engine = Overheard(plan)
    _, state = train(plan, engine)
    got = decoded(plan, engine)
    for client, trained in updates_of(plan, engine).items():
        residual = engine.states[client][state.acks[client].round]["residual0"]
        arrived = sum(got[client, round] for round in trained)
        torch.testing.assert_close(arrived + residual, sum(trained.values()), rtol=0, atol=1e-12)
        assert residual.abs().max() > 1e-4
    total = sum(got.values()) / cohort
    torch.testing.assert_close(state.weights, total, rtol=0, atol=1e-12)


class Refused(Overheard):
    """Client 1's replies of even rounds come damaged; what the client knows of it is the next ack."""

    def run(self, jobs):
        for reply in super().run(jobs):
            bad = reply.client == 1 and reply.round % 2 == 0
            yield replace(reply, examples=0) if bad else reply


def test_a_reply_that_was_not_used_leaves_the_residual_as_it_was():
    plan = bowls(3, "topk10%", Uplink("error"))
    engine = Refused(plan)
    records, state = train(plan, engine)
    assert [r.round for r in records if r.dropped] == [2, 4, 6, 8, 10, 12]
    trained, got = updates_of(plan, engine)[1], decoded(plan, engine)
    used = [round for round in trained if round % 2]
    residual = engine.states[1][state.acks[1].round]["residual0"]
    arrived = sum(got[1, round] for round in used)
    torch.testing.assert_close(
        arrived + residual, sum(trained[round] for round in used), rtol=0, atol=1e-12
    )


def test_momentum_correction_is_deep_gradient_compressions():
    """u = m u + update, v = v + u; the largest tenth of v is sent, and cleared in u and v."""
    beta = 0.7
    plan = bowls(1, "topk10%", Uplink("momentum", momentum=beta), rounds=30)
    engine = Overheard(plan)
    _, state = train(plan, engine)
    (x,), (y,) = (t.numpy() for t in plan.clients[0].batch(np.zeros(1, int)))
    w, u, v = np.zeros(SIZE), np.zeros(SIZE), np.zeros(SIZE)
    for _ in range(plan.rounds):
        at = w.copy()
        for _ in range(3):
            at -= plan.lr * x * (at - y)
        u = beta * u + (at - w)
        v = v + u
        send = np.argsort(-np.abs(v))[:2]
        w[send] += v[send].astype(np.float32)
        v[send] -= v[send].astype(np.float32)  # what float32 rounds away stays
        u[send] = 0
    np.testing.assert_allclose(state.weights.numpy(), w, atol=1e-12)
    kept = engine.states[0][plan.rounds]
    np.testing.assert_allclose(kept["residual0"].numpy(), v, atol=1e-12)
    np.testing.assert_allclose(kept["momentum0"].numpy(), u, atol=1e-12)


def test_an_update_that_moves_little_is_kept_back_and_sent_later():
    """Client 0 hardly learns: it is quiet until what it kept back counts, and nothing is lost."""
    plan = bowls(3, "raw64", Uplink("error", skip=0.5), curvatures=[0.02, 1.0, 1.0], rounds=25)
    engine = Overheard(plan)
    records, _ = train(plan, engine)
    quiet = [r.round for r in records if 0 in r.skipped]
    assert len(quiet) >= 3
    assert 1 not in quiet  # a new client has nothing to compare with
    later = [r.round for r in records if r.round > quiet[0] and 0 not in r.skipped]
    assert later
    trained, got = updates_of(plan, engine), decoded(plan, engine)
    for record, replies in zip(records, engine.replies, strict=True):
        for reply in replies:
            skipped = reply.client in record.skipped
            assert len(reply.payload) == HEADER + 8 + (0 if skipped else 8 * SIZE)
            assert bool(got[reply.client, reply.round].any()) != skipped
        assert record.up_bytes == sum(len(r.payload) for r in replies)
    # the first that is sent again has all that was kept back
    since = [r for r in trained[0] if quiet[0] <= r <= later[0]]
    torch.testing.assert_close(
        got[0, later[0]], sum(trained[0][r] for r in since), rtol=0, atol=1e-12
    )
    for client in range(3):
        residual = engine.states[client][plan.rounds]["residual0"]
        arrived = sum(got[client, r] for r in trained[client])
        torch.testing.assert_close(
            arrived + residual, sum(trained[client].values()), rtol=0, atol=1e-12
        )


def test_an_update_is_kept_back_when_the_model_moved_more_by_itself():
    """The rule itself: |update + residual| < skip x |w_now - w_then| / rounds between."""
    skip = 0.5
    plan = bowls(
        5, "raw64", Uplink("error", skip=skip), curvatures=[0.02, 0.1, 0.3, 1, 1], cohort=3
    )
    plan = replace(plan, rounds=25)
    engine = Overheard(plan)
    records, _ = train(plan, engine)
    layout = plan.build_model().layout
    trained, before, owed = updates_of(plan, engine), {}, {}
    seen = {True: 0, False: 0}
    for record, jobs in zip(records, engine.jobs, strict=True):
        for job in jobs:
            (w,) = frame.unpack(job.payload, layout)
            update = trained[job.client][job.round] + owed.get(job.client, 0)
            little = False
            if job.client in before:
                then, round = before[job.client]
                little = bool(update.norm() < skip * (w - then).norm() / (job.round - round))
                seen[little] += 1
            assert (job.client in record.skipped) == little
            before[job.client] = w, job.round
            owed[job.client] = update if little else 0
    assert min(seen.values()) >= 5
