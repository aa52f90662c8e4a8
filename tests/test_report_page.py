"""The report's page: one file, nothing from the network, from folders in any state."""

import json
import re
import subprocess
import sys
from html.parser import HTMLParser

import pytest

from fedbudget.errors import UserError
from fedbudget.report.load import find_runs, load_run, run_folders
from fedbudget.report.page import document, page, plotly, static
from fedbudget.report.sheets import Sheet
from fedbudget.report.tables import markdown
from fedbudget.report.write import write_report
from made_runs import BUDGETS, LAYERS, a_record, a_run, ten_runs

KEYS = {
    *("verdict", "notes", "sheets", "charts", "failures", "differences", "configs", "folders"),
}
EVIL = "<img src=x onerror=alert(1)></script><script>alert(2)</script>"


class Seen(HTMLParser):
    """Tags with their attributes, and the text of each script."""

    def __init__(self):
        super().__init__()
        self.tags, self.scripts, self.inside = [], [], False

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self.inside = tag == "script"
        if self.inside:
            self.scripts.append("")

    def handle_endtag(self, tag):
        self.inside = False

    def handle_data(self, data):
        if self.inside:
            self.scripts[-1] += data


def seen(text):
    parser = Seen()
    parser.feed(text)
    return parser


def test_the_document_holds_everything_and_is_json(tmp_path):
    a_run(tmp_path / "a")
    a_run(tmp_path / "long", "a longer name", records=[a_record(1)])
    more = Sheet(("run", "x"), [["a", "1"]], "why", "extra")
    found = document(find_runs([tmp_path]), [more])
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert set(found) == KEYS
    for sheet in [*found["sheets"], found["differences"]]:
        assert set(sheet) == {"title", "columns", "rows", "caption"}
        assert all(len(row) == len(sheet["columns"]) for row in sheet["rows"])
    assert found["sheets"][1] == {
        "title": "extra",
        "columns": ["run", "x"],
        "rows": [["a", "1"]],
        "caption": "why",
    }
    assert [chart["name"] for chart in found["charts"]] == [
        *("loss", "cost", "usage", "duals", "knobs", "layers", "traffic"),
    ]
    for chart in found["charts"]:
        assert set(chart) == {"name", "title", "caption", "commands", "panels"}
        assert chart["caption"].endswith(".")
        assert chart["commands"] == [
            f"fedbudget run {name} --set seed=0" for name in ("planner", "a longer name")
        ]
        for panel in chart["panels"]:
            assert panel["x"]
            assert panel["y"]
            for line in panel["lines"]:
                assert len(line["x"]) == len(line["y"]) > 0
    assert [c["text"][:4] for c in found["configs"]] == ["name", "name"]
    assert found["folders"] == [str(tmp_path / "a"), str(tmp_path / "long")]


def test_the_documents_numbers_are_those_of_the_records(tmp_path):
    a_run(tmp_path / "a", rounds=3)
    charts = {c["name"]: c["panels"] for c in document(find_runs([tmp_path]))["charts"]}
    (loss,) = charts["loss"][0]["lines"]
    assert (loss["x"], loss["y"]) == ([1, 2, 3], [3.5, 2.5, 2.16667])
    energy = charts["usage"][0]
    assert (energy["title"], energy["limit"]) == ("energy, counted: budget 4 J", 1.0)
    assert energy["lines"][0]["y"] == [0.91, 0.92, 0.93]
    (dual, *_) = charts["duals"][0]["lines"]  # clients 0 to 5 of 16 were asked, the rest stay at 0
    assert dual["y"][1] == pytest.approx((6 * 0.02 + 0.015) / 16, rel=1e-4)
    assert (dual["low"][1], dual["high"][1]) == (0.0, 0.025)
    strip = charts["layers"][0]["strip"]
    assert (strip["rows"], strip["x"]) == (LAYERS, [1, 2, 3])
    assert strip["shares"] == [[0, 0, 1], [0, 1, 1], [1, 1, 1], [1, 1, 1]]  # 2, 3, 4 groups


