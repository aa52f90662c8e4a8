"""Layer groups in the middle that train alone: their part of the vector, their costs, their turns."""

from dataclasses import replace
from functools import partial
from itertools import pairwise

import pytest
import torch

from conftest import softmax_plan, text_plan
from fedbudget import rounds
from fedbudget.algorithms.scaffold import scaffold
from fedbudget.build import build, build_search
from fedbudget.client import Recipe
from fedbudget.codecs import frame
from fedbudget.config import load
from fedbudget.control.controller import fixed
from fedbudget.control.rotation import Cycle, rotation
from fedbudget.engines.batched import Batched
from fedbudget.engines.embedded import InProcess, Workers
from fedbudget.errors import UserError
from fedbudget.models.flat import FlatModel
from fedbudget.models.gpt import GPT
from fedbudget.resources.costs import costs
from fedbudget.resources.counted import _Flops, _Kept, measure
from fedbudget.resources.devices import RASPBERRY_PI_5
from fedbudget.task import classify
from fedbudget.types import Knobs
from fedbudget.uplink import Uplink

DEEP = partial(GPT, 11, 16, 2, 16, 2, 0.0)
"""four layer groups"""


def plan_of(depth=4, **changes):
    base = Knobs(depth, 2, 2)
    groups = [fixed(replace(base, layers=1, above=above)) for above in reversed(range(depth))]
    settings = {
        "model": DEEP,
        "rounds": 6,
        "controller": rotation(fixed(base), groups, Cycle(1, 1)),
    }
    return text_plan(**(settings | changes))


def trained(plan, engine):
    layout = plan.build_model().layout
    with engine:
        found = [*rounds.run(plan, engine, layout, rounds.first_state(plan))]
    return [record for record, _ in found], [state for _, state in found]


def moved(before, after, layout):
    return {
        g
        for g in range(layout.depth)
        if not torch.equal(before[s := layout.span(g, g + 1)], after[s])
    }


def test_groups_take_turns_and_only_the_one_in_turn_moves():
    plan = plan_of()
    layout = plan.build_model().layout
    states = [rounds.first_state(plan), *trained(plan, InProcess(plan))[1]]
    found = [moved(a.weights, b.weights, layout) for a, b in pairwise(states)]
    assert found == [{0, 1, 2, 3}, {0}, {1}, {2}, {3}, {0, 1, 2, 3}]


@pytest.mark.parametrize("algorithm", ["fedavg", "scaffold"])
def test_every_engine_gives_the_same_bits(algorithm):
    changes = {"changed_only": True, "recipe": Recipe(keeps_model=True, uplink=Uplink("error"))}
    if algorithm == "scaffold":
        changes = {"algorithm": scaffold(), "recipe": Recipe("sgd"), "lr": 0.1}
    plan = plan_of(**changes)
    ends = [trained(plan, engine)[1][-1].weights for engine in (InProcess(plan), Workers(plan, 2))]
    assert torch.equal(*ends)


def test_many_agents_at_once_train_the_part_that_one_by_one_do():
    net = partial(
        torch.nn.Sequential, torch.nn.Linear(4, 5), torch.nn.Tanh(), torch.nn.Linear(5, 3)
    )
    groups = [fixed(Knobs(1, 2, 20, above=above)) for above in (1, 0)]
    turns = rotation(fixed(Knobs(2, 2, 20)), groups, Cycle(1, 1))
    plan = softmax_plan(model=net, controller=turns, rounds=3)
    ends = [trained(plan, engine)[1][-1].weights for engine in (InProcess(plan), Batched(plan))]
    torch.testing.assert_close(*ends)


