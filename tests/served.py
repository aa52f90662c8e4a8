"""Run folders made by hand, and a dashboard that serves them on loopback."""

import http.client
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from fedbudget.dashboard.app import build
from fedbudget.dashboard.gate import Gate
from fedbudget.dashboard.server import Server, listen
from fedbudget.summary import summarise

TOKEN = "a-token-for-tests"
BUDGETS = {"counted": [{"energy": 10.0, "communication": 1000.0}]}
TINY = [
    *("--set", "data.source=topics", "--set", "model.size=1x32", "--set", "model.context=32"),
    *("--set", "train.steps=4", "--set", "train.batch=4", "--set", "workers=1"),
]


def record(round: int, loss: float | None = None, energy: float = 5.0) -> dict:
    usage = {"energy": energy, "communication": 900.0, "memory": 1e6}
    return {
        "round": round,
        "cohort": [0, 1],
        "knobs": {"*": {"layers": 3, "steps": 4, "batch": 4, "accumulate": 1, "codec": "raw32"}},
        "duals": {},
        "train_loss": 2.0,
        "validation": {"loss": 3.0 / round if loss is None else loss, "accuracy": 0.5},
        "up_bytes": 1800,
        "down_bytes": 1800,
        "usage": {"counted": {"0": usage, "1": usage}},
        "dropped": {},
        "flagged": {},
        "skipped": [],
        "late": 0,
        "train_s": 0.9,
        "evaluate_s": 0.1,
        "wall_s": 1.0,
    }


def write_run(
    folder: Path,
    done: int = 3,
    rounds: int = 5,
    name: str = "fedavg",
    seed: int = 0,
    energy: float = 5.0,
    ended: bool = True,
) -> Path:
    """As a run that `ended` leaves it, or as one that was killed does."""
    (folder / "checkpoint").mkdir(parents=True)
    (folder / "config.toml").write_text(
        f'name = "{name}"\nrounds = {rounds}\nseed = {seed}\nalgorithm = "fedavg"\n'
        "checkpoint_every = 1\n\n[train]\nsteps = 4\n"
    )
    records = [record(i + 1, energy=energy) for i in range(done)]
    (folder / "rounds.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
    facts = {"name": name, "algorithm": "fedavg", "controller": "fixed", "seed": seed}
    more = {"rounds": rounds, "budgets": BUDGETS, "layers": [], "command": ""}
    (folder / "facts.json").write_text(json.dumps({**facts, **more}))
    if done:
        (folder / "checkpoint" / f"round-{done:08d}.safetensors").write_bytes(b"")
    if ended:
        (folder / "summary.json").write_text(json.dumps(summarise(records, facts, rounds, BUDGETS)))
    return folder


def gate(root: Path, host: str = "127.0.0.1", ask: bool = False, control: bool = True) -> Gate:
    return Gate(build(root, "runs", control), TOKEN, "fedbudget_80", host, ask)


@contextmanager
def served(root: Path) -> Iterator[int]:
    """The port of a dashboard in a thread."""
    listening = listen("127.0.0.1", 0)
    app = build(root, "runs", control=True)
    server = Server(Gate(app, TOKEN, "fedbudget_80", "127.0.0.1", False), app.state.watch)
    thread = threading.Thread(target=server.run, args=([listening],))
    thread.start()
    try:
        yield listening.getsockname()[1]
    finally:
        server.handle_exit(2, None)
        thread.join(20)
        listening.close()
        assert not thread.is_alive(), "open streams kept the server from ending"


def ask(port: int, method: str, path: str) -> tuple[int, dict]:
    """As the page asks."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    headers = {"Origin": f"http://127.0.0.1:{port}", "Cookie": f"fedbudget_80={TOKEN}"}
    connection.request(method, path, headers=headers)
    answer = connection.getresponse()
    body = json.loads(answer.read())
    connection.close()
    return answer.status, body


def row(port: int, id: str) -> dict:
    return next(r for r in ask(port, "GET", "/api/runs")[1]["runs"] if r["id"] == id)


def until(what: Callable[[], bool], seconds: float = 90) -> None:
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.05)


def start(*arguments: object) -> subprocess.Popen:
    """`fedbudget ...` as a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "fedbudget.cli", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@contextmanager
def running(*arguments: object) -> Iterator[subprocess.Popen]:
    """The same; the process ends with the block in any case."""
    process = start(*arguments)
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
