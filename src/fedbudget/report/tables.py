"""The comparison table: a row a method, mean and spread over its seeds."""

from collections.abc import Sequence
from statistics import fmean, stdev

from rich.table import Table

from fedbudget.report.load import Loaded, by_name

COLUMNS = ("run", "seeds", "rounds", "val. loss", "best", "accuracy", "up", "down", "time")


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


def rows(runs: Sequence[Loaded]) -> list[tuple[str, ...]]:
    found: list[tuple[str, ...]] = []
    for name, same in by_name(runs).items():
        summaries = [r.summary for r in same]
        scores = [s["validation"] for s in summaries]
        done = sorted({s["rounds_done"] for s in summaries})
        planned = max(s["rounds"] for s in summaries)
        found.append(
            (
                name,
                str(len(same)),
                "/".join(map(str, done)) + ("" if done == [planned] else f" of {planned}"),
                spread([v["loss"] for v in scores if "loss" in v], ".4f"),
                spread([v["best_loss"] for v in scores if "best_loss" in v], ".4f"),
                spread([v["accuracy"] for v in scores if "accuracy" in v], ".3f"),
                megabytes(fmean(s["wire"]["up_bytes"] for s in summaries)),
                megabytes(fmean(s["wire"]["down_bytes"] for s in summaries)),
                spread([s["time"]["wall_s"] for s in summaries], ".0f") + " s",
            )
        )
    return found


def terminal(runs: Sequence[Loaded]) -> Table:
    table = Table(caption="val. loss and accuracy: mean of the last 5 evaluations; ± over seeds")
    for i, column in enumerate(COLUMNS):
        table.add_column(column, justify="left" if i == 0 else "right")
    for row in rows(runs):
        table.add_row(*row)
    return table


def markdown(runs: Sequence[Loaded]) -> str:
    lines = ["| " + " | ".join(COLUMNS) + " |", "|" + "---|" * len(COLUMNS)]
    lines += ["| " + " | ".join(row) + " |" for row in rows(runs)]
    return "\n".join(lines) + "\n"
