"""The loop and the embedded engine: the same bits however it runs, and no reply breaks it."""

import os
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from conftest import softmax_plan, text_plan
from fedbudget import rounds
from fedbudget.aggregation import Accumulator
from fedbudget.algorithms.algorithm import Algorithm
from fedbudget.codecs import frame
from fedbudget.control.controller import Controller
from fedbudget.engines.embedded import InProcess, Workers, embedded
from fedbudget.engines.queue import Queue
from fedbudget.errors import UserError
from fedbudget.types import Job, Knobs


def train(plan, engine=None):
    model = plan.build_model()
    found = []
    with engine or embedded(plan) as using:
        for record, state in rounds.run(plan, using, model.layout, rounds.first_state(plan)):
            found.append(record)
    return found, state


class Shuffled(InProcess):
    """Works through a round's jobs backwards."""

    def run(self, jobs):
        return super().run(list(reversed(jobs)))


def test_in_process_worker_processes_and_another_order_give_the_same_bits():
    plan = text_plan()
    records, here = train(plan)
    for engine in (Shuffled(plan), Workers(plan, 2)):
        others, there = train(plan, engine)
        assert torch.equal(here.weights, there.weights)
        assert [r.validation for r in records] == [r.validation for r in others]
        assert [r.train_loss for r in records] == [r.train_loss for r in others]
        assert [r.up_bytes for r in records] == [r.up_bytes for r in others]


def test_another_seed_gives_another_model():
    assert not torch.equal(train(text_plan())[1].weights, train(text_plan(seed=4))[1].weights)


def test_training_learns():
    records, _ = train(text_plan(rounds=12, controller=text_plan().controller))
    assert records[-1].validation["loss"] < 0.5 * records[0].validation["loss"]


def test_one_step_of_everybody_is_a_gradient_step_on_the_whole():
    """FedAvg with one full-batch step each equals SGD on the weighted mean of the losses."""
    plan = softmax_plan(rounds=1, weighting="examples", recipe=softmax_plan().recipe)
    plan = replace(plan, recipe=replace(plan.recipe, optimizer="sgd"))

    def own_batch(state, client):
        return Knobs(1, 1, len(plan.clients[client]))

    plan = replace(plan, controller=Controller(dict, own_batch, lambda s, r: s))
    _, state = train(plan)
    model = plan.build_model()
    whole = plan.clients.base
    loss = plan.task.loss(model.module, *whole.batch(np.arange(len(whole))))
    model.grads.zero_()
    loss.backward()
    torch.testing.assert_close(state.weights, model.weights - 0.1 * model.grads)


def test_layers_are_averaged_over_those_who_trained_them():
    layout = text_plan().build_model().layout
    total = Accumulator(layout)
    everything, top = torch.ones(layout.size), torch.full((layout.top(1).stop,), 4.0)
    total.add([everything], (0, layout.depth), 1.0)
    total.add([top[layout.top(1)]], (layout.depth - 1, layout.depth), 2.0)
    (mean,) = total.mean()
    assert torch.equal(mean[: layout.top(1).start], torch.ones(layout.top(1).start))
    torch.testing.assert_close(mean[layout.top(1)], torch.full_like(mean[layout.top(1)], 3.0))


def test_clients_may_have_different_knobs_in_one_round():
    def knobs(state, client):
        return Knobs(1 + client % 3, 1 + client, 2)

    plan = text_plan(controller=Controller(dict, knobs, lambda s, r: s), cohort=4)
    records, state = train(plan)
    assert records[0].knobs["2"] == Knobs(3, 3, 2)
    assert not records[0].dropped
    _, reverse = train(plan, Shuffled(plan))
    assert torch.equal(state.weights, reverse.weights)


class Meddling(InProcess):
    """Changes client 1's replies."""

    def __init__(self, plan, change):
        super().__init__(plan)
        self.change = change

    def run(self, jobs):
        for reply in super().run(jobs):
            yield self.change(reply) if reply.client == 1 else reply


