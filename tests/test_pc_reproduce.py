"""reproduce pc-fedavg: the oracle, the reading of the sweep, the rates, and the command itself."""

import math
import subprocess
import sys

import cvxpy
import numpy as np
import pytest
import torch

from conftest import data_folder
from fedbudget.data.examples import Arrays
from fedbudget.reproduce import optimum, rates
from fedbudget.reproduce.pc_tables import Point, at_level


def test_the_least_objective_over_an_l1_ball_is_that_of_cvxpy():
    rng = np.random.default_rng(0)
    clients = []
    for size in (30, 50):  # agents count alike, whatever their number of examples
        x = rng.normal(size=(size, 4))
        y = rng.integers(3, size=size)
        clients.append(Arrays(torch.from_numpy(x).float(), torch.from_numpy(y)))
    radius = 1.5
    w, b = cvxpy.Variable((3, 4)), cvxpy.Variable(3)
    losses = []
    for part in clients:
        logits = part.x.numpy() @ w.T + np.ones((len(part), 1)) @ cvxpy.reshape(b, (1, 3), "C")
        own = cvxpy.sum(cvxpy.multiply(np.eye(3)[part.y.numpy()], logits))
        losses.append((cvxpy.sum(cvxpy.log_sum_exp(logits, axis=1)) - own) / len(part))
    ball = cvxpy.norm1(cvxpy.vec(w, "C")) + cvxpy.norm1(b) <= radius
    problem = cvxpy.Problem(cvxpy.Minimize(sum(losses) / 2), [ball])
    problem.solve()
    found, model = optimum.least(clients, 3, radius, 800)
    assert found == pytest.approx(problem.value, abs=1e-4)
    assert float(model.abs().sum()) <= radius * (1 + 1e-5)


def point(worst, objective):
    record = {"round": 1, "validation": {"worst_infeasibility": worst, "objective": objective}}
    return Point("m", 1.0, 1.0, 0, {}, [record])


def test_the_objective_at_a_level_lies_between_the_best_points_around_it():
    sweep = [point(0.1, 2.0), point(1.0, 1.0), point(0.5, 3.0)]  # the last is beaten by the first
    assert at_level(sweep, 0.1) == 2.0
    middle = at_level(sweep, math.sqrt(0.1))
    assert middle == pytest.approx(1.5)
    assert at_level(sweep, 5.0) == 1.0
    assert at_level(sweep, 0.05) is None


def test_squared_infeasibility_falls_as_theorem_3_4_says():
    found = [rates.measure(horizon, seed=0) for horizon in (16, 64)]
    assert rates.slope(found, "squared") < -0.6
    assert found[1].below < found[0].below
    assert "theory" in rates.table(found)


@pytest.mark.slow
def test_the_quick_command_writes_tables_and_figures(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDBUDGET_DATA", str(data_folder("mnist")))
    command = [sys.executable, "-m", "fedbudget.cli", "reproduce", "pc-fedavg", "--quick"]
    done = subprocess.run(
        [*command, "--out", str(tmp_path / "r")], capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, done.stderr
    assert "penalised SCAFFOLD" in done.stdout
    for name in ("mnist.md", "mnist-sweep.png", "mnist-objective.png", "rates.md", "rates.png"):
        assert (tmp_path / "r" / name).stat().st_size > 100
