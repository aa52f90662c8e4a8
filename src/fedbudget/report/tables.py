"""The comparison table: a row a method, mean and spread over its seeds."""

from collections.abc import Mapping, Sequence
from statistics import fmean, stdev
from typing import Any

from rich import box
from rich.markup import escape
from rich.table import Table

from fedbudget.report.load import Loaded, by_name


def spread(values: Sequence[float], form: str) -> str:
    """Mean, and standard deviation where there are several.

    >>> spread([1.0, 2.0, 3.0], ".1f")
    '2.0 ± 1.0'
    """
    if not values:
        return "-"
    mean = format(fmean(values), form)
    return f"{mean} ± {stdev(values):{form}}" if len(values) > 1 else mean


def megabytes(count: float) -> str:
    return f"{count / 1e6:.1f} MB"


SHORT = {"communication": "uplink", "temperature": "heat"}
"""headings for narrow terminals"""


def columns(runs: Sequence[Loaded]) -> list[str]:
    """A column for each budget that any of the runs has."""
    return [
        *("run", "seeds", "rounds", "loss", "accuracy"),
        *(SHORT.get(resource, resource) for resource in _budgeted(runs)),
        *("up", "time"),
    ]


def caption(runs: Sequence[Loaded]) -> str:
    """What the columns mean."""
    text = "loss, accuracy: on the validation set, mean of the last 5 evaluations; ± over seeds."
    if names := [SHORT.get(r, r) for r in _budgeted(runs)]:
        text += (
            f" {', '.join(names)}: usage of the worst client and round over its budget, and in "
            "brackets the rounds in which any client was over."
        )
    return text


def rows(runs: Sequence[Loaded]) -> list[list[str]]:
    found = []
    for name, same in by_name(runs).items():
        summaries = [r.summary for r in same]
        scores = [s["validation"] for s in summaries]
        done = sorted({s["rounds_done"] for s in summaries})
        planned = max(s["rounds"] for s in summaries)
        found.append(
            [
                name,
                str(len(same)),
                "/".join(map(str, done)) + ("" if done == [planned] else f" of {planned}"),
                spread([v["loss"] for v in scores if "loss" in v], ".3f"),
                spread([v["accuracy"] for v in scores if "accuracy" in v], ".3f"),
                *(_kept(summaries, resource) for resource in _budgeted(runs)),
                megabytes(fmean(s["wire"]["up_bytes"] for s in summaries)),
                spread([s["time"]["wall_s"] for s in summaries], ".0f") + " s",
            ]
        )
    return found


def budgets(summary: Mapping[str, Any]) -> dict[str, Any]:
    """The resources of a run that have a budget, in whichever accounting it is."""
    return {
        resource: use
        for accounting in summary["usage"].values()
        for resource, use in accounting.items()
        if "budget" in use
    }


def _budgeted(runs: Sequence[Loaded]) -> list[str]:
    return list(dict.fromkeys(r for run in runs for r in budgets(run.summary)))


def _kept(summaries: Sequence[Mapping[str, Any]], resource: str) -> str:
    """The worst client and round against the budget, and in how many rounds any client was over."""
    uses = [u[resource] for s in summaries if resource in (u := budgets(s))]
    if not uses:
        return "-"
    worst = max(u["worst_ratio"] for u in uses)
    over = max(u["rounds_over"] for u in uses)
    return f"{worst:.2f}" + (f" ({over})" if over else "")


TARGET_COLUMNS = ("run", "reached by", "rounds", "energy", "uplink", "time")


def cost_to(run: Loaded, target: float) -> dict[str, float] | None:
    """What it took, over all clients, until the validation loss first reached the target."""
    spent = {"rounds": 0.0, "energy": 0.0, "uplink": 0.0, "time": 0.0}
    for record in run.records:
        counted = record.get("usage", {}).get("counted", {})
        spent["rounds"] += 1
        spent["energy"] += sum(use["energy"] for use in counted.values())
        spent["uplink"] += record["up_bytes"]
        spent["time"] += record["wall_s"]
        loss = (record.get("validation") or {}).get("loss")
        if loss is not None and loss <= target:
            return spent
    return None


def target_rows(runs: Sequence[Loaded], target: float) -> list[list[str]]:
    """Mean and spread over the seeds that reached it."""
    found = []
    for name, same in by_name(runs).items():
        costs = [c for run in same if (c := cost_to(run, target)) is not None]
        found.append(
            [
                name,
                f"{len(costs)} of {len(same)}",
                spread([c["rounds"] for c in costs], ".0f"),
                spread([c["energy"] for c in costs], ".0f") + " J",
                spread([c["uplink"] / 1e6 for c in costs], ".1f") + " MB",
                spread([c["time"] for c in costs], ".0f") + " s",
            ]
        )
    return found


def target_table(runs: Sequence[Loaded], target: float) -> Table:
    table = Table(*TARGET_COLUMNS, title=f"cost to a validation loss of {target:g}, all clients")
    for row in target_rows(runs, target):
        table.add_row(*map(escape, row))
    return table


def terminal(runs: Sequence[Loaded]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=0, caption=caption(runs), caption_justify="left")
    for i, column in enumerate(columns(runs)):
        table.add_column(column, justify="left" if i == 0 else "right")
    for row in rows(runs):
        table.add_row(*map(escape, row))
    return table


def markdown(runs: Sequence[Loaded]) -> str:
    names = columns(runs)
    lines = ["| " + " | ".join(names) + " |", "|" + "---|" * len(names)]
    lines += ["| " + " | ".join(row) + " |" for row in rows(runs)]
    return "\n".join(lines) + f"\n\n{caption(runs)}\n"
