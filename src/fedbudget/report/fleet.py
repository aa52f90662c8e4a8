"""A simulated fleet by device class: who took part, how warm and how empty devices got."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fedbudget.report.chart import Chart, Line, Panel, in_rows
from fedbudget.report.course import by_run, line, over_seeds
from fedbudget.report.load import Loaded, by_name
from fedbudget.report.standing import classes, device_class

Value = Callable[[Mapping[str, Any], int, int], float | None]
"""(record, class, number of classes) -> its figure of the round"""


def fleet_chart(runs: Sequence[Loaded]) -> Chart | None:
    """A line a run and device class."""
    some = [run for run in runs if any(record.get("world") for record in run.records)]
    if not some:
        return None
    shares = {name: [_shares(run) for run in same] for name, same in by_name(some).items()}
    panels = [
        Panel("Replies of each client", "client, fewest first", "replies", by_run(some, shares)),
        Panel("Replies used, so far", "round", "replies", _lines(some, _used, total=True)),
        Panel("Time of the slowest", "round", "device seconds", _lines(some, _worst("seconds"))),
        Panel("Warmest device", "round", "kelvin above ambient", _lines(some, _worst("rise"))),
        Panel("Emptiest battery", "round", "share of full", _lines(some, _worst("charge", min))),
    ]
    text = (
        "The simulated fleet: how often each client's reply was used, level being fair to all; then "
        "by device class, of those that were asked in a round. All of it follows from counted work and "
        "device profiles."
    )
    return Chart("fleet", "Fleet", text, in_rows([p for p in panels if p.lines], 2))


def _lines(runs: Sequence[Loaded], value: Value, total: bool = False) -> list[Line]:
    kinds = [
        (name, same, which)
        for name, same in by_name(runs).items()
        for which in range(classes(same[0]))
    ]
    found = []
    for place, (name, same, which) in enumerate(kinds):
        number = classes(same[0])
        course = over_seeds([_curve(run, value, which, number, total) for run in same])
        if course:
            label = f"{name}, class {which}" if number > 1 else name
            found.append(line(course, label, place))
    return found


def _shares(run: Loaded) -> dict[int, float]:
    """How many replies of each client were used, in the order of these numbers."""
    counts = Counter(
        client
        for record in run.records
        for client in record.get("cohort", ())
        if str(client) not in record.get("dropped", {})
    )
    never = max(0, int(run.facts.get("clients", 0)) - len(counts))
    return dict(enumerate(map(float, [*[0] * never, *sorted(counts.values())]), 1))


def _curve(run: Loaded, value: Value, which: int, number: int, total: bool) -> dict[int, float]:
    found: dict[int, float] = {}
    so_far = 0.0
    for record in run.records:
        own = value(record, which, number)
        if own is not None:
            so_far += own
            found[int(record["round"])] = so_far if total else own
    return found


def _used(record: Mapping[str, Any], which: int, number: int) -> float:
    dropped = record.get("dropped", {})
    asked = (c for c in record.get("cohort", ()) if device_class(c, number) == which)
    return float(sum(str(c) not in dropped for c in asked))


def _worst(key: str, of: Callable[[Sequence[float]], float] = max) -> Value:
    def value(record: Mapping[str, Any], which: int, number: int) -> float | None:
        known = record.get("world", {}).get(key, {})
        own = [float(v) for c, v in known.items() if device_class(c, number) == which]
        return of(own) if own else None

    return value
