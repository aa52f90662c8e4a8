"""Reports and protocols, on records whose answers are known."""

from dataclasses import replace
from pathlib import Path

import pytest

from fedbudget.build import build
from fedbudget.config import find_config, load
from fedbudget.errors import UserError
from fedbudget.protocols import halved, plan_runs, robust
from fedbudget.report.charts import charts
from fedbudget.report.constrained import constrained_chart, constrained_sheet
from fedbudget.report.differences import differences
from fedbudget.report.figures import drawn
from fedbudget.report.fleet import fleet_chart
from fedbudget.report.knobs import knobs_chart, layers_chart
from fedbudget.report.load import Loaded, told_apart
from fedbudget.report.loss import cost_chart, loss_chart
from fedbudget.report.robustness import robustness_sheet
from fedbudget.report.standing import class_rows, limits, worst
from fedbudget.report.tables import caption, comparison, energy
from fedbudget.report.target import cost_to, default_target, target_rows, target_sheet
from fedbudget.report.traffic import failures_chart, failures_sheet, ranges, traffic_chart
from fedbudget.report.usage import dual_course, duals_chart, usage_chart
from fedbudget.report.verdict import verdict
from fedbudget.report.write import write_report
from fedbudget.summary import idle, summarise
from fedbudget.types import DROPPED_OUT

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


def made(name, records, budgets=(), seed=0, accounting="counted", rounds=0, config="", facts=None):
    about = {"name": name, "seed": seed, "clients": 4}
    summary = summarise(records, about, rounds or len(records), {accounting: list(budgets)})
    return Loaded(Path(name) / f"seed-{seed}", summary, records, config, facts or {})


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
    course = dual_course([two_classes()], "energy", 0, 2)
    assert course == {
        1: (0.0, 0.0, 0.0),
        2: (0.2, 0.0, 0.4),
        3: (0.2, 0.0, 0.4),
        4: (pytest.approx(0.3), 0.2, 0.4),
    }


def test_of_duals_that_a_class_shares_every_client_has_the_last_that_is_known():
    """A client's own dual is 0 when it is first asked; here client 2's is not."""
    shared = made(
        "classes",
        [
            record(1, {0: 3.0, 1: 2.0}, duals={"0": {"energy": 0.0}, "1": {"energy": 0.0}}),
            record(2, {2: 1.0, 3: 2.0}, duals={"2": {"energy": 0.4}, "3": {"energy": 0.0}}),
            record(3, {1: 2.0}, duals={"1": {"energy": 0.1}}),
            record(4, {0: 0.5}, duals={"0": {"energy": 0.5}}),
        ],
        TWO,
    )
    same = {which: dual_course([shared], "energy", which, 2) for which in (0, 1)}
    assert {r: point[1:] for r, point in same[0].items()} == {
        1: (0.0, 0.0),
        2: (0.4, 0.4),
        3: (0.4, 0.4),
        4: (0.5, 0.5),
    }
    assert same[1][3][1:] == (0.0, 0.1)  # nobody says that class 1 shares: 1 was asked before


def test_the_limit_is_in_every_panel_and_the_accounting_named():
    budget = [{"energy": 1.0, "communication": 20.0}]
    paper = [record(1, {0: 9.0}, accounting="paper"), record(2, {0: 1.0}, accounting="paper")]
    runs = [
        made("ours", [record(1, {0: 1.0}), record(2, {0: 0.5})], budget),
        made("theirs", paper, budget, accounting="paper"),
    ]
    chart = usage_chart(runs)
    assert [[panel.title for panel in row] for row in chart.rows] == [
        ["energy, counted: budget 1 J", "communication, counted: budget 20 B"],
        ["energy, paper: budget 1", "communication, paper: budget 20"],
    ]
    for panel in chart.panels:
        assert (panel.limit, panel.x, panel.y) == (1.0, "round", "usage / budget (1 = the limit)")
    ours, theirs = chart.panels[0].lines[0], chart.panels[2].lines[0]
    assert (ours.x, ours.y, ours.place) == ([1, 2], (1.0, 0.5), 0)
    assert (theirs.name, theirs.y, theirs.place) == ("theirs", (9.0, 1.0), 1)
    assert [panel.log for panel in chart.panels] == [False, False, True, True]
    assert "do not compare one with the other" in caption(runs)
    sheet = comparison(runs)
    assert [row[list(sheet.columns).index("budgets")] for row in sheet.rows] == ["counted", "paper"]


