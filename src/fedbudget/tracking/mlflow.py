"""MLflow: a local SQLite file, or the server that MLFLOW_TRACKING_URI names."""

import logging
import os
import re
import time
from collections.abc import Mapping
from typing import Any

from fedbudget.callbacks import Callback, Facts, Record, Summary
from fedbudget.records import flat
from fedbudget.tracking.figures import numbers, results, words

TAG = "fedbudget.run"
"""by which a run that goes on is found again"""
MOST_PARAMS = 100
"""that a server takes at once"""
LONGEST = 6000
"""characters of a param that a server takes"""


def place() -> str:
    """Where MLflow keeps runs: MLFLOW_TRACKING_URI, or mlflow.db in this folder."""
    from mlflow import get_tracking_uri

    return str(get_tracking_uri())


def mlflow(uri: str | None = None, key: str = "", goes_on: bool = False) -> Callback:
    """Needs `fedbudget[mlflow]`. With `goes_on`, the run of that `key` gets more rounds.

    See it with `mlflow ui`, which is in the package `mlflow`.
    """
    store = _Store(uri or place(), key, goes_on)
    return Callback(store.start, store.round, store.end, store.close)


class _Store:
    def __init__(self, uri: str, key: str, goes_on: bool) -> None:
        self.uri, self.key, self.goes_on = uri, key, goes_on
        self.run = ""
        self.status = "FAILED"  # until it has ended well
        self.facts: Facts = {}
        self.words: dict[str, str] = {}

    def start(self, facts: Facts, config: Mapping[str, Any]) -> None:
        from mlflow.entities import Param
        from mlflow.tracking import MlflowClient

        # a server that is gone holds a training up for minutes with the usual number of retries
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
        logging.getLogger("mlflow").setLevel(logging.WARNING)
        self.facts = facts
        self.client: MlflowClient = MlflowClient(self.uri)
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "fedbudget")
        known = self.client.get_experiment_by_name(name)
        experiment = known.experiment_id if known else self.client.create_experiment(name)
        if self.goes_on and (run := self._find(experiment)):
            self.run = run
            self.client.update_run(run, "RUNNING")
            return
        tags = {TAG: self.key} if self.key else None
        run_name = str(facts.get("name", "run"))
        self.run = self.client.create_run(experiment, tags=tags, run_name=run_name).info.run_id
        params = [Param(_name(k), str(v)[:LONGEST]) for k, v in flat(config, ".").items()]
        for i in range(0, len(params), MOST_PARAMS):
            self.client.log_batch(self.run, params=params[i : i + MOST_PARAMS])

    def round(self, record: Record) -> None:
        self._metrics(numbers(record, self.facts.get("budgets", {})), record["round"])
        for name, word in words(record).items():
            if self.words.get(name) != word:
                self.client.set_tag(self.run, name, word)
                self.words[name] = word

    def end(self, summary: Summary) -> None:
        self._metrics(results(summary), summary["rounds_done"])
        self.status = "FINISHED" if summary["complete"] else "KILLED"

    def close(self) -> None:
        if self.run:
            self.client.set_terminated(self.run, self.status)

    def _find(self, experiment: str) -> str:
        found = self.client.search_runs([experiment], f"tags.`{TAG}` = '{self.key}'", max_results=1)
        return found[0].info.run_id if found else ""

    def _metrics(self, figures: Mapping[str, float], round: int) -> None:
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        metrics = [Metric(_name(k), v, now, round) for k, v in figures.items()]
        self.client.log_batch(self.run, metrics=metrics)


def _name(text: str) -> str:
    """A user's resource may have a name that MLflow does not take."""
    return re.sub(r"[^A-Za-z0-9_\-. :/]", "_", text)
