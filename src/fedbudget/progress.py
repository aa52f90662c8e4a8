"""What a person sees while a run trains: a live view on a terminal, plain lines elsewhere."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any, Self, cast

from rich.console import Console
from rich.live import Live as Display
from rich.text import Text
from torch import Tensor

from fedbudget.engines.engine import Engine
from fedbudget.gauges import Budgets, empty, worst_gauges
from fedbudget.panel import ASCII, BLOCKS, View, panel, printable, seconds
from fedbudget.types import DROPPED_OUT, Job, Reply, RoundRecord
from fedbudget.units import show

RECENT = 5
"""rounds that the time of a round is the mean of"""
A_SECOND = 4
"""times the view is drawn anew"""


class Live:
    """Round and clients, loss and its course, knobs, and each budget with its worst client."""

    def __init__(
        self,
        console: Console,
        name: str,
        rounds: int,
        budgets: Budgets,
        done: int = 0,
        validates: bool = True,
        stopping: Callable[[], bool] = bool,
    ) -> None:
        self.console = console
        self.budgets = budgets
        self.validates, self.stopping = validates, stopping
        self.view = View(name, rounds, done, gauges=tuple(empty(budgets)))
        self.times: list[float] = []
        self.began = time.perf_counter()
        self.display = Display(
            get_renderable=self._panel,
            console=console,
            transient=True,
            refresh_per_second=A_SECOND,
        )

    def __enter__(self) -> Self:
        if self.console.is_interactive and not self.console.quiet:  # it takes over stderr as well
            self.display.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.display.stop()

    def on_jobs(self, jobs: Sequence[Job]) -> None:
        self.began = time.perf_counter()
        self.view = replace(
            self.view,
            asked=tuple(job.client for job in jobs),
            knobs=tuple(job.knobs for job in jobs),
            replied={},
            evaluating=False,
        )

    def on_reply(self, reply: Reply) -> None:
        came = {**self.view.replied, reply.client: reply.error is None}
        self.view = replace(self.view, replied=came)

    def on_evaluate(self) -> None:
        self.view = replace(self.view, evaluating=True)

    def on_round(self, record: RoundRecord) -> None:
        self.times = [*self.times, record.wall_s][-RECENT:]
        self.began = time.perf_counter()
        scores = self._scores(record)
        first = next(iter(scores.values()), None)
        self.view = replace(
            self.view,
            done=record.round,
            evaluating=False,
            dropped=self.view.dropped + len(record.dropped),
            scores=scores or self.view.scores,
            losses=self.view.losses if first is None else (*self.view.losses, first),
            gauges=tuple(worst_gauges(record.usage, self.budgets)) or self.view.gauges,
        )
        if not self.console.is_interactive:
            self._say(self._line(record))
        for line in failures(record):
            self._say(line, "yellow")

    def _scores(self, record: RoundRecord) -> Mapping[str, float]:
        """Validation; the training loss where there is nothing to validate on."""
        if record.validation or self.validates or record.train_loss is None:
            return record.validation or {}
        return {"train loss": record.train_loss}

    def _say(self, line: str, style: str = "") -> None:
        self.console.print(line, style=style, markup=False, highlight=False, soft_wrap=True)

    def _left(self) -> float | None:
        """Seconds, from the mean of the last rounds; a round that is under way counts."""
        if not self.times:
            return None
        whole = (self.view.rounds - self.view.done) * sum(self.times) / len(self.times)
        return max(0.0, whole - (time.perf_counter() - self.began))

    def _panel(self) -> Text:
        mean = sum(self.times) / len(self.times) if self.times else None
        marks = ASCII if self.console.options.ascii_only else BLOCKS
        view = replace(self.view, round_s=mean, left_s=self._left(), stopping=self.stopping())
        return panel(view, self.console.width, marks)

    def _line(self, record: RoundRecord) -> str:
        view = self.view
        parts = [f"{view.name} round {record.round}/{view.rounds}"]
        if record.validation is not None:
            parts += [f"{key} {value:.4f}" for key, value in record.validation.items()]
        up, down = (show(n, "communication") for n in (record.up_bytes, record.down_bytes))
        parts.append(f"up {up} down {down}")
        gauges = worst_gauges(record.usage, self.budgets)
        if worst := max(gauges, key=lambda gauge: gauge.share, default=None):
            over = " (over)" if worst.over else ""
            parts.append(f"{worst.resource} {worst.share:.1%} of its budget{over}")
        if record.dropped:
            parts.append(f"{len(record.dropped)} of {len(record.cohort)} dropped")
        parts.append(f"{record.wall_s:.1f} s")
        if (left := self._left()) and record.round < view.rounds:
            parts.append(f"{seconds(left)} left")
        return "  ".join(parts)


def failures(record: RoundRecord) -> list[str]:
    """A line for each reason why replies were not used, but for dropouts that the config asks for."""
    clients: dict[str, list[str]] = {}
    for client, reason in record.dropped.items():
        if reason != DROPPED_OUT:
            clients.setdefault(printable(reason), []).append(client)
    return [
        f"round {record.round}: client{'s' * (len(who) > 1)} {', '.join(who)} "
        f"{'were' if len(who) > 1 else 'was'} not used: {reason}"
        for reason, who in clients.items()
    ]


class Watched:
    """An engine that also says whom it asks and when it evaluates."""

    def __init__(self, engine: Engine, live: Live) -> None:
        self.engine, self.live = engine, live

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)

    def run(self, jobs: Sequence[Job]) -> Iterator[Reply]:
        self.live.on_jobs(jobs)
        return self.engine.run(jobs)

    def evaluate(self, weights: Tensor) -> dict[str, float] | None:
        self.live.on_evaluate()
        return self.engine.evaluate(weights)


@contextmanager
def watched(make: Callable[[], AbstractContextManager[Engine]], live: Live) -> Iterator[Engine]:
    """The engine that `make` makes, as the live view sees it."""
    with make() as engine:
        yield cast(Engine, Watched(engine, live))
