"""A long run with failing clients: memory stays flat, and nothing is left over."""

import gc
import os
import resource
from functools import partial
from pathlib import Path
from statistics import fmean

import pytest
import torch

from conftest import softmax_plan
from fedbudget.engines.embedded import Workers
from fedbudget.runner import Stop, execute
from fedbudget.runs import RunFolder

ROUNDS = 2000


class Moody(torch.nn.Linear):
    """Fails in one local run of twenty: torch's generator has a stream for each round and client."""

    def forward(self, x):
        if self.training and torch.rand(()).item() < 0.05:
            raise RuntimeError("not today")
        return super().forward(x)


def rss(pid: int) -> int:
    """Bytes of memory that a process uses itself."""
    pages = Path(f"/proc/{pid}/statm").read_text().split()[1]
    return int(pages) * resource.getpagesize()


def children() -> set[str]:
    tasks = Path("/proc/self/task").glob("*/children")
    return {pid for task in tasks for pid in task.read_text().split()}


class Scales:
    """Weighs the parent and its workers every ten rounds."""

    def __init__(self) -> None:
        self.pids: list[int] = []
        self.seen: list[list[int]] = []
        self.dropped = 0

    def on_reply(self, reply) -> None:
        pass

    def on_round(self, record) -> None:
        self.dropped += len(record.dropped)
        if record.round % 10 == 0:
            gc.collect()
            self.seen.append([rss(pid) for pid in (os.getpid(), *self.pids)])


def soak(plan, folder: Path, scales: Scales) -> dict:
    def engine():
        made = Workers(plan, 2)
        scales.pids = [worker.process.pid for worker in made.workers]
        return made

    run = RunFolder.create(folder, "")
    with run.held() as mine:
        return execute(plan, mine, {}, engine, 1, scales, Stop())


@pytest.mark.slow
def test_two_thousand_rounds_with_failures_leave_memory_flat_and_nothing_behind(tmp_path):
    plan = softmax_plan(model=partial(Moody, 4, 3), rounds=ROUNDS, evaluate_every=50)
    soak(softmax_plan(rounds=2), tmp_path / "warm", Scales())  # Python's resource tracker stays
    handles, before = len(os.listdir("/proc/self/fd")), children()
    scales = Scales()
    summary = soak(plan, tmp_path / "run", scales)
    del plan  # its tensors are shared with the workers, and each holds a handle
    gc.collect()
    assert summary["complete"]
    # two steps a local run, each fails with 0.05: 0.0975 of 6000, and six standard deviations
    assert abs(scales.dropped - 585) < 140
    assert len(os.listdir("/proc/self/fd")) == handles
    assert children() == before
    quarter = len(scales.seen) // 4
    for use in zip(*scales.seen, strict=True):
        second, last = use[quarter : 2 * quarter], use[3 * quarter :]
        assert abs(fmean(last) / fmean(second) - 1) <= 0.02