def test_matplotlib_draws_what_the_chart_says():
    run = two_classes()
    chart = usage_chart([run])
    figure = drawn(chart)
    panels = [a for a in figure.axes if a.get_visible()]
    assert [a.get_xlabel() for a in panels] == ["round"] * 2
    for axes, panel in zip(panels, chart.panels, strict=True):
        curves, limit = axes.lines[:-1], axes.lines[-1]
        assert list(limit.get_ydata()) == [1, 1]
        for curve, line in zip(curves, panel.lines, strict=True):
            assert (list(curve.get_xdata()), list(curve.get_ydata())) == (line.x, list(line.y))
            assert curve.get_label() == line.name
    assert [t.get_text() for t in figure.legends[0].get_texts()] == [
        *("device class 0", "device class 1")
    ]


def test_classes_have_a_line_each():
    for chart in (usage_chart([two_classes()]), duals_chart([two_classes()])):
        panel = next(p for p in chart.panels if "energy" in p.title)
        assert [line.name for line in panel.lines] == ["device class 0", "device class 1"]


def test_knobs_are_drawn_with_codecs_by_their_bits():
    courses = [
        record(i, {0: 1.0}, knobs={"*": {**BASE, "codec": codec}})
        for i, codec in enumerate(("raw32", "eden1.6", "int8", "eden2"), 1)
    ]
    chart = knobs_chart([made("run", courses)])
    panel = chart.panels[-1]
    assert panel.categories == ["eden1.6", "eden2", "int8", "raw32"]
    (line,) = panel.lines
    assert (line.x, line.y, line.steps) == ([1, 2, 3, 4], (3, 0, 2, 1), True)
    last = [a for a in drawn(chart).axes if a.get_visible()][-1]
    assert [t.get_text() for t in last.get_yticklabels()] == panel.categories


def test_a_knob_is_the_middle_clients_and_examples_are_a_product():
    own = {str(c): {**BASE, "steps": steps} for c, steps in enumerate((2, 10, 6))}
    chart = knobs_chart([made("run", [record(1, {0: 1.0, 1: 1.0, 2: 1.0}, knobs=own)])])
    steps, examples = chart.panels[1].lines[0], chart.panels[4].lines[0]
    assert (steps.y, steps.low, steps.high) == ((6,), (2,), (10,))
    assert (examples.y, examples.low, examples.high) == ((24,), (8,), (40,))


def test_the_strip_shows_which_share_of_clients_trained_each_layer_group():
    both = {"0": {**BASE, "layers": 3}, "1": {**BASE, "layers": 1}}
    records = [record(1, {0: 1.0, 1: 1.0}, knobs=both), record(2, {0: 1.0})]
    named = made("named", records, facts={"layers": ["in", "low", "mid", "out"]})
    bare = made("bare", records)
    first, second = layers_chart([named, bare]).panels
    assert (first.strip.rows, first.strip.x) == (["in", "low", "mid", "out"], [1, 2])
    assert first.strip.shares == [[0, 0], [0.5, 1], [0.5, 1], [1, 1]]
    assert second.strip.rows == ["3 from the top", "2 from the top", "top"]
    assert second.strip.shares == [[0.5, 1], [0.5, 1], [1, 1]]
    shown = [a for a in drawn(layers_chart([named])).axes if a.get_visible()]
    assert [t.get_text() for t in shown[0].get_yticklabels()] == ["in", "low", "mid", "out"]


def test_old_runs_without_duals_knobs_or_usage_still_make_a_report(tmp_path):
    old = [record(1, {0: 1.0}), record(2, {0: 1.0})]
    for line in old:
        del line["knobs"]
        line["usage"] = {}
    run = made("old", [{**line, "knobs": {}} for line in old])
    bare = Loaded(run.path, run.summary, old, "")
    assert [chart.name for chart in charts([bare])] == ["loss", "cost", "traffic"]
    assert energy(bare) is None
    files = write_report([bare], tmp_path / "r.pdf")
    assert [f.name for f in files] == ["r.pdf", "r-cost.pdf", "r-traffic.pdf"]


ALL = ["loss", "cost", "usage", "duals", "knobs", "layers", "traffic"]


