"""Contestants as processes that answer a command a line, so that repetitions can be interleaved."""

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self

import numpy as np
from measure import turns

HERE = Path(__file__).parent
PEERS = Path(os.environ.get("FEDBUDGET_PEERS", HERE.parent / ".venv-peers"))
"""where the peers' environments are: `make bench` makes them"""
PATIENCE_S = 1800.0
ROUNDING = 1e-6
"""a change of the weights that is none"""
TAIL = 3000
"""characters of a contestant's own words that an error repeats"""


class ContestantError(Exception):
    """A contestant that cannot start, or died; the others go on."""


def not_measured(why: str) -> str:
    """For a table: the last line of the reason; the whole is in the result."""
    return f"not measured: {why.strip().splitlines()[-1][:100]}"


@dataclass(frozen=True)
class Entry:
    """Who takes part: a program of `contest/` with its arguments, in an environment."""

    name: str
    program: str
    arguments: tuple[str, ...] = ()
    environment: str = ""
    """a folder of .venv-peers; "" is ours"""
    one_core: bool = False
    threads: int = 1

    @property
    def python(self) -> str:
        path = PEERS / self.environment / "bin" / "python"
        return str(path) if self.environment else sys.executable


OURS = Entry("fedbudget", "ours.py")
PLAIN = Entry("plain loop", "plain.py")
PFL = Entry("pfl-research", "pfl_research.py", environment="pfl")
FLOWER = Entry("Flower", "flower_simulation.py", environment="flower")


@dataclass
class Contestant:
    """A running Entry."""

    process: subprocess.Popen[bytes]
    log: Path
    facts: dict[str, Any] = field(default_factory=dict)

    def ask(self, **command: Any) -> dict[str, Any]:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(command).encode() + b"\n")
            self.process.stdin.flush()
        except OSError:
            raise ContestantError(self._last_words()) from None
        return self.hear()

    def hear(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        until = time.monotonic() + PATIENCE_S
        line = b""
        while not line.endswith(b"\n"):
            ready, _, _ = select.select([self.process.stdout], [], [], until - time.monotonic())
            piece = os.read(self.process.stdout.fileno(), 1 << 16) if ready else b""
            if not piece:
                raise ContestantError(self._last_words() if ready else "no answer in time")
            line += piece
        answer: dict[str, Any] = json.loads(line)
        return answer

    def seconds(self) -> float:
        """Of one more round."""
        self.facts["last"] = self.ask(op="round")
        return float(self.facts["last"]["seconds"])

    def weights(self, folder: Path) -> dict[str, np.ndarray]:
        """What the last round came to."""
        path = folder / f"weights-{self.process.pid}.npz"
        self.ask(op="save", path=str(path))
        with np.load(path) as stored:
            return {name: stored[name] for name in stored.files}

    def stop(self) -> None:
        """Hang up; whatever is left of its process group a while later is ended."""
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self._end()
            self.process.wait()
        self._end()

    def _end(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)  # of its own session: see `start`

    def _last_words(self) -> str:
        return "it stopped: " + self.log.read_text(errors="replace").strip()[-TAIL:]


def start(entry: Entry, workload: Path, folder: Path) -> Contestant:
    """Start it and wait until it has done a first round, which does not count."""
    if not Path(entry.python).exists():
        raise ContestantError(f"{entry.python} is not there; `make bench` makes it")
    log = folder / f"{entry.name.replace(' ', '-').replace(',', '')}.log"
    command = [entry.python, str(HERE / "contest" / entry.program), str(workload)]
    with log.open("wb") as errors:
        process = subprocess.Popen(
            [*command, *entry.arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            env=surroundings(entry),
            start_new_session=True,
            preexec_fn=_on_one_core if entry.one_core else None,
        )
    contestant = Contestant(process, log)
    try:
        contestant.facts = contestant.hear()
    except BaseException:
        contestant.stop()
        raise
    return contestant


def surroundings(entry: Entry) -> dict[str, str]:
    """Of a contestant's process: our models can be imported, and torch has as many threads as said."""
    path = os.pathsep.join(map(str, (HERE.parent / "src", HERE, HERE / "contest")))
    return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": str(entry.threads)}


def _on_one_core() -> None:
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})


class Contest:
    """All entries of a workload, running; those that cannot are in `absent` with the reason."""

    def __init__(self, entries: Sequence[Entry], workload: Path) -> None:
        self.entries, self.workload = entries, workload
        self.running: dict[str, Contestant] = {}
        self.absent: dict[str, str] = {}

    def __enter__(self) -> Self:
        self.place = TemporaryDirectory(prefix="fedbudget-bench-")
        for entry in self.entries:
            try:
                self.running[entry.name] = self._start(entry)
            except ContestantError as error:
                self.absent[entry.name] = str(error)
        return self

    def _start(self, entry: Entry) -> Contestant:
        """A second time where the first fails: Ray does not always come up on a busy machine."""
        folder = Path(self.place.name)
        try:
            return start(entry, self.workload, folder)
        except ContestantError:
            return start(entry, self.workload, folder)

    def __exit__(self, *error: object) -> None:
        for contestant in self.running.values():
            contestant.stop()
        self.place.cleanup()

    def drop(self, name: str, why: str) -> None:
        self.running.pop(name).stop()
        self.absent[name] = why

    def run(self, repeat: int) -> dict[str, list[float]]:
        """Seconds of each round by turns; who dies on the way is left out."""
        found: dict[str, list[float]] = {name: [] for name in self.running}
        for i in range(repeat):
            for name in turns(list(self.running), i):
                try:
                    found[name].append(self.running[name].seconds())
                except ContestantError as error:
                    self.drop(name, str(error))
                    del found[name]
        return found

    def agreement(self, reference: str) -> dict[str, float]:
        """How far each result is from the reference's, as a share of what the round changed."""
        folder = Path(self.place.name)
        with np.load(self.workload / "weights.npz") as stored:
            first = {name: stored[name] for name in stored.files}
        known = {name: one.weights(folder) for name, one in self.running.items()}
        return {name: apart(w, known[reference], first) for name, w in known.items()}


def apart(
    weights: Mapping[str, np.ndarray],
    reference: Mapping[str, np.ndarray],
    first: Mapping[str, np.ndarray],
) -> float:
    """|w - r| / |r - first| over all tensors; over |first| where the round changed nothing."""
    off = norm(weights[n].astype(float) - reference[n] for n in first)
    moved = norm(reference[n].astype(float) - first[n] for n in first)
    size = norm(first.values())
    return off / (moved if moved > ROUNDING * size else size or 1.0)


def norm(parts: Iterable[np.ndarray]) -> float:
    return sum(float(np.square(part.astype(float)).sum()) for part in parts) ** 0.5
