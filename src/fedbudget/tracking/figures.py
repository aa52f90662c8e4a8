"""What trackers are told of a round: numbers and words by name, from a line of rounds.jsonl."""

from collections.abc import Iterable, Mapping
from statistics import fmean
from typing import Any

from fedbudget.callbacks import Record
from fedbudget.gauges import Budgets, all_gauges
from fedbudget.records import flat

KNOBS = ("layers", "steps", "batch", "accumulate")


def numbers(record: Record, budgets: Budgets) -> dict[str, float]:
    """Scores, usage, usage / budget, duals, knobs, bytes, times, counts; unknown ones are left out.

    >>> figures = numbers({"validation": {"loss": 1.5}, "up_bytes": 10,
    ...     "usage": {"counted": {"0": {"energy": 1.0}, "1": {"energy": 3.0}}}},
    ...     {"counted": [{"energy": 4.0}]})
    >>> figures["usage/counted/energy/mean"], figures["budget/counted/energy/worst"]
    (2.0, 0.75)
    """
    found: dict[str, Any] = {"train/loss": record.get("train_loss")}
    found |= {f"validation/{k}": v for k, v in (record.get("validation") or {}).items()}
    usage = record.get("usage", {})
    for accounting, clients in usage.items():
        for resource, amounts in _columns(clients.values()).items():
            found |= _spread(f"usage/{accounting}/{resource}", amounts, "worst")
    shares: dict[str, list[float]] = {}
    for gauge in all_gauges(usage, budgets):
        shares.setdefault(f"budget/{gauge.accounting}/{gauge.resource}", []).append(gauge.share)
    for name, some in shares.items():
        found |= _spread(name, some, "worst")
    for resource, duals in _columns(record.get("duals", {}).values()).items():
        found |= _spread(f"duals/{resource}", duals, "max")
    for name, values in _columns(record.get("knobs", {}).values()).items():
        if name in KNOBS:
            found[f"knobs/{name}"] = fmean(values)
    found |= {f"wire/{key}": record.get(key) for key in ("up_bytes", "down_bytes")}
    found |= {f"time/{key}": record.get(key) for key in ("wall_s", "train_s", "evaluate_s")}
    found |= {
        f"clients/{key}": len(record[key])
        for key in ("cohort", "dropped", "flagged", "skipped")
        if key in record
    }
    found["clients/late"] = record.get("late")
    return {name: float(value) for name, value in found.items() if value is not None}


def words(record: Record) -> dict[str, str]:
    """What is no number: the codecs in use."""
    codecs = {str(knobs["codec"]) for knobs in record.get("knobs", {}).values()}
    return {"knobs/codec": ", ".join(sorted(codecs))} if codecs else {}


def results(summary: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a summary."""
    return {
        name: float(value)
        for name, value in flat(summary, "/", "summary/").items()
        if isinstance(value, int | float)
    }


def _columns(rows: Iterable[Mapping[str, Any]]) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for row in rows:
        for key, value in row.items():
            if value is not None:
                found.setdefault(key, []).append(value)
    return found


def _spread(name: str, values: list[float], most: str) -> dict[str, float]:
    return {f"{name}/mean": fmean(values), f"{name}/{most}": max(values)}
