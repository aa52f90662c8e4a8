"""summary.json: everything follows from the records and a few facts of the run."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from fedbudget.types import DROPPED_OUT
from fedbudget.units import UNITS

MEASURED = {"cpu_time": "s", "process_peak_memory": "B"}
"""units of what is measured and no budget can be for"""
LAST = 5
"""rounds that a final figure is the mean of"""
ASSESSED = ("objective", "infeasibility", "worst_infeasibility")
"""what is found out of agents with private sets"""


def summarise(
    records: list[dict[str, Any]],
    facts: Mapping[str, Any],
    rounds: int,
    budgets: Mapping[str, Sequence[Mapping[str, float]]],
) -> dict[str, Any]:
    """summary.json: everything follows from the records and a few facts of the config."""
    evaluated = [r["validation"] for r in records if r.get("validation")]
    last = [v for v in evaluated[-LAST:] if v.get("loss") is not None]
    losses = [v["loss"] for v in evaluated if v.get("loss") is not None]
    validation = {
        key: fmean(known)
        for key in ("loss", "accuracy")
        if (known := [v[key] for v in last if v.get(key) is not None])
    }
    if losses:
        validation["best_loss"] = min(losses)
    knobs = records[-1]["knobs"] if records else {}
    assessed = [v for v in evaluated[-LAST:] if all(v.get(key) is not None for key in ASSESSED)]
    if assessed:
        facts = {
            **facts,
            "objective": fmean(v["objective"] for v in assessed),
            "infeasibility": {
                "mean": fmean(v["infeasibility"] for v in assessed),
                "max": fmean(v["worst_infeasibility"] for v in assessed),
            },
        }
    units = {**UNITS, **MEASURED, **facts.get("units", {})}
    return {
        **facts,
        "rounds": rounds,
        "rounds_done": len(records),
        "complete": len(records) == rounds,
        "validation": validation,
        "usage": {
            accounting: _usage(records, accounting, budgets.get(accounting, ()), units)
            for accounting in ("counted", "paper", "estimated", "measured")
        },
        "wire": {key: sum(r[key] for r in records) for key in ("up_bytes", "down_bytes")},
        "time": _times(records),
        "dropped": sum(len(r["dropped"]) for r in records),
        "dropped_because": _reasons(records),
        "flagged": sum(len(r.get("flagged", {})) for r in records),
        "knobs": knobs.get("*", knobs),
        **_world(records, facts),
    }


def _usage(
    records: list[dict[str, Any]],
    accounting: str,
    classes: Sequence[Mapping[str, float]],
    units: Mapping[str, str],
) -> dict[str, dict[str, Any]]:
    """Each resource's final mean, worst case and what it says of its budget."""
    rounds: list[dict[str, dict[str, float]]] = [r["usage"].get(accounting, {}) for r in records]
    rounds = [clients for clients in rounds if clients]
    found: dict[str, dict[str, Any]] = {}
    # not every machine has every sensor
    for resource in dict.fromkeys(r for clients in rounds for u in clients.values() for r in u):
        own = ({c: u[resource] for c, u in x.items() if resource in u} for x in rounds)
        used = [clients for clients in own if clients]
        found[resource] = {
            "final": fmean(u for clients in used[-LAST:] for u in clients.values()),
            "worst": max(u for clients in used for u in clients.values()),
            "unit": units.get(resource, "") if accounting != "paper" else "",
        }
        if classes and resource in classes[0]:
            limits = [limit[resource] for limit in classes]
            shares = [[u / limits[int(c) % len(limits)] for c, u in x.items()] for x in used]
            found[resource] |= {
                "budget": limits[0] if len(limits) == 1 else limits,
                "ratio": fmean(share for x in shares[-LAST:] for share in x),
                "worst_ratio": max(max(x) for x in shares),
                "rounds_over": sum(max(x) > 1 + 1e-9 for x in shares),
            }
    return found


def _world(records: list[dict[str, Any]], facts: Mapping[str, Any]) -> dict[str, Any]:
    """Of a simulated fleet: its clock, what was lost, and how evenly clients took part."""
    worlds = [r["world"] for r in records if r.get("world")]
    if not worlds:
        return {}
    used = Counter(int(c) for r in records for c in r["cohort"] if str(c) not in r["dropped"])
    counts = [used[client] for client in range(int(facts.get("clients", len(used))))]
    return {
        "world": {
            "clock_s": worlds[-1]["clock_s"],
            "wasted_j": sum(w["wasted_j"] for w in worlds),
            "throttled": sum(len(w["throttled"]) for w in worlds),
            "fairness": fairness(counts),
            "took_part": {"least": min(counts, default=0), "most": max(counts, default=0)},
        }
    }


def fairness(counts: Sequence[int]) -> float:
    """Jain's index of how often each client took part: 1 is even, 1/n is one client alone.

    >>> fairness([2, 2, 2, 2]), fairness([8, 0, 0, 0])
    (1.0, 0.25)
    """
    squares = sum(c * c for c in counts)
    return sum(counts) ** 2 / (len(counts) * squares) if squares else 1.0


def cautions(records: Sequence[Mapping[str, Any]]) -> list[str]:
    """What there is to warn of at the end of a run, in sentences."""
    return [found for found in (unused(records), idle(records)) if found]


def unused(records: Sequence[Mapping[str, Any]]) -> str:
    """How many replies were of no use, and why; "" for none. Dropouts that are asked for do not count."""
    lost = [
        (client, record["round"], why)
        for record in records
        for client, why in record["dropped"].items()
        if why != DROPPED_OUT
    ]
    if not lost:
        return ""
    client, round, why = lost[0]
    asked = sum(len(record["cohort"]) for record in records)
    number = f"{len(lost)} of {asked} replies {'was' if len(lost) == 1 else 'were'} not used"
    first = "" if len(lost) == 1 else " the first"
    return f"{number},{first} by client {client} in round {round}: {why}"


def idle(records: Sequence[Mapping[str, Any]]) -> str:
    """In how many rounds nobody took part, because all dropped out or nobody was there; "" for none."""
    empty = [
        r["round"]
        for r in records
        if all(r["dropped"].get(str(c)) == DROPPED_OUT for c in r["cohort"])
    ]
    if not empty:
        return ""
    number = f"{len(empty)} of {len(records)} rounds"
    return f"nobody took part in {number}, the first of them round {empty[0]}: the model stayed as it was"


def _reasons(records: list[dict[str, Any]]) -> dict[str, int]:
    """Why replies were not used, and how often; numbers in a reason are left out."""
    kinds = (kind(why) for r in records for why in r["dropped"].values())
    return dict(Counter(kinds).most_common())


def kind(reason: str) -> str:
    """A reason with N for its numbers, so that like ones are counted together; names keep theirs.

    >>> kind("no reply within 2.5 s"), kind("it is written by eden1.6, not by int8")
    ('no reply within N s', 'it is written by eden1.6, not by int8')
    """
    return re.sub(r"-?(?<![a-z.\d])\d[\d.e+-]*", "N", reason)


def _times(records: list[dict[str, Any]]) -> dict[str, float]:
    wall, train, evaluate = (
        sum(r[key] for r in records) for key in ("wall_s", "train_s", "evaluate_s")
    )
    return {
        "wall_s": wall,
        "train_s": train,
        "evaluate_s": evaluate,
        "overhead_s": wall - train - evaluate,
    }
