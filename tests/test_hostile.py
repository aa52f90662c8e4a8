"""Hostile and broken updates: dropped with a reason, clipped or outvoted; the run goes on."""

import json
import math
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from conftest import blobs, softmax_plan, text_plan
from fedbudget import rounds
from fedbudget.aggregation import (
    Accumulator,
    Robust,
    Screen,
    Screening,
    Update,
    _median,
    trimmed,
)
from fedbudget.codecs import frame
from fedbudget.control.controller import fixed
from fedbudget.data.examples import Parts
from fedbudget.engines.embedded import InProcess
from fedbudget.errors import UserError
from fedbudget.models.flat import Layout
from fedbudget.runner import Stop, execute
from fedbudget.runs import RunFolder
from fedbudget.types import Job, Knobs, Reply

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

from hostile import ATTACKS, TURNED, Hostile, outcome


def plan_of_twenty(**changes):
    data = blobs(400)
    parts = [np.arange(i, 400, 20) for i in range(20)]
    return softmax_plan(clients=Parts(data, parts), cohort=20, **{"rounds": 8, **changes})


@pytest.mark.parametrize("kind", ATTACKS)
def test_a_tenth_of_hostile_clients_costs_less_than_two_percent(kind):
    weighting = "examples" if "10^12" in kind else "uniform"
    plan = plan_of_twenty(weighting=weighting)
    without, _, _ = outcome(plan, (3, 11), None)
    loss, why, flagged = outcome(plan, (3, 11), ATTACKS[kind])
    assert loss <= 1.02 * without
    assert why or flagged or kind == "a usage of 0"


@pytest.mark.parametrize(("trim", "stands"), [(None, False), (0.2, True), (0.5, True)])
def test_updates_that_are_turned_round_are_outvoted(trim, stands):
    plan = plan_of_twenty(trim=trim, rounds=25)
    without, _, _ = outcome(plan, (3, 11), None)
    loss, _, _ = outcome(plan, (3, 11), TURNED)
    assert (loss <= 1.25 * without) == stands


def test_without_screening_a_forged_scale_ruins_the_model():
    plan = plan_of_twenty(screening=Screening("off"))
    without, _, _ = outcome(plan, (3, 11), None)
    loss, _, _ = outcome(plan, (3, 11), ATTACKS["turned round and 1000 times too large"])
    assert loss > 2 * without


def test_reasons_are_in_the_records_and_counted_in_the_summary(tmp_path):
    plan = plan_of_twenty()
    folder = RunFolder.create(tmp_path / "a", "rounds = 1\n")
    attack = ATTACKS["1000 times too large"]
    engine = partial(lambda: Hostile(InProcess(plan), (3,), attack))

    class Nothing:
        def on_reply(self, reply): ...
        def on_round(self, record): ...

    class Entered(Hostile):
        def __enter__(self):
            return self

        def __exit__(self, *error):
            pass

    engine = partial(Entered, InProcess(plan), (3,), attack)
    summary = execute(plan, folder, {}, engine, 1, Nothing(), Stop())
    (kind,) = summary["dropped_because"]
    assert kind == "its update is N times the size of the cohort's median"
    assert summary["dropped_because"][kind] == summary["dropped"] == 8
    assert "times the size" in folder.records()[0]["dropped"]["3"]


# screening


LAYOUT = Layout(("a", "b", "c"), ((2,), (3,), (4,)), (0, 1, 2))


def update(client, size, weight=1.0, numbers=9):
    head = frame.Header(0, 1, client, 0, "raw32", 0, 3, numbers, b"")
    job = Job(0, 1, client, 0, Knobs(3, 1, 1), 0.1, frame.Packed(head, ()))
    reply = Reply(0, 1, client, 1, payload=frame.Packed(head, ()))
    return Update(job, reply, (torch.full((numbers,), float(size)),), weight)


def screened(sizes, how=None, weights=None):
    screen = Screen(how or Screening(), weights is not None)
    used = []
    for client, size in enumerate(sizes):
        used += screen.offer(update(client, size, weights[client] if weights else 1.0))
    used += screen.rest()
    return used, screen.refused


def test_an_update_that_is_out_of_line_is_refused_wherever_it_stands():
    for place in range(8):
        sizes = [1.0, 0.5, 2.0, 1.5, 1.0, 0.7, 1.2]
        sizes.insert(place, 1e6)
        used, refused = screened(sizes)
        assert list(refused) == [place]
        assert sorted(u.job.client for u in used) == [c for c in range(8) if c != place]


def test_those_in_line_keep_their_order():
    used, refused = screened([1.0, 2.0, 0.1, 3.0, 1.0, 5.0, 0.2])
    assert [u.job.client for u in used] == list(range(7))
    assert not refused


@given(st.lists(st.floats(0.5, 4.0), min_size=1, max_size=20))
def test_honest_cohorts_lose_nobody(sizes):
    used, refused = screened(sizes)
    assert not refused
    assert [u.job.client for u in used] == list(range(len(sizes)))


def test_fewer_than_four_have_no_majority():
    used, refused = screened([1.0, 1e9, 1.0])
    assert not refused
    assert len(used) == 3


def test_clipping_shortens_to_what_is_allowed():
    used, refused = screened([1.0, 1.0, 1.0, 1.0, 1.0, 500.0], Screening("clip", 10.0))
    assert not refused
    assert used[-1].vectors[0].max() == pytest.approx(10.0)


