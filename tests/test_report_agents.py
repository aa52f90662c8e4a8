"""Each agent's own figures, of runs with private sets."""

import json

import pytest
import torch

from fedbudget.constraints import l1_ball, top_k
from fedbudget.report.charts import charts
from fedbudget.report.constrained import agents_chart, constrained_sheet
from fedbudget.report.figures import drawn
from fedbudget.report.load import load_run
from made_runs import a_run
from test_pc_fedavg import M, constant, go, go_through, pc_plan


@pytest.mark.parametrize("kind", ["l1", "top-k"])
def test_a_summary_has_each_agents_distance_and_no_secret(tmp_path, kind):
    sets = [l1_ball(0.1 + 0.1 * i) if kind == "l1" else top_k(i + 1) for i in range(M)]
    plan = pc_plan(constant(1.0), 0.1, cohort=3, sets=sets)
    agents = go(plan, tmp_path / "r")["personal"]["agents"]
    *_, (_, _, own) = go_through(plan)
    inside = torch.stack([s.project(x) for s, x in zip(plan.constraints, own, strict=True)])
    assert agents["distance"] == pytest.approx((own - inside).norm(dim=-1).tolist())
    if kind == "l1":
        zeros = (inside == 0).double().mean(-1).tolist()
        assert agents["projected_sparsity"] == pytest.approx(zeros)
    else:
        assert set(agents) == {"distance"}  # the share of zeros would be 1 - k / d


def with_agents(path, seed, **agents):
    a_run(path, "pc", seed)
    summary = json.loads((path / "summary.json").read_text())
    summary["personal"] = {"projected_sparsity": 0.5, "agents": agents}
    (path / "summary.json").write_text(json.dumps(summary))
    return load_run(path)


def test_the_chart_has_a_point_an_agent_and_a_bar_over_seeds(tmp_path):
    runs = [
        with_agents(tmp_path / "a", 0, distance=[0.0, 0.2], projected_sparsity=[0.4, 0.6]),
        with_agents(tmp_path / "b", 1, distance=[0.0, 0.4], projected_sparsity=[0.4, 0.8]),
    ]
    chart = agents_chart(runs)
    away, sparse = (panel.lines[0] for panel in chart.panels)
    assert (away.x, away.y, away.points) == ([0, 1], (0.0, pytest.approx(0.3)), True)
    assert (sparse.low, sparse.high) == ((0.4, 0.6), (0.4, 0.8))
    assert away.to_json()["points"] is True
    assert chart.name in [chart.name for chart in charts(runs)]
    curve = drawn(chart).axes[0].lines[0]
    assert (curve.get_linestyle(), curve.get_marker()) == ("None", "o")
    assert "agents" not in constrained_sheet(runs).columns
    for odd in ({"distance": "x"}, {"distance": [None, "a"]}, {}):
        assert agents_chart([with_agents(tmp_path / "odd", 0, **odd)]) is None
