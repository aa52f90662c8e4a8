"""The same plan embedded and on Flower's simulation: the same bits."""

import json
from functools import partial
from pathlib import Path

import pytest
import torch

pytest.importorskip("flwr")

from leftovers import nothing_is_left_running  # noqa: F401

from conftest import softmax_plan, text_plan
from fedbudget import constraints, rounds
from fedbudget.algorithms.pc_fedavg import pc_fedavg
from fedbudget.algorithms.scaffold import scaffold
from fedbudget.algorithms.terms import growing
from fedbudget.build import build
from fedbudget.client import Recipe
from fedbudget.config import validate
from fedbudget.engines.embedded import InProcess
from fedbudget.flower.simulation import simulate
from fedbudget.runner import Stop, execute
from fedbudget.runs import RunFolder
from fedbudget.tables import FleetTable

pytestmark = pytest.mark.flower

TINY = {
    "rounds": 4,
    "seed": 5,
    "data": {"source": "text", "clients": 4, "overlap": 0},
    "model": {"size": "2x16", "context": 16},
    "train": {"cohort": 3, "steps": 6, "batch": 4},
}
SHARES = {"energy": "40%", "communication": "20%", "memory": "90%", "temperature": "161%"}


def configured(folder, controller, **more):
    text = folder / "text.txt"
    text.write_text("the quick brown fox jumps over the lazy dog; " * 200)
    tables = {**TINY, "name": controller, "control": {"controller": controller}, **more}
    return build(validate({**tables, "data": {**TINY["data"], "path": str(text)}}, "test"))


def plans(folder):
    sgd = Recipe(optimizer="sgd")
    radii = (0.5, 1.0, 1.5)
    return {
        "fedavg": text_plan(),
        "cafl-l": configured(
            folder,
            "cafl-l",
            # what the papers' floors leave of so small a run
            budget={**SHARES, "energy": "100%", "memory": "100%", "accounting": "paper"},
            codec={"feedback": "error"},
        ),
        "planner": configured(folder, "planner", budget=SHARES),
        "scaffold": softmax_plan(algorithm=scaffold(), recipe=sgd, rounds=4, cohort=2),
        "pc-fedavg": softmax_plan(
            algorithm=pc_fedavg(3, growing(1.0), 0.1),
            recipe=sgd,
            rounds=4,
            cohort=2,
            constraints=[constraints.l1_ball(r) for r in radii],
        ),
    }


def course(plan, engine):
    """The rounds' records without times, the last state, and the agents' own models' figures."""
    layout = plan.build_model().layout
    records, state = [], (first := rounds.first_state(plan))
    with engine() as clients:
        for record, state in rounds.run(plan, clients, layout, first):
            told = json.loads(json.dumps(record.to_json()))
            # what is read from clocks is never twice the same
            told["usage"].pop("estimated", None)
            used = told["usage"].pop("measured")
            assert len(used) == len(told["cohort"]) - len(told["dropped"])
            assert all(own["time"] > 0 for own in used.values())
            records.append({k: v for k, v in told.items() if not k.endswith("_s")})
        sent = plan.algorithm.send(state.server)
        figures = clients.final(sent, state.acks)[0] if plan.constraints else {}
    return records, state, figures


@pytest.mark.parametrize("name", ["fedavg", "cafl-l", "planner", "scaffold", "pc-fedavg"])
def test_flower_gives_the_bits_of_the_embedded_engine(tmp_path, name):
    plan = plans(tmp_path)[name]
    records, state, figures = course(plan, partial(InProcess, plan))
    found = simulate(plan, tmp_path / "disk", 2, FleetTable(), partial(course, plan))
    assert found[0] == records
    assert found[2] == figures
    for vector, value in state.server.items():
        assert torch.equal(found[1].server[vector], value), vector
    assert any(r["dropped"] == {} for r in records)


class Until:
    """Stops a run after some round."""

    def __init__(self, stop, last):
        self.stop, self.last = stop, last

    def on_reply(self, reply):
        pass

    def on_round(self, record):
        self.stop.asked = record.round >= self.last


def into(plan, path: Path, last, where, start=None):
    folder = RunFolder(path) if start else RunFolder.create(path, "rounds = 1\n")
    stop = Stop()
    go = partial(execute, plan, folder, {})
    return where(lambda engine: go(engine, 1, Until(stop, last), stop, start))


def test_a_run_that_is_resumed_on_flower_ends_with_the_same_bits(tmp_path):
    """A new simulation knows nothing of the old one's contexts: residuals come from the disk."""
    plan = configured(tmp_path, "planner", budget=SHARES, codec={"feedback": "error"})
    into(plan, tmp_path / "whole", 4, lambda go: go(partial(InProcess, plan)))
    on_flower = partial(simulate, plan, tmp_path / "half" / "clients", 2, FleetTable())
    into(plan, tmp_path / "half", 2, on_flower)
    start = RunFolder(tmp_path / "half").load_checkpoint(print)
    assert start.state.round == 2
    assert any(start.clients.values())
    into(plan, tmp_path / "half", 4, on_flower, start)
    whole, half = (RunFolder(tmp_path / n).load_checkpoint(print) for n in ("whole", "half"))
    assert torch.equal(whole.state.weights, half.state.weights)
    for client, versions in whole.clients.items():
        for round, kept in versions.items():
            for name, value in kept.items():
                assert torch.equal(half.clients[client][round][name], value)


def test_a_problem_of_the_run_reaches_the_caller(tmp_path):
    plan = softmax_plan()

    def work(engine):
        raise ValueError("as it should")

    with pytest.raises(ValueError, match="as it should"):
        simulate(plan, tmp_path, 1, FleetTable(), work)
