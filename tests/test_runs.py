"""The run folder, checkpoints and resume."""

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from functools import partial

import pytest
import torch

from conftest import softmax_plan, text_plan
from fedbudget.control.controller import fixed
from fedbudget.engines.choose import choose
from fedbudget.errors import UserError
from fedbudget.report.load import find_runs
from fedbudget.report.sheets import spread
from fedbudget.report.tables import markdown, rows
from fedbudget.report.target import cost_to, target_rows
from fedbudget.report.write import write_report
from fedbudget.rounds import first_state, run
from fedbudget.runner import Stop, execute, facts
from fedbudget.runs import RunFolder
from fedbudget.summary import summarise
from fedbudget.types import Knobs, Reply, RoundRecord
from fedbudget.uplink import Uplink


class Watch:
    """Stops a run after some round."""

    def __init__(self, stop: Stop, after: int = 10**9) -> None:
        self.stop, self.after = stop, after

    def on_reply(self, reply: Reply) -> None:
        pass

    def on_round(self, record: RoundRecord) -> None:
        self.stop.asked = record.round >= self.after


def go(plan, path, after=10**9, start=None, folder=None):
    folder = folder or RunFolder.create(path, "rounds = 1\n")
    stop = Stop()
    about = facts(plan, "fedavg", "fixed")
    engine = partial(choose, plan)
    return execute(plan, folder, about, engine, 1, Watch(stop, after), stop, start)


def weights(path):
    return RunFolder(path).load_checkpoint(lambda text: None).state.weights


def test_a_run_that_was_stopped_and_resumed_equals_one_that_was_not(tmp_path):
    plan = text_plan(rounds=5)
    go(plan, tmp_path / "whole")
    half = go(plan, tmp_path / "half", after=2)
    assert (half["complete"], half["rounds_done"]) == (False, 2)
    folder = RunFolder(tmp_path / "half")
    with folder.rounds_file.open("a") as f:  # a crash while the next line was written
        f.write('{"round": 3, "coho')
    start = folder.load_checkpoint(lambda text: None)
    folder.cut_back(start.state.round)
    done = go(plan, None, start=start, folder=folder)
    assert done["complete"]
    assert torch.equal(weights(tmp_path / "whole"), weights(tmp_path / "half"))
    a, b = (RunFolder(tmp_path / n).records() for n in ("whole", "half"))
    assert [r["validation"] for r in a] == [r["validation"] for r in b]
    models = [(tmp_path / n / "model.safetensors").read_bytes() for n in ("whole", "half")]
    assert models[0] == models[1]


def test_what_clients_keep_survives_a_resume(tmp_path):
    """Error feedback: a residual that started again at zero would give another model."""
    plan = text_plan(rounds=6)
    lossy = Knobs(3, 4, 4, codec="topk10%")
    recipe = replace(plan.recipe, uplink=Uplink(feedback="error"))
    plan = replace(plan, controller=fixed(lossy), recipe=recipe)
    go(plan, tmp_path / "whole")
    go(plan, tmp_path / "half", after=3)
    folder = RunFolder(tmp_path / "half")
    start = folder.load_checkpoint(lambda text: None)
    for client, versions in start.clients.items():
        assert versions[start.state.acks[client].round]["residual0"].abs().sum() > 0
    go(plan, None, start=start, folder=folder)
    assert torch.equal(weights(tmp_path / "whole"), weights(tmp_path / "half"))
    forgetful = start._replace(clients={})
    go(plan, None, start=forgetful, folder=RunFolder.create(tmp_path / "other", ""))
    reasons = [r["dropped"] for r in RunFolder(tmp_path / "other").records()]
    assert "lost its state" in next(iter(reasons[0].values()))


def test_a_checkpoint_of_another_model_and_lost_records_are_refused(tmp_path):
    go(text_plan(rounds=4), tmp_path / "r", after=2)
    folder = RunFolder(tmp_path / "r")
    start = folder.load_checkpoint(lambda text: None)
    with pytest.raises(UserError, match="the config was changed since"):
        go(softmax_plan(), None, start=start, folder=folder)
    folder.rounds_file.write_text("")
    with pytest.raises(UserError, match="checkpoint is of round 2, but 0 of its rounds are here"):
        folder.cut_back(start.state.round)


def test_two_checkpoints_are_kept_and_a_damaged_one_falls_back(tmp_path):
    go(text_plan(rounds=4), tmp_path / "r")
    folder = RunFolder(tmp_path / "r")
    newest, older = folder.checkpoints()
    assert newest.name == "round-00000004.safetensors"
    body = newest.read_bytes()
    for bad in (b"", body[:100], body[:-3], b"text", body[:-4] + bytes(4)):
        newest.write_bytes(bad)
        heard = []
        assert folder.load_checkpoint(heard.append).state.round == 3
        assert "round-00000004" in heard[0]
    older.write_bytes(b"also damaged")
    with pytest.raises(UserError, match="no checkpoint can be read"):
        folder.load_checkpoint(lambda text: None)


