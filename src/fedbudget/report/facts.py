"""What must be known of a run besides its records: facts.json, or what its config says."""

import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedbudget.errors import UserError
from fedbudget.report.sound import DEEPEST, count, name, number, whole
from fedbudget.units import parse

OPEN = (
    "its budgets are shares or temperatures whose amounts are known when it ends: "
    "they are not in this report yet"
)


def facts_of(path: Path, config: str) -> tuple[dict[str, Any], list[str]]:
    """The facts, and notes on what is not known. Keys that reports rely on are always there."""
    try:
        given = json.loads((path / "facts.json").read_text())
    except (OSError, ValueError):
        given = None
    if isinstance(given, dict) and _sound(given):
        return given, []
    notes = ["facts.json is damaged"] if (path / "facts.json").exists() else []
    try:
        settings = tomllib.loads(config)
    except tomllib.TOMLDecodeError:
        settings = {}
    known, unresolved = _from_config(path, settings)
    # a summary has the amounts
    return known, notes + ([OPEN] if unresolved and not (path / "summary.json").exists() else [])


def _sound(facts: Mapping[str, Any]) -> bool:
    budgets = facts.get("budgets")
    return (
        name(facts.get("name"))
        and isinstance(facts.get("seed"), int)
        and count(facts.get("rounds"))
        and count(facts.get("clients"))
        and isinstance(budgets, dict)
        and all(isinstance(classes, list) for classes in budgets.values())
        and all(
            isinstance(limits, dict) and all(number(x) and x > 0 for x in limits.values())
            for classes in budgets.values()
            for limits in classes
        )
        and all(len({frozenset(limits) for limits in classes}) <= 1 for classes in budgets.values())
        and isinstance(facts.get("units", {}), dict)
        and all(name(unit) for unit in facts.get("units", {}).values())
        and isinstance(facts.get("layers", []), list)
        and all(isinstance(name, str) for name in facts.get("layers", []))
    )


def _from_config(path: Path, settings: Mapping[str, Any]) -> tuple[dict[str, Any], bool]:
    """Facts as far as they go, and whether some budget cannot be told from the config alone."""
    names = ("data", "train", "budget", "control", "model")
    given = ((key, settings.get(key)) for key in names)
    tables = {key: value if isinstance(value, dict) else {} for key, value in given}
    classes, unresolved = _budgets(tables["budget"])
    accounting = str(tables["budget"].get("accounting", "counted"))
    named, seed = _named(path)
    return {
        "name": str(settings.get("name") or named),
        "algorithm": str(settings.get("algorithm", "")),
        "controller": str(tables["control"].get("controller", "")),
        "seed": _whole(settings.get("seed"), seed),
        "clients": _whole(tables["data"].get("clients"), 0),
        "cohort": _whole(tables["train"].get("cohort"), 0),
        "rounds": _whole(settings.get("rounds"), 0),
        "budgets": {accounting: classes} if classes else {},
        "layers": _layers(tables["model"]),
        "command": "",
    }, unresolved


def _named(path: Path) -> tuple[str, int]:
    """planner/seed-3 is seed 3 of planner."""
    folder = path.resolve().name
    seed = folder.removeprefix("seed-")
    if seed != folder and whole(seed):
        return path.resolve().parent.name, int(seed)
    return folder, 0


def _whole(value: Any, default: int) -> int:
    return value if count(value) else default


def _budgets(table: Mapping[str, Any]) -> tuple[list[dict[str, float]], bool]:
    """Amounts of each device class; a share of FedAvg's usage needs the model to be known."""
    given = {k: v for k, v in table.items() if k not in ("device", "accounting", "resources")}
    number_of = max((len(v) for v in given.values() if isinstance(v, list)), default=1)
    classes: list[dict[str, float]] = [{} for _ in range(number_of)]
    unresolved = False
    for resource, limit in given.items():
        own = limit if isinstance(limit, list) else [limit] * number_of
        try:
            amounts = [parse(text, resource) for text in own]
        except (UserError, OverflowError):
            amounts = []
        if len(amounts) != number_of or any(
            amount.kind not in ("si", "plain") for amount in amounts
        ):
            unresolved = True
            continue
        for limits, amount in zip(classes, amounts, strict=True):
            limits[resource] = amount.value
    return (classes if any(classes) else []), unresolved


def _layers(model: Mapping[str, Any]) -> list[str]:
    """A GPT's layer groups, bottom up; what other models have is in facts.json only."""
    blocks = str(model.get("size", "")).partition("x")[0]
    if (
        model.get("kind") != "gpt"
        or model.get("layers")
        or not whole(blocks)
        or int(blocks) > DEEPEST
    ):
        return []
    return ["embeddings", *(f"block {i + 1}" for i in range(int(blocks))), "head"]
