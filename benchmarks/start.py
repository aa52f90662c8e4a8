"""From the start of a process to the end of its first round: `fedbudget run` and Flower's simulation.

Both train a GPT of one layer: two clients, one step of batch 8.
"""

import os
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import plans
from contestants import FLOWER, ContestantError, not_measured, start
from measure import in_turn, ratio, show, table

from fedbudget.bench import spread

CLIENTS = 2
CONFIG = f"""
rounds = 1
algorithm = "fedavg"
[data]
source = "topics"
clients = {CLIENTS}
[model]
kind = "gpt"
size = "1x32"
[train]
cohort = {CLIENTS}
steps = 1
batch = 8
lr = 1e-3
"""
POLL_S = 0.005


def ours(folder: Path) -> float:
    """Until the first round's line is in rounds.jsonl."""
    config, out = folder / "tiny.toml", folder / f"run-{time.monotonic_ns()}"
    config.write_text(CONFIG)
    command = [sys.executable, "-m", "fedbudget.cli", "run", str(config), "--out", str(out)]
    records = out / "rounds.jsonl"
    started = time.perf_counter()
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env={**os.environ}
    )
    while not (records.exists() and records.stat().st_size):
        if process.poll() not in (None, 0):
            assert process.stderr is not None
            raise ContestantError(process.stderr.read().decode()[-400:])
        time.sleep(POLL_S)
    seconds = time.perf_counter() - started
    process.communicate()
    return seconds


def theirs(workload: Path, folder: Path) -> float:
    """Until its first `strategy.start` of one round has returned."""
    started = time.perf_counter()
    contestant = start(FLOWER, workload, folder)
    seconds = time.perf_counter() - started
    contestant.stop()
    return seconds


def run(repeat: int, quick: bool = False) -> dict[str, Any]:
    with TemporaryDirectory(prefix="fedbudget-bench-") as place:
        folder = Path(place)
        settings = plans.gpt(1, 32, steps=1, cohort=CLIENTS)
        plans.write({**settings, "clients": CLIENTS, "batch": 8}, folder / "workload")
        work = {"fedbudget run": lambda: ours(folder)}
        absent = {}
        try:
            theirs(folder / "workload", folder)
            work["Flower, run_simulation"] = lambda: theirs(folder / "workload", folder)
        except ContestantError as error:
            absent["Flower, run_simulation"] = str(error)
        ours(folder)  # files that are read from disk once
        return {"seconds": in_turn(work, repeat), "absent": absent}


def section(found: dict[str, Any]) -> list[str]:
    seconds = found["seconds"]
    first = seconds["fedbudget run"]
    rows = [[n, f"{spread(s).median:.2f}", show(ratio(s, first))] for n, s in seconds.items()]
    rows += [[name, not_measured(why), ""] for name, why in found["absent"].items()]
    text = (
        "From the start of the process to the end of round 1 of a tiny run: a GPT of one layer, two "
        f"clients, one step. {len(first)} repetitions."
    )
    return [text, "", *table(["", "s", "to ours"], rows)]
