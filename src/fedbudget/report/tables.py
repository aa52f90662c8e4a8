"""The comparison table: a row a method, mean and spread over its seeds."""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from rich.table import Table

from fedbudget.report.load import Loaded, by_name
from fedbudget.report.sheets import Sheet, spread
from fedbudget.report.standing import CLASS_COLUMNS, accounting, budgets, class_rows
from fedbudget.units import show

__all__ = [
    "caption",
    "change",
    "columns",
    "comparison",
    "device_classes",
    "markdown",
    "rows",
    "spread",
]

SHORT = {"communication": "uplink", "temperature": "heat"}
"""headings for narrow terminals"""
SPARE = ("time", "sent", "spent", "accuracy", "budgets", "seeds", "rounds")
"""columns that a narrow terminal leaves out, the first ones first"""


def megabytes(count: float) -> str:
    return f"{count / 1e6:.1f} MB" if count >= 1e5 else show(count, "communication")


def columns(runs: Sequence[Loaded]) -> list[str]:
    """A column for each budget that any of the runs has."""
    limited = budgeted(runs)
    return [
        *("run", "seeds", "rounds", "loss", "accuracy"),
        *(["epsilon"] if private(runs) else []),
        *(["budgets"] if limited else []),
        *(SHORT.get(resource, resource) for resource in limited),
        *("spent", "sent", "time"),
    ]


def caption(runs: Sequence[Loaded]) -> str:
    """What the columns mean."""
    text = "loss, accuracy: on the validation set, mean of the last 5 evaluations; ± over seeds."
    if any(run.summary["rounds_done"] < run.summary["rounds"] for run in runs):
        text += " A run that has not ended counts with the rounds it has."
    if names := [SHORT.get(r, r) for r in budgeted(runs)]:
        text += (
            f" {', '.join(names)}: usage of the worst client and round over its budget, and in "
            "brackets the rounds in which any client was over"
        )
        most = max(map(len, by_name(runs).values()))
        text += ", of the seed that had most." if most > 1 else "."
        kinds = {accounting(run.summary) for run in runs}
        if "paper" in kinds:
            text += (
                " budgets: the accounting they are kept in. counted = every sample and byte; "
                "paper = the CAFL papers' proxies, which leave out accumulated samples: do not "
                "compare one with the other."
            )
    if private(runs):
        text += " epsilon: of the client that took part most, without amplification."
    return text + " spent, sent: counted energy and uplink of all clients and rounds."


def rows(runs: Sequence[Loaded]) -> list[list[str]]:
    found = []
    limited = budgeted(runs)
    for name, same in by_name(runs).items():
        summaries = [r.summary for r in same]
        scores = [s["validation"] for s in summaries]
        done = sorted({s["rounds_done"] for s in summaries})
        planned = max(s["rounds"] for s in summaries)
        joules = [j for run in same if (j := energy(run)) is not None]
        found.append(
            [
                name,
                str(len(same)),
                "/".join(map(str, done)) + ("" if done == [planned] else f" of {planned}"),
                spread([v["loss"] for v in scores if "loss" in v], ".3f"),
                spread([v["accuracy"] for v in scores if "accuracy" in v], ".3f"),
                *([_epsilon(summaries)] if private(runs) else []),
                *([accounting(summaries[0]) or "-"] if limited else []),
                *(_kept(summaries, resource) for resource in limited),
                show(fmean(joules), "energy") if joules else "-",
                megabytes(fmean(s["wire"]["up_bytes"] for s in summaries)),
                spread([s["time"]["wall_s"] for s in summaries], ".0f") + " s",
            ]
        )
    return found


def energy(run: Loaded) -> float | None:
    """Counted joules of all clients and rounds; None where nothing was counted."""
    counted = [record.get("usage", {}).get("counted", {}) for record in run.records]
    if not any(counted):
        return None
    return sum(float(use.get("energy", 0.0)) for clients in counted for use in clients.values())


def budgeted(runs: Sequence[Loaded]) -> list[str]:
    """Resources that any of the runs has a budget for."""
    return list(dict.fromkeys(r for run in runs for r in budgets(run.summary)))


def private(runs: Sequence[Loaded]) -> bool:
    return any("privacy" in run.summary for run in runs)


def _epsilon(summaries: Sequence[Mapping[str, Any]]) -> str:
    """The largest of any seed; infinite where an update went without noise."""
    found = [s["privacy"]["epsilon"] if "privacy" in s else None for s in summaries]
    known = [e for e in found if e is not None]
    return f"{max(known):.3g}" if len(known) == len(found) else "inf"


def _kept(summaries: Sequence[Mapping[str, Any]], resource: str) -> str:
    """The worst client and round against the budget, and in how many rounds any client was over."""
    uses = [u[resource] for s in summaries if resource in (u := budgets(s))]
    if not uses:
        return "-"
    worst = max(u["worst_ratio"] for u in uses)
    over = max(u["rounds_over"] for u in uses)
    return f"{worst:.2f}" + (f" ({over})" if over else "")


def comparison(runs: Sequence[Loaded]) -> Sheet:
    return Sheet(columns(runs), rows(runs), caption(runs), spare=SPARE)


def change(runs: Sequence[Loaded], reference: Sequence[Loaded]) -> str:
    """Of the loss, seed by seed."""
    before = {run.seed: run.summary["validation"]["loss"] for run in reference}
    ratios = [run.summary["validation"]["loss"] / before[run.seed] for run in runs]
    return spread([100 * (ratio - 1) for ratio in ratios], "+.1f").replace("± +", "± ") + "%"


def device_classes(runs: Sequence[Loaded]) -> Sheet | None:
    """How each class stood to its own budgets; None where no run tells classes apart."""
    found = class_rows(runs)
    if not found:
        return None
    text = (
        "usage over the class's own budget: mean over clients in the last rounds, worst client of "
        "any round, and rounds in which a client of the class was over, of those it took part in."
    )
    return Sheet(CLASS_COLUMNS, found, text, "device classes")


def terminal(runs: Sequence[Loaded], width: int | None = None) -> Table:
    return comparison(runs).terminal(width)


def markdown(runs: Sequence[Loaded]) -> str:
    own = device_classes(runs)
    return comparison(runs).markdown() + (f"\n{own.markdown()}" if own else "")
