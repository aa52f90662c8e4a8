"""A benchmark is worth something where its figures are right and everyone does the same work."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from fedbudget import bench
from fedbudget.cli import app
from fedbudget.data.examples import Arrays
from fedbudget.data.sources import Labelled, python_topics
from fedbudget.engines.choose import choose
from fedbudget.rounds import first_state, one_round
from fedbudget.threads import one_thread

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks" / "contest"))

import contestants
import contests
import measure
import page
import plain
import plans
import workload


def test_quartiles_are_those_of_the_textbook():
    assert bench.spread([5.0, 1.0, 3.0, 2.0, 4.0]) == (3.0, 2.0, 4.0)
    assert bench.spread([1.0, 2.0]) == (1.5, 1.25, 1.75)
    assert bench.spread([7.0]) == (7.0, 7.0, 7.0)


def test_a_ratio_is_taken_within_a_repetition():
    # the machine was ten times slower in the second one: of the medians it would be 2.0, and wrong
    theirs, ours = [2.0, 30.0, 4.0], [1.0, 10.0, 2.0]
    assert measure.ratio(theirs, ours).median == 2.0
    assert measure.ratio([3.0, 30.0, 3.0], [1.0, 10.0, 1.5]) == (3.0, 2.5, 3.0)
    assert measure.show(measure.ratio([3.0], [2.0])) == "1.50 (1.50 to 1.50)"


def test_everyone_has_a_turn_a_repetition_and_begins_in_turn():
    order = []
    work = {name: lambda name=name: order.append(name) or len(order) for name in "abc"}
    found = measure.in_turn(work, 4)
    assert "".join(order) == "abcbcacababc"
    assert found == {"a": [1, 6, 8, 10], "b": [2, 4, 9, 11], "c": [3, 5, 7, 12]}


def test_each_ones_time_is_over_ours():
    found = contests.ratios({"ours": [1.0, 2.0], "peer": [3.0, 4.0]}, "ours")
    assert found == {"ours": (1.0, 1.0, 1.0), "peer": (2.5, 2.25, 2.75)}
    assert contests.ratios({"peer": [1.0]}, "ours") == {}


FACTS = {
    "cpu": "X",
    "cores": 2,
    "simd": "AVX2",
    "gemm_gflops": 100.0,
    "copy_gbytes": 10.0,
    "load": 0.5,
}
FACTS |= {"system": "Linux", "python": "3.11", "torch": "2.13.0", "fedbudget": "0.1.0"}
ABOUT = {"date": "2025-01-01", "minutes": 1.0, "machine": FACTS}


def test_a_new_result_replaces_its_own_section_of_the_page_and_no_other(tmp_path):
    parts = {n: (f"Part {n}", lambda found: [f"value {found['value']}"]) for n in "abc"}
    file = tmp_path / "page.md"
    page.store(tmp_path, "a", ABOUT, {"value": 1})
    page.store(tmp_path, "c", ABOUT, {"value": 3, "versions": {"peer": "flwr 1.41.0"}})
    page.write(file, tmp_path, parts)
    before = file.read_text()
    assert before.index("## Part a\n\nvalue 1") < before.index("## Part c\n\nvalue 3")
    assert "Part b" not in before
    assert "X, 2 cores, AVX2; one core: float32 product 100 GFLOP/s" in before
    assert "flwr 1.41.0" in before.split("## Part c")[1]
    page.store(tmp_path, "a", ABOUT, {"value": 9})
    page.write(file, tmp_path, parts)
    assert file.read_text() == before.replace("value 1", "value 9")
    assert json.loads((tmp_path / "a.json").read_text())["found"] == {"value": 9}
    other = {**ABOUT, "date": "2025-01-02", "machine": {**FACTS, "simd": "AVX512"}}
    page.store(tmp_path, "b", other, {"value": 2})
    page.write(file, tmp_path, parts)
    first, second = (line for line in file.read_text().splitlines() if "one core" in line)
    assert first.startswith("Machine: X, 2 cores, AVX2;")
    assert second.startswith("Machine of *Part b*: X, 2 cores, AVX512;")


def test_a_match_is_shown_with_who_is_missing():
    found = {
        "ours": "ours",
        "seconds": {"ours": [1.0, 1.0], "peer": [2.0, 2.0]},
        "apart": {"ours": 0.0, "peer": 3.2e-6},
        "absent": {"other": "it is not there"},
    }
    lines = contests.rows(found)
    assert lines[2] == "| ours | 1.00 | 1.00 (1.00 to 1.00) | 0 |"
    assert lines[3] == "| peer | 2.00 | 2.00 (2.00 to 2.00) | 3e-06 |"
    assert lines[4].startswith("| other | not measured: it is not there |")


def images(shape: tuple[int, ...]) -> Labelled:
    rng = np.random.default_rng(0)
    x = torch.from_numpy(rng.integers(256, size=(1000, *shape), dtype=np.uint8))
    x *= torch.from_numpy(rng.random(x.shape) < 0.1)  # as dark as digits: brighter ones diverge
    y = torch.from_numpy(rng.integers(10, size=1000))
    return Labelled(Arrays(x[:800], y[:800]), Arrays(x[800:], y[800:]), 10, "noise")


WORKLOADS = {
    "a GPT": plans.gpt(1, 32, steps=3, cohort=3),
    "a GPT that trains nothing": plans.gpt(1, 32, steps=0, cohort=3),
    "softmax regression, fewer images than a batch": plans.softmax(60, 9, clients=12, steps=4),
    "softmax regression, more": plans.softmax(150, 9, clients=12, steps=4),
    "pfl's CNN": plans.cifar(1, cohort=2, dropout=False, clients=16),
}


@pytest.fixture(autouse=True)
def data(monkeypatch):
    """Data that every machine has, in the shapes of the real ones."""
    monkeypatch.setattr(plans, "a_text", python_topics)
    monkeypatch.setattr(plans, "mnist", lambda: images((1, 28, 28)))
    monkeypatch.setattr(plans, "cifar10", lambda: images((3, 32, 32)))


@pytest.mark.parametrize("name", WORKLOADS)
def test_our_round_and_the_plain_loops_come_to_the_same(name, tmp_path):
    settings = WORKLOADS[name]
    plans.write(settings, tmp_path)
    load = workload.Workload(tmp_path)
    plan = plans.plan_of(load.settings)
    layout = plan.build_model().layout
    with choose(plan) as engine:
        assert engine.kind == ("batched" if "softmax" in name else "loop")
        record, state = one_round(plan, engine, layout, first_state(plan), 1)
    assert list(record.cohort) == load.cohort(1)
    team = plain.Team(load, processes=1)
    with (
        one_thread()
    ):  # as ours: several threads add in another order, which convolutions make more of
        loss = team.round(load.cohort(1))
    ours = {n: v.numpy() for n, v in layout.named(state.weights).items()}
    theirs = {n: v.numpy() for n, v in team.weights.items()}
    first = {n: v.numpy() for n, v in load.weights.items()}
    assert contestants.apart(ours, theirs, first) < 1e-5
    if settings["steps"]:
        assert record.train_loss == pytest.approx(loss, rel=1e-6)
        assert contestants.apart(first, theirs, first) > 0.99  # it did train


def test_a_round_after_the_first_starts_over(tmp_path):
    plans.write(plans.gpt(1, 32, steps=2, cohort=2), tmp_path)
    load = workload.Workload(tmp_path)
    team = plain.Team(load, processes=1)
    assert not load.goes_on
    team.round(load.cohort(1))
    once = {n: v.clone() for n, v in team.weights.items()}
    team.start_over()
    team.round(load.cohort(2))
    assert all(torch.equal(once[n], v) for n, v in team.weights.items())


def test_a_workload_of_several_rounds_has_every_rounds_cohort(tmp_path):
    plans.write(plans.cifar(3, cohort=2, clients=16), tmp_path)
    load = workload.Workload(tmp_path)
    assert load.goes_on
    assert len(load.cohorts) == 3
    assert load.clients == sorted({c for cohort in load.cohorts for c in cohort})
    x, y = load.data()
    assert x.shape == (len(load.clients), 50, 32, 32, 3)
    assert y.shape == x.shape[:2]
    assert load.validation()[0].shape == (200, 32, 32, 3)


def test_results_are_compared_by_what_the_round_changed():
    first = {"w": np.array([3.0, 4.0])}
    moved = {"w": np.array([3.0, 5.0])}
    off = {"w": np.array([3.0, 5.1])}
    assert contestants.apart(moved, moved, first) == 0
    assert contestants.apart(off, moved, first) == pytest.approx(0.1)
    assert contestants.apart(off, first, first) == pytest.approx(1.1 / 5)


PROGRAM = """
import json, sys
print(json.dumps({"ready": True, "version": "x 1"}), flush=True)
for i, line in enumerate(sys.stdin):
    if i == int(sys.argv[2]):
        sys.exit("that was too much")
    print(json.dumps({"seconds": float(i + 1)}), flush=True)
