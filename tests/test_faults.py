"""Faults: whatever kills, damages or fills something, a run goes on to the same bits or says why.

`docs/reliability.md` lists them; each names the test that proves it.
"""

import json
import os
import random
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import replace
from functools import partial
from multiprocessing import Pipe, get_context
from pathlib import Path

import pytest
import torch
from safetensors.torch import save

from conftest import softmax_plan
from fedbudget import cli, rounds, training
from fedbudget.config import load
from fedbudget.engines import embedded
from fedbudget.engines.choose import choose
from fedbudget.engines.embedded import InProcess, Workers
from fedbudget.engines.mail import Box
from fedbudget.errors import UserError
from fedbudget.runs import RunFolder
from fedbudget.types import Reply

ROOT = Path(__file__).parents[1]
PATIENCE_S = 200
"""before a test gives up on a process; nothing is concluded from less"""
TEXT = """
rounds = {rounds}
seed = 5
workers = 2
[data]
source = "text"
path = "text.txt"
clients = 4
[model]
size = "1x16"
heads = 2
context = 16
[train]
cohort = 3
steps = 2
batch = 2
"""
LABELLED = """
rounds = {rounds}
seed = 5
workers = 2
[data]
source = "tiny_labels:data"
clients = 4
[model]
kind = "tiny_labels:model"
[train]
cohort = 3
steps = 2
batch = 5
optimizer = "sgd"
lr = 0.1
"""
BUDGET = '\n[budget]\nenergy = "60%"\ncommunication = "30%"\n'
METHODS = {
    "fedavg": TEXT,
    "cafl-l": TEXT
    + BUDGET.replace("60%", "100%")  # nothing is left of so few steps
    + '[control]\ncontroller = "cafl-l"\neta = 0.5\n[codec]\nfeedback = "error"\n',
    "planner": TEXT + BUDGET + '[control]\ncontroller = "planner"\nleast_steps = 1\n',
    "scaffold": LABELLED.replace("seed = 5", 'seed = 5\nalgorithm = "scaffold"'),
    "pc-fedavg": LABELLED.replace("seed = 5", 'seed = 5\nalgorithm = "pc-fedavg"')
    + "[constraints]\nradius = [0.5, 2.0]\n",
}
MODULE = """
import os
import time
import torch

def data(table):
    x, y = torch.randn(60, 3), torch.arange(60) % 2
    return [(x[i::4], y[i::4]) for i in range(4)], (x, y)

class Net(torch.nn.Linear):
    def forward(self, x):
        while self.training and os.path.exists("hang"):
            open(f"hung-{os.getpid()}", "w").close()
            time.sleep(0.05)
        return super().forward(x)

def model(table):
    return Net(3, 2)
"""


def prepared(folder: Path, method: str, rounds: int, **changes) -> Path:
    """A config with all it needs beside it."""
    (folder / "text.txt").write_text("To be, or not to be, that is the question. " * 60)
    (folder / "tiny_labels.py").write_text(MODULE)
    text = METHODS[method].format(rounds=rounds)
    for key, value in changes.items():
        text = re.sub(rf"^{key} = .*$", f"{key} = {value}", text, flags=re.M)
    (folder / f"{method}.toml").write_text(text)
    return folder / f"{method}.toml"


