"""The report of a few runs, as data for the page; each run is read again only when it changed."""

import json
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fedbudget.dashboard import folders
from fedbudget.dashboard.folders import DAMAGE
from fedbudget.errors import UserError
from fedbudget.records import plain
from fedbudget.report.load import Loaded, load_run
from fedbudget.report.page import document

KEPT = 32
MOST = 24
"""runs of a comparison"""


@dataclass
class Documents:
    root: Path
    loaded: dict[Path, tuple[folders.Signature, Loaded]] = field(default_factory=dict)
    guard: threading.Lock = field(default_factory=threading.Lock)

    def of(self, places: Sequence[Path]) -> str:
        """JSON: the document of those that can be read, and why the others cannot."""
        if len(places) > MOST:
            raise UserError(f"{MOST} runs can be compared at once; these are {len(places)}")
        runs, problems = [], []
        with self.guard:
            for place in places:
                try:
                    runs.append(self._load(place))
                except DAMAGE as error:
                    problems.append(f"{folders.label(self.root, place)}: {self._told(error)}")
            body = _drawn(runs, problems)
        return json.dumps(plain({"document": body, "problems": problems}), allow_nan=False)

    def _load(self, place: Path) -> Loaded:
        if refused := folders.refused(place):
            raise UserError("; ".join(refused))
        mark = folders.signature(place)
        known = self.loaded.pop(place, None)
        if known is None or known[0] != mark:
            here = Path(folders.label(self.root, place))  # others need not know the rest
            known = (mark, replace(load_run(place), path=here))
        self.loaded[place] = known
        while len(self.loaded) > KEPT:
            del self.loaded[next(iter(self.loaded))]
        return known[1]

    def _told(self, error: Exception) -> str:
        """Without the path, which the page has already."""
        return str(error).replace(f"{self.root}/", "") or type(error).__name__


def _drawn(runs: list[Loaded], problems: list[str]) -> dict[str, Any] | None:
    """The document of those runs that it can be made of."""
    try:
        return document(runs) if runs else None
    except DAMAGE:
        whole = []
    for run in runs:
        try:
            document([run])
            whole.append(run)
        except DAMAGE as error:
            problems.append(f"{run.path}: cannot be drawn ({type(error).__name__}: {error})")
    if len(whole) == len(runs):
        problems.append("these runs cannot be drawn together")
        return None
    return document(whole) if whole else None
