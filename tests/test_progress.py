"""What people see while a run trains: on terminals of several widths, in a pipe, as JSON."""

import io
import json
import sys
from dataclasses import replace
from functools import partial

import pyte
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from typer.testing import CliRunner

from conftest import softmax_plan
from fedbudget.cli import app
from fedbudget.engines.choose import choose
from fedbudget.gauges import Gauge, empty, worst_gauges
from fedbudget.models.flat import FlatModel
from fedbudget.panel import ASCII, BLOCKS, View, bar, panel, sparkline
from fedbudget.progress import Live, failures, watched
from fedbudget.rounds import first_state, run
from fedbudget.types import Knobs, RoundRecord

BUDGETS = {"counted": [{"energy": 2.0, "memory": 1e6}, {"energy": 1.0, "memory": 1e6}]}
TINY = [
    *("--set", "rounds=2", "--set", "data.source=topics", "--set", "model.size=1x16"),
    *("--set", "model.context=16", "--set", "train.steps=2", "--set", "workers=1"),
    *("--set", "budget.energy='50%'"),
]


def record(round=1, **changes):
    used = {"0": {"energy": 1.8, "memory": 5e5}, "1": {"energy": 1.5, "memory": 4e5}}
    plain = RoundRecord(
        round=round,
        cohort=(0, 1, 2),
        knobs={"*": Knobs(2, 60, 4)},
        duals={},
        train_loss=2.0,
        validation={"loss": 1.5 + 1 / round, "accuracy": 0.25},
        up_bytes=1000,
        down_bytes=2000,
        usage={"counted": used},
        dropped={},
        flagged={},
        skipped=(),
        late=0,
        train_s=1.0,
        evaluate_s=0.5,
        wall_s=2.0,
    )
    return replace(plain, **changes)


def terminal(width=80, **environment):
    return Console(
        file=io.StringIO(), force_terminal=True, width=width, height=24, _environ=environment
    )


def screen(console, height=24):
    """What a terminal shows after all that was written to it."""
    shown = pyte.Screen(console.width, height)
    pyte.Stream(shown).feed(console.file.getvalue().replace("\n", "\r\n"))
    return [line.rstrip() for line in shown.display if line.strip()]


def test_a_terminal_shows_budgets_loss_knobs_cohort_and_time_and_then_nothing():
    console = terminal()
    live = Live(console, "planner", 10, BUDGETS)
    with live:
        live.on_round(record(1))
        live.display.refresh()
        lines = screen(console)
        assert lines[0].startswith("planner  round 2/10  █")
        assert "2.0 s a round" in lines[0]
        assert lines[2].startswith("loss          2.5000 · accuracy 0.2500")
        # client 1 has the smaller budget, and is over it; client 0 uses more and is not
        energy = next(line for line in lines if line.startswith("energy"))
        assert "1.5 J of 1 J" in energy
        assert energy.endswith("150% over")
        assert "┃▒" in energy
        memory = next(line for line in lines if line.startswith("memory"))
        assert "500 kB of 1 MB" in memory
        assert "▒" not in memory
        live.on_round(record(2, dropped={"2": "ValueError: no", "1": "ValueError: no"}))
        live.display.refresh()
        lines = screen(console)
        assert lines[0] == "round 2: clients 2, 1 were not used: ValueError: no"
        assert len(lines) == 1 + 6
        assert "2 dropped so far" in "\n".join(lines) or "next round" in "\n".join(lines)
    assert screen(console) == ["round 2: clients 2, 1 were not used: ValueError: no"]


def test_a_real_run_says_whom_it_asks_and_when_it_evaluates():
    plan = softmax_plan(drop=0.4, rounds=4)
    seen = []

    class Spy(Live):
        def on_reply(self, reply):
            super().on_reply(reply)
            seen.append(self._panel().plain)

        def on_evaluate(self):
            super().on_evaluate()
            seen.append(self._panel().plain)

    live = Spy(terminal(), "softmax", plan.rounds, {})
    layout = FlatModel(plan.model()).layout
    with live, watched(partial(choose, plan), live) as engine:
        records = [r for r, _ in run(plan, engine, layout, first_state(plan), live.on_reply)]
    asked = [len(r.cohort) - len(r.dropped) for r in records]
    assert min(asked) < 3 == len(records[0].cohort)  # somebody dropped out, so was not asked
    lines = [text.splitlines()[1] for text in seen]
    assert [line for line in lines if "evaluating" in line] == [
        line for line in lines if any(f"{n}/{n} replied, evaluating" in line for n in asked)
    ]
    assert sum("evaluating" in line for line in lines) == len(records)
    assert "layers 1  steps 2  batch 20  accumulate 1  codec raw32" in seen[0]