def tampered(vector=None, **changes):
    def change(reply):
        payload = reply.payload
        bodies = payload.bodies
        if vector is not None:
            bodies = (memoryview(vector(len(payload.bodies[0]) // 4).numpy()).cast("B"),)
        payload = frame.Packed(payload.header._replace(**changes), bodies)
        return replace(reply, payload=payload)

    return change


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (tampered(lambda n: torch.full((n,), torch.nan)), "not finite"),
        (tampered(lambda n: torch.full((n,), torch.inf)), "not finite"),
        (tampered(lambda n: torch.ones(n - 1)), "do not hold"),
        (tampered(lambda n: torch.ones(1)), "do not hold"),
        (tampered(round=1000), "another job"),
        (tampered(run=5), "another job"),
        (tampered(client=2), "another job"),
        (tampered(digest=b"00000000"), "another model"),
        (tampered(first=1), "other layers"),
        (lambda r: replace(r, examples=0), "claims 0 examples"),
        (lambda r: replace(r, examples=-5), "claims -5 examples"),
        (lambda r: replace(r, payload=None), "no payload"),
        (lambda r: replace(r, error="it rained"), "it rained"),
    ],
)
def test_a_bad_reply_is_dropped_with_its_reason_and_the_round_goes_on(change, reason):
    plan = text_plan(cohort=4, rounds=2)
    records, state = train(plan, Meddling(plan, change))
    for record in records:
        assert list(record.dropped) == ["1"]
        assert reason in record.dropped["1"]
    assert torch.isfinite(state.weights).all()


def test_a_round_with_a_bad_reply_equals_one_where_that_client_failed():
    plan = text_plan(cohort=4)
    poisoned = tampered(lambda n: torch.full((n,), torch.nan))
    _, a = train(plan, Meddling(plan, poisoned))
    _, b = train(plan, Meddling(plan, lambda r: replace(r, error="absent")))
    assert torch.equal(a.weights, b.weights)


class Broken(torch.nn.Module):
    """A model that fails on some inputs, as a user's may."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 3)
        self.how = how

    def forward(self, x):
        if self.training:
            if self.how == "raise":
                raise RuntimeError("boom\nwith details")
            if self.how == "die":
                os._exit(9)
        return self.linear(x)


def test_a_client_that_raises_is_a_reply_and_a_hopeless_run_stops():
    plan = softmax_plan(model=partial(Broken, "raise"), rounds=9)
    model = plan.build_model()
    seen = []
    loop = rounds.run(plan, InProcess(plan), model.layout, rounds.first_state(plan))
    with pytest.raises(
        UserError, match="3 rounds in a row; client 0 in round 3: RuntimeError: boom"
    ):
        for record, state in loop:
            seen.append(record)
            assert torch.equal(state.weights, model.weights)
    assert len(seen) == 3
    assert seen[0].dropped["2"] == "RuntimeError: boom"


def test_a_worker_that_dies_is_replaced_and_its_job_retried_once():
    plan = softmax_plan(model=partial(Broken, "die"), rounds=1, cohort=1)
    with Workers(plan, 2) as engine:
        before = {w.process.pid for w in engine.workers}
        records, _ = [], None
        layout = plan.build_model().layout
        with pytest.raises(
            UserError, match=r"in any round; client \d in round 1: its worker process"
        ):
            for record, _ in rounds.run(plan, engine, layout, rounds.first_state(plan)):
                records.append(record)
        assert len({w.process.pid for w in engine.workers} & before) == 1
        processes = [w.process for w in engine.workers]
    assert list(records[0].dropped.values()) == ["its worker process died twice"]
    assert records[0].validation is not None
    for process in processes:
        with pytest.raises(ValueError, match="closed"):
            process.is_alive()


def test_something_that_cannot_be_pickled_is_explained():
    with pytest.raises(UserError, match="can be pickled"):
        Workers(softmax_plan(model=lambda: Broken("no")), 2)


def count_rounds(run):
    return (torch.zeros_like(run.weights),), {
        "rounds": run.client.get("rounds", torch.zeros(1)) + 1
    }


@pytest.mark.parametrize("workers", [1, 2])
def test_a_client_keeps_its_state_from_round_to_round(workers):
    plan = softmax_plan(rounds=5, cohort=2)
    plan = replace(plan, algorithm=Algorithm(*plan.algorithm)._replace(finish=count_rounds))
    model = plan.build_model()
    times = np.zeros(3)
    with embedded(plan, workers) as engine:
        for record, _ in rounds.run(plan, engine, model.layout, rounds.first_state(plan)):
            times[list(record.cohort)] += 1
        newest = [engine.states[c][max(engine.states[c])] for c in range(3)]
        assert [kept["rounds"].item() for kept in newest] == times.tolist()


def test_cohorts_are_uniform():
    plan = softmax_plan(cohort=1, rounds=3000)
    start = rounds.first_state(plan)
    cohorts = [rounds.sample(plan, r, range(3), start) for r in range(3000)]
    counts = np.bincount([cohort[0] for cohort in cohorts], minlength=3)
    assert abs(counts - 1000).max() < 4 * np.sqrt(3000 * 2 / 9)


def test_dropouts_are_recorded_and_the_same_on_every_engine():
    plan = text_plan(cohort=4, rounds=6, drop=0.4)
    records, here = train(plan)
    assert 0 < sum(len(r.dropped) for r in records) < 24
    assert {why for r in records for why in r.dropped.values()} == {"it dropped out"}
    others, there = train(plan, Workers(plan, 2))
    assert [r.dropped for r in records] == [r.dropped for r in others]
    assert torch.equal(here.weights, there.weights)


def test_step_size_over_rounds_falls_as_a_cosine():
    plan = softmax_plan(rounds=4, round_schedule="cosine", lr=2.0)
    expected = [2.0, 1 + 0.5**0.5, 1.0, 1 - 0.5**0.5]
    assert [plan.lr_at(r) for r in (1, 2, 3, 4)] == pytest.approx(expected)


def test_step_size_over_rounds_cools_down_over_the_last_three_tenths():
    plan = softmax_plan(rounds=10, round_schedule="cooldown", lr=3.0)
    assert [plan.lr_at(r) for r in (1, 7, 8, 9, 10)] == pytest.approx([3, 3, 3, 2, 1])
    assert softmax_plan(rounds=1, round_schedule="cooldown", lr=3.0).lr_at(1) == 3.0


def test_a_cooldown_takes_the_share_of_the_rounds_that_is_asked_for():
    plan = softmax_plan(rounds=10, round_schedule="cooldown", cooldown=0.5, lr=5.0)
    assert [plan.lr_at(r) for r in range(5, 11)] == pytest.approx([5, 5, 4, 3, 2, 1])
    plan = softmax_plan(rounds=4, round_schedule="cooldown", cooldown=1.0, lr=4.0)
    assert [plan.lr_at(r) for r in range(1, 5)] == pytest.approx([4, 3, 2, 1])


def test_a_square_root_cools_down_over_the_same_rounds_and_is_smaller_in_each():
    plan = softmax_plan(rounds=10, round_schedule="sqrt-cooldown", lr=3.0)
    expected = [3, 3, 3, 3 * (1 - (1 / 3) ** 0.5), 3 * (1 - (2 / 3) ** 0.5)]
    assert [plan.lr_at(r) for r in (1, 7, 8, 9, 10)] == pytest.approx(expected)
    assert softmax_plan(rounds=1, round_schedule="sqrt-cooldown", lr=3.0).lr_at(1) == 3.0


class TwoBodies(InProcess):
    """A client that sends one vector too many."""

    def run(self, jobs):
        for reply in super().run(jobs):
            if reply.client == 0:
                twice = replace(reply.payload, bodies=reply.payload.bodies * 2)
                reply = replace(reply, payload=twice)
            yield reply


def test_a_client_that_sends_too_many_vectors_shuts_out_itself_only():
    plan = softmax_plan(rounds=1, cohort=3)
    record, _ = next(
        rounds.run(plan, TwoBodies(plan), plan.build_model().layout, rounds.first_state(plan))
    )
    assert record.dropped == {"0": "2 vectors where 1 belong"}


def queued(works, ahead):
    jobs = [Job(0, 1, 7 + i, 0, Knobs(1, w, 1), 0.1, None) for i, w in enumerate(works)]
    return jobs, Queue(jobs, ahead, lambda job: job.knobs.steps)


def test_the_longest_job_goes_first_and_equals_keep_their_order():
    jobs, queue = queued([5, 9, 5, 9], ahead=8)
    assert [queue.take().client for _ in jobs] == [8, 10, 7, 9]
    assert queue.take() is None


@given(st.lists(st.integers(1, 9), max_size=40), st.integers(1, 3), st.randoms())
def test_no_job_runs_far_ahead_of_the_oldest(works, workers, chance):
    jobs, queue = queued(works, ahead=4 * workers)
    busy, done = [], set()
    while queue.left:
        while len(busy) < workers and (job := queue.take()):
            busy.append(job)
        assert busy  # something is always under way
        job = busy.pop(chance.randrange(len(busy)))
        if chance.random() < 0.1:
            queue.put_back(job)  # its worker died
            continue
        queue.done(job)
        done.add(job.client - 7)
        oldest = min(set(range(len(jobs))) - done, default=len(jobs))
        assert sum(i > oldest for i in done) < 4 * workers
    assert done == set(range(len(jobs)))
