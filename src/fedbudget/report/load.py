"""Run folders as data for a report: whole ones, running ones and damaged ones."""

import json
import os
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import count
from pathlib import Path
from typing import Any

from fedbudget.errors import UserError
from fedbudget.records import flat, read_records
from fedbudget.report.facts import facts_of
from fedbudget.report.sound import alike, sound_record, sound_summary
from fedbudget.summary import summarise


@dataclass(frozen=True)
class Loaded:
    path: Path
    summary: dict[str, Any]
    records: list[dict[str, Any]]
    config: str
    """config.toml as it stands"""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """facts.json, or what the config says of it"""
    notes: tuple[str, ...] = ()
    """what is missing or damaged, in sentences"""

    @property
    def name(self) -> str:
        return str(self.summary["name"])

    @property
    def seed(self) -> int:
        return int(self.summary["seed"])

    @property
    def command(self) -> str:
        """What started the run; "" where it is not known."""
        return str(self.facts.get("command") or "")

    @cached_property
    def settings(self) -> dict[str, Any]:
        """The config by its keys, `table.key`; empty where it cannot be read."""
        try:
            return flat(tomllib.loads(self.config))
        except tomllib.TOMLDecodeError:
            return {}

    def losses(self) -> list[tuple[int, float]]:
        """(round, validation loss)"""
        return self.scores("loss")

    def scores(self, key: str) -> list[tuple[int, float]]:
        """(round, value) of a figure that evaluation gives; rounds without it are left out."""
        found = ((r["round"], (r.get("validation") or {}).get(key)) for r in self.records)
        return [(round, value) for round, value in found if value is not None]


def load_run(path: Path) -> Loaded:
    """What the folder has. Only a folder without rounds and summary is refused."""
    notes: list[str] = []
    records = _records(path, notes)
    config = _text(path / "config.toml", notes)
    summary = _summary(path, notes)
    if summary is not None and len(records) > summary["rounds_done"]:
        notes.append("it goes on after its summary.json: the figures are those so far")
        summary = None
    notes += _missing(records, summary["rounds_done"] if summary is not None else 0)
    if summary is None and not (path / "rounds.jsonl").exists():
        raise UserError(f"{path}: neither rounds.jsonl nor a summary.json that can be read is here")
    facts, unknown = facts_of(path, config)
    notes += unknown
    if summary is None:
        rounds = int(facts["rounds"]) or max((r["round"] for r in records), default=0)
        if len(records) < rounds:
            notes.append(f"it has {len(records)} of {rounds} rounds")
        known = {k: v for k, v in facts.items() if k not in ("budgets", "layers", "command")}
        summary = summarise(records, known, rounds, facts["budgets"])
    return Loaded(path, summary, records, config, facts, tuple(notes))


def _missing(records: Sequence[Mapping[str, Any]], done: int) -> list[str]:
    """Of records that were there once, a sentence if some are not there now."""
    there = {r["round"] for r in records}
    lost = int(max(done, 0, *there)) - len(there)
    if not there or lost < 1:
        return []
    first = next(number for number in count(1) if number not in there)
    which = f"round {first} is" if lost == 1 else f"{lost} rounds, the first round {first}, are"
    return [f"{which} missing from rounds.jsonl: tables and figures are of the others"]


def _summary(path: Path, notes: list[str]) -> dict[str, Any] | None:
    """None where there is none to rely on."""
    try:
        summary = json.loads((path / "summary.json").read_text())
    except FileNotFoundError:
        notes.append("it has no summary.json, so it has not ended: the figures are those so far")
        return None
    except (OSError, ValueError):
        summary = None
    if not isinstance(summary, dict) or not sound_summary(summary):
        notes.append("summary.json is damaged: the figures are computed from rounds.jsonl again")
        return None
    return summary