views = st.builds(
    View,
    name=st.text(min_size=1, max_size=40),
    rounds=st.integers(10, 99999),
    done=st.integers(0, 10),
    asked=st.lists(st.integers(0, 999), max_size=60, unique=True).map(tuple),
    replied=st.dictionaries(st.integers(0, 999), st.booleans(), max_size=9),
    evaluating=st.booleans(),
    dropped=st.integers(0, 999),
    scores=st.dictionaries(st.sampled_from(["loss", "accuracy"]), st.floats(0, 1e6), max_size=2),
    losses=st.lists(st.floats(), max_size=200).map(tuple),
    knobs=st.lists(st.builds(Knobs, *[st.integers(1, 999)] * 4, st.just("eden1.6"))).map(tuple),
    gauges=st.lists(
        st.builds(
            Gauge,
            st.sampled_from(["counted", "paper"]),
            st.sampled_from(["energy", "communication", "time"]),
            st.floats(1e-9, 1e12),
            st.none() | st.floats(0, 1e12),
        ),
        max_size=6,
    ).map(tuple),
    round_s=st.none() | st.floats(0, 1e6),
    left_s=st.none() | st.floats(0, 1e6),
)


@settings(max_examples=40)
@given(views, st.integers(20, 200), st.sampled_from([BLOCKS, ASCII]))
def test_the_panel_fits_every_width_in_ten_lines(view, width, marks):
    shown = panel(view, width, marks)
    lines = shown.split("\n", allow_blank=True)
    assert len(lines) == 4 + len(view.gauges) <= 10
    assert all(line.cell_len <= width for line in lines)


@given(st.floats(0, 100), st.integers(8, 60))
def test_a_bar_is_over_its_mark_exactly_when_its_budget_is(share, width):
    drawn = bar(share, width).plain
    left, right = drawn.split("┃")
    assert len(drawn) == width
    assert bool(right.strip()) == (share > 1 + 1e-9)
    assert len(left) == round(0.75 * width)
    if share <= 1:
        assert abs(left.count("█") - share * len(left)) <= 0.5 + 1e-6


def test_the_worst_client_is_the_one_with_the_largest_share():
    usage = {"counted": {"0": {"energy": 9.0}, "1": {"energy": 3.0}, "2": {"energy": 4.0}}}
    budgets = {"counted": [{"energy": 10.0}, {"energy": 2.0}]}
    (worst,) = worst_gauges(usage, budgets)
    assert (worst.client, worst.share, worst.over) == (1, 1.5, True)
    assert [g.limit for g in empty(budgets)] == [2.0]
    assert worst_gauges({}, budgets) == []


def test_a_sparkline_shows_the_whole_run():
    assert sparkline([5.0] * 50 + [1.0] * 50, 10) == "█████▁▁▁▁▁"
    assert len(sparkline(list(range(1000)), 16)) == 16
    assert sparkline([1.0, float("nan"), 3.0]) == "▁█"


def test_knobs_that_differ_are_shown_as_ranges():
    knobs = (Knobs(2, 60, 4, 1, "eden2"), Knobs(4, 30, 4, 2, "int8"))
    text = panel(View("a", 5, 0, knobs=knobs), 100).plain
    assert "layers 2-4  steps 30-60  batch 4  accumulate 1-2  codec eden2/int8" in text


def test_a_pipe_and_a_dumb_terminal_get_a_line_a_round():
    for console in (
        Console(file=io.StringIO(), width=160),
        terminal(160, TERM="dumb"),
    ):
        with Live(console, "planner", 2, BUDGETS) as live:
            live.on_round(record(1))
            live.on_round(record(2, dropped={"2": "it dropped out"}))
        first, second = console.file.getvalue().splitlines()
        assert first == (
            "planner round 1/2  loss 2.5000  accuracy 0.2500  up 1 kB down 2 kB  "
            "energy 150.0% of its budget (over)  2.0 s  2.0 s left"
        )
        assert "1 of 3 dropped" in second