def test_other_files_beside_checkpoints_cost_none_of_them_and_stay(tmp_path):
    """Nor do damaged checkpoints of later rounds, behind which the run went back."""
    go(text_plan(rounds=4), tmp_path / "r", after=1)
    folder = RunFolder(tmp_path / "r")
    names = ("round-best", "round-old", "round-1", "round-00000008", "round-00000009")
    others = [folder.checkpoint_folder / f"{name}.safetensors" for name in names]
    for other in others:
        other.write_bytes(b"mine")
    heard = []
    start = folder.load_checkpoint(heard.append)
    assert start.state.round == len(heard) - 1 == 1
    go(text_plan(rounds=4), None, start=start, folder=folder)
    assert all(other.read_bytes() == b"mine" for other in others)
    own = sorted(p.name for p in folder.checkpoint_folder.iterdir() if p not in others)
    assert own == ["round-00000003.safetensors", "round-00000004.safetensors"]


def test_a_run_is_not_overwritten_by_mistake(tmp_path):
    RunFolder.create(tmp_path / "r", "a = 1")
    with pytest.raises(UserError, match="already holds a run"):
        RunFolder.create(tmp_path / "r", "a = 2")
    RunFolder.create(tmp_path / "r", "a = 2", overwrite=True)
    assert (tmp_path / "r" / "config.toml").read_text() == "a = 2"


@pytest.mark.parametrize(
    "name",
    [
        *("config.toml", "rounds.jsonl", "summary.json", "facts.json", "model.safetensors"),
        *("personal.safetensors", "checkpoint/round-00000007.safetensors"),
    ],
)
def test_files_of_the_names_that_a_run_writes_are_kept_unless_told(tmp_path, name):
    mine = tmp_path / "r" / name
    mine.parent.mkdir(parents=True)
    mine.write_text("mine")
    with pytest.raises(UserError, match="or add --overwrite"):
        RunFolder.create(tmp_path / "r", "a = 1")
    assert [p for p in (tmp_path / "r").rglob("*") if p.is_file()] == [mine]
    assert mine.read_text() == "mine"
    RunFolder.create(tmp_path / "r", "a = 1", overwrite=True)
    assert (tmp_path / "r" / "config.toml").read_text() == "a = 1"
    assert not mine.exists() or mine.read_text() != "mine"


