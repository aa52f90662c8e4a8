"""Bytes up and down by round, and the replies that could not be used."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from fedbudget.report.chart import Chart, Panel, far_apart, in_rows
from fedbudget.report.course import by_run
from fedbudget.report.load import Loaded, by_name
from fedbudget.report.sheets import Sheet
from fedbudget.summary import kind

LINKS = {"up_bytes": "Uplink", "down_bytes": "Downlink"}
PREFIXES = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1, "B"))
FAR = 6.0
"""times the least from which bytes are shown on a log scale"""
FAILURES = {
    "dropped": "replies not used",
    "late": "replies that came too late",
    "flagged": "usage reports not credible",
    "skipped": "updates kept back",
}


def traffic_chart(runs: Sequence[Loaded]) -> Chart | None:
    panels = []
    for key, title in LINKS.items():
        curves = {
            name: [{int(r["round"]): float(r[key]) for r in run.records} for run in same]
            for name, same in by_name(runs).items()
        }
        lines = by_run(runs, curves)
        most = max((y for line in lines for y in line.y), default=0.0)
        if most > 0:
            scale, unit = next(p for p in PREFIXES if most >= p[0])
            scaled = [
                replace(
                    line,
                    y=[v / scale for v in line.y],
                    low=[v / scale for v in line.low],
                    high=[v / scale for v in line.high],
                )
                for line in lines
            ]
            log = far_apart(scaled, FAR)
            y = f"{title.lower()} of a round ({unit})"
            panels.append(Panel(title, "round", y, scaled, log=log, zero=not log))
    if not panels:
        return None
    text = (
        "Bytes on the wire in each round, of the whole cohort, as they were encoded; with seeds "
        "the mean over those that reached it, and their range as a band."
    )
    return Chart("traffic", "Bytes sent", text, [panels])


def failures_chart(runs: Sequence[Loaded]) -> Chart | None:
    """A panel for each kind of failure that happened."""
    panels = []
    for key, title in FAILURES.items():
        curves = {
            name: [{int(r["round"]): float(_count(r, key)) for r in run.records} for run in same]
            for name, same in by_name(runs).items()
        }
        lines = [replace(line, steps=True) for line in by_run(runs, curves)]
        if any(high > 0 for line in lines for high in line.high):
            panels.append(Panel(title.capitalize(), "round", "clients a round", lines, zero=True))
    if not panels:
        return None
    text = (
        "What went wrong or was left out in each round, as a count of clients; with seeds the "
        "mean over those that reached it, and their range as a band. The reasons are in the table of "
        "failures."
    )
    return Chart("failures", "Failures by round", text, in_rows(panels, 2))


def _count(record: Mapping[str, Any], key: str) -> int:
    found = record.get(key, 0)
    return int(found) if isinstance(found, int | float) else len(found)


def failures_sheet(runs: Sequence[Loaded]) -> Sheet | None:
    """Each reason once a run, how often, and in which rounds; None where nothing went wrong."""
    rows = []
    for run in runs:
        seen: dict[tuple[str, str], list[int]] = {}
        for record in run.records:
            for key in FAILURES:
                for why in _reasons(record, key):
                    seen.setdefault((key, why), []).append(int(record["round"]))
        several = sum(other.name == run.name for other in runs) > 1
        name = f"{run.name} (seed {run.seed})" if several else run.name
        rows += [
            [name, FAILURES[key], why, str(len(rounds)), ranges(rounds)]
            for (key, why), rounds in seen.items()
        ]
    if not rows:
        return None
    text = "Numbers in a reason are written N, so that like reasons are counted together."
    return Sheet(("run", "what", "reason", "times", "rounds"), rows, text, "failures")


def _reasons(record: Mapping[str, Any], key: str) -> list[str]:
    found = record.get(key) or ()
    if isinstance(found, Mapping):
        return [kind(str(why)) for why in found.values()]
    return [""] * _count(record, key)


def ranges(rounds: Sequence[int], most: int = 8) -> str:
    """Rounds as people write them.

    >>> ranges([1, 2, 2, 3, 7])
    '1-3, 7'
    """
    spans: list[list[int]] = []
    for round in sorted(set(rounds)):
        if spans and round == spans[-1][1] + 1:
            spans[-1][1] = round
        else:
            spans.append([round, round])
    written = [f"{a}" if a == b else f"{a}-{b}" for a, b in spans]
    return ", ".join(written[:most]) + (", ..." if len(written) > most else "")