def _records(path: Path, notes: list[str]) -> list[dict[str, Any]]:
    """By round; a round that was written twice counts once, as it was last."""
    file = path / "rounds.jsonl"
    try:
        lines = sum(1 for line in file.read_bytes().split(b"\n") if line.strip())
        read = read_records(file)
    except (OSError, UserError):
        notes.append("rounds.jsonl is missing: there is nothing to draw")
        return []
    records = {r["round"]: r for r in alike(filter(None, map(sound_record, read)))}
    if lost := lines - len(records):
        what = "a line" if lost == 1 else f"{lost} lines"
        notes.append(f"{what} of rounds.jsonl cannot be used (cut off, damaged or repeated)")
    if not records:
        notes.append("no round is finished")
    elif any((r["validation"] or {"loss": 0}).get("loss", 0) is None for r in records.values()):
        notes.append("the validation loss was not a number in some rounds: they are left out")
    return [records[round] for round in sorted(records)]


def _text(file: Path, notes: list[str]) -> str:
    try:
        text = file.read_text(errors="replace")
        tomllib.loads(text)
    except OSError:
        notes.append("config.toml is missing")
        return ""
    except tomllib.TOMLDecodeError:
        notes.append("config.toml is damaged")
    return text


def find_runs(paths: Iterable[Path]) -> list[Loaded]:
    """Run folders, and all run folders below other folders."""
    found: list[Path] = []
    for path in paths:
        below = run_folders(path)
        if not below:
            raise UserError(f"{path}: no run folder is here or below")
        found += below
    return [load_run(path) for path in dict.fromkeys(found)]


def run_folders(path: Path) -> list[Path]:
    """The folder itself, or those below it, in the order of their numbers.

    A run's own subfolders are not looked into: they may hold thousands of files.
    """
    found = []
    for folder, inner, files in os.walk(path):
        if "rounds.jsonl" in files or "summary.json" in files:
            found.append(Path(folder))
            inner.clear()
        else:
            inner[:] = [name for name in inner if not name.startswith(".")]
    return sorted(found, key=_natural)


def _natural(path: Path) -> list[tuple[int, str]]:
    """seed-2 before seed-10"""
    parts = re.split(r"(\d+)", str(path))
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in parts]


SAME = (
    *("name", "seed", "workers", "engine", "checkpoint_every", "track"),
    *("data.path", "constraints.save_personal"),
)
"""settings that leave the result as it is, or tell seeds apart"""


def told_apart(runs: Sequence[Loaded]) -> list[Loaded]:
    """Runs of one name but different settings get names of their own: they are no seeds."""
    found = []
    for run in runs:
        kinds: list[Loaded] = []  # the first of each kind
        own = run
        for other in (other for other in runs if other.name == run.name):
            same = next((kind for kind in kinds if agree(kind, other)), None)
            if same is None:
                kinds.append(other)
            if other is run:
                own = same or other
        if len(kinds) > 1:
            labels = [_label(kind.path) for kind in kinds]
            label = _label(own.path)
            name = f"{run.name} ({label if labels.count(label) == 1 else own.path})"
            found.append(replace(run, summary={**run.summary, "name": name}))
        else:
            found.append(run)
    return found


LATER: dict[str, Any] = {"budget.resources": []}
"""what a config of old does not say, and what it means"""


def agree(a: Loaded, b: Loaded) -> bool:
    """Whether two runs have the same settings, as far as both say; an older config says less.

    A budget that is not named is none.
    """
    ours, theirs = ({**LATER, **run.settings} if run.settings else {} for run in (a, b))
    if not ours or not theirs:
        return True
    keys = [k for k in {**ours, **theirs} if k not in SAME]
    return all(
        ours.get(k) == theirs.get(k)
        for k in keys
        if k.startswith("budget.") or (k in ours and k in theirs)
    )


def _label(path: Path) -> str:
    return path.parent.name if path.name.startswith("seed-") else path.name


def by_name(runs: Iterable[Loaded]) -> dict[str, list[Loaded]]:
    """Runs that differ in their seed only, together."""
    groups: dict[str, list[Loaded]] = {}
    for run in runs:
        groups.setdefault(run.name, []).append(run)
    return groups
