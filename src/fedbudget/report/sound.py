"""Whether what was read from a folder is what a run writes. Files may be cut off or changed."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

NUMBERS = ("up_bytes", "down_bytes", "train_s", "evaluate_s", "wall_s")
TABLES = ("knobs", "duals", "usage", "dropped", "flagged")
MOST = 1e300
COUNT = 1_000_000
DEEPEST = 1000
KNOBS = ("layers", "steps", "batch", "accumulate")
ONE_FOR_ALL = ("counted", "paper", "estimated")
"""accountings whose resources are the same on any machine"""


def number(value: Any) -> bool:
    """Finite, and so small that sums of it are too."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < MOST


def count(value: Any) -> bool:
    """Of things that are looked at one by one."""
    return isinstance(value, int) and 0 <= value <= COUNT


def name(value: Any) -> bool:
    """Text that can be written; JSON may hold halves of characters."""
    return isinstance(value, str) and not any("\ud800" <= letter <= "\udfff" for letter in value)


def whole(text: str) -> bool:
    """A number in digits, of a size that such numbers have."""
    return text.isdecimal() and len(text) < 10


def sound_record(record: Mapping[str, Any]) -> dict[str, Any] | None:
    """The record with what older runs did not write; None where it cannot be one."""
    full: dict[str, Any] = {
        **dict.fromkeys(NUMBERS, 0),
        **{key: {} for key in TABLES},
        "cohort": [],
        "validation": None,
        "skipped": [],
        "late": 0,
        **record,
    }
    good = (
        {"cohort", "knobs"} <= record.keys()
        and number(full["round"])
        and full["round"] >= 1
        and all(number(full[key]) for key in NUMBERS)
        and all(isinstance(full[key], dict) for key in TABLES)
        and isinstance(full["cohort"], list)
        and all(isinstance(client, int) for client in full["cohort"])
        and isinstance(full["skipped"], list)
        and count(full["late"])
        and _scores(full["validation"])
        and all(_knobs(own) for own in full["knobs"].values())
        and all(_amounts(own) for own in full["duals"].values())
        and all(_usage(clients, a in ONE_FOR_ALL) for a, clients in full["usage"].items())
        and _world(full.get("world", {}))
        and all(isinstance(why, str) for key in TABLES[3:] for why in full[key].values())
    )
    return full if good else None


def alike(records: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Without records whose usage lacks a resource that the first one has."""
    known: dict[str, set[str]] = {}
    for record in records:
        told = ((a, x) for a, x in record["usage"].items() if x and a in ONE_FOR_ALL)
        uses = {accounting: set(next(iter(clients.values()))) for accounting, clients in told}
        if all(known.get(accounting, set()) <= own for accounting, own in uses.items()):
            known = {**uses, **known}
            yield record


def _scores(value: Any) -> bool:
    if value is None:
        return True
    return isinstance(value, dict) and all(v is None or number(v) for v in value.values())


def _knobs(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and all(number(value.get(key)) for key in KNOBS)
        and number(value.get("above", 0))
        and min(value["layers"], value.get("above", 0)) >= 0
        and value["layers"] + value.get("above", 0) <= DEEPEST  # each gets a row
        and isinstance(value.get("codec"), str)
    )


def _world(value: Any) -> bool:
    """Of a simulated fleet; nothing where there is none."""
    if value == {}:
        return True
    return (
        isinstance(value, dict)
        and all(number(value.get(key)) for key in ("clock_s", "wasted_j"))
        and isinstance(value.get("throttled"), list)
        and all(_amounts(value.get(key)) for key in ("seconds", "rise", "charge"))
        and all(whole(c) for key in ("seconds", "rise", "charge") for c in value[key])
    )


def _amounts(value: Any) -> bool:
    return isinstance(value, dict) and all(map(number, value.values()))


def _usage(clients: Any, one_for_all: bool) -> bool:
    """Every client reports the same resources, unless its sensors decide."""
    return (
        isinstance(clients, dict)
        and all(whole(client) and _amounts(use) for client, use in clients.items())
        and (not one_for_all or len({frozenset(use) for use in clients.values()}) <= 1)
    )


def sound_summary(summary: Mapping[str, Any]) -> bool:
    """Whether it has what reports read, in the form that `summarise` gives it."""
    validation, usage = summary.get("validation"), summary.get("usage")
    wire, time = summary.get("wire"), summary.get("time")
    return (
        name(summary.get("name"))
        and all(isinstance(summary.get(key), int) for key in ("seed", "rounds", "rounds_done"))
        and isinstance(validation, dict)
        and all(map(number, validation.values()))
        and isinstance(usage, dict)
        and all(isinstance(uses, dict) for uses in usage.values())
        and all(_use(use) for uses in usage.values() for use in uses.values())
        and len({_classes(use) for uses in usage.values() for use in uses.values()} - {0}) <= 1
        and isinstance(wire, dict)
        and all(number(wire.get(key)) for key in ("up_bytes", "down_bytes"))
        and isinstance(time, dict)
        and number(time.get("wall_s"))
        and count(summary.get("clients", 0))
        and all(isinstance(summary.get(key, {}), dict) for key in ("infeasibility", "personal"))
        and ("privacy" not in summary or _private(summary["privacy"]))
    )


def _private(value: Any) -> bool:
    if not isinstance(value, dict) or "epsilon" not in value:
        return False
    return value["epsilon"] is None or number(value["epsilon"])


def _classes(use: Mapping[str, Any]) -> int:
    """Device classes that its budget tells apart."""
    given = use.get("budget", [])
    return len(given) if isinstance(given, list) else 1


def _use(use: Any) -> bool:
    if not isinstance(use, dict) or not name(use.get("unit", "")):
        return False
    if "budget" not in use:
        return True
    given = use["budget"]
    limits = given if isinstance(given, list) else [given]
    return (
        bool(limits)
        and all(number(limit) and limit > 0 for limit in limits)
        and all(number(use.get(key)) for key in ("ratio", "worst_ratio", "rounds_over"))
    )
