"""The papers' table 1, by running controllers from lambda = 0."""

from pathlib import Path

import pytest

from fedbudget.errors import UserError
from fedbudget.reproduce import cafl, trained
from fedbudget.types import Knobs


@pytest.fixture(scope="module")
def found():
    preset = cafl.preset("table1")
    return preset, {row.name: row for row in cafl.rows(preset)}


def test_the_model_behind_table_1_prints_fedavgs_line_to_the_digit(found):
    _, rows = found
    line = [cafl.printed(rows["FedAvg"].mean(r), r) for r in cafl.RESOURCES]
    assert line == ["4.52", "5.18", "0.62", "0.31"]
    assert line == [cafl.printed(cafl.PAPER["FedAvg"][r], r) for r in cafl.RESOURCES]


def test_the_authors_code_ends_within_3_percent_of_what_its_knobs_imply(found):
    _, rows = found
    ours = [rows["the authors' code (clamped)"].mean(r) for r in cafl.RESOURCES]
    assert ours == pytest.approx([1.33e6, 0.243e6, 0.57, 0.244], rel=0.03)


def test_the_published_equations_do_not_meet_the_papers_budgets(found):
    preset, rows = found
    for name in ("CAFL-L eqs 5-7", "CAFL eqs 10-12, one-sided", "CAFL eqs 10-12, two-sided"):
        assert rows[name].mean("energy") > 1.05 * preset.budgets["energy"]
        assert rows[name].mean("memory") > preset.budgets["memory"]


def test_the_planner_keeps_every_budget_from_round_1(found):
    preset, rows = found
    for step in rows["planner"].path:
        assert all(step.usage[r] <= b for r, b in preset.budgets.items())


def test_the_papers_saving_is_a_loss_when_every_sample_is_counted(found):
    _, rows = found
    assert rows["the authors' code (clamped)"].mean("energy") < 0.3 * rows["FedAvg"].mean("energy")
    used = {name: row.counted_mean("energy") for name, row in rows.items()}
    assert 1.07 < used["the authors' code (clamped)"] / used["FedAvg"] < 1.43


def test_the_page_shows_what_the_code_gives(found):
    preset, rows = found
    page = (Path(__file__).parents[1] / "docs" / "results" / "cafl.md").read_text()
    assert cafl.markdown(preset, list(rows.values())) in page


def test_an_oscillating_controller_is_not_said_to_keep_its_budget(found):
    preset, rows = found
    row = rows["CAFL, augmented Lagrangian"]
    assert row.mean("energy") < preset.budgets["energy"]
    assert cafl.cell(row, "energy", preset.budgets["energy"]).endswith("over")


QUICK = [
    *("rounds=2", "data.source=topics", "model.size=1x16", "model.context=32", "workers=1"),
    *("train.steps=40", "train.batch=8", "train.layers=3", "control.least_steps=2"),
    "budget.memory=100%",  # so small a model takes less than the proxy says of an idle device
]


def test_training_rows_and_figures_are_written_labelled_and_kept(tmp_path, capsys):
    lines = trained.run(tmp_path, seeds=2, full=True, overrides=QUICK)
    names = {"fedavg", "cafl-l", "planner", "cafl"}
    names |= {"table1-fedavg", "table1-clamped", "table1-planner"}
    assert {p.name for p in (tmp_path / "training").iterdir()} == names
    assert (tmp_path / "training" / "planner" / "seed-1" / "summary.json").exists()
    assert not (tmp_path / "training" / "table1-clamped" / "seed-1").exists()
    small, large = (tmp_path / f"{p}training.md" for p in ("", "table1-"))
    page = small.read_text() + "\n" + large.read_text()
    assert page == "\n".join(lines)
    for prefix in ("", "table1-"):
        for number in (2, 3, 4):
            assert (tmp_path / f"{prefix}figure{number}.png").stat().st_size > 5000
            assert f"({prefix}figure{number}.png)" in page
    for name in names:
        rows = [line for line in page.splitlines() if line.startswith(f"| {name} |")]
        assert [row.split(" | ")[4] for row in rows] == ["paper proxy", "counted"]
    assert "1.93 (FedAvg)" in page
    assert "2.10 (CAFL-L)" in page

    capsys.readouterr()
    again = trained.run(tmp_path, seeds=2, full=True, overrides=QUICK)
    assert again == lines
    assert capsys.readouterr().out.count("is finished") == 11
    before = large.read_bytes()
    assert trained.run(tmp_path, seeds=2, full=False, overrides=QUICK) == lines[:4]
    assert large.read_bytes() == before  # what --full wrote stays
    other = [*QUICK, "train.lr=0.5"]
    with pytest.raises(UserError, match="made with another configuration"):
        trained.run(tmp_path, seeds=2, full=False, overrides=other)
    # how many processes it takes changes no result
    trained.run(tmp_path, seeds=2, full=False, overrides=[*QUICK, "workers=2"])


def test_both_accountings_hold_fedavg_against_the_papers_ratios():
    by = trained.measure(trained.LARGE, ["data.source=topics"])
    assert by.budgets["paper"] == {
        "energy": 1.2e6,
        "communication": 0.6e6,
        "memory": 0.26,
        "temperature": 1.0,
    }
    base = Knobs(layers=4, steps=180, batch=8)
    counted = by.known.forecast(base)
    shares = {r: by.budgets["counted"][r] / counted[r] for r in trained.RESOURCES}
    assert shares == pytest.approx(
        {"energy": 0.265, "communication": 0.116, "memory": 0.839, "temperature": 1.61}
    )


def test_a_codec_without_a_level_has_every_proxy_but_communication():
    by = trained.measure(trained.SMALL, ["data.source=topics"])
    knobs = {"layers": 4, "steps": 126, "batch": 2, "accumulate": 1, "codec": "eden3"}
    usage = {"counted": {"5": {"energy": 1.0}}}
    line = {"cohort": [5, 7], "dropped": {"7": "it left"}, "knobs": {"*": knobs}, "usage": usage}
    (proxy,) = by.of_round(line, "paper")
    assert set(proxy) == {"energy", "memory", "temperature"}
    assert proxy["energy"] == by.known.paper(Knobs(4, 126, 2))["energy"]
    assert by.of_round(line, "counted") == [{"energy": 1.0}]
