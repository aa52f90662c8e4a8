"""Run folders as data for a report."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedbudget.errors import UserError
from fedbudget.runs import read_records

NEEDED = {"name", "seed", "rounds", "rounds_done", "validation", "usage", "wire", "time"}


@dataclass(frozen=True)
class Loaded:
    path: Path
    summary: dict[str, Any]
    records: list[dict[str, Any]]
    config: str
    """config.toml as it stands"""

    @property
    def name(self) -> str:
        return str(self.summary["name"])

    @property
    def seed(self) -> int:
        return int(self.summary["seed"])

    def losses(self) -> list[tuple[int, float]]:
        """(round, validation loss)"""
        return [
            (r["round"], r["validation"]["loss"])
            for r in self.records
            if r.get("validation") and r["validation"].get("loss") is not None
        ]


def load_run(path: Path) -> Loaded:
    try:
        summary = json.loads((path / "summary.json").read_text())
        config = (path / "config.toml").read_text()
    except OSError as error:
        hint = "the run has not ended yet" if (path / "rounds.jsonl").exists() else "not a run"
        raise UserError(f"{path}: {error.strerror}: {Path(error.filename).name} ({hint})") from None
    except ValueError as error:
        raise UserError(f"{path}: its summary or config is damaged: {error}") from None
    missing = NEEDED - set(summary) if isinstance(summary, dict) else NEEDED
    if missing:
        raise UserError(f"{path}/summary.json has no {', '.join(sorted(missing))}; is it a run's?")
    return Loaded(path, summary, read_records(path / "rounds.jsonl"), config)


def find_runs(paths: Iterable[Path]) -> list[Loaded]:
    """Run folders, and all run folders below other folders."""
    found: list[Path] = []
    for path in paths:
        if (path / "rounds.jsonl").exists():
            found.append(path)
        else:
            below = sorted(p.parent for p in path.rglob("summary.json"))
            if not below:
                raise UserError(f"{path}: no run folder is here or below")
            found += below
    return [load_run(path) for path in found]


def by_name(runs: Iterable[Loaded]) -> dict[str, list[Loaded]]:
    """Runs that differ in their seed only, together."""
    groups: dict[str, list[Loaded]] = {}
    for run in runs:
        groups.setdefault(run.name, []).append(run)
    return groups