@given(st.lists(st.floats(1e-3, 1e6), min_size=1, max_size=12), st.integers(0, 3))
def test_the_median_is_that_of_all_sizes_but_zeros(sizes, zeros):
    screen = Screen(Screening(), False)
    for client, size in enumerate([*sizes, *[0.0] * zeros]):
        screen.offer(update(client, size))
    assert _median(screen.known[0]) == pytest.approx(np.median(sizes), rel=1e-5)


def test_zeros_are_not_what_others_are_held_against():
    _, refused = screened([0.0] * 8 + [1.0] * 4)
    assert not refused


def test_a_claim_of_too_many_examples_is_refused():
    _, refused = screened([1.0] * 6, weights=[50, 60, 55, 10**9, 40, 70])
    assert list(refused) == [3]
    assert "1e+09 examples" in refused[3]


# robust means


def test_a_trimmed_mean_and_a_median_by_hand():
    rows = torch.tensor([[0.0, 5.0], [1.0, 1.0], [2.0, 2.0], [9.0, -7.0]])
    assert trimmed(rows, 0.5).tolist() == [1.5, 1.5]
    assert trimmed(rows, 0.25).tolist() == [1.5, 1.5]
    assert trimmed(rows, 0.1).tolist() == [3.0, 0.25]
    assert trimmed(rows[:1], 0.5).tolist() == [0.0, 5.0]


def test_each_layer_is_averaged_over_those_who_trained_it():
    robust, plain = Robust(LAYOUT, 0.01), Accumulator(LAYOUT)
    for groups, value in (
        ((0, 3), 1.0),
        ((1, 3), 4.0),
        ((2, 3), 10.0),
        ((0, 1), 3.0),
        ((1, 2), 8.0),
    ):
        where = LAYOUT.span(*groups)
        for total in (robust, plain):
            total.add([torch.full((where.stop - where.start,), value)], groups, 1.0)
    assert robust.counts == plain.counts == [2, 3, 3]
    torch.testing.assert_close(robust.mean()[0], plain.mean()[0])


def test_a_layer_that_nobody_trained_does_not_move():
    robust = Robust(LAYOUT, 0.5)
    robust.add([torch.ones(7)], (1, 3), 1.0)
    assert robust.mean()[0].tolist() == [0.0] * 2 + [1.0] * 7


# reports of usage


def test_a_report_below_what_the_frame_proves_is_replaced_and_flagged():
    plan = text_plan(controller=fixed(Knobs(3, 2, 2)))
    reply = next(InProcess(plan).run([first_job(plan)]))
    told = replace(reply, usage={"counted": {"communication": 3.0}})
    usage, problem = rounds.credible(first_job(plan), told, None)
    assert usage["counted"]["communication"] == len(reply.payload)
    assert "3 bytes up; its frame has" in problem


def first_job(plan):
    model = plan.build_model()
    down = frame.pack(
        [model.weights], model.layout, run=plan.run, round=1, client=-1, seed=0, codec="raw32"
    )
    return Job(plan.run, 1, 0, plan.seed, plan.controller.knobs({}, 0), 0.1, down)


def count(knobs, up, down):
    return {"counted": {"energy": 5.0, "communication": float(up)}}


@pytest.mark.parametrize(
    ("told", "problem"),
    [
        ({"energy": 5.0}, "does not report its communication"),
        ({"energy": 0.1, "communication": 1e9}, "reports energy of 0.1; we count 5"),
        ({"energy": 900.0, "communication": 1e9}, "reports energy of 900"),
    ],
)
def test_implausible_reports_are_flagged(told, problem):
    plan = text_plan(controller=fixed(Knobs(3, 2, 2)))
    reply = next(InProcess(plan).run([first_job(plan)]))
    told = replace(reply, usage={"counted": told})
    usage, said = rounds.credible(first_job(plan), told, count)
    assert problem in said
    assert usage["counted"]["energy"] == 5.0  # ours: a controller learns from it
    silent = replace(reply, usage={})
    usage, said = rounds.credible(first_job(plan), silent, count)
    assert usage["counted"]["energy"] == 5.0
    assert "reports no usage" in said


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (["algorithm=scaffold", "train.aggregate=median"], "needs the mean of what clients sent"),
        (["algorithm=scaffold", "train.screen=clip"], "needs the mean of what clients sent"),
        (["train.aggregate=median", "train.weighting=examples"], "knows no weights"),
        (["train.trim=0.6"], "train.trim"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(changes, sentence):
    from fedbudget.build.algorithms import algorithm
    from fedbudget.config import find_config, load

    sgd = ["train.optimizer=sgd", "train.weight_decay=0.0"]
    with pytest.raises(UserError, match=sentence):
        algorithm(load(find_config("fedavg"), [*sgd, *changes]), 16)


def test_the_library_never_trusts_a_number_it_can_check():
    """A frame's header may say anything; every field that matters is held against the job."""
    plan = softmax_plan()
    job = replace(first_job(plan), knobs=Knobs(1, 2, 20))
    reply = next(InProcess(plan).run([job]))
    layout = plan.build_model().layout
    rounds.checked(job, reply, layout, 1)
    for field, value in {
        "run": 1,
        "round": 9,
        "client": 2,
        "codec": "int8",
        "first": 1,
        "last": 9,
        "size": 2**62,
        "digest": bytes(8),
    }.items():
        header = reply.payload.header._replace(**{field: value})
        lie = replace(reply, payload=replace(reply.payload, header=header))
        with pytest.raises(frame.FrameError):
            rounds.checked(job, lie, layout, 1)
    assert math.isfinite(json.loads(json.dumps(reply.seconds)))
