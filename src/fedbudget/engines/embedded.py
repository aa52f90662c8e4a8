"""The embedded engine: clients one after another in this process, or spread over worker processes.

Workers are spawned, so they start alike on Linux and macOS; each has one thread, one model and the
data in shared memory. Jobs and replies cross pipes as JSON, weights and updates shared memory
(`mail`), nothing is pickled. A worker leaves when its parent does, however that ends.
"""

import json
import os
import signal
import threading
import time
from collections.abc import Iterator, MutableMapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import parent_process, resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pickle import PicklingError
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from fedbudget.codecs.frame import Packed
from fedbudget.engines import mail
from fedbudget.engines.engine import (
    Agents,
    Engine,
    Host,
    Versions,
    describe,
    metrics,
    pack,
    unpack,
    validation_batches,
)
from fedbudget.engines.mail import Box
from fedbudget.engines.pages import large_pages
from fedbudget.engines.queue import AHEAD, Queue
from fedbudget.engines.states import States
from fedbudget.errors import UserError
from fedbudget.plan import Plan
from fedbudget.task import Score
from fedbudget.threads import one_thread
from fedbudget.types import Buffer, Job, Reply

SIGNALS = (signal.SIGINT, signal.SIGTERM)
"""for the parent, which ends the round; workers do not hear them"""
LISTEN_S = 1.0
"""the longest wait: a signal that comes just before a wait begins is heard only when it ends"""


def embedded(plan: Plan, workers: int = 1, deadline_s: float = 0.0) -> Engine:
    """In this process with one worker, else with as many processes.

    Only a process can be ended, so with a deadline even one worker is a process of its own.
    """
    if workers <= 1 and deadline_s == 0:
        return InProcess(plan)
    return Workers(plan, max(1, workers), deadline_s)


