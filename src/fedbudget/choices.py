"""The table of affordable knobs, and the choice in words."""

from collections.abc import Iterator, Mapping, Sequence

from rich.table import Table

from fedbudget.control.frontier import Choice, Grid, Progress, affordable
from fedbudget.control.planner import aims
from fedbudget.resources.budget import tell
from fedbudget.resources.costs import Costs


def explained(
    kinds: Sequence[Costs],
    grid: Grid,
    progress: Progress,
    classes: Sequence[Mapping[str, float]],
    rows: int,
) -> Iterator[str | Table]:
    """For each device class its budgets, the table and the choice; UserError where nothing fits."""
    for i, limits in enumerate(classes):
        known = kinds[i % len(kinds)]
        choices = affordable(known.expected, grid, progress, aims(limits, known.accounting))
        whose = f"device class {i}" if len(classes) > 1 else "client"
        how = f"counted on {known.device.name}"
        if known.accounting == "measured":
            how = f"measured; until a client has measured, as {how}"
        yield f"budgets per {whose} and round, {how}: {tell(limits, known.written)}"
        yield table(choices[:rows], limits, known)
        yield why(choices, limits, grid.thrift)


def table(choices: Sequence[Choice], budgets: Mapping[str, float], known: Costs) -> Table:
    """A row a setting, best first; each budget's predicted usage and its share."""
    out = Table(
        caption="each setting with the most steps the budgets allow; the choice, then by progress"
    )
    for name in ("layers", "steps", "batch", "codec", *budgets, "progress", "binds"):
        out.add_column(name, justify="right")
    for c in choices:
        used = (f"{known.written(c.usage[r], r)} {c.usage[r] / b:.0%}" for r, b in budgets.items())
        k = c.knobs
        out.add_row(
            *(str(k.layers), str(k.steps), str(k.batch), k.codec),
            *used,
            *(f"{c.progress:.1f}", c.binding),
        )
    return out


def why(choices: Sequence[Choice], budgets: Mapping[str, float], thrift: float) -> str:
    """The choice, and what stops it from doing more."""
    best = choices[0]
    k = best.knobs
    share = best.usage[best.binding] / budgets[best.binding]
    code = ""
    if any(other.progress > best.progress for other in choices[1:]):
        least = f"the least of those within {thrift:.0%} of the most progress"
        code = f"; its code sends {least}"
    return (
        f"choice: layers={k.layers} steps={k.steps} batch={k.batch} codec={k.codec}; "
        f"{best.binding} binds, at {share:.1%} of its budget{code}"
    )
