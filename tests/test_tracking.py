"""Trackers: what they keep is what rounds.jsonl says, once, whatever stops the run."""

import json
import os
import signal
import struct
import subprocess
import sys
import time

import pytest
import torch

import fedbudget as fb
from fedbudget.callbacks import Callback, guarded
from fedbudget.config import find_config, load
from fedbudget.errors import UserError
from fedbudget.tracking import named as trackers
from fedbudget.tracking.figures import numbers
from fedbudget.training import resume, same_result, train, train_or_resume

TINY = [
    *("rounds=4", "data.source=topics", "data.clients=4", "train.cohort=3", "workers=1"),
    *("model.size=1x16", "model.context=16", "train.steps=4", "train.batch=4"),
    *("control.controller=planner", "control.least_steps=1", "budget.energy='90%'"),
]
AGAIN = ("time/", "usage/measured/", "usage/estimated/")
"""figures that a repeated round has again, and others"""
# MLflow's own, with SQLAlchemy 2.1
pytestmark = pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy:DeprecationWarning")


@pytest.fixture(autouse=True)
def _apart(tmp_path, monkeypatch):
    """Each test has a store of its own, and nothing is sent anywhere."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    for telemetry in ("MLFLOW_DISABLE_TELEMETRY", "DO_NOT_TRACK"):
        monkeypatch.setenv(telemetry, "true")


def settings(*changes):
    return load(find_config("fedavg"), [*TINY, *changes])


def expected(folder):
    """round -> figures, as rounds.jsonl has them."""
    budgets = json.loads((folder / "facts.json").read_text())["budgets"]
    lines = (folder / "rounds.jsonl").read_text().splitlines()
    return {r["round"]: numbers(r, budgets) for r in map(json.loads, lines)}


def from_tensorboard(folder):
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder / "tensorboard"), size_guidance={"scalars": 0})
    events.Reload()
    return {
        name: [(e.step, e.value) for e in events.Scalars(name)] for name in events.Tags()["scalars"]
    }


def mlflow_runs():
    pytest.importorskip("mlflow", reason="mlflow-skinny is not installed")
    from mlflow.tracking import MlflowClient

    client = MlflowClient()
    experiment = client.get_experiment_by_name("fedbudget")
    return client, client.search_runs([experiment.experiment_id])


def from_mlflow():
    client, (run,) = mlflow_runs()
    names = [name for name in run.data.metrics if not name.startswith("summary/")]
    history = {name: client.get_metric_history(run.info.run_id, name) for name in names}
    return run, {name: sorted((m.step, m.value) for m in some) for name, some in history.items()}


def from_wandb(folder):
    """The history in all offline files of a run; its own process may still be writing the end."""
    pytest.importorskip("wandb", reason="wandb is not installed")
    from google.protobuf.message import DecodeError

    for _ in range(20):
        try:
            return wandb_history(folder)
        except DecodeError:
            time.sleep(0.5)
    return wandb_history(folder)


def wandb_history(folder):
    """The file is a LevelDB log of protobuf records."""
    from wandb.proto.wandb_internal_pb2 import Record

    found: dict[str, list] = {}
    for file in sorted((folder / "wandb").glob("offline-run-*/run-*.wandb")):
        body, at, parts = file.read_bytes(), 7, b""
        while at + 7 <= len(body):
            room = 32768 - at % 32768
            length, kind = struct.unpack("<HB", body[at + 4 : at + 7])
            if room < 7 or kind == 0:  # what a block has left over
                at += room
                continue
            parts += body[at + 7 : at + 7 + length]
            at += 7 + length
            if kind in (1, 4):  # a whole record, or the last part of one
                record, parts = Record.FromString(parts), b""
                row = {i.key or "/".join(i.nested_key): i.value_json for i in record.history.item}
                for name, value in row.items():
                    step = json.loads(row["_step"])
                    found.setdefault(name, []).append((step, json.loads(value)))
    return found


def assert_told_once(found, folder, close=1e-12):
    """Every figure of every round is there once."""
    wanted: dict[str, list] = {}
    for round, figures in expected(folder).items():
        for name, value in figures.items():
            wanted.setdefault(name, []).append((round, value))
    for name, points in wanted.items():
        assert [step for step, _ in found[name]] == [step for step, _ in points], name
        if not name.startswith(AGAIN):
            assert found[name] == [(s, pytest.approx(v, rel=close, abs=1e-30)) for s, v in points]
    assert {"validation/loss", "budget/counted/energy/worst", "knobs/steps"} <= wanted.keys()


def test_tensorboard_has_the_records_figures(tmp_path):
    train(settings("track=['tensorboard']"), tmp_path / "a", show="quiet")
    assert_told_once(from_tensorboard(tmp_path / "a"), tmp_path / "a", close=1e-6)  # float32


def test_mlflow_has_config_figures_and_summary(tmp_path):
    train(settings("track=['mlflow']"), tmp_path / "a", show="quiet")
    run, found = from_mlflow()
    assert_told_once(found, tmp_path / "a")
    summary = json.loads((tmp_path / "a" / "summary.json").read_text())
    assert run.data.metrics["summary/validation/loss"] == summary["validation"]["loss"]
    assert (run.data.params["train.steps"], run.data.params["budget.energy"]) == ("4", "90%")
    assert run.data.tags["knobs/codec"] == summary["knobs"]["codec"]
    assert (run.info.status, run.info.run_name) == ("FINISHED", "fedavg")


def test_wandb_offline_files_hold_the_figures(tmp_path):
    pytest.importorskip("wandb", reason="wandb is not installed")
    train(settings("track=['wandb']"), tmp_path / "a", show="quiet")
    found = from_wandb(tmp_path / "a")
    assert_told_once(found, tmp_path / "a")
    lines = (tmp_path / "a" / "rounds.jsonl").read_text().splitlines()
    assert found["knobs/codec"][0][1] == json.loads(lines[0])["knobs"]["*"]["codec"]


def stopping(at: int) -> Callback:
    """As if the user had pressed Ctrl-C in that round."""

    def heard(record):
        if record["round"] == at:
            os.kill(os.getpid(), signal.SIGINT)

    return Callback(round=heard)


def stop_in_round_2() -> Callback:
    return stopping(2)


def test_a_stopped_and_resumed_run_is_one_run_in_every_tracker(tmp_path, monkeypatch):
    for package in ("tensorboard", "mlflow", "wandb"):
        pytest.importorskip(package, reason=f"{package} is not installed")
    monkeypatch.setitem(sys.modules, "mine", sys.modules[__name__])
    folder = tmp_path / "a"
    every = ["tensorboard", "mlflow", "wandb"]
    with pytest.raises(SystemExit):
        train(settings(f"track={[*every, 'mine:stop_in_round_2']}"), folder, show="quiet")
    _, (run,) = mlflow_runs()
    assert run.info.status == "KILLED"
    assert len(expected(folder)) == 2
    resume(folder, track=every, show="quiet")
    assert len(expected(folder)) == 4
    assert_told_once(from_tensorboard(folder), folder, close=1e-6)
    run, found = from_mlflow()
    assert run.info.status == "FINISHED"
    assert_told_once(found, folder)
    assert_told_once(from_wandb(folder), folder)
    ids = {p.stem for p in (folder / "wandb").glob("offline-run-*/run-*.wandb")}
    assert len(ids) == 1


KILLER = """
import os, signal
from fedbudget.callbacks import Callback