class InProcess(Agents):
    """Clients one after another."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.host = Host(plan)
        self.states: MutableMapping[int, Versions] = States()

    def run(self, jobs: Sequence[Job]) -> Iterator[Reply]:
        for job in jobs:
            with one_thread():
                reply, kept = self.host.train(job, self.states.get(job.client, {}))
            if kept:
                self.states[job.client] = kept
            yield reply

    def evaluate(self, weights: Tensor) -> dict[str, float] | None:
        if not self.host.batches:
            return None
        with one_thread():
            scores = self.host.score(weights, range(len(self.host.batches)))
        return metrics(scores, self.host.plan.task.accuracy)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        pass


@dataclass
class _Worker:
    process: SpawnProcess
    pipe: Connection
    down: Box
    up: Box
    number: int
    job: Job | None = None
    since: float = 0.0
    """when it got its job"""
    payload: Packed | None = None
    """what it was sent last, so that a broadcast is sent once"""


class Workers(Agents):
    """Clients spread over processes; whoever is free takes the longest of the next jobs.

    deadline_s: how long a job may take before its worker is replaced; 0 = as long as it likes.
    """

    def __init__(self, plan: Plan, workers: int, deadline_s: float = 0.0) -> None:
        self.plan = plan
        self.deadline_s = deadline_s
        self.states: MutableMapping[int, Versions] = States()
        self.batches = validation_batches(plan)
        self.workers: list[_Worker] = []
        try:
            for _ in range(workers):
                self.workers.append(self._start(len(self.workers)))
            for worker in self.workers:
                _await(worker)
        except BaseException:
            self.__exit__()
            raise

    def _start(self, number: int) -> _Worker:
        context = torch.multiprocessing.get_context("spawn")
        here, there = context.Pipe()
        down, up = Box(), Box()
        arguments = (there, down, up, self.plan.of_workers(), number)
        process = context.Process(target=_work, args=arguments, daemon=True)
        try:
            with _signals_wait(), large_pages():
                process.start()
        except (PicklingError, AttributeError, TypeError) as error:
            raise UserError(
                f"worker processes need a model, data, loss and resources that can be pickled "
                f"({error}); define them at the top of a module, or use workers=1"
            ) from None
        there.close()
        return _Worker(process, here, down, up, number)

    def run(self, jobs: Sequence[Job]) -> Iterator[Reply]:
        waiting = Queue(jobs, AHEAD * len(self.workers), self._work)
        died: set[int] = set()
        while waiting.left:
            for i, worker in enumerate(self.workers):
                if worker.job is None and (job := waiting.take()):
                    worker.job, worker.since = job, time.monotonic()
                    try:
                        self._give(worker, job)
                    except OSError:  # it died while idle: the job has not been tried
                        waiting.put_back(job)
                        self.workers[i] = self._replace(worker)
            busy = {w.pipe: i for i, w in enumerate(self.workers) if w.job is not None}
            if not busy:  # all had died, and are new
                continue
            ready = wait(list(busy), self._patience())
            for i in self._overdue():
                worker = self.workers[i]
                assert worker.job is not None
                if worker.pipe not in ready:
                    failure = Reply.failure(worker.job, f"no reply within {self.deadline_s:g} s")
                    waiting.done(worker.job)
                    self.workers[i] = self._replace(worker, at_once=True)
                    yield failure
            for pipe in ready:
                i = busy[pipe]  # type: ignore[index]
                worker = self.workers[i]
                job = worker.job
                assert job is not None
                try:
                    reply, kept = _receive(worker)
                    if (reply.run, reply.round, reply.client) != (job.run, job.round, job.client):
                        reply, kept = Reply.failure(job, "it answers another job"), {}
                    if kept:
                        self.states[job.client] = kept
                    worker.job = None
                except (EOFError, OSError):
                    self.workers[i] = self._replace(worker)
                    if job.client not in died:  # a second chance, once
                        died.add(job.client)
                        waiting.put_back(job)
                        continue
                    reply = Reply.failure(job, "its worker process died twice")
                waiting.done(job)
                yield reply

    def _work(self, job: Job) -> float:
        """How long a job takes beside the others: by the device's count, else by its samples."""
        knobs = job.knobs
        if meter := self.plan.meter_of(job.client):
            return meter(knobs, 0, 0).get("counted", {}).get("time", 0.0)
        return float(knobs.steps * knobs.batch * knobs.accumulate)

    def _patience(self) -> float:
        """Seconds until the next job is overdue, or until signals must be heard."""
        if self.deadline_s == 0:
            return LISTEN_S
        first = min(w.since for w in self.workers if w.job is not None)
        return min(LISTEN_S, max(0.0, first + self.deadline_s - time.monotonic()))

    def _overdue(self) -> list[int]:
        if self.deadline_s == 0:
            return []
        latest = time.monotonic() - self.deadline_s
        return [i for i, w in enumerate(self.workers) if w.job is not None and w.since <= latest]

    def evaluate(self, weights: Tensor) -> dict[str, float] | None:
        if not self.batches:
            return None
        body = weights.numpy().view(np.uint8).data
        n = len(self.workers)
        scores: dict[int, Score] = {}
        for _ in range(2):
            missing = [i for i in range(len(self.batches)) if i not in scores]
            asked = []
            for w, worker in enumerate(self.workers):
                try:
                    _send(worker.pipe, {"op": "score", "batches": missing[w::n]}, body)
                    asked.append((w, missing[w::n]))
                except OSError:
                    self.workers[w] = self._replace(worker)
            for w, batches in asked:
                try:
                    answer = json.loads(self.workers[w].pipe.recv_bytes())
                except (EOFError, OSError):
                    self.workers[w] = self._replace(self.workers[w])
                    continue
                if "error" in answer:
                    raise UserError(f"evaluation failed: {answer['error']}")
                scores.update(zip(batches, (Score(*s) for s in answer["scores"]), strict=True))
            if len(scores) == len(self.batches):
                break
        else:
            raise UserError("evaluation failed: its worker processes died twice")
        return metrics([scores[i] for i in range(len(self.batches))], self.plan.task.accuracy)

    def _give(self, worker: _Worker, job: Job) -> None:
        fresh = worker.payload is not job.payload
        state = self.states.get(job.client, {})
        about = {"op": "train", "job": job.header(), "state": bool(state)}
        mail.send(worker.pipe, worker.down, about, job.payload if fresh else None)
        if state:
            worker.pipe.send_bytes(pack(state))
        worker.payload = job.payload

    def _replace(self, worker: _Worker, at_once: bool = False) -> _Worker:
        _stop(worker, at_once)
        fresh = self._start(worker.number)
        _await(fresh)
        return fresh

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        for worker in self.workers:
            _stop(worker, at_once=any(error))
        self.workers = []