def launch(cwd: Path, *arguments, prelude: str | None = None, number: int = 0) -> subprocess.Popen:
    """The command line in a session of its own, so that its workers can be killed with it."""
    how = ["-m", "fedbudget.cli"]
    if prelude is not None:
        how = ["-c", f"{prelude}\nfrom fedbudget.cli import main\nmain()", str(number)]
    return subprocess.Popen(
        [sys.executable, *how, *map(str, arguments)],
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def finish(process: subprocess.Popen) -> tuple[int, str, str]:
    try:
        out, err = process.communicate(timeout=PATIENCE_S)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    assert "Traceback" not in err, err
    return process.returncode, out, err


def until(condition, process: subprocess.Popen | None = None, pause_s: float = 0.02) -> bool:
    """Wait for a condition, or for the end of a process; whether it came true."""
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        if condition():
            return True
        if process is not None and process.poll() is not None:
            return False
        time.sleep(pause_s)
    raise AssertionError("waited too long")


def group_members(group: int) -> list[int]:
    """Processes of a group that still run."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, _, pgrp = stat.read_text().rpartition(")")[2].split()[:3]
            if int(pgrp) == group and state != "Z":
                found.append(int(stat.parent.name))
    return found


def lines(run: Path) -> int:
    file = run / "rounds.jsonl"
    return file.read_text().count("\n") if file.exists() else 0


def used(record: dict) -> list[int]:
    """Clients whose replies were."""
    return [client for client in record["cohort"] if str(client) not in record["dropped"]]


def outcome(run: Path) -> tuple[bytes, list[dict]]:
    """What must not depend on how a run was done: the model's bytes, and the rounds but for times."""
    times = ("train_s", "evaluate_s", "wall_s")
    records = RunFolder(run).records()
    for record in records:
        assert record["usage"].pop("measured").keys() == set(map(str, used(record)))
        record["usage"].pop("estimated", None)
    kept = [{k: v for k, v in record.items() if k not in times} for record in records]
    return (run / "model.safetensors").read_bytes(), kept


def command(monkeypatch, capsys, *arguments) -> tuple[int, str, str]:
    """The command line in this process: exit code, stdout, stderr."""
    monkeypatch.setattr(sys, "argv", ["fedbudget", *map(str, arguments)])
    capsys.readouterr()
    with pytest.raises(SystemExit) as left:
        cli.main()
    out, err = capsys.readouterr()
    assert "Traceback" not in err
    return int(left.value.code or 0), out, err


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty folder to run in."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def whole(here: Path, method: str, rounds: int, **changes) -> tuple[bytes, list[dict]]:
    """A run that nothing disturbs."""
    config = prepared(here, method, rounds, **changes)
    training.train(load(config, ["workers=1"]), here / "whole")
    return outcome(here / "whole")


DIES_AT_FSYNC = """
import os, signal, sys
real, left = os.fsync, [int(sys.argv.pop(1))]
def fsync(file):
    left[0] -= 1
    if left[0] == 0:
        os.killpg(0, signal.SIGKILL)
    real(file)
os.fsync = fsync
"""


def test_killed_while_it_writes_a_run_goes_on_to_the_same_bits(here):
    """Kills while config.toml, facts.json, a round's line and checkpoints are being written."""
    expected = whole(here, "cafl-l", 4)
    config, run = here / "cafl-l.toml", here / "run"
    # counted in files: config, facts, line, checkpoint, line, ...; later rounds.jsonl, cut back, first
    for number, done in ((1, 0), (2, 0), (4, 1), (6, 2)):
        process = launch(
            *(here, "run", config, "--resume", "--out", run),
            prelude=DIES_AT_FSYNC,
            number=number,
        )
        code, *_ = finish(process)
        assert code == -signal.SIGKILL
        assert lines(run) == done
        assert list(run.rglob(".*.part"))
    code, _, err = finish(launch(here, "resume", run))
    assert (code, err) == (0, "")
    assert outcome(run) == expected
    assert not list(run.rglob(".*.part"))


def _more_lines(run: Path, before: int) -> bool:
    return lines(run) > before


def _writes_checkpoint(run: Path) -> bool:
    return any(name.endswith(".part") for name in os.listdir(run / "checkpoint"))


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_killed_at_any_moment_a_run_goes_on_to_the_same_bits(here, method):
    """Five kills each: while it starts, trains, or writes a checkpoint; workers die with it."""
    began = time.monotonic()
    expected = whole(here, method, 200)
    # sleeps are shares of it: on no machine may a run end before its kill
    span = time.monotonic() - began
    run, draw = here / "run", random.Random(method)
    kills = 0
    process = launch(here, "run", here / f"{method}.toml", "--out", run)
    while kills < 5:
        one_more = partial(_more_lines, run, lines(run))
        match kills % 3:
            case 0:
                until(one_more, process)
                until(partial(_writes_checkpoint, run), process, 0)
            case 1:
                until(one_more, process)
                time.sleep(draw.uniform(0, span / 40))
            case 2:
                until((run / "config.toml").exists, process)
                time.sleep(draw.uniform(0, span / 4))
        assert process.poll() is None, finish(process)  # it was to be killed before its end
        os.killpg(process.pid, signal.SIGKILL)
        finish(process)
        kills += 1
        process = launch(here, "resume", run)
    code, _, err = finish(process)
    assert code == 0, err
    assert outcome(run) == expected


def test_a_second_signal_ends_a_run_now_and_leaves_no_process(here):
    """A client hangs; the first signal waits for the round, the second does not."""
    config = prepared(here, "scaffold", 1000)
    process = launch(here, "run", config, "--out", here / "run")
    try:
        assert until(lambda: lines(here / "run") >= 1, process)
        (here / "hang").touch()
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does: workers too
        assert "once more to stop now" in [process.stderr.readline() for _ in range(2)][1]
        os.killpg(process.pid, signal.SIGINT)
        code, _, err = finish(process)
        assert code == training.STOPPED
        assert "finished rounds are kept" in err
        assert until(lambda: not group_members(process.pid))
    finally:
        finish(process)
    folder = RunFolder(here / "run")
    assert folder.load_checkpoint(print).state.round == lines(here / "run")
    assert not any(record["dropped"] for record in folder.records())


def test_sigterm_to_all_its_processes_ends_the_round_and_loses_no_client(here):
    config = prepared(here, "scaffold", 1000)
    process = launch(here, "run", config, "--out", here / "run")
    assert until(lambda: lines(here / "run") >= 1, process)
    os.killpg(process.pid, signal.SIGTERM)
    code, out, err = finish(process)
    assert (code, "go on with: fedbudget resume" in out) == (training.STOPPED, True), err
    assert not any(record["dropped"] for record in RunFolder(here / "run").records())
    assert until(lambda: not group_members(process.pid))


def test_workers_leave_when_their_parent_is_killed(here):
    """Even in the middle of a client that never ends."""
    (here / "hang").touch()
    config = prepared(here, "scaffold", 5)
    process = launch(here, "run", config, "--out", here / "run")
    try:
        assert until(lambda: len(list(here.glob("hung-*"))) == 2, process)
        process.kill()
        assert until(lambda: not group_members(process.pid))
    finally:
        finish(process)


def test_a_worker_whose_parent_is_gone_before_it_is_ready_leaves_in_silence(capfd):
    ours, theirs = Pipe()
    arguments = (theirs, Box(), Box(), softmax_plan(), 0)
    worker = get_context("spawn").Process(target=embedded._work, args=arguments)
    worker.start()
    theirs.close()
    ours.close()
    worker.join(PATIENCE_S)
    assert (worker.exitcode, capfd.readouterr().err) == (0, "")


def say_number(pipe, number):
    embedded._answer = lambda pipe, down, up, plan, number: pipe.send_bytes(str(number).encode())
    embedded._work(pipe, None, None, None, number)


def test_a_worker_knows_its_number_which_names_its_accelerator():
    ours, theirs = Pipe()
    worker = get_context("spawn").Process(target=say_number, args=(theirs, 3))
    worker.start()
    assert ours.poll(PATIENCE_S)
    assert ours.recv_bytes() == b"3"
    worker.join(PATIENCE_S)


class Stubborn(torch.nn.Linear):
    """Hangs in training on inputs that are marked; one process, one client."""

    def forward(self, x):
        while self.training and bool((x > 90).any()):
            time.sleep(0.05)
        return super().forward(x)


def with_a_marked_client(**changes):
    plan = softmax_plan(model=partial(Stubborn, 4, 3), **changes)
    plan.clients.base.x[:60] += 100  # client 0's examples
    return plan


def test_a_client_that_hangs_is_ended_and_the_others_are_used():
    plan = with_a_marked_client(rounds=1)
    with choose(plan, workers=1, deadline_s=5.0) as engine:  # a process, though it is one worker
        assert isinstance(engine, Workers)
        before = engine.workers[0].process.pid
        ((record, state),) = _run(plan, engine, plan.build_model().layout)
        after = engine.workers[0].process.pid
    assert record.dropped == {"0": "no reply within 5 s"}
    assert set(state.acks) == {1, 2}
    assert before != after
    for pid in (before, after):
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_the_deadline_of_the_config_reaches_the_engine(here, monkeypatch):
    asked = []

    def chosen(plan, workers, deadline_s):
        asked.append((workers, deadline_s))
        return InProcess(plan)

    monkeypatch.setattr(training, "choose", chosen)
    config = prepared(here, "fedavg", 1)
    training.train(load(config, ["fleet.deadline=7.5"]), here / "run")
    assert asked == [(2, 7.5)]
    assert isinstance(embedded.embedded(softmax_plan(), 1), InProcess)


def test_workers_that_die_while_idle_are_replaced_and_no_job_is_lost():
    plan = softmax_plan(rounds=2)
    layout = plan.build_model().layout
    expected = [state.weights for _, state in _run(plan, InProcess(plan), layout)]
    with Workers(plan, 2) as engine:
        seen = []
        for record, state in _run(plan, engine, layout):
            seen.append(state.weights)
            assert not record.dropped
            for worker in engine.workers if record.round == 1 else ():
                worker.process.kill()
                worker.process.join()
    assert all(torch.equal(a, b) for a, b in zip(seen, expected, strict=True))


def _run(plan, engine, layout):
    return rounds.run(plan, engine, layout, rounds.first_state(plan))


class Repeated(InProcess):
    """Each reply comes twice."""

    def run(self, jobs):
        for reply in super().run(jobs):
            yield reply
            yield reply


def test_a_reply_that_comes_twice_counts_once():
    plan = softmax_plan(rounds=2)
    layout = plan.build_model().layout
    once, twice = (
        [(r.dropped, r.up_bytes, s.weights.tolist()) for r, s in _run(plan, engine, layout)]
        for engine in (InProcess(plan), Repeated(plan))
    )
    assert once == twice


def test_a_reply_to_someone_elses_job_is_not_used(monkeypatch):
    real = embedded._receive

    def swapped(worker):
        reply, kept = real(worker)
        return (replace(reply, client=2) if reply.client == 1 else reply), kept

    monkeypatch.setattr(embedded, "_receive", swapped)
    plan = softmax_plan(rounds=1)
    with Workers(plan, 1) as engine:
        ((record, _),) = _run(plan, engine, plan.build_model().layout)
    assert record.dropped == {"1": "it answers another job"}


class Absent(InProcess):
    """Nobody answers in some rounds."""

    def run(self, jobs):
        for reply, job in zip(super().run(jobs), jobs, strict=True):
            yield Reply.failure(job, "it rained") if job.round in (2, 3) else reply


def test_a_round_without_any_client_leaves_the_model_alone():
    plan = softmax_plan(rounds=4)
    states = []
    for record, state in _run(plan, Absent(plan), plan.build_model().layout):
        states.append(state.weights.clone())
        assert len(record.dropped) == (3 if record.round in (2, 3) else 0)
    assert torch.equal(states[0], states[1])
    assert torch.equal(states[1], states[2])
    assert not torch.equal(states[2], states[3])


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """A finished run of four rounds, to be copied and damaged."""
    folder = tmp_path_factory.mktemp("undisturbed")
    before = Path.cwd()
    os.chdir(folder)
    try:
        whole(folder, "fedavg", 4, workers=1)
    finally:
        os.chdir(before)
    return folder


@pytest.fixture
def copied(undisturbed, here):
    """The same run before its end was written, and its outcome."""
    shutil.copytree(undisturbed, here, dirs_exist_ok=True)
    expected = outcome(here / "whole")
    (here / "whole" / "summary.json").unlink()
    (here / "whole" / "model.safetensors").unlink()
    return here / "whole", expected


DAMAGE = {
    "empty": lambda body: b"",
    "cut in its header": lambda body: body[:60],
    "cut in its last tensor": lambda body: body[:-5],
    "longer than it was": lambda body: body + b"\0",
    "a bit of its length": lambda body: _flipped(body, 3),
    "a bit of its metadata": lambda body: _flipped(body, 8 * body.index(b"round") + 1),
    "a bit of a tensor": lambda body: _flipped(body, 8 * len(body) - 900),
    "a text": lambda body: b"To be, or not to be",
    "another program's": lambda body: save({"weights": torch.zeros(5)}),
}


def _flipped(body: bytes, bit: int) -> bytes:
    changed = bytearray(body)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_checkpoint_is_told_and_the_one_before_taken(copied, damage, monkeypatch, capsys):
    run, expected = copied
    newest = RunFolder(run).checkpoints()[0]
    newest.write_bytes(DAMAGE[damage](newest.read_bytes()))
    code, out, err = command(monkeypatch, capsys, "resume", run)
    assert code == 0
    assert f"{newest} cannot be used" in err
    assert len(err.splitlines()) == 1
    assert "round 4/4" in out
    assert outcome(run) == expected


def test_a_checkpoint_under_another_rounds_name_is_not_taken(copied, monkeypatch, capsys):
    run, expected = copied
    newest, older = RunFolder(run).checkpoints()
    newest.write_bytes(older.read_bytes())
    code, _, err = command(monkeypatch, capsys, "resume", run)
    assert (code, "it is of round 3" in err) == (0, True)
    assert outcome(run) == expected


def test_every_bit_flip_in_a_checkpoint_is_noticed(copied):
    """All of its header, and of its tensors a sample: their sum would notice any."""
    folder = RunFolder(copied[0])
    newest, older = folder.checkpoints()
    older.unlink()
    body = newest.read_bytes()
    header = 8 * (8 + int.from_bytes(body[:8], "little"))
    draw = random.Random(0)
    bits = [*range(header), *(draw.randrange(header, 8 * len(body)) for _ in range(200))]
    for bit in bits:
        newest.write_bytes(_flipped(body, bit))
        with pytest.raises(UserError, match="no checkpoint can be read"):
            folder.load_checkpoint(lambda text: None)


def test_without_a_checkpoint_a_run_does_not_begin_again_in_silence(copied, monkeypatch, capsys):
    run, expected = copied
    folder = RunFolder(run)
    saved = (run / "rounds.jsonl").read_bytes()
    for path in folder.checkpoints():
        path.write_bytes(b"damaged")
    code, _, err = command(monkeypatch, capsys, "resume", run)
    assert (code, "no checkpoint can be read" in err.splitlines()[-1]) == (2, True)
    shutil.rmtree(run / "checkpoint")
    code, _, err = command(monkeypatch, capsys, "resume", run)
    assert (code, err.count("\n")) == (2, 1)
    assert "no checkpoint is here, but rounds.jsonl has 4 rounds" in err
    assert (run / "rounds.jsonl").read_bytes() == saved
    (run / "rounds.jsonl").write_bytes(saved.splitlines(True)[0])  # killed in its first round
    code, _, err = command(monkeypatch, capsys, "resume", run)
    assert (code, "begins at round 1 again" in err) == (0, True)
    assert outcome(run) == expected


def test_damaged_records_are_told_not_trained_over(copied, monkeypatch, capsys):
    run, _ = copied
    text = (run / "rounds.jsonl").read_bytes()
    for bad in (b"\xff" + text[1:], b"7\n" + text[text.index(b"\n") + 1 :], b""):
        (run / "rounds.jsonl").write_bytes(bad)
        code, _, err = command(monkeypatch, capsys, "resume", run)
        assert (code, err.count("\n")) == (2, 1)
        assert "the checkpoint is of round 4, but" in err
        assert (run / "rounds.jsonl").read_bytes() == bad


@pytest.mark.parametrize(
    "wrong",
    [{"validation": "x"}, {"validation": {"loss": "x"}}, {"usage": []}, {"wall_s": None}, "wall_s"],
    ids=str,
)
def test_a_record_that_no_run_writes_is_told_before_any_training(
    copied, wrong, monkeypatch, capsys
):
    run, _ = copied
    RunFolder(run).checkpoints()[0].unlink()  # go back to round 3
    first, second, *more = RunFolder(run).records()
    if isinstance(wrong, str):
        del second[wrong]
    else:
        second |= wrong
    text = "".join(json.dumps(record) + "\n" for record in (first, second, *more))
    (run / "rounds.jsonl").write_text(text)
    before = everything(run)
    code, out, err = command(monkeypatch, capsys, "resume", run)
    assert (code, err.count("\n"), out) == (2, 1, "")
    assert f"{run / 'rounds.jsonl'}: the line of round 2 is not what a run writes" in err
    assert everything(run) == before


def test_without_its_config_no_advice_leads_back_to_itself(copied, monkeypatch, capsys):
    run, expected = copied
    (run / "config.toml").unlink()
    before = everything(run)
    code, _, err = command(monkeypatch, capsys, "resume", run)
    assert (code, "no run is here (config.toml is missing)" in err) == (2, True)
    for option in ([], ["--resume"]):
        code, _, err = command(monkeypatch, capsys, "run", "fedavg.toml", "--out", run, *option)
        assert (code, err.count("\n"), "fedbudget resume" in err) == (2, 1, False)
        assert "but no config.toml, so no run can go on there; choose another --out" in err
        assert everything(run) == before
    code, _, err = command(monkeypatch, capsys, "run", "fedavg.toml", "--out", run, "--overwrite")
    assert (code, err, outcome(run)) == (0, "", expected)


@pytest.mark.parametrize("damage", ["missing", "cut off"])
def test_the_lost_model_of_a_finished_run_is_written_again(
    undisturbed, here, damage, monkeypatch, capsys
):
    shutil.copytree(undisturbed, here, dirs_exist_ok=True)
    run, expected = here / "whole", outcome(here / "whole")
    model = run / "model.safetensors"
    again = (("resume", run), ("run", "fedavg.toml", "--resume", "--out", run))
    for arguments in again:
        model.write_bytes(expected[0][:-5])
        if damage == "missing":
            model.unlink()
        code, out, err = command(monkeypatch, capsys, *arguments)
        assert (code, "round " in out, outcome(run)) == (0, False, expected)
        assert err == f"fedbudget: {model} is missing or damaged; it is written again\n"
    shutil.rmtree(run / "checkpoint")  # records may be kept without either; a damaged file is told
    told = f"fedbudget: {model} is damaged, and no checkpoint is here to write it again from\n"
    if damage == "missing":
        model.unlink()
        told = ""
    else:
        model.write_bytes(expected[0][:-5])
    before = everything(run)
    for arguments in again:
        code, out, err = command(monkeypatch, capsys, *arguments)
        assert (code, err, everything(run)) == (0, told, before)
        assert "is finished" in out


def everything(run: Path) -> dict[Path, bytes]:
    return {p: p.read_bytes() for p in run.rglob("*") if p.is_file()}


def edited(run: Path, *changes: tuple[str, str]) -> None:
    """As a user does it, in the folder of the run."""
    text = (run / "config.toml").read_text()
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    (run / "config.toml").write_text(text)


def test_fewer_rounds_than_are_done_are_refused(copied, monkeypatch, capsys):
    run, expected = copied
    edited(run, ("rounds = 4 ", "rounds = 3 "))
    before = everything(run)
    for _ in ("now", "by a version that did not keep the settings in facts.json"):
        code, out, err = command(monkeypatch, capsys, "resume", run)
        assert (code, err.count("\n"), out) == (2, 1, "")
        assert f"{run / 'config.toml'} asks for 3 rounds, but 4 are done" in err
        assert everything(run) == before
        (run / "facts.json").unlink(missing_ok=True)
        before = everything(run)
    edited(run, ("rounds = 3 ", "rounds = 4 "))
    code, _, err = command(monkeypatch, capsys, "resume", run)
    assert (code, err, outcome(run)) == (0, "", expected)


def test_a_run_whose_rounds_were_set_to_those_done_is_finished(copied, monkeypatch, capsys):
    run, _ = copied
    folder = RunFolder(run)
    folder.checkpoints()[0].unlink()  # go back to round 3
    edited(run, ("rounds = 4 ", "rounds = 3 "))
    for said in ("wrote ", "is finished: 3 rounds"):
        code, out, err = command(monkeypatch, capsys, "resume", run)
        assert (code, said in out, err, lines(run)) == (0, True, "", 3)


@pytest.mark.parametrize(
    ("changes", "told", "advice"),
    [
        ([("lr = 0.001 ", "lr = 0.5 ")], "train.lr: 0.001 -> 0.5", "or accept it: fedbudget "),
        ([("rounds = 4 ", "rounds = 5 ")], "rounds: 4 -> 5", "or accept it: fedbudget "),
        ([("clients = 4 ", "clients = 3 ")], "data.clients: 4 -> 3", "there are 3 clients now"),
    ],
)
def test_a_config_that_was_edited_is_not_resumed_in_silence(
    copied, changes, told, advice, monkeypatch, capsys
):
    run, expected = copied
    folder = RunFolder(run)
    folder.checkpoints()[0].unlink()  # go back to round 3
    original = folder.config_file.read_text()
    edited(run, *changes)
    before = everything(run)
    code, out, err = command(monkeypatch, capsys, "resume", run)
    assert (code, err.count("\n"), out) == (2, 1, "")
    assert f"{run / 'config.toml'} was changed since the run was made: {told}; put it back" in err
    assert advice in err
    assert everything(run) == before
    if "accept it: fedbudget " in advice:
        accept = shlex.split(err.partition("accept it: fedbudget ")[2])
        copy = run.with_name("copy")
        shutil.copytree(run, copy)
        accept = [word.replace(str(run), str(copy)) for word in accept]
        code, out, err = command(monkeypatch, capsys, *accept)
        assert (code, "round 4/" in out, "round 3/" in out) == (0, True, False), err
        code, out, err = command(monkeypatch, capsys, "resume", copy)
        assert (code, "is finished" in out, err) == (0, True, "")
    # the config that it was made with heals it, and so does putting it back
    code, _, err = command(monkeypatch, capsys, "run", "fedavg.toml", "--resume", "--out", run)
    assert (code, err, outcome(run)) == (0, "", expected)
    assert folder.config_file.read_text() == original
    code, out, _ = command(monkeypatch, capsys, "resume", run)
    assert (code, "is finished: 4 rounds" in out) == (0, True)
    edited(run, ("lr = 0.001 ", "lr = 0.5 "))
    code, _, err = command(monkeypatch, capsys, "resume", run)
    assert (code, "put it back, for the run cannot go on so: it is finished" in err) == (2, True)


FILES = ["config.toml", "rounds.jsonl", "round-00000002", "model.safetensors", "summary.json"]


@pytest.mark.parametrize("name", FILES)
def test_a_full_disk_is_one_sentence_and_the_run_goes_on_later(
    undisturbed, here, name, monkeypatch, capsys
):
    """The disk is full when the named file is synced; rounds.jsonl in round 2."""
    shutil.copytree(undisturbed, here, dirs_exist_ok=True)
    config, run = here / "fedavg.toml", here / "run"
    seen, real = [], os.fsync

    def full(file):
        target = os.readlink(f"/proc/self/fd/{file}")
        if name in target:
            seen.append(target)
            if len(seen) == (2 if name == "rounds.jsonl" else 1):
                raise OSError(28, "No space left on device")
        real(file)

    monkeypatch.setattr(os, "fsync", full)
    code, _, err = command(monkeypatch, capsys, "run", config, "--resume", "--out", run)
    monkeypatch.setattr(os, "fsync", real)
    if name == "round-00000002":  # it is tried again when the run ends, and then there is room
        assert (code, err.count("\n")) == (2, 1)
        assert RunFolder(run).load_checkpoint(print).state.round == 2
    assert code == 2
    assert re.search(rf"{name}.*: cannot write: No space left on device\n$", err)
    assert not list(run.rglob(".*.part"))
    code, _, err = command(monkeypatch, capsys, "run", config, "--resume", "--out", run)
    assert (code, err) == (0, "")
    assert outcome(run) == outcome(here / "whole")


SMALL_FILES = """
import resource, sys
most = int(sys.argv.pop(1))
resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
"""


@pytest.mark.parametrize(("method", "name"), [("fedavg", "round-"), ("scaffold", "rounds.jsonl")])
def test_a_file_that_may_not_grow_is_one_sentence_and_the_run_goes_on_later(
    here, method, name, monkeypatch, capsys
):
    """The kernel refuses: a checkpoint, or, beside one that is smaller, the records."""
    expected = whole(here, method, 6, workers=1)
    checkpoint = RunFolder(here / "whole").checkpoints()[0].stat().st_size
    records = (here / "whole" / "rounds.jsonl").stat().st_size
    most = (records + checkpoint) // 2 if name == "round-" else 5 * records // 6
    assert records < most < checkpoint if name == "round-" else checkpoint < most
    run = here / "run"
    shutil.copytree(here / "whole", run)
    (run / "summary.json").unlink()
    folder = RunFolder(run)
    if name == "round-":  # go back to round 5
        folder.checkpoints()[0].unlink()
    else:
        start = folder.load_checkpoint(print)
        for path in folder.checkpoints():
            path.unlink()
        (run / "rounds.jsonl").write_text("")
        assert start.state.round == 6
    process = launch(here, "resume", run, prelude=SMALL_FILES, number=most)
    code, _, err = finish(process)
    assert (code, err.count("\n")) == (2, 1), err
    assert re.search(rf"{name}.*: cannot write: File too large\n$", err)
    kept = folder.load_checkpoint(print).state.round
    assert kept == (5 if name == "round-" else lines(run))
    code, _, err = command(monkeypatch, capsys, "resume", run)
    assert (code, err) == (0, "")
    assert outcome(run) == expected


@pytest.mark.slow
def test_a_small_file_system_that_is_full_loses_nothing(here, monkeypatch, capsys):
    expected = whole(here, "scaffold", 200, workers=1)
    disk = here / "disk"
    disk.mkdir()
    size = ["-o", "size=64k"]
    mounted = subprocess.run(["mount", "-t", "tmpfs", *size, "none", disk], capture_output=True)
    if mounted.returncode:
        pytest.skip("only root can mount a small file system")
    try:
        run = disk / "run"
        config = here / "scaffold.toml"
        code, _, err = command(monkeypatch, capsys, "run", config, "--out", run)
        assert (code, err.count("\n"), "No space left" in err) == (2, 1, True)
        assert 0 < RunFolder(run).load_checkpoint(print).state.round < 200
        larger = ["mount", "-o", "remount,size=4m", disk]
        subprocess.run(larger, check=True)
        code, _, err = command(monkeypatch, capsys, "resume", run)
        assert (code, err) == (0, "")
        assert outcome(run) == expected
    finally:
        subprocess.run(["umount", disk], check=True)


def test_resume_starts_goes_on_and_says_when_it_is_finished(here, monkeypatch, capsys):
    config, run = prepared(here, "fedavg", 3, workers=1), here / "run"
    again = ("run", config, "--resume", "--out", run)
    code, out, _ = command(monkeypatch, capsys, *again)
    assert (code, "round 1/3" in out) == (0, True)
    code, out, _ = command(monkeypatch, capsys, *again)
    assert (code, "is finished: 3 rounds" in out) == (0, True)
    code, out, _ = command(monkeypatch, capsys, *again, "--set", "workers=2")
    assert (code, "is finished: 3 rounds" in out) == (0, True)

    more = [*again, "--set", "rounds=5"]
    before = (run / "config.toml").read_bytes()
    code, _, err = command(monkeypatch, capsys, *more)
    assert (code, err.count("\n")) == (2, 1)
    assert "was made with other settings: rounds: 3 -> 5; go on" in err
    assert (run / "config.toml").read_bytes() == before
    code, out, err = command(monkeypatch, capsys, *more, "--accept-changes")
    assert (code, "round 4/5" in out, "round 3/5" in out) == (0, True, False), err
    assert load(run / "config.toml").rounds == 5
    assert outcome(run) == whole(here, "fedavg", 5, workers=1)
    code, out, _ = command(monkeypatch, capsys, *more)
    assert "is finished: 5 rounds" in out


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (["rounds=2"], "cannot go on with rounds: 4 -> 2: it has done 4 rounds already"),
        (["rounds=6", "model.size=2x16"], "its checkpoint is of another model"),
        (
            ["algorithm=scaffold", "train.optimizer=sgd", "rounds=6"],
            "its checkpoint is of another algorithm",
        ),
        (["rounds=6", "data.clients=3"], "there are 3 clients now, and it has trained 3"),
        (
            [
                *("rounds=6", "train.lr=0.5", "budget.energy=90%"),
                *("control.controller=planner", "control.least_steps=1"),
            ],
            'rounds: 4 -> 6, train.lr: 0.001 -> 0.5, control.controller: "fixed" -> "planner" and 2 '
            "more: its controller has learnt under other",
        ),
    ],
)
def test_changes_that_a_checkpoint_does_not_fit_are_explained(
    copied, changes, sentence, monkeypatch, capsys
):
    run, _ = copied
    (run / "summary.json").write_text('{"complete": true}')
    before = {p: p.read_bytes() for p in run.rglob("*") if p.is_file()}
    sets = [word for change in changes for word in ("--set", change)]
    arguments = ("run", "fedavg.toml", "--resume", "--out", run, *sets, "--accept-changes")
    code, _, err = command(monkeypatch, capsys, *arguments)
    assert (code, err.count("\n")) == (2, 1)
    assert sentence in err
    assert {p: p.read_bytes() for p in run.rglob("*") if p.is_file()} == before


def test_a_budget_or_codec_that_leaves_the_state_alone_can_be_changed(copied, monkeypatch, capsys):
    run, _ = copied
    sets = ("--set", "rounds=6", "--set", "codec.name=int8", "--set", "budget.energy=90%")
    arguments = ("run", "fedavg.toml", "--resume", "--out", run, *sets, "--accept-changes")
    code, _, err = command(monkeypatch, capsys, *arguments)
    assert (code, err) == (0, "")
    assert RunFolder(run).records()[-1]["knobs"]["*"]["codec"] == "int8"


def test_options_that_contradict_each_other_are_refused(here, monkeypatch, capsys):
    for options in (["--accept-changes"], ["--resume", "--overwrite"]):
        code, _, err = command(monkeypatch, capsys, "run", "fedavg", *options)
        assert (code, err.count("\n")) == (2, 1)
        assert options[-1] in err


def test_every_fault_in_the_document_has_its_test():
    page = (ROOT / "docs" / "reliability.md").read_text()
    named = re.findall(r"`tests/(\w+\.py)::(\w+)`", page)
    assert len(named) >= 20
    for file, test in named:
        assert f"def {test}(" in (ROOT / "tests" / file).read_text(), f"{file}::{test}"
