"""The table of affordable knobs, and the choice in words."""

from collections.abc import Mapping, Sequence

from rich.table import Table

from fedbudget.control.frontier import Choice
from fedbudget.units import show


def table(choices: Sequence[Choice], budgets: Mapping[str, float]) -> Table:
    """A row a setting, best first; each budget's predicted usage and its share."""
    out = Table(
        caption="each setting with the most steps the budgets allow; the choice, then by progress"
    )
    for name in ("layers", "steps", "batch", "codec", *budgets, "progress", "binds"):
        out.add_column(name, justify="right")
    for c in choices:
        used = (f"{show(c.usage[r], r)} {c.usage[r] / b:.0%}" for r, b in budgets.items())
        k = c.knobs
        out.add_row(
            *(str(k.layers), str(k.steps), str(k.batch), k.codec),
            *used,
            *(f"{c.progress:.1f}", c.binding),
        )
    return out


def why(choices: Sequence[Choice], budgets: Mapping[str, float]) -> str:
    """The choice, and what stops it from doing more."""
    best = choices[0]
    k = best.knobs
    share = best.usage[best.binding] / budgets[best.binding]
    return (
        f"choice: layers={k.layers} steps={k.steps} batch={k.batch} codec={k.codec}; "
        f"{best.binding} binds, at {share:.1%} of its budget"
    )
