"""All the runs of a root, kept up to date at little cost."""

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from fedbudget.dashboard import folders
from fedbudget.dashboard.locks import Locks, can_signal
from fedbudget.dashboard.processes import Processes
from fedbudget.dashboard.rows import Known, Row, State, know, show, unreadable
from fedbudget.errors import UserError

WALK_S = 3.0
"""how often new folders are looked for"""


@dataclass
class Shelf:
    root: Path
    control: bool
    """stop and resume are allowed"""
    processes: Processes = field(default_factory=Processes)
    locks: Locks = field(default_factory=Locks)
    known: dict[str, Known] = field(default_factory=dict)
    drawn: dict[str, tuple[Known, State | None, str, Row]] = field(default_factory=dict)
    rows: Mapping[str, Row] = field(default_factory=dict)
    places: Mapping[str, Path] = field(default_factory=dict)
    walked: float = float("-inf")
    guard: threading.Lock = field(default_factory=threading.Lock)

    def scan(self) -> Mapping[str, Row]:
        """The list as it is now. Files that did not change are not read."""
        with self.guard:
            if time.monotonic() - self.walked > WALK_S:
                self.places = folders.find(self.root)
                for gone in self.known.keys() - self.places.keys():
                    self.known.pop(gone, None)
                    self.drawn.pop(gone, None)
                self.walked = time.monotonic()
            found = {
                id: row
                for id, place in self.places.items()
                if (row := self._row(id, place)) is not None
            }
            if found != self.rows:
                self.rows = found
            return self.rows

    def _row(self, id: str, place: Path) -> Row | None:
        mark = folders.signature(place)
        if not any(mark[0]):
            return None  # it was removed since the last walk
        known = self.known.get(id)
        if known is None or known.signature != mark:
            known = self.known[id] = _known(place, mark, known)
        state = self._state(place, any(mark[-1]))
        failed = self.processes.failed.get(place, "")
        drawn = self.drawn.get(id)
        if drawn is None or drawn[:3] != (known, state, failed):
            label = folders.label(self.root, place)
            control = self.control and can_signal()
            try:
                row = show(id, label, known, state, failed, control)
            except folders.DAMAGE as error:
                known = self.known[id] = unreadable(mark, error)
                row = show(id, label, known, state, failed, control)
            drawn = self.drawn[id] = (known, state, failed, row)
        return drawn[3]

    def _state(self, place: Path, locked: bool) -> State | None:
        """What its process says of a run; None where there is none."""
        alive = self.processes.alive(place)
        holder = self.locks.holder(place) if locked else None
        if holder is None:
            self.processes.asked.pop(place, None)
            return "starting" if alive else None
        asked = self.processes.asked.get(place)
        return "stopping" if asked and asked == holder.pid else "running"

    def place(self, id: str) -> Path:
        """The folder of a run that is listed; nothing else has one."""
        if id not in self.places:
            self.walked = float("-inf")
            self.scan()
        if id not in self.places:
            raise UserError("no such run")
        return self.places[id]

    def stop(self, id: str) -> None:
        place = self.place(id)
        with self.guard:
            self.processes.stop(place, self.locks.holder(place))

    def resume(self, id: str) -> None:
        place = self.place(id)
        row = self.scan().get(id)
        if row is None or not row.can_resume:
            raise UserError(f"it is {row.state if row else 'gone'} and cannot go on")
        with self.guard:
            self.processes.resume(place)


def _known(place: Path, mark: folders.Signature, before: Known | None) -> Known:
    """One folder must not take the others with it, whatever is in it."""
    try:
        return know(place, mark, before)
    except folders.DAMAGE as error:
        return unreadable(mark, error)
