"""Clients that do different work in one round: whose minimum the mean goes to."""

from dataclasses import replace
from itertools import combinations

import pytest
import torch
from torch import nn

from conftest import softmax_plan, text_plan
from fedbudget import rounds
from fedbudget.aggregation import Accumulator, Robust, Screen, Screening, Update, Work, local_work
from fedbudget.build.algorithms import algorithm
from fedbudget.client import Recipe
from fedbudget.codecs import frame
from fedbudget.config import load
from fedbudget.control.classes import by_class
from fedbudget.control.controller import fixed
from fedbudget.control.stepsize import square_root
from fedbudget.data.examples import Arrays
from fedbudget.engines.batched import Batched
from fedbudget.engines.embedded import InProcess, Workers
from fedbudget.errors import UserError
from fedbudget.models.flat import FlatModel, Layout
from fedbudget.optimizers import sgd
from fedbudget.task import custom
from fedbudget.types import Job, Knobs, Reply


class Point(nn.Module):
    """A point in four dimensions, in two layer groups."""

    def __init__(self):
        super().__init__()
        self.low = nn.Parameter(torch.full((2,), 0.3))
        self.high = nn.Parameter(torch.full((2,), 0.3))

    def forward(self, x):
        return torch.cat([self.low, self.high]).expand(len(x), -1)


def distance(model, x, y):
    """Half the squared distance to the client's own minimum."""
    return 0.5 * (model(x) - y).square().sum(1).mean()


MINIMA = (0.0, 1.0)


def quadratic(knobs, **changes):
    """Client i's minimum is MINIMA[i] in every dimension; its knobs are knobs[i]."""
    settings = {
        "model": Point,
        "layers": ("low", "high"),
        "clients": [Arrays(torch.zeros(4, 1), torch.full((4, 4), e)) for e in MINIMA],
        "validation": None,
        "cohort": 2,
        "rounds": 100,
        "task": custom(distance),
        "controller": by_class([fixed(own) for own in knobs]),
        "recipe": Recipe("sgd"),
        "lr": 0.1,
    }
    return softmax_plan(**(settings | changes))


def end(plan, engine=InProcess):
    layout = plan.build_model().layout
    with engine(plan) as clients:
        *_, (_, state) = rounds.run(plan, clients, layout, rounds.first_state(plan))
    return state.weights


FEW_AND_MANY = (Knobs(2, 2, 4), Knobs(2, 8, 4))


@pytest.mark.parametrize("lr", [0.1, 0.02])
def test_fedavg_goes_to_whoever_takes_more_steps_and_fednova_to_the_middle(lr):
    # s steps from x move it by (1 - (1 - lr)^s) (e - x): the fixed point's weights
    moved = [1 - (1 - lr) ** own.steps for own in FEW_AND_MANY]
    per_step = [m / own.steps for m, own in zip(moved, FEW_AND_MANY, strict=True)]
    plan = quadratic(FEW_AND_MANY, lr=lr, rounds=int(3.5 / lr))
    plain = end(plan)
    fair = end(replace(plan, normalise="work"))
    torch.testing.assert_close(plain, torch.full((4,), moved[1] / sum(moved)))
    torch.testing.assert_close(fair, torch.full((4,), per_step[1] / sum(per_step)))
    assert (plain - 0.5).min() > 0.24
    assert (fair - 0.5).abs().max() < 0.75 * lr  # nothing is left of it with small steps


def test_with_a_falling_step_size_fednova_ends_in_the_minimum_of_the_mean():
    plan = quadratic(FEW_AND_MANY, rounds=80, round_schedule="cosine")
    assert (end(plan) - 0.5).min() > 0.25
    assert (end(replace(plan, normalise="work")) - 0.5).abs().max() < 0.02


def test_momentum_counts_as_the_work_that_it_is():
    knobs = (Knobs(2, 2, 4), Knobs(2, 20, 4))
    plan = quadratic(knobs, lr=0.001, rounds=100, recipe=Recipe("sgd", momentum=0.9))
    assert (end(plan) - 0.5).min() > 0.4
    # by steps alone it would be 6.05 / (6.05 + 1.45) = 0.81
    assert (end(replace(plan, normalise="work")) - 0.5).abs().max() < 0.02


def test_step_sizes_that_follow_the_batch_are_work_too():
    knobs = (Knobs(2, 4, 1), Knobs(2, 4, 4))
    rule = square_root(Knobs(2, 4, 1))
    plan = quadratic(knobs, lr=0.01, rounds=100, step_rule=rule)
    torch.testing.assert_close(end(plan), torch.full((4,), 0.662), atol=2e-3, rtol=0)
    assert (end(replace(plan, normalise="work")) - 0.5).abs().max() < 0.01


