"""Reports and protocols, on records whose answers are known."""

from pathlib import Path

import pytest

from fedbudget.config import find_config, load
from fedbudget.errors import UserError
from fedbudget.protocols import halved, plan_runs, robust
from fedbudget.report.course import _dual_course, duals_figure, knobs_figure, usage_figure
from fedbudget.report.figures import pictures
from fedbudget.report.html import page
from fedbudget.report.load import Loaded
from fedbudget.report.robustness import robustness_sheet
from fedbudget.report.standing import class_rows, limits, worst
from fedbudget.report.tables import caption, comparison, energy
from fedbudget.report.target import cost_to, default_target, target_rows, target_sheet
from fedbudget.report.write import write_report
from fedbudget.runs import summarise

BASE = {"layers": 3, "steps": 8, "batch": 4, "accumulate": 1, "codec": "raw32"}


def record(round, used, loss=2.0, accounting="counted", **more):
    """A round in which client c used used[c] joules and ten times as many bytes."""
    usage = {str(c): {"energy": u, "communication": 10 * u} for c, u in used.items()}
    return {
        "round": round,
        "cohort": sorted(used),
        "knobs": {"*": BASE},
        "validation": {"loss": loss, "accuracy": 0.5},
        "up_bytes": 100,
        "down_bytes": 100,
        "usage": {accounting: usage},
        "dropped": {},
        **dict.fromkeys(("train_s", "evaluate_s", "wall_s"), 1.0),
        **more,
    }


def made(name, records, budgets=(), seed=0, accounting="counted"):
    about = {"name": name, "seed": seed, "clients": 4}
    summary = summarise(records, about, len(records), {accounting: list(budgets)})
    return Loaded(Path(name), summary, records, "")


TWO = [{"energy": 1.0, "communication": 20.0}, {"energy": 2.0, "communication": 20.0}]


def two_classes():
    """Clients 0 and 2 may use 1 J, 1 and 3 may use 2 J; client 2 joins late."""
    return made(
        "classes",
        [
            record(1, {0: 3.0, 1: 2.0}, duals={}),
            record(2, {0: 1.0, 1: 2.0}, duals={"0": {"energy": 0.4}, "1": {"energy": 0.0}}),
            record(3, {2: 2.0, 3: 1.0}, duals={"2": {}, "3": {}}),
            record(4, {0: 0.5, 2: 1.0}, duals={"0": {"energy": 0.4}, "2": {"energy": 0.2}}),
        ],
        TWO,
    )


def test_each_class_is_held_against_its_own_budget():
    run = two_classes()
    energy, _ = limits(run)
    assert worst(run, energy, 0) == [(1, 3.0), (2, 1.0), (3, 2.0), (4, 1.0)]
    assert worst(run, energy, 1) == [(1, 1.0), (2, 1.0), (3, 0.5)]
    rows = {(row[1], row[2]): row for row in class_rows([run])}
    assert rows["0", "energy"][4:] == ["1 J", "1.50", "3.00", "2 of 4"]
    assert rows["1", "energy"][4:] == ["2 J", "0.83", "1.00", "0 of 3"]
    assert class_rows([made("one", run.records, TWO[:1])]) == []


def test_a_client_that_sits_out_keeps_its_dual_and_a_new_one_starts_at_0():
    course = _dual_course([two_classes()], "energy", 0, 2)
    assert course == {
        1: (0.0, 0.0, 0.0),
        2: (0.2, 0.0, 0.4),
        3: (0.2, 0.0, 0.4),
        4: (pytest.approx(0.3), 0.2, 0.4),
    }


def test_the_limit_is_drawn_in_every_panel_and_the_accounting_named():
    budget = [{"energy": 1.0, "communication": 20.0}]
    paper = [record(1, {0: 9.0}, accounting="paper"), record(2, {0: 1.0}, accounting="paper")]
    runs = [
        made("ours", [record(1, {0: 1.0}), record(2, {0: 0.5})], budget),
        made("theirs", paper, budget, accounting="paper"),
    ]
    panels = [a for a in usage_figure(runs).axes if a.get_visible()]
    titles = [a.get_title(loc="left").splitlines()[0] for a in panels]
    assert titles == [
        *("energy, counted", "communication, counted", "energy, paper", "communication, paper")
    ]
    for axes in panels:
        assert any(list(line.get_ydata()) == [1, 1] for line in axes.lines)
        assert axes.get_xlabel() == "round"
        assert axes.get_ylabel() == "usage / budget"
    assert "do not compare one with the other" in caption(runs)
    sheet = comparison(runs)
    assert [row[list(sheet.columns).index("budgets")] for row in sheet.rows] == ["counted", "paper"]


def test_classes_have_a_line_each():
    for figure in (usage_figure([two_classes()]), duals_figure([two_classes()])):
        axes = next(a for a in figure.axes if "energy" in a.get_title(loc="left"))
        labels = axes.get_legend_handles_labels()[1]
        assert labels == ["device class 0", "device class 1"]


def test_knobs_are_drawn_with_codecs_by_their_bits():
    courses = [
        record(i, {0: 1.0}, knobs={"*": {**BASE, "codec": codec}})
        for i, codec in enumerate(("raw32", "eden1.6", "int8", "eden2"), 1)
    ]
    figure = knobs_figure([made("run", courses)])
    last = [a for a in figure.axes if a.get_visible()][-1]
    assert [t.get_text() for t in last.get_yticklabels()] == ["eden1.6", "eden2", "int8", "raw32"]
    (line,) = last.lines
    assert list(line.get_ydata()) == [3, 0, 2, 1]


