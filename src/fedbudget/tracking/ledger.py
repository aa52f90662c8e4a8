"""tracking.json in a run folder: how far each tracker has got, so that no round is told twice."""

import json
import secrets
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from fedbudget.callbacks import Callback, Facts, Record
from fedbudget.files import write

FILE = "tracking.json"


class Ledger:
    """A key by which trackers know the run, and the last round that each one has."""

    def __init__(self, folder: Path, fresh: bool) -> None:
        """A `fresh` ledger is that of another run than the one that was tracked here."""
        self.file = folder / FILE
        self.key = secrets.token_hex(8)
        self.trackers: dict[str, dict[str, Any]] = {}
        if not fresh:
            with suppress(OSError, ValueError, LookupError, TypeError):
                known = json.loads(self.file.read_text())
                self.key, self.trackers = str(known["key"]), dict(known["trackers"])

    def last(self, name: str, place: str) -> int:
        """The last round that a tracker has at that place; 0: it does not know the run."""
        known = self.trackers.get(name, {})
        return int(known.get("round", 0)) if known.get("place") == place else 0

    def note(self, name: str, place: str, round: int) -> None:
        self.trackers[name] = {"place": place, "round": round}
        body = json.dumps({"key": self.key, "trackers": self.trackers}, indent=2)
        write(self.file, (body + "\n").encode())

    def kept(self, callback: Callback, name: str, place: str, past: Sequence[Record]) -> Callback:
        """A tracker that is told of each round once: of `past` ones that it lacks, then of new ones.

        A run that was killed repeats its rounds since the checkpoint, bit for bit.
        """
        last = self.last(name, place)

        def start(facts: Facts, config: Mapping[str, Any]) -> None:
            callback.start(facts, config)
            for record in past:
                heard(record)

        def heard(record: Record) -> None:
            if record["round"] > last:
                callback.round(record)
                self.note(name, place, record["round"])

        return callback._replace(start=start, round=heard)