def test_a_folder_that_cannot_be_made_is_explained(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot make the run folder"):
        RunFolder.create(tmp_path / "file" / "r", "")


def test_the_summary_has_its_contract(tmp_path):
    plan = text_plan(rounds=6)
    go(plan, tmp_path / "r")
    summary = json.loads((tmp_path / "r" / "summary.json").read_text())
    records = RunFolder(tmp_path / "r").records()
    losses = [r["validation"]["loss"] for r in records]
    assert summary["validation"]["loss"] == pytest.approx(sum(losses[-5:]) / 5)
    assert summary["validation"]["best_loss"] == min(losses)
    assert summary["wire"]["up_bytes"] == sum(r["up_bytes"] for r in records)
    assert summary["knobs"] == {
        "layers": 3,
        "steps": 4,
        "batch": 4,
        "accumulate": 1,
        "above": 0,
        "codec": "raw32",
    }
    assert {"name", "algorithm", "controller", "seed", "rounds", "complete", "usage"} <= set(
        summary
    )
    times = summary["time"]
    assert times["overhead_s"] == pytest.approx(
        times["wall_s"] - times["train_s"] - times["evaluate_s"]
    )


def test_bytes_are_those_of_the_frames(tmp_path):
    plan = text_plan(rounds=1)
    go(plan, tmp_path / "r")
    (record,) = RunFolder(tmp_path / "r").records()
    size = 4 * plan.build_model().layout.size
    assert 0 < record["up_bytes"] / 3 - size <= 128
    assert record["up_bytes"] == record["down_bytes"]


def test_records_without_a_finite_loss_still_make_a_summary_and_a_report(tmp_path):
    plan = text_plan(rounds=2)
    go(plan, tmp_path / "a")
    folder = RunFolder(tmp_path / "a")
    lines = folder.rounds_file.read_text().splitlines()
    bad = json.loads(lines[0])
    bad["validation"] = {"loss": None, "accuracy": None}
    folder.rounds_file.write_text(json.dumps(bad) + "\n" + lines[1][:40])
    summary = summarise(folder.records(), {"name": "a", "seed": 0}, 2, {})
    assert summary["validation"] == {}
    folder.save_summary(summary)
    runs = find_runs([tmp_path])
    for suffix in ("html", "md", "png", "svg", "pdf"):
        write_report(runs, tmp_path / f"r.{suffix}")
        assert (tmp_path / f"r.{suffix}").stat().st_size > 100


def test_reports_group_seeds_and_give_their_spread(tmp_path):
    for seed in (0, 1, 2):
        go(text_plan(seed=seed), tmp_path / "runs" / f"seed-{seed}")
    runs = find_runs([tmp_path / "runs"])
    ((name, seeds, *_),) = rows(runs)
    assert (name, seeds) == ("tiny", "3")
    assert " ± " in markdown(runs)
    assert spread([2.0], ".2f") == "2.00"
    assert spread([], ".2f") == "-"
    write_report(runs, tmp_path / "deep" / "report.html")
    page = (tmp_path / "deep" / "report.html").read_text()
    assert "window.fedbudget.render" in page
    with pytest.raises(UserError, match=r"'\.gif' is not one of \.html"):
        write_report(runs, tmp_path / "x.gif")
    with pytest.raises(UserError, match="no run folder is here"):
        find_runs([tmp_path / "deep"])


def test_cost_to_a_target_ends_with_the_round_that_reached_it(tmp_path):
    go(text_plan(rounds=5), tmp_path / "r")
    (run,) = find_runs([tmp_path / "r"])
    third = run.losses()[2][1]
    reached = next(i for i, (_, loss) in enumerate(run.losses(), 1) if loss <= third)
    cost = cost_to(run, third)
    assert cost["rounds"] == reached
    assert cost["uplink"] == sum(r["up_bytes"] for r in run.records[:reached])
    assert cost_to(run, 0.0) is None
    assert target_rows([run], 0.0)[0][1] == "0 of 1"


def test_a_full_disk_loses_nothing_and_leaves_nothing_half_written(tmp_path, monkeypatch):
    plan = text_plan(rounds=3)
    go(plan, tmp_path / "r", after=1)
    folder = RunFolder(tmp_path / "r")
    before = folder.load_checkpoint(lambda text: None)

    def full(fd):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(UserError, match="cannot write: No space left"):
        go(plan, None, start=before, folder=folder)
    monkeypatch.undo()
    assert folder.load_checkpoint(lambda text: None).state.round == before.state.round
    assert not list(folder.path.rglob("*.part"))


def test_a_run_whose_folder_was_removed_writes_nothing_into_the_next_ones(tmp_path):
    plan = softmax_plan(rounds=1)
    with choose(plan) as engine:
        ((record, state),) = run(plan, engine, plan.build_model().layout, first_state(plan))
    old = RunFolder.create(tmp_path / "a", "rounds = 1\n")
    with old.held() as ended:
        shutil.rmtree(old.path)
        with pytest.raises(UserError, match=r"a: the folder, or its .lock, was removed while"):
            ended.append(record)
        with RunFolder.create(tmp_path / "a", "rounds = 2\n").held() as new:
            new.append(record)
            for late in (
                lambda: ended.append(record),
                lambda: ended.save_checkpoint(state, {}),
                lambda: ended.save_summary({}),
            ):
                with pytest.raises(UserError, match="was removed while"):
                    late()
            assert len(new.records()) == 1
            assert not new.checkpoints()
    with RunFolder(
        tmp_path / "a"
    ).held():  # the first has not taken the second's lock with it, nor left its own
        pass
    assert not (new.path / ".lock").exists()


def test_two_processes_do_not_write_one_run(tmp_path):
    folder = RunFolder.create(tmp_path / "a", "rounds = 1\n")
    code = (
        "import sys, time\nfrom pathlib import Path\nfrom fedbudget.runs import RunFolder\n"
        "with RunFolder(Path(sys.argv[1])).held():\n    print('held', flush=True)\n"
        "    time.sleep(60)\n"
    )
    other = subprocess.Popen(
        [sys.executable, "-c", code, str(folder.path)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert other.stdout.readline() == "held\n"
        with pytest.raises(UserError, match=f"process {other.pid} is writing this run"):
            folder.held().__enter__()
        with pytest.raises(UserError, match="is writing this run"):
            RunFolder.create(folder.path, "rounds = 2\n", overwrite=True)
        assert folder.config_file.read_text() == "rounds = 1\n"
    finally:
        other.kill()  # and the lock goes with it
        other.communicate()
    with folder.held():
        pass