def test_old_runs_without_duals_knobs_or_usage_still_make_a_report(tmp_path):
    old = [record(1, {0: 1.0}), record(2, {0: 1.0})]
    for line in old:
        del line["knobs"]
        line["usage"] = {}
    run = made("old", [{**line, "knobs": {}} for line in old])
    bare = Loaded(run.path, run.summary, old, "")
    assert [p.name for p in pictures([bare])] == ["loss"]
    assert energy(bare) is None
    assert "<svg" in page([bare])
    assert write_report([bare], tmp_path / "r.pdf") == [tmp_path / "r.pdf"]


def test_every_figure_is_on_the_page_and_in_a_file_of_its_own(tmp_path):
    run = two_classes()
    names = [p.name for p in pictures([run])]
    assert names == ["loss", "usage", "duals", "knobs"]
    assert page([run]).count("<figure>") == 4
    assert "device classes" in page([run])
    for suffix in ("png", "svg"):
        files = write_report([run], tmp_path / f"r.{suffix}")
        assert [f.name for f in files] == [
            *(f"r.{suffix}", f"r-usage.{suffix}", f"r-duals.{suffix}", f"r-knobs.{suffix}")
        ]
        assert all(f.stat().st_size > 1000 for f in files)


def course(name, losses, joules, seed):
    return made(name, [record(i, {0: joules}, loss) for i, loss in enumerate(losses, 1)], seed=seed)


def test_the_default_target_is_the_first_configs_mean_loss_at_60_percent():
    runs = [
        course("a", (5, 4, 3.0, 2, 1), 10.0, 0),
        course("a", (5, 4, 3.4, 2, 1), 10.0, 1),
        course("b", (6, 5, 4, 3.1, 1), 2.0, 0),
        course("b", (6, 5, 4, 4, 4), 2.0, 1),
    ]
    target, at = default_target(runs)
    assert (target, at) == (pytest.approx(3.2), 3)
    assert cost_to(runs[1], target)["rounds"] == 4
    first, other = target_rows(runs, target)
    assert first[:3] == ["a", "2 of 2", "4 ± 1"]
    assert other[:3] == ["b", "1 of 2", "4"]
    assert other[3:5] == ["8.00 J", "26.7%"]  # 4 rounds of 2 J, seed 0 of "a" took 3 of 10 J
    text = target_sheet(runs, target, at).caption
    assert "b took 26.7% of the energy and 133.3% of the uplink" in text
    unseen = [{**r, "validation": None} for r in runs[0].records]
    with pytest.raises(UserError, match="was not evaluated in round 3"):
        default_target([Loaded(Path("a"), runs[0].summary, unseen, "")])


def test_half_a_budget_is_half_the_rise_and_never_below_what_idling_costs():
    assert halved({"energy": 4.0, "temperature": 3.0}, "counted") == {
        "energy": 2.0,
        "temperature": 1.5,
    }
    paper = halved({"energy": 4.0, "temperature": 0.75, "memory": 0.306}, "paper")
    assert paper == pytest.approx({"energy": 2.0, "temperature": 0.55, "memory": 0.256})


TINY = ["data.source=topics", "model.size=1x32", "model.context=32", "control.least_steps=1"]


def test_robustness_runs_have_fixed_names_and_half_the_fleet_is_poorer(tmp_path):
    paths = [find_config("fedavg"), find_config("planner")]
    every = plan_runs(paths, TINY, 2, tmp_path, "robustness")
    names = list(dict.fromkeys(settings.name for settings in every.values()))
    assert names == [
        *("fedavg", "fedavg+drop30%", "fedavg+half"),
        *("planner", "planner+drop30%", "planner+half"),
    ]
    assert tmp_path / "planner+half" / "seed-1" in every
    by_name = {settings.name: settings for settings in every.values()}
    assert by_name["fedavg+drop30%"].train.drop == 0.3
    assert by_name["fedavg"].control.controller == "fixed"
    assert by_name["fedavg"].budget == by_name["planner"].budget  # it names none of its own
    rich, poor = by_name["planner+half"].budget.classes
    assert set(rich) == set(by_name["planner"].budget.classes[0])
    assert all(poor[r] == rich[r] / 2 for r in rich)
    assert plan_runs(paths, TINY, 1, tmp_path, "quality").keys() == {
        *(tmp_path / name / "seed-0" for name in ("fedavg", "planner"))
    }


def test_robustness_needs_a_budget_and_configs_different_names(tmp_path):
    with pytest.raises(UserError, match="none of the configs names a budget"):
        robust(find_config("fedavg"), TINY, [find_config("fedavg")])
    same = tmp_path / "fedavg.toml"
    same.write_bytes(find_config("fedavg").read_bytes())
    assert load(same).name == "fedavg"
    with pytest.raises(UserError, match="two configs have the same name"):
        plan_runs([find_config("fedavg"), same], TINY, 1, tmp_path, "quality")


def test_robustness_compares_each_condition_with_its_own_config_by_seed():
    budget = [{"energy": 1.0}]
    runs = [
        made("a", [record(1, {0: 1.0}, 2.0)], budget, 0),
        made("a", [record(1, {0: 1.0}, 4.0)], budget, 1),
        made("a+half", [record(1, {0: 2.0}, 2.2)], budget, 0),
        made("a+half", [record(1, {0: 2.0}, 4.4)], budget, 1),
    ]
    base, half = robustness_sheet(runs).rows
    assert base[:4] == ["a", "as it is", "3.000 ± 1.414", ""]
    assert half[:4] == ["a", "half the fleet at half", "3.300 ± 1.556", "+10.0 ± 0.0%"]
    assert half[4:] == ["counted", "2.00 ± 0.00, 2.00, 1/1"]