def test_every_figure_is_in_a_file_of_its_own_and_a_folder_has_all(tmp_path):
    run = two_classes()
    assert [chart.name for chart in charts([run])] == ALL
    for suffix in ("png", "svg"):
        files = write_report([run], tmp_path / f"r.{suffix}")
        assert [f.name for f in files] == [
            *(f"r.{suffix}", *(f"r-{name}.{suffix}" for name in ALL[1:]))
        ]
        assert all(f.stat().st_size > 1000 for f in files)
    expected = {"report.html", *(f"{n}.{s}" for n in ALL for s in ("png", "svg", "pdf"))}
    for out, folder in ((tmp_path / "new", True), (tmp_path / "there", False)):
        (tmp_path / "there").mkdir(exist_ok=True)
        assert {f.name for f in write_report([run], out, folder=folder)} == expected
        assert {f.name for f in out.iterdir()} == expected
    with pytest.raises(UserError, match="a folder's name ends in /"):
        write_report([run], tmp_path / "nowhere")


def test_pictures_carry_their_caption_and_the_command_that_made_the_data(tmp_path):
    run = made("a", [record(1, {0: 1.0})], facts={"command": "fedbudget run a --out runs/a"})
    assert all(chart.commands == ["fedbudget run a --out runs/a"] for chart in charts([run, run]))
    write_report([run], tmp_path / "r.svg")
    text = (tmp_path / "r.svg").read_text()
    assert "Made by: fedbudget run a --out runs/a" in text
    assert "Validation loss after each round" in text
    assert charts([made("b", [record(1, {0: 1.0})])])[0].commands == []


def test_seeds_are_a_mean_with_a_band_over_those_that_reached_the_round():
    runs = [
        made("a", [record(1, {0: 1.0}, 4.0), record(2, {0: 1.0}, 2.0)], seed=0),
        made("a", [record(1, {0: 1.0}, 6.0), record(2, {0: 1.0}, 3.0)], seed=1),
        made("b", [record(1, {0: 1.0}, 5.0)]),
        made("a", [], seed=2),
    ]
    (panel,) = loss_chart(runs).panels
    a, b = panel.lines
    assert (a.name, a.x, a.y, a.low, a.high) == (
        *("a (3 seeds): ends at 2.500", [1, 2], (5.0, 2.5), (4.0, 2.0), (6.0, 3.0)),
    )
    assert (b.name, b.place, b.banded) == ("b: ends at 5.000", 1, False)
    early = [*runs[:2], made("a", [record(1, {0: 1.0}, 8.0)], seed=2)]
    (line,) = loss_chart(early).panels[0].lines
    assert (line.x, line.y, line.high) == ([1, 2], (6.0, 2.5), (8.0, 3.0))
    assert "seeds that reached it" in loss_chart(early).caption
    for panel in cost_chart(early).panels:  # no line goes back where a seed ended
        assert (len(panel.lines[0].x), panel.lines[0].y) == (2, (5.0, 2.5))


def test_loss_is_held_against_what_was_spent_by_then_over_all_clients():
    seeds = [
        made(
            "a",
            [
                record(1, {0: 1e3, 1: 2e3}, 4.0, up_bytes=4_000_000, wall_s=60.0),
                record(2, {0: 1e3}, None, up_bytes=4_000_000, wall_s=60.0),
                record(3, {0: scale * 1e3}, 2.0, up_bytes=4_000_000, wall_s=120.0),
            ],
            seed=scale,
        )
        for scale in (1, 3)
    ]
    energy, uplink, time = cost_chart(seeds).panels
    assert [p.x for p in (energy, uplink, time)] == [
        "counted energy of all clients (kJ)",
        "uplink of all clients (MB)",
        "time of the run (min)",
    ]
    assert energy.lines[0].x == [3.0, 6.0]  # 5 and 7 kJ after round 3; round 2 was not evaluated
    assert uplink.lines[0].x == [4.0, 12.0]
    assert time.lines[0].x == [1.0, 4.0]
    assert energy.lines[0].y == (4.0, 2.0)