def test_a_client_is_sent_only_the_groups_that_changed():
    plan = plan_of(cohort=4, changed_only=True, recipe=Recipe(keeps_model=True))
    layout = plan.build_model().layout
    records, _ = trained(plan, InProcess(plan))
    head = len(
        frame.pack([torch.zeros(1)], layout, run=0, round=0, client=0, seed=0, codec="raw32")
    )
    sizes = [layout.span(g, g + 1) for g in range(4)]
    expected = [layout.size, layout.size, *(s.stop - s.start for s in sizes)]
    assert [r.down_bytes // 4 - head + 4 for r in records] == [4 * n for n in expected]


def test_costs_of_every_part_are_what_counting_that_part_gives():
    plan = text_plan(model=partial(GPT, 11, 16, 3, 16, 2, 0.1))
    model = FlatModel(plan.model())
    shape = measure(model, classify(), plan.clients[0], "adamw")
    x, y = plan.clients[0].batch([0, 1])
    depth = model.layout.depth
    for above in range(depth):
        for k in range(1, depth - above + 1):
            part = model.freeze(k, above)
            model.train()
            with _Flops() as flops, _Kept(model) as kept:
                classify().loss(model.module, x, y).backward()
            knobs = Knobs(k, 1, 2, above=above)
            trained = part.stop - part.start
            assert shape.trained(knobs) == trained
            assert shape.step_flops(knobs) - 14 * trained == pytest.approx(flops.total)
            assert shape.memory(knobs) - 4 * (model.layout.size + 3 * trained) == kept.total


def test_parts_in_the_middle_are_counted_where_they_are_asked_for():
    plan = plan_of()
    about = (FlatModel(plan.model()), classify(), plan.clients[0], "adamw")
    whole, top = measure(*about), measure(*about, parts=False)
    assert (top.flops, top.kept, top.parameters) == (whole.flops, whole.kept, whole.parameters)
    assert len(top.spared_flops) == 1 < len(whole.spared_flops)


def test_the_papers_proxies_say_nothing_of_a_part_in_the_middle():
    plan = plan_of()
    about = (classify(), plan.clients[0], "adamw", RASPBERRY_PI_5, True)
    known = costs(FlatModel(plan.model()), *about)
    assert set(known.meter(Knobs(1, 1, 1, above=1), 1, 1)) == {"counted"}
    assert set(known.meter(Knobs(1, 1, 1), 1, 1)) == {"counted", "paper"}


@pytest.mark.parametrize("budget", ["", '[budget]\nenergy = "30%"\ncommunication = "20%"\n'])
def test_a_config_rotates_within_its_budgets(tmp_path, monkeypatch, budget):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text("To be, or not to be, that is the question. " * 60)
    (tmp_path / "c.toml").write_text(
        'rounds = 6\n[data]\nsource = "text"\npath = "text.txt"\nclients = 4\n'
        '[model]\nsize = "1x16"\nheads = 2\ncontext = 16\n[train]\ncohort = 2\nsteps = 40\nbatch = 4\n'
        '[control]\ncontroller = "rotation"\nwhole_rounds = 2\ngroup_rounds = 1\nleast_steps = 1\n'
        + budget
    )
    plan = build(load(tmp_path / "c.toml"))
    records, _ = trained(plan, InProcess(plan))
    places = [(r.knobs["*"].layers, r.knobs["*"].above) for r in records]
    assert places == [(3, 0), (3, 0), (1, 2), (1, 1), (1, 0), (3, 0)]
    for limits in plan.budgets.get("counted", []):
        for record in records:
            for usage in record.usage["counted"].values():
                assert all(usage[r] <= limit for r, limit in limits.items())
    assert bool(plan.budgets) == bool(budget)
    if budget:  # `plan` says of each turn what `run` does
        _, turns, *_ = build_search(load(tmp_path / "c.toml"))
        assert [(g.layers, g.above) for g in turns.values()] == [
            ((3,), 0),
            *(((1,), above) for above in (2, 1, 0)),
        ]
        least = ["control.codecs=['raw32']", "budget.communication=85%"]
        with pytest.raises(UserError, match=r"no setting meets communication .* layers=3"):
            build(load(tmp_path / "c.toml", least))
        never = build(load(tmp_path / "c.toml", [*least, "control.whole_rounds=0"]))
        records, _ = trained(never, InProcess(never))
        assert [r.knobs["*"].layers for r in records] == [1] * 6
    two = build(load(tmp_path / "c.toml", ["train.layers=2"]))
    records, _ = trained(two, InProcess(two))
    places = [(r.knobs["*"].layers, r.knobs["*"].above) for r in records]
    assert places == [(2, 0), (2, 0), (1, 1), (1, 0), (2, 0), (2, 0)]