def test_the_page_is_one_file_that_loads_nothing(tmp_path):
    a_run(tmp_path / "a")
    text = page(find_runs([tmp_path]))
    found = seen(text)
    loading = {"src", "href", "data", "action", "srcset", "poster"}
    assert [
        (tag, a) for tag, a in found.tags if loading & set(a) or tag in ("link", "iframe")
    ] == []
    (policy,) = [
        a["content"] for _, a in found.tags if a.get("http-equiv") == "Content-Security-Policy"
    ]
    assert policy.startswith("default-src 'none'")
    assert "http" not in policy
    assert found.scripts[0].startswith("/**\n* plotly.js")
    rest = text.replace(plotly(), "").replace("http://www.w3.org/2000/svg", "")  # a name, no load
    assert "://" not in rest
    assert not re.search(r"@import|url\(", rest)
    assert {tag for tag, _ in found.tags} >= {"h1", "main", "noscript"}
    assert ("html", {"lang": "en"}) in found.tags


def test_names_from_files_stay_text(tmp_path):
    records = [a_record(1, dropped={"1": EVIL}, knobs={"*": {**KNOBS, "codec": EVIL}})]
    folder = a_run(tmp_path / "a", EVIL.replace('"', ""), records=records)
    (folder / "config.toml").write_text(f"name = '{EVIL}'\n[train]\n'{EVIL}' = 1\n")
    a_run(tmp_path / "b", "other")
    text = page(find_runs([tmp_path]))
    found = seen(text)
    assert len(found.scripts) == 4  # plotly, ours, the data, the call
    assert not [tag for tag, _ in found.tags if tag == "img"]
    assert EVIL not in text
    told = json.loads(found.scripts[2])
    assert told["sheets"][0]["rows"][0][0] == EVIL
    assert told["failures"]["rows"][0][2] == re.sub(r"\d", "N", EVIL)
    for name in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("):
        assert name not in static("report.js")
    write_report(find_runs([tmp_path]), tmp_path / "r.svg")  # $ and < mean something there
    assert EVIL not in (tmp_path / "r.svg").read_text()


KNOBS = {"layers": 1, "steps": 2, "batch": 2, "accumulate": 1}


def notes(path):
    return " ".join(load_run(path).notes)


def cut(path):
    with (path / "rounds.jsonl").open("a") as f:
        f.write('{"round": 6, "coho')


def odd_lines(path):
    lines = (path / "rounds.jsonl").read_text().splitlines()
    bad = [
        *(
            '{"round": 2, "usage": 7}',
            '{"round": -1}',
            "[1]",
            "\x00\xff",
            '{"round": 3, "wall_s": null}',
        ),
        json.dumps(a_record(4, usage={"counted": {"0": {"energy": 1.0}}})),  # it lacks the others
        json.dumps(a_record(4, knobs={"*": {"layers": "all"}})),
        json.dumps(a_record(4, validation={"loss": [1]})),
        json.dumps(a_record(4, cohort=["a"])),
    ]
    (path / "rounds.jsonl").write_text("\n".join([*lines, *bad]))


def no_loss(path):
    records = [a_record(i, validation={"loss": None, "accuracy": None}) for i in (1, 2)]
    a_run(path, records=[*records, a_record(3)])


def running(path):
    (path / "summary.json").unlink()


def running_and_old(path):
    (path / "summary.json").unlink()
    (path / "facts.json").unlink()
    with (path / "config.toml").open("a") as f:
        f.write('energy = "4 J"\nmemory = "80%"\n')


def as_json(path, name, change):
    told = json.loads((path / name).read_text())
    change(told)
    (path / name).write_text(json.dumps(told))


def config_of_others(path):
    running_and_old(path)
    (path / "config.toml").write_text('data = 3\nbudget = 4\nmodel = 5\ntrain = "x"\ncontrol = 1\n')


def unlike_classes(path):
    (path / "summary.json").unlink()
    as_json(path, "facts.json", lambda f: f["budgets"]["counted"].append({"memory": 1e6}))


def odd_client(path, client):
    use = a_record(3)["usage"]["counted"]
    odd = a_record(2, usage={"counted": {**use, client: use["0"]}})
    running(path)
    a_run(path, records=[a_record(1), odd], ended=False)


def drop(path, *numbers):
    lines = (path / "rounds.jsonl").read_text().splitlines(keepends=True)
    kept = (line for line in lines if json.loads(line)["round"] not in numbers)
    (path / "rounds.jsonl").write_text("".join(kept))


def not_a_number(path):
    records = [a_record(1), a_record(2, validation={"loss": float("nan")}), a_record(3)]
    a_run(path, records=records, ended=False)
    (path / "summary.json").unlink()


def odd_units(path, units):
    (path / "summary.json").unlink()
    as_json(path, "facts.json", lambda f: f.update(units=units))


DAMAGE = {
    "units of others": (lambda p: odd_units(p, 5), "facts.json is damaged"),
    "half a unit": (lambda p: odd_units(p, {"energy": "\ud800"}), "facts.json is damaged"),
    "half a unit in the summary": (
        lambda p: as_json(
            p, "summary.json", lambda s: s["usage"]["counted"]["energy"].update(unit="\ud800")
        ),
        "summary.json is damaged",
    ),
    "config of others": (config_of_others, "has not ended"),
    "unlike classes": (unlike_classes, "facts.json is damaged"),
    "odd digit": (lambda p: odd_client(p, "²"), "a line of rounds.jsonl cannot be used"),
    "many digits": (lambda p: odd_client(p, "9" * 5000), "a line of rounds.jsonl cannot be used"),
    "half a letter": (
        lambda p: as_json(p, "summary.json", lambda s: s.update(name="a\ud800")),
        "summary.json is damaged",
    ),
    "NaN": (not_a_number, "the validation loss was not a number in some rounds"),
    "unlike classes in the summary": (
        lambda p: as_json(
            p, "summary.json", lambda s: s["usage"]["counted"]["energy"].update(budget=[1.0, 2.0])
        ),
        "summary.json is damaged",
    ),
    "a lost line": (lambda p: drop(p, 2), "round 2 is missing from rounds.jsonl"),
    "lost lines": (lambda p: drop(p, 1, 3), "2 rounds, the first round 1, are missing from rounds"),
    "cut off": (cut, "a line of rounds.jsonl cannot be used"),
    "odd lines": (odd_lines, "9 lines of rounds.jsonl cannot be used"),
    "no loss": (no_loss, "the validation loss was not a number in some rounds"),
    "one round": (lambda p: a_run(p, rounds=1), ""),
    "no round": (lambda p: a_run(p, records=[]), "no round is finished"),
    "running": (running, "has not ended"),
    "running and old": (running_and_old, "shares or temperatures"),
    "no rounds.jsonl": (lambda p: (p / "rounds.jsonl").unlink(), "nothing to draw"),
    "summary cut off": (lambda p: (p / "summary.json").write_text('{"name": '), "damaged"),
    "summary of others": (lambda p: (p / "summary.json").write_text("[1]"), "damaged"),
    "summary with nulls": (
        lambda p: (p / "summary.json").write_text(
            (p / "summary.json").read_text().replace("0.4", "null")
        ),
        "summary.json is damaged",
    ),
    "no config": (lambda p: (p / "config.toml").unlink(), "config.toml is missing"),
    "bad config": (lambda p: (p / "config.toml").write_text("name = ["), "config.toml is damaged"),
    "bad facts": (lambda p: (p / "facts.json").write_text('{"name": 1}'), "facts.json is damaged"),
    "not text": (lambda p: (p / "rounds.jsonl").write_bytes(b"\xff\xfe" * 90), "cannot be used"),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_damaged_folders_make_a_report_that_says_so(kind, tmp_path):
    damage, note = DAMAGE[kind]
    damage(a_run(tmp_path / "a"))
    a_run(tmp_path / "b", "other")
    assert note in notes(tmp_path / "a")
    assert (notes(tmp_path / "a") == "") == (note == "")
    for folders in ([tmp_path / "a"], [tmp_path]):
        runs = find_runs(folders)
        found = document(runs)
        json.dumps(found, allow_nan=False)
        assert (note in " ".join(found["notes"])) or not note
        assert markdown(runs).startswith("| run |")


@pytest.mark.parametrize("kind", ["no loss", "one round", "no round"])
def test_figures_of_folders_with_little_in_them_are_drawn(kind, tmp_path):
    DAMAGE[kind][0](a_run(tmp_path / "a"))
    files = write_report(find_runs([tmp_path]), tmp_path / "out" / "r.png")
    assert files[0] == tmp_path / "out" / "r.png"
    assert all(file.read_bytes().startswith(b"\x89PNG") for file in files)


def test_a_loss_that_is_not_a_number_leaves_the_rest_of_its_round(tmp_path):
    not_a_number(a_run(tmp_path / "a"))
    assert '"loss": NaN' in (tmp_path / "a" / "rounds.jsonl").read_text()
    run = load_run(tmp_path / "a")
    assert [r["round"] for r in run.records] == [1, 2, 3]
    assert [round for round, _ in run.losses()] == [1, 3]
    assert run.summary["rounds_done"] == 3


def test_a_running_run_is_judged_by_its_facts(tmp_path):
    records = [a_record(i, level=1.2) for i in (1, 2)]
    path = a_run(tmp_path / "a", rounds=9, records=records, ended=False)
    run = load_run(path)
    energy = run.summary["usage"]["counted"]["energy"]
    assert (energy["budget"], energy["rounds_over"]) == (BUDGETS["energy"], 2)
    assert (run.summary["rounds"], run.summary["rounds_done"]) == (9, 2)
    first, second, third = document([run])["verdict"]
    assert first == "planner stands at a validation loss of 3.000."
    assert second.startswith("planner broke budgets (counted) in 2 of 2 rounds: energy in 2 (wor")
    assert third == "planner has done 2 of 9 rounds."
    (path / "facts.json").unlink()  # as older versions left it
    run = load_run(path)
    assert (run.name, run.summary["rounds"], run.facts["layers"]) == ("planner", 9, [])


def test_amounts_in_an_old_config_are_budgets_and_shares_are_not(tmp_path):
    path = a_run(tmp_path / "x" / "seed-3", ended=False)
    (path / "facts.json").unlink()
    (path / "config.toml").write_text(
        'rounds = 7\n[model]\nkind = "gpt"\nsize = "2x128"\n'
        '[budget]\naccounting = "counted"\nenergy = ["8 J", 2.0]\nmemory = "50%"\nresources = []\n'
    )
    run = load_run(path)
    assert (run.name, run.seed, run.summary["rounds"]) == ("x", 3, 7)  # from the folders' names
    assert run.facts["budgets"] == {"counted": [{"energy": 8.0}, {"energy": 2.0}]}
    assert run.facts["layers"] == ["embeddings", "block 1", "block 2", "head"]
    assert run.summary["usage"]["counted"]["energy"]["budget"] == [8.0, 2.0]
    assert "budget" not in run.summary["usage"]["counted"]["memory"]


def test_runs_are_found_below_folders_in_the_order_of_their_numbers(tmp_path):
    for seed in (10, 2, 1):
        a_run(tmp_path / "p" / f"seed-{seed}", seed=seed, rounds=1, ended=seed == 1)
    hidden = tmp_path / "p" / ".old" / "seed-0"
    inner = tmp_path / "p" / "seed-1" / "clients" / "deep"
    for path in (hidden, inner):
        a_run(path, rounds=1)
    assert [p.name for p in run_folders(tmp_path)] == ["seed-1", "seed-2", "seed-10"]
    assert [run.seed for run in find_runs([tmp_path, tmp_path / "p" / "seed-2"])] == [1, 2, 10]
    (tmp_path / "empty").mkdir()
    for path in (tmp_path / "empty", tmp_path / "none"):
        with pytest.raises(UserError, match="no run folder is here or below"):
            find_runs([path])


def test_a_report_of_many_runs_stays_small(tmp_path):
    runs = find_runs([ten_runs(tmp_path)])
    text = page(runs)
    assert len(text.encode()) < 8e6
    assert len(text) - len(plotly()) < 1e6
    names = {line["place"] for line in document(runs)["charts"][0]["panels"][0]["lines"]}
    assert names == set(range(10))  # the page and `figures.dashes` tell more than seven apart


def test_reading_and_writing_a_page_needs_neither_torch_nor_matplotlib(tmp_path):
    a_run(tmp_path / "a")
    code = (
        "import sys; from pathlib import Path\n"
        "from fedbudget.report.load import find_runs\n"
        "from fedbudget.report.write import write_report\n"
        "write_report(find_runs([Path(sys.argv[1])]), Path(sys.argv[1]) / 'r.html')\n"
        "print([m for m in ('torch', 'matplotlib', 'plotly') if m in sys.modules])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, timeout=120
    )
    assert done.stdout == "[]\n", done.stderr