def callback():
    return Callback(round=lambda r: r["round"] == 3 and os.kill(os.getpid(), signal.SIGKILL))
"""


def test_a_killed_run_repeats_rounds_but_trackers_hear_of_them_once(tmp_path):
    for package in ("tensorboard", "mlflow"):
        pytest.importorskip(package, reason=f"{package} is not installed")
    folder = tmp_path / "a"
    (tmp_path / "killer.py").write_text(KILLER)
    sets = [word for change in [*TINY, "checkpoint_every=2"] for word in ("--set", change)]
    names = ("tensorboard", "mlflow", "killer:callback")
    command = ["run", "fedavg", *sets, *(w for n in names for w in ("--track", n)), "--out", folder]
    done = subprocess.run(
        [sys.executable, "-m", "fedbudget.cli", *map(str, command)],
        capture_output=True,
        timeout=300,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert len(expected(folder)) == 3  # and the checkpoint is of round 2
    resume(folder, track=["tensorboard", "mlflow"], show="quiet")
    assert_told_once(from_tensorboard(folder), folder, close=1e-6)
    assert_told_once(from_mlflow()[1], folder)


def test_a_tracker_that_comes_late_gets_the_rounds_so_far(tmp_path):
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    train(settings("rounds=2"), tmp_path / "a", show="quiet")
    more = settings("rounds=4", "track=['tensorboard']")
    train_or_resume(more, tmp_path / "a", accept_changes=True, show="quiet")
    assert_told_once(from_tensorboard(tmp_path / "a"), tmp_path / "a", close=1e-6)


def test_a_new_run_in_an_old_ones_place_is_another_run(tmp_path):
    pytest.importorskip("mlflow", reason="mlflow-skinny is not installed")
    for seed in (0, 1):
        train(settings(f"seed={seed}", "track=['mlflow']"), tmp_path / "a", True, show="quiet")
    _, runs = mlflow_runs()
    assert sorted(run.data.params["seed"] for run in runs) == ["0", "1"]
    assert all("validation/loss" in run.data.metrics for run in runs)


def test_a_server_that_is_not_there_is_warned_of_once_and_the_run_goes_on(
    tmp_path, monkeypatch, capsys
):
    pytest.importorskip("mlflow", reason="mlflow-skinny is not installed")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    train(settings("track=['mlflow']"), tmp_path / "a", show="quiet")
    said = [line for line in capsys.readouterr().err.splitlines() if "tracking with" in line]
    assert len(said) == 1
    assert said[0].startswith("fedbudget: tracking with mlflow failed and is off now: ")
    assert json.loads((tmp_path / "a" / "summary.json").read_text())["complete"]


def test_tracking_changes_no_result(tmp_path):
    train(settings(), tmp_path / "a", show="quiet")
    train(settings("track=['tensorboard']"), tmp_path / "b", show="quiet")
    a, b = ((tmp_path / n / "model.safetensors").read_bytes() for n in "ab")
    assert a == b
    assert same_result(settings()) == same_result(settings("track=['tensorboard']"))


def test_unknown_and_missing_trackers_are_a_sentence_before_anything_is_written(
    tmp_path, monkeypatch
):
    with pytest.raises(UserError, match="'tensorbord': it must be tensorboard, mlflow, wandb or"):
        train(settings("track=['tensorbord']"), tmp_path / "a")
    with pytest.raises(UserError, match="No module named 'no_such'"):
        train(settings("track=['no_such:thing']"), tmp_path / "a")
    with pytest.raises(
        UserError, match=r"must return a fedbudget.callbacks.Callback, not a Namespace"
    ):
        train(settings("track=['argparse:Namespace']"), tmp_path / "a")
    monkeypatch.setattr(trackers, "find_spec", lambda package: None)
    with pytest.raises(
        UserError, match=r"needs the package wandb: pip install 'fedbudget\[wandb\]"
    ):
        train(settings("track=['wandb']"), tmp_path / "a")
    assert not (tmp_path / "a").exists()


def test_a_mere_folder_of_a_packages_name_is_not_the_package(tmp_path, monkeypatch):
    (tmp_path / "nopackage").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    assert not trackers._installed("nopackage")


def blobs(seed):
    x = torch.randn(40, 4, generator=torch.Generator().manual_seed(seed))
    return x, (x.sum(1) > 0).long()


def test_the_api_tells_callbacks_of_start_rounds_and_end():
    heard: list = []
    mine = Callback(
        start=lambda facts, config: heard.append((facts["name"], facts["budgets"], config["lr"])),
        round=lambda record: heard.append(record["round"]),
        end=lambda summary: heard.append(summary["validation"]["loss"]),
        close=lambda: heard.append("closed"),
    )
    run = fb.train(
        *(torch.nn.Linear(4, 2), [blobs(0), blobs(1)], blobs(2)),
        rounds=2,
        steps=2,
        lr=0.1,
        budget={"energy": 1.0},
        callbacks=[mine],
        quiet=True,
    )
    start = ("run", {"counted": [{"energy": 1.0}]}, 0.1)
    assert heard == [start, 1, 2, pytest.approx(run.summary["validation"]["loss"]), "closed"]


def test_a_callback_that_fails_is_left_out_and_others_go_on():
    heard: list = []
    broken = Callback(
        round=lambda record: record["no such key"], close=lambda: heard.append("shut")
    )
    others = Callback(round=lambda record: heard.append(record["round"]))
    with pytest.warns(
        RuntimeWarning, match=r"callbacks\[0\] failed and is off now: KeyError"
    ) as all:
        fb.train(
            *(torch.nn.Linear(4, 2), [blobs(0)], blobs(2)),
            rounds=3,
            steps=1,
            callbacks=[broken, others],
            quiet=True,
        )
    assert (heard, len(all)) == (["shut", 1, 2, 3], 1)
    with pytest.raises(UserError, match=r"callbacks\[0\] is a builtin_function_or_method"):
        fb.train(torch.nn.Linear(4, 2), [blobs(0)], rounds=1, callbacks=[print])


def test_callbacks_are_closed_when_the_training_fails():
    heard: list = []

    def fail(record):
        raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        fb.train(
            *(torch.nn.Linear(4, 2), [blobs(0)], blobs(2)),
            rounds=2,
            steps=1,
            on_round=fail,
            quiet=True,
            callbacks=[Callback(close=lambda: heard.append("closed"))],
        )
    assert heard == ["closed"]


def test_a_guard_lets_ctrl_c_through():
    def pressed(record):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        guarded(Callback(round=pressed), "mine", pytest.fail).round({})


def test_figures_follow_classes_and_leave_out_what_is_not_known():
    record = {
        "validation": {"loss": None, "accuracy": 0.5},
        "usage": {"counted": {"0": {"energy": 2.0}, "1": {"energy": 3.0}}},
        "duals": {"0": {"energy": 0.1}, "1": {"energy": 0.3}},
        "knobs": {"*": {"layers": 2, "steps": 8, "batch": 4, "accumulate": 1, "codec": "int8"}},
        "dropped": {"2": "it dropped out"},
    }
    found = numbers(record, {"counted": [{"energy": 4.0}, {"energy": 2.0}]})
    assert "validation/loss" not in found
    assert found["budget/counted/energy/mean"] == pytest.approx(1.0)
    assert found["budget/counted/energy/worst"] == pytest.approx(1.5)
    assert found["usage/counted/energy/worst"] == 3.0
    assert (found["duals/energy/mean"], found["duals/energy/max"]) == (pytest.approx(0.2), 0.3)
    assert (found["knobs/steps"], found["clients/dropped"]) == (8.0, 1.0)
