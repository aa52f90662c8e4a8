"""The notebooks run from top to bottom and show what their words say."""

import runpy
from pathlib import Path

import pytest

NOTEBOOKS = Path(__file__).parents[1] / "examples" / "notebooks"


@pytest.fixture(autouse=True)
def no_window(monkeypatch):
    monkeypatch.setenv("MPLBACKEND", "agg")
    pytest.importorskip("marimo")


def run(name: str) -> dict:
    """What the cells define, as a script defines it."""
    _, found = runpy.run_path(str(NOTEBOOKS / name))["app"].run()
    return found


def test_budgets_are_kept_by_the_planner_from_the_first_round():
    plain, duals, planned = run("budgets.py")["runs"]
    over = [r.summary["usage"]["counted"]["energy"]["rounds_over"] for r in (plain, duals, planned)]
    assert over[0] == 12
    assert 0 < over[1] < 12
    assert over[2] == 0
    assert duals.records[-1].duals["*"]["energy"] > 0
    assert planned.losses[-1] < planned.losses[0]


def test_own_models_stay_near_their_sets_and_a_shared_one_does_not():
    found = run("private_sets.py")
    far = [
        [float(found["distance"](s, found["weights"](run.personal(i)))) for i, s in enumerate(sets)]
        for run, sets in ((found["own"], found["sets"]), (found["shared"], found["sets"]))
    ]
    assert max(far[0]) < 0.2 * min(far[1])


def test_every_notebook_is_tested_and_has_a_page():
    names = {p.name for p in NOTEBOOKS.glob("*.py")}
    assert names == {"budgets.py", "private_sets.py"}
    page = (NOTEBOOKS.parents[1] / "docs" / "notebooks.md").read_text()
    assert all(f"<!-- notebook examples/notebooks/{name} -->" in page for name in names)