def test_bytes_and_failures_by_round():
    runs = [
        made(
            "a",
            [
                record(1, {0: 1.0}, up_bytes=2000, down_bytes=50_000),
                record(2, {0: 1.0}, up_bytes=3000, dropped={"1": "took 5.1 s", "2": "took 7 s"}),
                record(3, {0: 1.0}, up_bytes=4000, dropped={"1": "took 9 s"}, late=2, skipped=[3]),
            ],
        )
    ]
    up, down = traffic_chart(runs).panels
    assert (up.y, up.lines[0].y) == ("uplink of a round (kB)", [2.0, 3.0, 4.0])
    assert (down.log, down.lines[0].y) == (True, [50.0, 0.1, 0.1])
    chart = failures_chart(runs)
    assert [(p.title, p.lines[0].y) for p in chart.panels] == [
        ("Replies not used", (0, 2, 1)),
        ("Replies that came too late", (0, 0, 2)),
        ("Updates kept back", (0, 0, 1)),
    ]
    assert failures_sheet(runs).rows == [
        ["a", "replies not used", "took N s", "3", "2-3"],
        ["a", "replies that came too late", "", "2", "3"],
        ["a", "updates kept back", "", "1", "3"],
    ]
    assert failures_sheet([two_classes()]) is None
    assert ranges([5, 1, 2, 9, 8, 8]) == "1-2, 5, 8-9"


def test_constrained_runs_show_objective_and_distances():
    def seen(round, away):
        found = {"loss": 1.0, "objective": 2.0, "infeasibility": away, "worst_infeasibility": 1.0}
        return record(round, {0: 1.0}, validation=found)

    run = made("pc", [seen(1, 0.5), seen(2, 0.0)])
    personal = {"projected_sparsity": 0.25}
    run = Loaded(run.path, {**run.summary, "personal": personal}, run.records, "")
    chart = constrained_chart([run])
    assert [p.lines[0].y for p in chart.panels] == [(2.0, 2.0), (0.5, 0.0), (1.0, 1.0)]
    sheet = constrained_sheet([run])
    assert sheet.columns[2:] == (
        "objective",
        "mean distance",
        "worst distance",
        "projected sparsity",
    )
    assert sheet.rows == [["pc", "1", "2", "0.25", "1", "0.25"]]
    assert constrained_chart([two_classes()]) is None
    assert constrained_sheet([two_classes()]) is None


CONFIG = 'name = "x"\nseed = {}\nrounds = 5\n[train]\nlr = {}\n'


def test_only_settings_that_differ_are_listed():
    runs = [
        made("a", [], config=CONFIG.format(0, 0.1)),
        made("a", [], seed=1, config=CONFIG.format(1, 0.1)),
        made("b", [], config=CONFIG.format(0, 0.2) + 'new = "x"\n[budget]\nenergy = "1 J"\n'),
        made("c", []),
    ]
    sheet = differences(runs)
    assert sheet.columns == ("key", "a", "b")
    assert sheet.rows == [["train.lr", "0.1", "0.2"], ["budget.energy", "–", "1 J"]]
    assert "No configuration: c/seed-0" in sheet.caption
    assert differences(runs[:2]) is None


def test_runs_of_one_name_with_other_settings_are_no_seeds():
    a, b = (made("x", [], seed=s, config=CONFIG.format(s, 0.1)) for s in (0, 1))
    other = Loaded(Path("y/seed-0"), a.summary, [], CONFIG.format(0, 0.2))
    assert [run.name for run in told_apart([a, b])] == ["x", "x"]
    assert [run.name for run in told_apart([a, b, other])] == ["x (x)", "x (x)", "x (y)"]
    assert told_apart(told_apart([a, b, other])) == told_apart([a, b, other])
    older, newer = (CONFIG.format(s, 0.1) + '[budget]\nenergy = "1 J"\n' for s in (0, 1))
    pair = [made("x", [], config=older), made("x", [], seed=1, config=newer + "resources = []\n")]
    assert [run.name for run in told_apart(pair)] == ["x", "x"]
    shown = 'track = "{}"\n[constraints]\nsave_personal = {}\n'
    seeds = [
        made("x", [], seed=s, config=shown.format(*own))
        for s, own in enumerate((("none", "true"), ("tensorboard", "false")))
    ]
    assert [run.name for run in told_apart(seeds)] == ["x", "x"]


def plain(name, losses, used=1.0, budget=None, seed=0, rounds=0):
    records = [record(i, {0: used}, loss) for i, loss in enumerate(losses, 1)]
    return made(name, records, [budget] if budget else (), seed, rounds=rounds)


def test_the_verdict_names_budgets_accounting_and_the_loss_over_the_free_run():
    runs = [
        plain("fedavg", [2.0, 2.0]),
        plain("planner", [2.02, 2.02], budget={"energy": 1.0, "communication": 10.0}),
        plain("loose", [1.9, 1.9], used=3.0, budget={"energy": 2.0, "communication": 40.0}),
    ]
    assert verdict(runs) == [
        "fedavg (no budgets) ends at a validation loss of 2.000.",
        "planner kept both budgets (counted) in 2 of 2 rounds, at +1.0% loss over fedavg.",
        "loose broke budgets (counted) in 2 of 2 rounds: energy in 2 (worst 1.5×); it kept "
        "communication; -5.0% loss over fedavg.",
    ]


