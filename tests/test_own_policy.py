"""A policy of a user's own, named in a config: one file beside it, nothing else."""

import json
import textwrap

import pytest

from fedbudget.build import build
from fedbudget.config import find_config, load
from fedbudget.errors import UserError
from fedbudget.training import train

SMALL = [
    *("data.source=topics", "model.size=1x16", "model.context=16", "train.steps=20"),
    *("train.batch=4", "budget.memory=", "budget.communication=", "budget.temperature="),
]
POLICY = """
    from fedbudget.control.controller import Controller
    from fedbudget.types import Knobs


    def halving(costs, budgets, base, cohort):
        def knobs(state, client):
            return Knobs(base.layers, max(1, base.steps >> state.get(str(client), 0)), base.batch)

        def update(state, replies):
            over = [r for r in replies if any(r.usage["counted"][k] > b for k, b in budgets.items())]
            return state | {str(r.client): state.get(str(r.client), 0) + 1 for r in over}

        return Controller(dict, knobs, update)


    def number(costs, budgets, base, cohort):
        return 3


    def short(costs):
        return None


    def boom(costs, budgets, base, cohort):
        raise ValueError("no such battery")


    def deep(costs, budgets, base, cohort):
        return Controller(dict, lambda s, c: Knobs(99, 1, 1), lambda s, r: s)


    def dead(costs, budgets, base, cohort):
        return Controller(dict, lambda s, c: base, lambda s, r: 1 / 0)


    def odd(costs, budgets, base, cohort):
        return Controller(dict, lambda s, c: base, lambda s, r: {1: 2})
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    (tmp_path / "policy_of_mine.py").write_text(textwrap.dedent(POLICY))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def made(name, *changes):
    own = f"control.controller=policy_of_mine:{name}"
    return load(find_config("planner"), [*SMALL, own, *changes])


def steps(run):
    lines = map(json.loads, (run / "rounds.jsonl").read_text().splitlines())
    asked = [(line["cohort"], line["knobs"]) for line in lines]
    return [
        {c: knobs.get(str(c), knobs.get("*"))["steps"] for c in cohort} for cohort, knobs in asked
    ]


def test_a_config_names_it_and_it_turns_the_knobs_of_each_client(here):
    """In worker processes too, which are not sent what decides: closures may stay closures."""
    for workers in (1, 2):
        train(made("halving", "rounds=4", f"workers={workers}"), here / f"w{workers}", show="quiet")
    seen: dict[int, int] = {}
    for round in steps(here / "w2"):
        for client, taken in round.items():
            assert taken == 20 >> min(2, seen.get(client, 0))  # 26.5% of 20 steps: a quarter fits
            seen[client] = seen.get(client, 0) + 1
    assert max(seen.values()) > 2
    same = [(here / f"w{w}" / "model.safetensors").read_bytes() for w in (1, 2)]
    assert same[0] == same[1]


def test_each_device_class_has_its_own(here):
    controller = build(made("halving", "budget.energy=['1%', '100%']")).controller
    state = controller.init()
    assert len(state["classes"]) == 2
    assert controller.knobs(state, 0).steps == controller.knobs(state, 1).steps == 20


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("number", "policy_of_mine:number': it must return a Controller, not a int"),
        ("short", "policy_of_mine:short': too many positional arguments"),
        ("none", "policy_of_mine:none': module 'policy_of_mine' has no attribute 'none'"),
    ],
)
def test_what_is_no_policy_is_refused_in_one_sentence(here, name, why):
    with pytest.raises(UserError, match=f"^control.controller = '{why}"):
        build(made(name))


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("boom", "policy_of_mine:boom': ValueError: no such battery"),
        (
            "deep",
            "policy_of_mine:deep': the controller asks for Knobs.layers=99.* has 3 layer groups",
        ),
    ],
)
def test_one_that_cannot_work_is_refused_before_a_run_is_replaced(here, name, why):
    train(made("halving", "rounds=1"), here / "r", show="quiet")
    before = {p: p.read_bytes() for p in (here / "r").rglob("*") if p.is_file()}
    with pytest.raises(UserError, match=f"^control.controller = '{why}"):
        train(made(name), here / "r", overwrite=True, show="quiet")
    assert {p: p.read_bytes() for p in (here / "r").rglob("*") if p.is_file()} == before


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("dead", "policy_of_mine:dead', update: ZeroDivisionError: division by zero"),
        ("odd", "policy_of_mine:odd', update: its state must be plain JSON: a dict whose keys"),
    ],
)
def test_one_that_fails_on_the_way_ends_the_run_in_one_sentence(here, name, why):
    with pytest.raises(UserError, match=f"^control.controller = '{why}"):
        train(made(name, "rounds=2", "workers=1"), here / "r", show="quiet")


def test_a_name_that_is_unknown_is_compared_with_those_that_are_not():
    with pytest.raises(UserError, match=r"did you mean planner\? it must be fixed, .* or package"):
        load(find_config("planner"), ["control.controller=plannr"])
    with pytest.raises(UserError, match="'a:b' needs budgets"):
        load(find_config("fedavg"), ["control.controller=a:b"])
