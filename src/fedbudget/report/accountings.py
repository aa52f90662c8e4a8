"""What was counted beside what was measured: a row a run."""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from fedbudget.report.load import Loaded, by_name
from fedbudget.report.sheets import Sheet
from fedbudget.report.sound import number
from fedbudget.summary import LAST
from fedbudget.units import UNITS, show

HEADS = {"communication": "uplink", "temperature": "heat"}


def accountings_sheet(runs: Sequence[Loaded]) -> Sheet | None:
    """None where nothing was measured."""
    groups = {n: [r.summary["usage"] for r in same] for n, same in by_name(runs).items()}
    groups = {n: usages for n, usages in groups.items() if any(u.get("measured") for u in usages)}
    resources = [r for r in UNITS if any(_cell(usages, r) != "-" for usages in groups.values())]
    if not resources:
        return None
    rows = [[name, *(_cell(usages, r) for r in resources)] for name, usages in groups.items()]
    text = (
        f"per client and round, mean of the last {LAST} rounds: what was counted by the device "
        "profile, then what was measured on the machine that trained; ~ is estimated: CPU seconds "
        "times the profile's watts per core, where no sensor tells."
    )
    columns = ["run", *(HEADS.get(r, r) for r in resources)]
    return Sheet(columns, rows, text, "counted → measured", spare=("downlink", "heat"))


def _cell(usages: Sequence[Mapping[str, Any]], resource: str) -> str:
    """ "-" where nothing but a count is known."""
    counted, estimated, measured = (
        _mean(usages, accounting, resource) for accounting in ("counted", "estimated", "measured")
    )
    if measured is None and estimated is None:
        return "-"
    before = show(counted, resource) if counted is not None else "-"
    if measured is not None:
        return f"{before} → {show(measured, resource)}"
    assert estimated is not None
    return f"{before} → ~{show(estimated, resource)}"


def _mean(usages: Sequence[Mapping[str, Any]], accounting: str, resource: str) -> float | None:
    """Over seeds."""
    told = (u.get(accounting, {}).get(resource, {}).get("final") for u in usages)
    known = [float(amount) for amount in told if number(amount)]
    return fmean(known) if known else None
