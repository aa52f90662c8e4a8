"""TensorBoard: event files in a folder, by default the run's own."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedbudget.callbacks import Callback, Facts, Record, Summary
from fedbudget.records import flat
from fedbudget.tracking.figures import numbers, words

if TYPE_CHECKING:
    from torch.utils.tensorboard.writer import SummaryWriter


def tensorboard(folder: str | Path, goes_on: bool = False) -> Callback:
    """Needs `fedbudget[tensorboard]`; a new run replaces the events of an older one.

    See it with `tensorboard --logdir runs`.
    """
    events = _Events(Path(folder), goes_on)
    return Callback(events.start, events.round, events.end, events.close)


class _Events:
    def __init__(self, folder: Path, goes_on: bool) -> None:
        self.folder, self.goes_on = folder, goes_on
        self.writer: SummaryWriter | None = None
        self.facts: Facts = {}
        self.words: dict[str, str] = {}

    def start(self, facts: Facts, config: Mapping[str, Any]) -> None:
        from torch.utils.tensorboard.writer import SummaryWriter

        if not self.goes_on:
            shutil.rmtree(self.folder, ignore_errors=True)
        self.facts = facts
        self.writer = SummaryWriter(str(self.folder))
        self._text("config", _table(flat(config, ".")), 0)
        self._flush()

    def round(self, record: Record) -> None:
        assert self.writer is not None
        number = record["round"]
        for name, value in numbers(record, self.facts.get("budgets", {})).items():
            self.writer.add_scalar(name, value, number)
        for name, word in words(record).items():
            if self.words.get(name) != word:  # a text a round would hide when it changed
                self._text(name, word, number)
                self.words[name] = word
        self._flush()

    def end(self, summary: Summary) -> None:
        text = json.dumps(summary, indent=2, default=str)
        self._text("summary", f"```json\n{text}\n```", summary["rounds_done"])

    def close(self) -> None:
        if self.writer is not None:
            self.writer.close()

    def _text(self, name: str, text: str, round: int) -> None:
        assert self.writer is not None
        self.writer.add_text(name, text, round)

    def _flush(self) -> None:
        """A killed run has its rounds; a full disk shows here."""
        assert self.writer is not None
        self.writer.flush()


def _table(values: Mapping[str, Any]) -> str:
    rows = [f"| {key} | {json.dumps(value, default=str)} |" for key, value in values.items()]
    return "\n".join(["| key | value |", "|---|---|", *rows])
