"""The command line as a user runs it."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest
from safetensors.torch import load_file
from typer.main import get_command
from typer.testing import CliRunner

from fedbudget import cli, interrupt
from fedbudget.cli import app
from fedbudget.errors import UserError
from fedbudget.runner import Stop

TINY = [
    *("--set", "rounds=3", "--set", "data.source=topics", "--set", "model.size=1x32"),
    *("--set", "model.context=32", "--set", "train.steps=2", "--set", "train.batch=4"),
    *("--set", "workers=1"),
]


def fedbudget(*arguments, cwd=None, **options):
    return subprocess.run(
        [sys.executable, "-m", "fedbudget.cli", *map(str, arguments)],
        capture_output=True,
        text=True,
        cwd=cwd,
        timeout=300,
        **options,
    )


@pytest.mark.parametrize("name", sorted(get_command(app).commands))
def test_help_of_every_command_has_an_example(name):
    result = CliRunner().invoke(app, [name, "--help"])
    assert result.exit_code == 0
    assert f"fedbudget {name}" in " ".join(result.output.split())
    assert "Example" in result.output


def test_import_and_help_do_not_import_torch():
    code = "import sys, fedbudget; sys.argv=['fedbudget','--help']\n"
    code += "from fedbudget.cli import main\n"
    code += "try:\n    main()\nexcept SystemExit:\n"
    code += "    print('torch' in sys.modules, 'numpy' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert out.stdout.splitlines()[-1] == "False False"


def test_a_run_writes_its_folder_and_a_report_reads_it(tmp_path):
    done = fedbudget("run", "fedavg", *TINY, "--out", tmp_path / "a")
    assert done.returncode == 0, done.stderr
    assert "round 3/3" in done.stdout
    assert "fedavg: loss " in done.stdout
    names = {p.name for p in (tmp_path / "a").iterdir()}
    assert names == {
        *("config.toml", "facts.json", "rounds.jsonl", "summary.json"),
        *("model.safetensors", "checkpoint"),
    }
    facts = json.loads((tmp_path / "a/facts.json").read_text())
    assert facts["rounds"] == 3
    assert facts["layers"] == ["tokens, positions", "blocks.0", "norm, head"]
    assert facts["command"].startswith("fedbudget run fedavg --set rounds=3")
    assert json.loads((tmp_path / "a" / "summary.json").read_text())["complete"] is True
    assert "blocks.0.up.weight" in load_file(tmp_path / "a" / "model.safetensors")

    again = fedbudget("run", "fedavg", *TINY, "--out", tmp_path / "a")
    assert (again.returncode, "already holds a run" in again.stderr) == (2, True)
    finished = fedbudget("resume", tmp_path / "a")
    assert (finished.returncode, "is finished" in finished.stdout) == (0, True)

    report = fedbudget("report", tmp_path / "a", "--out", tmp_path / "r.html")
    assert report.returncode == 0
    assert "fedavg" in report.stdout
    assert (tmp_path / "r.html").exists()


def test_a_reader_that_leaves_does_not_end_the_training(tmp_path):
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "fedbudget.cli", "run", "fedavg", *TINY, "--json"),
            *("--out", str(tmp_path / "a b")),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert json.loads(process.stdout.readline())["event"] == "start"
    process.stdout.close()
    told = process.stderr.read()
    process.stderr.close()
    assert process.wait(timeout=120) == 0
    assert "--json failed and is off now: BrokenPipeError" in told
    assert f"fedbudget report '{tmp_path / 'a b'}'" in told
    assert (tmp_path / "a b" / "rounds.jsonl").read_text().count("\n") == 3


def test_compare_runs_seeds_and_goes_on_where_it_stopped(tmp_path):
    arguments = ("compare", "fedavg", "--seeds", "2", *TINY, "--out", tmp_path / "c")
    first = fedbudget(*arguments)
    assert first.returncode == 0, first.stderr
    assert "±" in first.stdout
    again = fedbudget(*arguments)
    assert again.stdout.count("is finished") == 2
    other = fedbudget(*arguments, "--set", "train.lr=0.5")
    assert (other.returncode, "another configuration" in other.stderr) == (2, True)
    target = fedbudget(*arguments, "--protocol", "target")
    assert target.returncode == 0, target.stderr
    assert "The target is fedavg's mean loss at round 1" in " ".join(target.stdout.split())
    assert "cost to a loss of" in (tmp_path / "c" / "target.md").read_text()


def test_compare_for_robustness_trains_each_condition_and_goes_on(tmp_path):
    quick = [*TINY, "--set", "control.least_steps=1", "--set", "rounds=2"]
    arguments = ("compare", "fedavg", "planner", "--protocol", "robustness", "--seeds", "1")
    done = fedbudget(*arguments, *quick, "--out", tmp_path)
    assert done.returncode == 0, done.stderr
    names = {p.name for p in tmp_path.iterdir() if p.is_dir()}
    assert names == {
        *("fedavg", "fedavg+drop30%", "fedavg+half"),
        *("planner", "planner+drop30%", "planner+half"),
    }
    page = (tmp_path / "robustness.md").read_text()
    assert page.count("half the fleet at half") == 2
    assert page.count("30% drop out") == 2
    summary = json.loads((tmp_path / "planner+half" / "seed-0" / "summary.json").read_text())
    for use in summary["usage"]["counted"].values():
        assert use.get("rounds_over", 0) == 0
    again = fedbudget(*arguments, *quick, "--out", tmp_path)
    assert again.stdout.count("is finished") == 6


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["run", "nothing"], "no such file and no such preset"),
        (["run", "fedavg", "--set", "train.lr=-1"], "train.lr = -1: input should be greater"),
        (["run", "fedavg", "--set", "data.path=/no/such/place"], "no input.txt is there"),
        (["resume", "nowhere"], "no run is here"),
        (["report", "nowhere"], "no run folder is here"),
        (["presets", "nothing"], "no preset is named"),
        (["run", "fedavg", "--set", "name=../x"], "name = '../x': a folder is called so"),
        (["compare", "fedavg", "--set", "name=..", "--out", "c"], "name = '..': a folder is"),
        (["run", "fedavg", "--out", ""], "an argument is empty"),
        (["report", ""], "an argument is empty"),
        (["run", "planner", "--set", "budget.uplink='1 kB'"], "did you mean communication? known"),
        (["run", "fedavg", "--set", "codec.name=topk0%"], "codec.name: codec 'topk0%': the perc"),
        (["reproduce", "theory", "--set", "a=1"], "--set a=1 would change nothing"),
        (["reproduce", "cafl", "--quick", "--set", "a=1"], "--set a=1 would change nothing"),
        (["reproduce", "pc-fedavg", "--set", "a=1"], "--set a=1 would change nothing"),
        (["reproduce", "codecs", "--full"], "--full is for cafl, with training"),
        (["reproduce", "cafl", "--set", "a=1"], "unknown key a; known are"),
        (
            ["reproduce", "codecs", "--set", "seed=1"],
            "--set seed=1 would change nothing: the seeds",
        ),
        (["compare", "fedavg", "--set", "seed=1"], "--set seed=1 would change nothing: the seeds"),
        (["compare", "fedavg", "--target", "nan"], "--target nan: it must be a validation loss"),
        (["report", ".", "--target", "-1"], "--target -1: it must be a validation loss"),
    ],
)
def test_a_mistake_is_one_sentence_and_exit_code_2(tmp_path, arguments, sentence):
    done = fedbudget(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert sentence in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert "Traceback" not in done.stderr


def test_a_mistake_leaves_no_run_folder_behind(tmp_path):
    fedbudget("run", "fedavg", "--set", "data.path=/no/such/place", cwd=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_presets_are_listed_and_copied(tmp_path):
    assert "fedavg-mnist" in fedbudget("presets").stdout
    assert fedbudget("presets", "fedavg", cwd=tmp_path).stdout.strip() == "wrote fedavg.toml"
    taken = fedbudget("presets", "fedavg", cwd=tmp_path)
    assert (taken.returncode, "is there already" in taken.stderr) == (2, True)
    run = fedbudget("run", "fedavg.toml", *TINY, cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    assert (tmp_path / "runs" / "fedavg" / "summary.json").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_round_and_resume_gives_the_same_model(tmp_path, number):
    many = [*TINY, "--set", "rounds=40", "--set", "workers=2"]
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "fedbudget.cli",
            "run",
            "fedavg",
            *many,
            "--out",
            str(tmp_path / "b"),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    lines = tmp_path / "b" / "rounds.jsonl"
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and not (lines.exists() and lines.read_text().count("\n")):
        time.sleep(0.05)
    os.killpg(process.pid, number) if number == signal.SIGINT else process.send_signal(number)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 130, err
    assert f"go on with: fedbudget resume {tmp_path / 'b'}" in out
    done = lines.read_text().count("\n")
    assert 1 <= done < 40
    resumed = fedbudget("resume", tmp_path / "b")
    assert resumed.returncode == 0, resumed.stderr
    assert f"round {done + 1}/40" in resumed.stdout
    whole = fedbudget("run", "fedavg", *many, "--out", tmp_path / "w")
    assert whole.returncode == 0
    models = [Path(tmp_path / n / "model.safetensors").read_bytes() for n in ("b", "w")]
    assert models[0] == models[1]


def test_the_demo_trains_nothing_where_one_of_its_runs_cannot(tmp_path):
    odd = [*TINY, "--set", 'budget.communication="100 B"']
    done = fedbudget("demo", *odd, cwd=tmp_path)
    assert done.returncode == 2
    assert "no setting meets communication <= 100 B; the least is" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_the_demo_says_so_when_there_is_no_network(tmp_path):
    environment = {
        **os.environ,
        "HOME": str(tmp_path),
        "XDG_CACHE_HOME": str(tmp_path / "c"),
        "PIP_NO_INDEX": "1",
        "http_proxy": "http://127.0.0.1:9",
        "https_proxy": "http://127.0.0.1:9",
    }
    environment.pop("FEDBUDGET_DATA", None)
    environment.pop("PIP_FIND_LINKS", None)
    quick = ("--set", "rounds=2", "--set", "train.steps=40", "--set", "model.size=1x32")
    done = fedbudget("demo", *quick, cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stderr
    assert "No network and no Tiny Shakespeare" in done.stdout
    lines = [line for line in done.stdout.splitlines() if line.strip() and "→" not in line]
    rows = {line.split()[0]: line for line in lines}  # the last table that compares runs
    assert "paper" in rows["cafl-l"].split()
    assert "counted" in rows["planner"].split()
    assert "counted" in rows["fedavg"].split()
    assert (tmp_path / "runs" / "demo" / "report.html").exists()


def test_device_classes_stay_within_their_own_budgets(tmp_path):
    quick = [*TINY, "--set", "control.least_steps=1", "--set", "train.steps=8"]
    limits = ["--set", 'budget.energy=["25%","50%","100%"]', "--set", 'budget.communication="20%"']
    done = fedbudget("run", "planner", *quick, *limits, "--out", tmp_path / "p")
    assert done.returncode == 0, done.stderr
    summary = json.loads((tmp_path / "p" / "summary.json").read_text())
    energy = summary["usage"]["counted"]["energy"]
    assert len(energy["budget"]) == 3
    assert energy["rounds_over"] == 0
    assert 0.5 < energy["worst_ratio"] <= 1
    record = json.loads((tmp_path / "p" / "rounds.jsonl").read_text().splitlines()[0])
    steps = {int(c) % 3: k["steps"] * k["batch"] for c, k in record["knobs"].items()}
    assert steps[0] < steps[1] < steps[2]


def test_plan_says_what_fits_or_why_nothing_does(tmp_path):
    done = fedbudget("plan", "planner", *TINY, "--set", "control.least_steps=1")
    assert done.returncode == 0, done.stderr
    assert "binds, at" in done.stdout
    changes = ["--set", "control.least_steps=1", "--set", 'control.codecs=["topk10%"]']
    lossy = fedbudget("plan", "planner", *TINY, *changes)
    assert "topk10% keeps 0.43 of an update and the rest is lost" in lossy.stdout
    none = fedbudget(
        "plan", "planner", *TINY, "--set", "control.least_steps=1", "--set", 'budget.memory="1 kB"'
    )
    assert none.returncode == 2
    assert "no setting meets memory <= 1 kB; the least is" in none.stderr


@pytest.mark.parametrize(
    ("controller", "limit", "says"),
    [
        ("fedpaq", '"1 kB"', "fedpaq: no setting meets communication <= 1 kB; the least is 1."),
        ("static", '"1 kB"', "static: the knobs in [train] take 27.5 kB of communication"),
        ("none:policy", "50%", "control.controller = 'none:policy': No module named 'none'"),
        ("fedpaq", '"3 kB"', "qsgd2"),
    ],
)
def test_plan_is_of_the_controller_that_is_named(controller, limit, says):
    small = ["data.source=topics", "model.size=1x16", "model.context=16", "train.steps=20"]
    limits = ["budget.energy=50%", "budget.temperature=", f"budget.communication={limit}"]
    changes = [*small, *limits, "budget.memory=", f"control.controller={controller}"]
    done = fedbudget("plan", "planner", *(w for c in changes for w in ("--set", c)))
    assert done.returncode == (0 if says == "qsgd2" else 2)
    assert says in (done.stdout or done.stderr)


def test_plan_shows_where_the_papers_duals_will_lead():
    done = fedbudget("plan", "cafl-l", "--set", "data.source=topics")
    assert done.returncode == 0, done.stderr
    rows = [line.split("│")[1:] for line in done.stdout.splitlines() if line.startswith("│")]
    assert [int(row[0]) for row in rows] == [1, 2, 5, 10, 20, 50]
    assert [cell.strip() for cell in rows[0][1:6]] == ["4", "60", "16", "1", "raw32"]
    assert [cell.split()[1] for cell in rows[0][6:10]] == ["377%", "862%", "119%", "62%"]
    assert "last 5 of 50 rounds too: energy (in 50, ends at 113%), memory (in 50" in done.stdout
    counted = ("--set", "budget.accounting=counted", "--set", "data.source=topics")
    none = fedbudget("plan", "cafl-l", *counted)
    assert none.returncode == 2
    assert "accumulate=12 codec=eden2, which keeps the tokens of a round" in none.stderr
    without = fedbudget("plan", "cafl-l", *counted, "--set", "control.preserve_tokens=false")
    assert without.returncode == 0


def test_reproduce_prints_the_papers_line_to_the_digit(tmp_path):
    done = fedbudget("reproduce", "cafl", "--quick", "--out", tmp_path)
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if "FedAvg" in line]
    assert "4.52" in lines[0]
    assert "5.18" in lines[1]
    assert (tmp_path / "table1.png").exists()
    assert not (tmp_path / "training").exists()


def test_odd_names_and_damaged_summaries_are_no_traceback(tmp_path):
    odd = tmp_path / "m[/a]"
    done = fedbudget("run", "fedavg", *TINY, "--set", "name=[/x]", "--out", odd)
    assert done.returncode == 0, done.stderr
    assert "[/x]" in fedbudget("report", odd).stdout
    for text in ("{}", "[1]", "not json"):
        (odd / "summary.json").write_text(text)
        report = fedbudget("report", odd)
        assert report.returncode == 0, report.stderr
        assert "summary.json is damaged" in report.stderr
        resumed = fedbudget("resume", odd)
        assert resumed.returncode == 0, resumed.stderr
    for arguments in (
        ["presets", "fedavg", "--out", "/proc/none/x.toml"],
        ["report", odd, "--out", "/proc/none/r.html"],
    ):
        failed = fedbudget(*arguments)
        assert (failed.returncode, failed.stderr.count("\n")) == (2, 1), failed.stderr


def test_a_script_without_a_main_guard_is_told_so(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import torch, fedbudget as fb\n"
        "x, y = torch.randn(8, 2), torch.arange(8) % 2\n"
        "fb.train(torch.nn.Linear(2, 2), [(x, y)] * 2, workers=2, rounds=1, quiet=True)\n"
    )
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 1
    assert "if __name__ ==" in done.stderr.splitlines()[-1]


def fails(error):
    raise error


@pytest.mark.parametrize(
    "after",
    [
        partial(fails, KeyboardInterrupt()),
        partial(fails, ImportError("half a module")),
        partial(fails, UserError("the dashboard needs a web server (half a module)")),
        Stop().__enter__,  # what was swallowed is heard before training
    ],
)
def test_ctrl_c_in_an_import_ends_as_elsewhere(monkeypatch, capsys, after):
    def imported():
        with contextlib.suppress(KeyboardInterrupt):  # as some modules do
            signal.raise_signal(signal.SIGINT)
        after()

    monkeypatch.setattr(cli, "app", imported)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(SystemExit) as stop:
            cli.main()
    finally:
        interrupt._heard.clear()
        signal.signal(signal.SIGINT, before)
    assert stop.value.code == 130
    assert capsys.readouterr().err == "fedbudget: stopped; finished rounds are kept\n"


def test_errors_without_ctrl_c_are_as_they_were(monkeypatch):
    monkeypatch.setattr(cli, "app", partial(fails, ImportError("half a module")))
    with pytest.raises(ImportError, match="half a module"):
        cli.main()