def test_the_verdict_says_what_is_unfinished_and_compares_what_both_have():
    runs = [
        plain("fedavg", [4.0, 3.0, 2.0], seed=0),
        plain("fedavg", [4.0, 3.0, 2.0], seed=1),
        plain("late", [4.4], seed=1, rounds=3, budget={"energy": 1.0}),
    ]
    assert verdict(runs) == [
        "fedavg (no budgets) ends at a validation loss of 3.000 ± 0.000 over 2 seeds.",
        "late kept its energy budget (counted) in 1 of 1 rounds, at +10.0% loss over fedavg "
        "(seed 1 of both) by round 1, the last that both have.",
        "late has done 1 of 3 rounds.",
    ]
    assert verdict([plain("a", [])]) == ["No run has been evaluated yet."]
    # twice the rounds with half of the budgets each: what counts is where they end
    often = [
        plain("fedavg", [4.0, 2.0]),
        plain("often", [4.0, 3.0, 2.5, 2.1], budget={"energy": 1}),
    ]
    # the mean of each run's last evaluations, up to five
    assert verdict(often)[1].endswith("at -3.3% loss over fedavg, each at its own end.")
    # one seed that is under way: all at what both have, not some at their ends
    seeds = [
        *(plain("fedavg", [4.0, 2.0], seed=seed) for seed in (0, 1)),
        plain("often", [4.4, 2.2, 1.0, 1.0], seed=0, budget={"energy": 1}),
        plain("often", [4.4, 2.2, 1.0], seed=1, rounds=4, budget={"energy": 1}),
    ]
    assert "at +10.0% loss over fedavg by round 2, the last that both have." in verdict(seeds)[1]
    twice = verdict([plain("a", [1.0]), plain("a", [1.0])])
    assert "a: seed 0 is there more than once." in twice
    assert (
        "different numbers of rounds (1, 2)" in verdict([plain("a", [1]), plain("b", [1, 1])])[-1]
    )


def steered(run, controller):
    return Loaded(run.path, {**run.summary, "controller": controller}, run.records, run.config)


def test_the_reference_is_the_run_whose_knobs_do_not_follow_budgets():
    tight = {"energy": 0.5}
    fedavg = steered(plain("fedavg", [2.0, 2.0], budget=tight), "fixed")
    late = steered(plain("fedavg", [2.1], budget=tight, seed=1, rounds=2), "fixed")
    cafl = steered(plain("cafl-l", [1.9, 1.9], budget=tight), "cafl-l")
    first, second, *_ = verdict([cafl, fedavg])
    assert first.startswith("fedavg (fixed knobs, whatever the budgets) ends at")
    assert second.endswith("-5.0% loss over fedavg.")
    assert verdict([cafl, fedavg, late])[0].startswith("fedavg (fixed knobs, whatever the budgets)")
    assert verdict([cafl, late])[0].startswith("fedavg (fixed knobs, whatever the budgets) stands")


def test_the_table_and_the_verdict_say_which_rounds_over_they_count():
    seeds = [plain("a", [2.0] * n, used=2.0, budget={"energy": 1.0}, seed=n) for n in (1, 2)]
    sheet = comparison(seeds)
    assert sheet.rows[0][list(sheet.columns).index("energy")] == "2.00 (2)"
    assert "of the seed that had most" in sheet.caption
    assert "in 3 of 3 rounds of 2 seeds: energy in 3" in verdict(seeds)[1]
    assert "of the seed that had most" not in comparison(seeds[:1]).caption


def test_a_resource_that_the_records_lack_is_judged_by_the_summary():
    run = plain("a", [2.0, 2.0], used=2.0, budget={"energy": 1.0, "communication": 40.0})
    for line in run.records:
        for use in line["usage"]["counted"].values():
            del use["energy"]
    assert "broke budgets (counted) in 2 of 2 rounds: energy in 2 (worst 2×)" in verdict([run])[1]
    assert [panel.title for panel in usage_chart([run]).panels] == [
        "communication, counted: budget 40 B"
    ]


