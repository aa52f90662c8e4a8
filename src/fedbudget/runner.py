"""Run a plan into a run folder: rounds, records, checkpoints, a clean stop on Ctrl-C."""

import os
import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from types import FrameType
from typing import Any, Protocol, Self

from fedbudget import epsilon, interrupt, rounds
from fedbudget.callbacks import Callback
from fedbudget.engines.engine import Engine
from fedbudget.errors import UserError
from fedbudget.plan import Plan
from fedbudget.records import plain
from fedbudget.runs import Checkpoint, RunFolder
from fedbudget.summary import summarise
from fedbudget.types import Reply, RoundRecord


class Watcher(Protocol):
    """Something that looks on while clients train: a progress display."""

    def on_reply(self, reply: Reply) -> None: ...

    def on_round(self, record: RoundRecord) -> None: ...


class Stop:
    """The first SIGINT or SIGTERM asks the run to end after its round; a second one ends it now."""

    def __init__(self, silent: bool = False) -> None:
        """`silent`: the progress display says that it was asked."""
        self.asked = False
        self.silent = silent
        self.before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if interrupt.heard():  # and swallowed by what was imported at that moment
            raise KeyboardInterrupt
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self.before[number] = signal.signal(number, self._ask)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
        if not self.silent:  # a handler may interrupt anything, so it touches no open file
            os.write(2, b"\nstopping after this round; once more to stop now\n")


def facts(plan: Plan, algorithm: str, controller: str) -> dict[str, Any]:
    """What a summary says of a run besides its records."""
    return {
        "name": plan.name,
        "algorithm": algorithm,
        "controller": controller,
        "seed": plan.seed,
        "clients": len(plan.clients),
        "cohort": plan.cohort,
        **({"units": dict(plan.units)} if plan.units else {}),
    }


def execute(
    plan: Plan,
    folder: RunFolder,
    about: Mapping[str, Any],
    engine: Callable[[], AbstractContextManager[Engine]],
    checkpoint_every: int,
    watcher: Watcher,
    stop: Stop,
    start: Checkpoint | None = None,
    save_personal: bool = True,
    command: str = "",
    callbacks: Sequence[Callback] = (),
    config: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Train to the end or until asked to stop; returns the summary it wrote.

    Callbacks hear of a round when its record and checkpoint are written; `config` is for them and
    for who resumes the run. To close them is the caller's.
    """
    model = plan.build_model()
    begin = start.state if start else rounds.first_state(plan)
    if len(begin.weights) != model.layout.size:
        raise UserError(
            f"{folder.path}: its checkpoint has {len(begin.weights)} numbers and the model of its "
            f"config {model.layout.size}; the config was changed since"
        )
    state, saved = begin, begin.round  # the last state whose record is written; that on disk
    with engine() as clients:
        about = {**about, "engine": clients.kind}
        more = {"rounds": plan.rounds, "budgets": plan.budgets, "layers": model.layout.titles}
        known = {**about, **more, "command": command}
        folder.save_facts({**known, "config": config} if config else known)
        for callback in callbacks:
            place = {"folder": str(folder.path), "done": begin.round}
            callback.start(plain({**known, **place}), config or {})
        if start:
            clients.states.update(start.clients)
            clients.saved(begin.acks)
        try:
            for record, after in rounds.run(plan, clients, model.layout, begin, watcher.on_reply):
                folder.append(record)
                state = after
                if state.round % checkpoint_every == 0:
                    folder.save_checkpoint(state, clients.states)
                    clients.saved(state.acks)
                    saved = state.round
                watcher.on_round(record)
                told = plain(record.to_json()) if callbacks else {}
                for callback in callbacks:
                    callback.round(told)
                if stop.asked:
                    break
        finally:
            if state.round > saved:
                folder.save_checkpoint(state, clients.states)
        if plan.constraints is not None and state.round == plan.rounds:
            figures, models = clients.final(plan.algorithm.last(state.server), state.acks)
            if not plan.recipe.privacy.on:  # nobody has put noise on these
                about = {**about, "personal": figures}
            if save_personal:
                layout = model.layout
                folder.save_personal((agent, layout.named(own)) for agent, own in models)
    folder.save_model(model.state_dict(state.weights))
    records = folder.records()
    about = {**about, **epsilon.facts(plan, records)}
    summary = summarise(records, about, plan.rounds, plan.budgets)
    folder.save_summary(summary)
    for callback in callbacks:
        callback.end(plain(summary))
    return summary