"""


def test_who_dies_or_is_not_installed_is_left_out_with_the_reason(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    lasts = contestants.Entry("lasts", str(program), ("100",))
    dies = contestants.Entry("dies", str(program), ("1",))
    missing = replace(lasts, name="missing", environment="no-such-peer")
    with contestants.Contest((lasts, dies, missing), tmp_path) as contest:
        assert contest.run(3) == {"lasts": [1.0, 2.0, 3.0]}
        process = contest.running["lasts"].process
    assert process.returncode is not None
    assert "that was too much" in contest.absent["dies"]
    assert "make bench" in contest.absent["missing"]


def test_a_steps_flops_are_those_of_the_formula():
    layers, width = 2, 64
    step = bench.Step(layers, width)
    tokens, context = bench.BATCH * bench.CONTEXT, bench.CONTEXT
    products = 3 * 2 * tokens * (12 * layers * width**2 + width * bench.VOCABULARY)
    attention = 7 * 2 * tokens * context * width * layers  # two products forward, five backward
    assert step.flops == pytest.approx(products + attention, rel=0.02)


def test_a_share_is_flops_over_time_over_the_peak():
    assert bench.Pace(step_s=2.0, flops=100.0, peak=80.0).share == 0.625


def test_a_plain_round_without_training_changes_nothing():
    plan = bench.gpt_plan(1, 32, steps=0, cohort=2)
    model = plan.model()
    weights = {n: p.detach().clone() for n, p in model.named_parameters()}
    after = bench.plain_round(weights, model, clients=2)
    assert all(torch.equal(after[n], w) for n, w in weights.items())


@pytest.mark.slow
def test_bench_prints_what_the_machine_can_do():
    result = CliRunner().invoke(app, ["bench", "--repeat", "1"])
    assert result.exit_code == 0, result.output
    for word in ("GPT 2x128 step", "eden2 encode", "over a plain loop", "GFLOP/s"):
        assert word in result.output
