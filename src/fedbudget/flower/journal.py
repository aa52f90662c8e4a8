"""The journal of a Flower run: a RoundRecord a round, and a run folder where one is wanted."""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from flwr.app import MetricRecord

from fedbudget.rounds import by_accounting, shared
from fedbudget.runs import RunFolder
from fedbudget.summary import summarise
from fedbudget.types import Job, Reply, RoundRecord


@dataclass(frozen=True)
class Times:
    """When a round began, was sent, came back."""

    started: float
    sent: float
    arrived: float


@dataclass
class Journal:
    """Records so far; a round's evaluation may come after its aggregation."""

    records: list[RoundRecord] = field(default_factory=list)
    folder: RunFolder | None = None
    _written: int = 0
    _started: float = 0.0
    _aggregated: float = 0.0

    def add(
        self,
        round: int,
        jobs: Sequence[Job],
        replies: Sequence[Reply],
        dropped: Mapping[str, str],
        duals: Mapping[int, Mapping[str, float]],
        up_bytes: int,
        down_bytes: int,
        times: Times,
    ) -> None:
        losses = [reply.loss for reply in replies if reply.loss is not None]
        self._started, self._aggregated = times.started, time.perf_counter()
        self.records.append(
            RoundRecord(
                round=round,
                cohort=tuple(job.client for job in jobs),
                knobs=shared({job.client: job.knobs for job in jobs}),
                duals=shared(duals),
                train_loss=sum(losses) / len(losses) if losses else None,
                validation=None,
                up_bytes=up_bytes,
                down_bytes=down_bytes,
                usage=by_accounting(replies),
                dropped=dropped,
                flagged={},
                skipped=(),
                late=0,
                train_s=times.arrived - times.sent,
                evaluate_s=0.0,
                wall_s=self._aggregated - times.started,
            )
        )

    def note(self, round: int, metrics: MetricRecord | None) -> None:
        """Add what an evaluation has found to the record of its round."""
        if not self.records or self.records[-1].round != round:
            return
        now, last = time.perf_counter(), self.records[-1]
        self.records[-1] = replace(
            last,
            validation={**(last.validation or {}), **scores(metrics)} or None,
            evaluate_s=now - self._aggregated,
            wall_s=now - self._started,
        )

    def write(self) -> None:
        """Put the rounds that are over into the run folder."""
        if self.folder is not None:
            for record in self.records[self._written :]:
                self.folder.append(record)
            self._written = len(self.records)

    def close(self, facts: Mapping[str, Any], rounds: int, limits: Mapping[str, float]) -> None:
        """Write what is left, and the summary."""
        self.write()
        if self.folder is not None:
            about = {"name": self.folder.path.name, **facts, "engine": "flower"}
            records = [record.to_json() for record in self.records]
            budgets = {"counted": [limits]}
            self.folder.save_facts({**about, "rounds": rounds, "budgets": budgets, "command": ""})
            self.folder.save_summary(summarise(records, about, rounds, budgets))


def scores(metrics: MetricRecord | None) -> dict[str, float]:
    """Loss and accuracy, whatever the app calls them (`eval_loss`, `test-acc`)."""
    found: dict[str, float] = {}
    for key, value in (metrics or {}).items():
        if isinstance(value, int | float):
            if "loss" in key.lower():
                found.setdefault("loss", float(value))
            elif "acc" in key.lower():
                found.setdefault("accuracy", float(value))
    return found


def toml(about: Mapping[str, Any]) -> str:
    """Settings as config.toml has them; one level of tables."""
    plain = [f"{k} = {json.dumps(v)}" for k, v in about.items() if not isinstance(v, dict)]
    tables = [
        "\n".join(["", f"[{name}]", *(f"{k} = {json.dumps(v)}" for k, v in table.items())])
        for name, table in about.items()
        if isinstance(table, dict)
    ]
    return "\n".join([*plain, *tables, ""])