@contextmanager
def _signals_wait() -> Iterator[None]:
    """A process that starts now does not hear them; this one hears them afterwards."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    resource_tracker.ensure_running()  # it would let them through again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _await(worker: _Worker) -> None:
    """A worker's first word is that it is ready, or why it is not."""
    try:
        problem = worker.pipe.recv_bytes().decode()
    except (EOFError, OSError):
        raise UserError(
            "a worker process could not start; a script that uses workers > 1 needs its calls "
            'below `if __name__ == "__main__":`, because each worker imports it'
        ) from None
    if problem:
        raise UserError(f"a worker process could not start: {problem}")


def _stop(worker: _Worker, at_once: bool = False) -> None:
    worker.pipe.close()  # an idle worker sees the end of its pipe and leaves
    if not at_once:
        worker.process.join(timeout=1)
    if worker.process.is_alive():
        worker.process.kill()
        worker.process.join()
    worker.process.close()


def _send(pipe: Connection, header: dict[str, Any], *bodies: Buffer) -> None:
    pipe.send_bytes(json.dumps(header).encode())
    for body in bodies:
        pipe.send_bytes(body)


def _receive(worker: _Worker) -> tuple[Reply, Versions]:
    about, payload = mail.receive(worker.pipe, worker.up, keep=True)
    kept = unpack(worker.pipe.recv_bytes()) if about["state"] else {}
    return Reply.from_header(about["reply"], payload), kept


def _work(pipe: Connection, down: Box, up: Box, plan: Plan, number: int) -> None:
    """A worker's life: answer until the pipe ends."""
    for ignored in SIGNALS:
        signal.signal(ignored, signal.SIG_IGN)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    threading.Thread(target=_leave_with_parent, daemon=True).start()
    torch.set_num_threads(1)
    with suppress(EOFError, OSError):  # the parent is gone
        _answer(pipe, down, up, plan, number)


def _answer(pipe: Connection, down: Box, up: Box, plan: Plan, number: int) -> None:
    """Say that the model could be built, or why not; then train and score as asked."""
    try:
        host = Host(plan, number)
    except Exception as error:
        pipe.send_bytes(describe(error).encode())
        return
    pipe.send_bytes(b"")
    payload: Packed | None = None
    while True:
        about, fresh = mail.receive(pipe, down, keep=False)
        if about["op"] == "score":
            _score(pipe, host, about["batches"])
            continue
        payload = fresh or payload
        assert payload is not None
        job = Job.from_header(about["job"], payload)
        kept = unpack(pipe.recv_bytes()) if about["state"] else {}
        reply, state = host.train(job, kept)
        mail.send(pipe, up, {"reply": reply.header(), "state": bool(state)}, reply.payload)
        if state:
            pipe.send_bytes(pack(state))


def _leave_with_parent() -> None:
    """A parent that was killed says nothing, and a client may train for hours."""
    parent = parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)


def _score(pipe: Connection, host: Host, batches: Sequence[int]) -> None:
    weights = torch.frombuffer(bytearray(pipe.recv_bytes()), dtype=host.model.layout.dtype)
    try:
        _send(pipe, {"scores": host.score(weights, batches)})
    except Exception as error:
        _send(pipe, {"error": describe(error)})