def test_names_of_many_runs_stand_below_the_curves():
    few = drawn(loss_chart([plain(f"run {i}", [2.0, 1.0]) for i in range(3)]))
    many = drawn(loss_chart([plain(f"a long name of run {i}", [2.0, 1.0]) for i in range(10)]))
    assert (len(few.legends), few.axes[0].get_legend() is None) == (0, False)
    assert (len(many.legends), many.axes[0].get_legend() is None) == (1, True)
    many.draw_without_rendering()
    box = many.legends[0].get_window_extent()
    assert box.x0 >= 0
    assert box.x1 <= many.bbox.x1
    assert box.y1 <= many.axes[0].get_tightbbox().y0
    assert many.get_size_inches()[1] > few.get_size_inches()[1]


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
    assert "b took 26.7% of the energy and 133.3% of the uplink, in the 1 of 2 seeds" in text
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


def test_a_fleet_of_kinds_is_doubled_for_robustness_with_all_that_is_said_of_it(tmp_path):
    path = find_config("fleet")
    every = plan_runs([path], ["data.source=topics"], 1, tmp_path, "robustness")
    half = every[tmp_path / "fleet+half" / "seed-0"]
    assert half.budget.devices == every[tmp_path / "fleet" / "seed-0"].budget.devices * 2
    assert half.world.battery == ["200 J", "2 kJ", "", "20 kJ"] * 2
    rich, poor = half.budget.classes[:4], half.budget.classes[4:]
    assert all(a[r] / 2 == b[r] for a, b in zip(rich, poor, strict=True) for r in a)
    build(half)


def test_rounds_with_nobody_in_them_are_told():
    empty = record(2, {}, cohort=[1, 2], dropped=dict.fromkeys(("1", "2"), DROPPED_OUT))
    failed = record(3, {}, cohort=[1], dropped={"1": "no reply"})
    nobody = record(4, {})
    lines = verdict([made("a", [record(1, {0: 1.0}), empty, failed, nobody])])
    assert lines[-2:] == [
        "a: 1 of 4 replies was not used, by client 1 in round 3: no reply.",
        "a: nobody took part in 2 of 4 rounds, the first of them round 2: the model stayed as it was.",
    ]
    assert idle([record(1, {0: 1.0}), failed]) == ""


@pytest.mark.parametrize(
    ("joules", "text"),
    [(2.5e-5, "25.00 µJ"), (0.018, "18.00 mJ"), (4.0, "4.00 J"), (2e3, "2.00 kJ")],
)
def test_the_cost_to_a_target_keeps_its_digits(joules, text):
    runs = [made("a", [record(1, {0: joules}, 1.0)])]
    assert target_rows(runs, 2.0)[0][3] == text


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


def test_a_fleet_is_drawn_by_class_and_held_against_its_own_clock():
    def world(round):
        clients = {"0": 5.0, "1": 6.0, "2": 7.0}
        return {
            "clock_s": 100.0 * round,
            "seconds": clients,
            "rise": clients,
            "charge": {"0": 0.5, "2": 0.75},  # class 1 is on mains
            "wasted_j": 0.0,
            "throttled": [],
        }

    use = dict.fromkeys(range(3), 1.0)
    records = [record(r, use, loss=3.0 - r, world=world(r)) for r in (1, 2)]
    run = made("mixed", records, [{"energy": 2.0}] * 3)
    chart = fleet_chart([run])
    panels = {panel.title: panel for panel in chart.panels}
    assert [list(line.y) for line in panels["Replies used, so far"].lines] == [[1, 2]] * 3
    (shares,) = panels["Replies of each client"].lines
    assert (list(shares.x), list(shares.y)) == ([1, 2, 3], [2, 2, 2])
    lost = replace(run, records=[records[0], {**records[1], "dropped": {"1": "late"}}])
    more = replace(lost, facts={**run.facts, "clients": 4})  # one was never asked
    (uneven,) = fleet_chart([more]).panels[0].lines
    assert list(uneven.y) == [0, 1, 2, 2]
    battery = panels["Emptiest battery"].lines
    assert [(line.name, line.place, line.y[0]) for line in battery] == [
        ("mixed, class 0", 0, 0.5),
        ("mixed, class 2", 2, 0.75),
    ]
    costs = {panel.title: panel for panel in cost_chart([run]).panels}
    clock = costs["Loss by device time"].lines[0]
    assert [x * 60 for x in clock.x] == pytest.approx([100, 200])
    assert fleet_chart([made("plain", [record(1, use)])]) is None