def test_a_layer_is_the_mean_of_those_who_trained_it_at_their_own_pace():
    knobs = (Knobs(1, 2, 4), Knobs(2, 8, 4))  # client 0 trains the top only
    plan = quadratic(knobs, lr=0.01, rounds=130, normalise="work")
    low, high = end(plan).split(2)
    torch.testing.assert_close(low, torch.ones(2), atol=1e-3, rtol=0)  # only client 1 is there
    torch.testing.assert_close(high, torch.full((2,), 0.4926), atol=2e-3, rtol=0)
    plain = end(replace(plan, normalise="none"))
    torch.testing.assert_close(plain[2:], torch.full((2,), 0.795), atol=2e-3, rtol=0)


def test_a_layer_mean_is_unbiased_whoever_trains_it():
    """Over all ways in which some of four clients train the bottom, its mean is that of all four."""
    layout = Layout(("low", "high"), ((2,), (2,)), (0, 1))
    updates = torch.tensor([[1.0, -2.0, 3.0, 5.0], [4.0, 0.5, -1.0, 2.0]] * 2) * torch.tensor(
        [[1.0], [2.0], [3.0], [4.0]]
    )
    means = []
    for size in range(1, 5):
        for deep in combinations(range(4), size):
            total = Accumulator(layout)
            for client, update in enumerate(updates):
                first = 0 if client in deep else 1
                total.add([update[2 * first :]], (first, 2), 1.0)
            means.append(total.mean()[0])
    torch.testing.assert_close(torch.stack(means).mean(0), updates.mean(0))


def test_local_work_is_what_an_optimiser_makes_of_a_constant_gradient():
    for momentum in (0.0, 0.5, 0.9):
        weights, sizes = torch.zeros(1, dtype=torch.double), [0.3, 0.1, 0.2, 0.2, 0.05]
        step = sgd([(weights, -torch.ones(1, dtype=torch.double))], momentum, 0.0)
        for size in sizes:
            step(size)
        assert weights.item() == pytest.approx(local_work(sizes, momentum))
    steps, rho = 7, 0.8  # the paper's own formula
    norm = (steps - rho * (1 - rho**steps) / (1 - rho)) / (1 - rho)
    assert local_work([1.0] * steps, rho) == pytest.approx(norm)


def test_warm_up_and_momentum_are_in_the_work_and_adams_betas_are_not():
    knobs = Knobs(2, 4, 4)
    plan = quadratic([knobs], recipe=Recipe("sgd", momentum=0.5, warmup=0.5))
    assert rounds.worked(plan, knobs) == pytest.approx(local_work([0.5, 1.0, 1.0, 1.0], 0.5))
    plan = quadratic([knobs], recipe=Recipe("adamw", momentum=0.5))
    assert rounds.worked(plan, knobs) == 4


def test_with_equal_work_nothing_changes():
    plan = text_plan(recipe=Recipe("adamw"))
    torch.testing.assert_close(end(plan), end(replace(plan, normalise="work")))


def test_the_median_too_is_taken_per_unit_of_work():
    layout = Layout(("low", "high"), ((1,), (1,)), (0, 1))
    work, total = Work(layout), Robust(layout, 0.5)
    for update, groups, steps in (
        ([2.0, 4.0], (0, 2), 2.0),
        ([30.0, 30.0], (0, 2), 10.0),
        ([60.0], (1, 2), 6.0),
    ):
        total.add(work.per_unit((torch.tensor(update),), groups, steps), groups, 1.0)
        work.add(groups, 1.0, steps)
    low, high = work.effective(total.mean())[0].tolist()
    assert low == pytest.approx((1 + 3) / 2 * (2 + 10) / 2)
    assert high == pytest.approx(3 * (2 + 10 + 6) / 3)  # of 2, 3 and 10 per step


def test_running_statistics_are_averaged_as_they_are():
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 2))
    layout = FlatModel(model).layout
    plain, work, total = Accumulator(layout), Work(layout), Accumulator(layout)
    whole = (0, layout.depth)
    for i, steps in enumerate((2.0, 8.0)):
        update = torch.arange(layout.size) + 10.0 * i
        plain.add([update], whole, 1.0)
        total.add(work.per_unit((update,), whole, steps), whole, 1.0)
        work.add(whole, 1.0, steps)
    as_is, fair = plain.mean()[0], work.effective(total.mean())[0]
    assert layout.statistic_slices
    statistics = torch.zeros(layout.size, dtype=torch.bool)
    for where in layout.statistic_slices:
        statistics[where] = True
    torch.testing.assert_close(as_is[statistics], fair[statistics])
    assert not torch.isclose(as_is[~statistics], fair[~statistics]).any()