def test_no_color_means_no_colour_but_over_is_still_seen():
    console = terminal(NO_COLOR="1", TERM="xterm-256color")
    with Live(console, "planner", 2, BUDGETS) as live:
        live.on_round(record(1))
        live.display.refresh()
        shown = screen(console)
    written = console.file.getvalue()
    assert not any(f"\x1b[{n}m" in written or f";{n}m" in written for n in range(30, 50))
    assert any("▒" in line and "over" in line for line in shown)


def test_a_run_that_was_asked_to_stop_says_so():
    asked = []
    live = Live(terminal(), "a", 9, {}, stopping=lambda: bool(asked))
    live.on_round(record(1))
    assert "stopping" not in live._panel().plain
    asked.append(1)
    head = live._panel().plain.splitlines()[0]
    assert head.endswith("stopping after this round; once more to stop now")


def test_a_quiet_run_on_a_terminal_leaves_warnings_alone(capsys):
    console = Console(force_terminal=True, quiet=True)
    with Live(console, "a", 2, {}) as live:
        live.on_round(record(1))
        print("a warning", file=sys.stderr)
    out, err = capsys.readouterr()
    assert (out, err) == ("", "a warning\n")


def test_labels_are_dim_and_figures_are_not():
    shown = panel(View("a", 9, 1, scores={"loss": 1.0}, gauges=tuple(empty(BUDGETS))), 80)
    at = shown.plain.index("limit 1 J")
    assert not [span for span in shown.spans if span.start <= at < span.end and span.style == "dim"]
    assert shown.style == ""


def test_dropouts_that_the_config_asks_for_are_no_failures():
    dropped = {"1": "it dropped out", "2": "ValueError: \x1b[2J"}
    said = "round 1: client 2 was not used: ValueError: ?[2J"  # nor can a client clear the screen
    assert failures(record(dropped=dropped)) == [said]


def test_without_validation_the_training_loss_is_shown():
    live = Live(terminal(), "a", 3, {}, validates=False)
    live.on_round(record(1, validation=None))
    assert live._panel().plain.splitlines()[2].startswith("train loss    2.0000")


def test_json_is_what_the_run_folder_has(tmp_path):
    folder = tmp_path / "a"
    done = CliRunner().invoke(app, ["run", "fedavg", *TINY, "--json", "--out", str(folder)])
    assert done.exit_code == 0, done.output
    first, *rounds, last = map(json.loads, done.stdout.splitlines())
    about = {"event": "start", "folder": str(folder), "done": 0, "config": first["config"]}
    assert first == {**json.loads((folder / "facts.json").read_text()), **about}
    assert first["config"]["train"]["steps"] == 2
    lines = (folder / "rounds.jsonl").read_text().splitlines()
    assert rounds == [{"event": "round", **json.loads(line)} for line in lines]
    assert last == {"event": "end", **json.loads((folder / "summary.json").read_text())}
    assert f"fedbudget report {folder} --out report.html" in done.stderr


def test_quiet_prints_nothing(tmp_path):
    arguments = ["run", "fedavg", *TINY, "--quiet", "--out", str(tmp_path / "a")]
    assert CliRunner().invoke(app, arguments).output == ""
    finished = CliRunner().invoke(app, ["resume", str(tmp_path / "a"), "--quiet"])
    assert (finished.exit_code, finished.output) == (0, "")


def test_a_run_says_where_it_is_and_how_to_see_it(tmp_path):
    done = CliRunner().invoke(app, ["run", "fedavg", *TINY, "--out", str(tmp_path / "a")])
    *_, wrote, see = done.stdout.splitlines()
    assert wrote.startswith(f"wrote {tmp_path / 'a'}/: ")
    assert see.startswith(f"see it: fedbudget report {tmp_path / 'a'} --out report.html, or ")


@pytest.mark.parametrize("both", [["--json", "--quiet"]])
def test_json_and_quiet_do_not_go_together(both):
    result = CliRunner().invoke(app, ["run", "fedavg", *both])
    assert "choose one of them" in str(result.exception)
