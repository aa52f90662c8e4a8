"""A resource of a user's own: counted, budgeted, kept and reported like the others."""

import json
import subprocess
import sys

import pytest
import torch
from torch import nn

import fedbudget as fb
from fedbudget.build import build
from fedbudget.config import find_config, load
from fedbudget.control.duals import ascent
from fedbudget.control.paper import dual_controller
from fedbudget.control.policies import Base
from fedbudget.report.load import load_run
from fedbudget.report.tables import device_classes
from fedbudget.training import train
from fedbudget.units import show

x, y = torch.randn(120, 10), torch.arange(120) % 3
LINKS = [(x[i::3], y[i::3]) for i in range(3)]


def model():
    return nn.Sequential(nn.Linear(10, 60), nn.ReLU(), nn.Linear(60, 3))


def euros(knobs, counted):
    return 2e-9 * counted["communication"] + 1e-7 * knobs.steps


MONEY = fb.Resource("money", euros, "EUR")


def trained(**more):
    about = {"rounds": 3, "steps": 40, "quiet": True, "resources": [MONEY]}
    return fb.train(model, LINKS, (x, y), **{**about, **more})


def test_the_planner_keeps_it_and_the_report_has_it_with_its_unit(tmp_path):
    run = trained(budget=fb.Budget(money="3e-3 EUR", energy="100%"), controller=fb.planner())
    assert run.summary["usage"]["counted"]["money"]["budget"] == pytest.approx(3e-3)
    run = trained(budget=fb.Budget(money="2.3e-6 EUR", energy="100%"), controller=fb.planner())
    spent = run.summary["usage"]["counted"]["money"]
    assert spent["unit"] == "EUR"
    assert 0.8 < spent["ratio"] <= spent["worst_ratio"] <= 1
    record = run.records[0]
    knobs, counted = record.knobs["*"], record.usage["counted"][str(record.cohort[0])]
    assert counted["money"] == pytest.approx(euros(knobs, counted))
    run.report(tmp_path / "run.md")
    assert "money" in (tmp_path / "run.md").read_text()


def test_a_dual_of_its_own_moves_a_policy_that_reads_it():
    def fewer(prices, base):
        return Base(base.k, max(5, int(base.s * (1 - 4 * prices.get("money", 0.0)))), base.b)

    def duals(known, budgets, base, cohort):
        start = Base(base.layers, base.steps, base.batch)
        how = {"accounting": "counted", "preserve_tokens": False}
        return dual_controller(start, 2, budgets, fewer, ascent(eta=0.05), **how)

    run = trained(budget={"money": "50%"}, controller=duals, rounds=12)
    steps = [record.knobs["*"].steps for record in run.records]
    assert steps[0] == 40
    assert steps == sorted(steps, reverse=True)
    assert run.records[-1].duals
    spent = [record.usage["counted"]["0"]["money"] for record in run.records]
    assert spent[-1] < 0.8 * spent[0]


@pytest.mark.parametrize(
    ("amount", "why"),
    [
        (lambda knobs, counted: None, "TypeError"),
        (lambda knobs, counted: 1 / 0, "ZeroDivisionError: division by zero"),
        (lambda knobs, counted: counted["foo"], "KeyError: 'foo'"),
        (lambda knobs, counted: "3", "TypeError: '3' is text"),
        (lambda knobs: 1.0, "TypeError"),
    ],
)
def test_a_function_that_gives_no_number_is_named(amount, why):
    with pytest.raises(fb.UserError, match=f"the resource odd has no amount at .*{why}"):
        trained(resources=[fb.Resource("odd", amount)], budget={"odd": 1.0})


def test_a_budget_that_it_cannot_meet_is_refused_with_its_least_value():
    with pytest.raises(fb.UserError, match=r"no setting meets money <= 1e-09.*the least is"):
        trained(budget={"money": 1e-9}, controller=fb.planner())