MIXED = by_class(
    [
        fixed(Knobs(3, 2, 4)),
        fixed(Knobs(1, 5, 2, codec="int8")),
        fixed(Knobs(1, 3, 4, 2, codec="eden4", above=1)),
    ]
)


def test_mixed_work_has_the_same_bits_on_every_engine():
    plan = text_plan(controller=MIXED, normalise="work")
    ends = [end(plan, engine) for engine in (InProcess, lambda plan: Workers(plan, 2))]
    assert torch.equal(*ends)
    assert not torch.allclose(ends[0], end(replace(plan, normalise="none")))


def test_many_agents_at_once_do_the_same():
    turns = by_class([fixed(Knobs(1, 1, 20)), fixed(Knobs(1, 4, 20)), fixed(Knobs(1, 2, 10))])
    plan = softmax_plan(controller=turns, normalise="work", recipe=Recipe("sgd"))
    torch.testing.assert_close(end(plan), end(plan, Batched))


def claimed(client, work, size=1.0):
    head = frame.Header(0, 1, client, 0, "raw32", 0, 3, 4, b"")
    job = Job(0, 1, client, 0, Knobs(3, 1, 1), 0.1, frame.Packed(head, ()))
    return Update(job, Reply(0, 1, client, 1), (torch.full((4,), size),), 1.0, work)


def test_a_client_that_claims_far_more_work_than_the_others_is_refused():
    screen = Screen(Screening(), weights=False)
    used = []
    for client, work in enumerate([10.0, 30.0, 5e5, 20.0, 12.0]):
        used += screen.offer(claimed(client, work))
    used += screen.rest()
    assert list(screen.refused) == [2]
    assert "work of the cohort's median" in screen.refused[2]
    assert [u.job.client for u in used] == [0, 1, 3, 4]


def test_a_claim_of_endless_steps_is_no_reply():
    layout = Layout(("w",), ((4,),), (0,))
    knobs = Knobs(1, 10**9, 1)
    sent = frame.pack([torch.ones(4)], layout, run=0, round=1, client=0, seed=0, codec="raw32")
    job = Job(0, 1, 0, 0, replace(knobs, steps=3), 0.1, sent)
    reply = Reply(0, 1, 0, 1, knobs=knobs, payload=sent)
    with pytest.raises(frame.FrameError, match="claims 1000000000 steps"):
        rounds.checked(job, reply, layout, 1)
    assert rounds.checked(job, replace(reply, knobs=None), layout, 1)[0].tolist() == [1.0] * 4


@pytest.mark.parametrize(
    ("lines", "word"),
    [
        ('[codec]\nskip = 0.1\nfeedback = "error"\n[train]\n', "codec.skip"),
        ('[privacy]\nclip = 1.0\nnoise = 1.0\nmodel = "sum"\n[train]\n', "counts? alike"),
    ],
)
def test_what_has_no_work_to_divide_by_is_refused(tmp_path, lines, word):
    path = tmp_path / "c.toml"
    path.write_text(lines + 'normalise = "work"\n')
    with pytest.raises(UserError, match=word):
        load(path)
    path.write_text(lines + 'normalise = "none"\n')
    assert load(path).train.normalise == "none"


@pytest.mark.parametrize("name", ["scaffold", "penalised-scaffold", "pc-fedavg"])
def test_a_second_vector_does_not_grow_with_work(tmp_path, name):
    path = tmp_path / "c.toml"
    path.write_text(f'algorithm = "{name}"\n[train]\noptimizer = "sgd"\nnormalise = "work"\n')
    with pytest.raises(UserError, match=f"{name}.*second vector"):
        algorithm(load(path), 3)
    assert algorithm(load(path, ["train.normalise=none"]), 3).vectors == 2


def test_an_update_without_work_is_left_alone():
    layout = Layout(("w",), ((2,),), (0,))
    work = Work(layout)
    (same,) = work.per_unit((torch.zeros(2),), (0, 1), 0.0)
    assert same.tolist() == [0.0, 0.0]
    assert work.effective((torch.ones(2),))[0].tolist() == [1.0, 1.0]
