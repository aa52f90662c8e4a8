"""What a person sees while a run trains: a live line on a terminal, plain lines elsewhere."""

import time
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from fedbudget.types import Reply, RoundRecord

BARS = "▁▂▃▄▅▆▇█"


class Live:
    """Round, clients done, loss and its course, rates, time left."""

    def __init__(
        self, console: Console, name: str, rounds: int, cohort: int, done: int = 0
    ) -> None:
        self.console = console
        self.name, self.rounds, self.cohort = name, rounds, cohort
        self.first = done
        self.losses: list[float] = []
        self.replies = 0
        self.up_bytes = 0
        self.times: list[float] = []
        self.started = time.perf_counter()
        self.bar = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[info]}"),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self.task = self.bar.add_task(name, total=rounds, completed=done, info="starting")

    def __enter__(self) -> Self:
        self.bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.bar.stop()

    def on_reply(self, reply: Reply) -> None:
        self.replies += 1
        self._show()

    def on_round(self, record: RoundRecord) -> None:
        self.replies = 0
        self.times.append(record.wall_s)
        self.up_bytes = record.up_bytes
        if record.validation and "loss" in record.validation:
            self.losses.append(record.validation["loss"])
        self.bar.update(self.task, completed=record.round)
        self._show()
        if not self.console.is_terminal:
            self.console.print(self._line(record), markup=False, highlight=False, soft_wrap=True)
        for client, reason in record.dropped.items():
            self.console.print(
                f"round {record.round}: client {client} was not used: {reason}",
                style="yellow",
                markup=False,
                highlight=False,
            )

    def _left(self, round: int) -> str:
        """Time left, from the mean of the last rounds."""
        recent = self.times[-5:]
        if not recent:
            return "?"
        seconds = (self.rounds - round) * sum(recent) / len(recent)
        return f"{seconds / 60:.0f} min" if seconds >= 90 else f"{seconds:.0f} s"

    def _show(self) -> None:
        all_in = self.replies == self.cohort
        parts = ["evaluating" if all_in else f"client {self.replies}/{self.cohort}"]
        if self.losses:
            parts = [f"loss {self.losses[-1]:.3f} {sparkline(self.losses)}", *parts]
        if self.times:
            parts.append(f"{self.times[-1]:.1f} s and {self.up_bytes / 1e6:.1f} MB up a round")
            parts.append(f"{self._left(self.first + len(self.times))} left")
        self.bar.update(self.task, info=" · ".join(parts))

    def _line(self, record: RoundRecord) -> str:
        parts = [f"{self.name} round {record.round}/{self.rounds}"]
        if record.validation is not None:
            parts += [f"{key} {value:.4f}" for key, value in record.validation.items()]
        parts.append(f"up {record.up_bytes / 1e6:.2f} MB down {record.down_bytes / 1e6:.2f} MB")
        parts.append(f"{record.wall_s:.1f} s")
        parts.append(f"{self._left(record.round)} left")
        return "  ".join(parts)


def sparkline(values: list[float], width: int = 16) -> str:
    """The course of some numbers in one line of text.

    >>> sparkline([3.0, 2.0, 1.0])
    '█▄▁'
    """
    shown = [v for v in values[-width:] if v == v]
    if not shown:
        return ""
    low, high = min(shown), max(shown)
    scale = (len(BARS) - 1) / (high - low) if high > low else 0.0
    return "".join(BARS[int((v - low) * scale)] for v in shown)
