"""Many small runs, each into its own folder; those that are finished are not run again."""

import json
import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import partial
from pathlib import Path
from typing import Any

import torch

from fedbudget.build import build
from fedbudget.config import Config, load, to_toml
from fedbudget.engines.choose import choose
from fedbudget.engines.pages import large_pages
from fedbudget.errors import UserError
from fedbudget.runner import Stop, execute, facts
from fedbudget.runs import RunFolder
from fedbudget.types import Reply, RoundRecord


class Silent:
    """A watcher that says nothing."""

    def on_reply(self, reply: Reply) -> None: ...

    def on_round(self, record: RoundRecord) -> None: ...


def train_all(
    runs: Mapping[Path, Config], processes: int, done: Callable[[Path], None]
) -> dict[Path, dict[str, Any]]:
    """Train every config into its folder, several at a time; returns their summaries."""
    waiting = {}
    for place, config in runs.items():
        if not _finished(place, config):
            waiting[place] = config
        else:
            done(place)
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(processes, context, _leave_with, (os.getpid(),))
    with large_pages(), pool:
        jobs = {pool.submit(train, place, config): place for place, config in waiting.items()}
        try:
            for job in as_completed(jobs):
                job.result()
                done(jobs[job])
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return {place: json.loads((place / "summary.json").read_text()) for place in runs}


def train(place: Path, config: Config) -> None:
    """One run, in this process and from its start."""
    torch.set_num_threads(1)  # the other core has another run
    plan = build(config)
    folder = RunFolder.create(place, to_toml(config), overwrite=True)
    about = facts(plan, config.algorithm, config.control.controller)
    engine = partial(choose, plan)
    execute(plan, folder, about, engine, plan.rounds, Silent(), Stop(), save_personal=False)


def _leave_with(parent: int) -> None:
    """A process whose parent was killed must not go on writing into the runs' folders."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _finished(place: Path, config: Config) -> bool:
    summary = place / "summary.json"
    if not summary.exists():
        return False
    if load(place / "config.toml") != config:
        raise UserError(
            f"{place} was made with another configuration; choose another --out or remove it"
        )
    return bool(json.loads(summary.read_text()).get("complete"))