@pytest.mark.parametrize(
    ("resources", "budget", "why"),
    [
        ([fb.Resource("energy", euros)], {"energy": 1}, "the name 'energy' is taken"),
        ([fb.Resource("my money", euros)], {"energy": 1}, "letters, digits and _ only"),
        ([fb.Resource(5, euros)], {"energy": 1}, "letters, digits and _ only"),
        ([fb.Resource("money", 3)], {"energy": 1}, "amount is a int; it must be a function"),
        ([fb.Resource("money", euros, "per %")], {"energy": 1}, "must be a word such as EUR"),
        ([MONEY], None, "they are counted where there is a budget"),
        ([MONEY], {"money": "2 kEUR"}, "the unit 'kEUR' is unknown here"),
        ([MONEY, MONEY], {"energy": 1}, r"resources\[1\]: the name 'money' is taken"),
        ([euros], {"energy": 1}, "it must be a fedbudget.Resource"),
        ([MONEY], {"money": "2 USD"}, "the unit 'USD' is unknown here; write \"2 EUR\""),
        ([MONEY], {"monye": 2}, r"nothing counts it; did you mean money\? known are .*money"),
        ([fb.Resource("money", lambda k, c: float("nan"))], {"money": 2}, "comes to nan"),
        ([fb.Resource("money", lambda k, c: -1.0)], {"money": 2}, "comes to -1.0"),
    ],
)
def test_what_is_wrong_with_one_is_said(resources, budget, why):
    with pytest.raises(fb.UserError, match=why):
        trained(resources=resources, budget=budget)


PRICES = """
from fedbudget import Resource

def seconds(knobs, counted):
    return 0.5 + counted["time"]

LATENCY = Resource("latency", seconds, "s")
"""
TINY = {
    "rounds": 2,
    "workers": 2,
    "data.source": "topics",
    "model.size": "1x16",
    "model.context": "32",
    "budget.resources": '["prices:LATENCY"]',
    "budget.latency": "600 ms",
    "control.least_steps": 1,
}


def test_a_config_names_it_and_a_run_keeps_it_in_worker_processes(tmp_path):
    (tmp_path / "prices.py").write_text(PRICES)
    changes = [word for key, value in TINY.items() for word in ("--set", f"{key}={value}")]

    def fedbudget(*words):
        command = [sys.executable, "-m", "fedbudget.cli", *words, *changes]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)

    plan = fedbudget("plan", "planner")
    assert plan.returncode == 0, plan.stderr
    assert "latency <= 600 ms" in plan.stdout
    done = fedbudget("run", "planner", "--out", "r")
    assert done.returncode == 0, done.stderr
    spent = json.loads((tmp_path / "r" / "summary.json").read_text())["usage"]["counted"]["latency"]
    assert spent["unit"] == "s"
    assert spent["worst_ratio"] <= 1
    changes += ["--set", "budget.latency=0.4 s"]
    refused = fedbudget("run", "planner", "--out", "no")
    assert refused.returncode == 2
    assert "no setting meets latency <= 400 ms; the least is 505 ms" in refused.stderr
    assert not (tmp_path / "no").exists()
    changes[-1] = 'budget.resources=["prices:NOTHING"]'
    absent = fedbudget("plan", "planner")
    assert absent.returncode == 2
    assert "has no attribute 'NOTHING'" in absent.stderr


@pytest.mark.parametrize(
    ("unit", "amount"), [("gCO2", "2 gCO2"), ("€", "2€"), ("EUR/h", "2 EUR/h")]
)
def test_units_are_written_as_they_are_named(unit, amount):
    run = trained(resources=[fb.Resource("own", euros, unit)], budget={"own": amount})
    assert run.summary["usage"]["counted"]["own"]["budget"] == 2
    assert show(0.0023, "own", unit) == f"0.0023 {unit}"


def test_device_classes_have_it_with_its_unit_in_the_report(tmp_path, monkeypatch):
    (tmp_path / "prices.py").write_text(PRICES)
    monkeypatch.chdir(tmp_path)
    own = {**TINY, "workers": 1, "budget.latency": '["600 ms", "900 ms"]'}
    own |= {"budget.energy": '["50%", "90%"]', "budget.communication": '["50%", "90%"]'}
    train(load(find_config("planner"), [f"{k}={v}" for k, v in own.items()]), tmp_path / "r")
    page = device_classes([load_run(tmp_path / "r")]).markdown()
    assert "| latency | counted | 600 ms |" in page
    assert "| latency | counted | 900 ms |" in page


def test_a_policy_without_a_knob_for_a_budget_warns():
    own = ["data.source=topics", "budget.time=[100.0, 100.0, 100.0]"]
    plan = build(load(find_config("classes"), own))
    assert any("cafl-l has no knob for time" in warning for warning in plan.warnings)
    assert build(load(find_config("classes"), own[:1])).warnings == ()
