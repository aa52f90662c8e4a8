"""Robustness: each config as it is, with clients that drop out, and with half the fleet poorer."""

from collections.abc import Sequence
from statistics import fmean

from fedbudget.report.load import Loaded, by_name
from fedbudget.report.sheets import Sheet, spread
from fedbudget.report.standing import accounting, budgets
from fedbudget.report.tables import SHORT, budgeted

CONDITIONS = {
    "": "as it is",
    "+drop30%": "30% drop out",
    "+half": "half the fleet at half",
}
"""what a run's name ends in, and what it means"""


def condition(name: str) -> tuple[str, str]:
    """A run's config and its condition.

    >>> condition("fedavg+drop30%")
    ('fedavg', '+drop30%')
    """
    for suffix in list(CONDITIONS)[1:]:
        if name.endswith(suffix):
            return name.removesuffix(suffix), suffix
    return name, ""


def robustness_sheet(runs: Sequence[Loaded]) -> Sheet:
    """Loss and its change, and each budget: mean of the last rounds, worst, rounds over."""
    groups = by_name(runs)
    limited = budgeted(runs)
    rows = []
    for name, same in groups.items():
        config, suffix = condition(name)
        losses = _losses(same)
        base = _losses(groups.get(config, []))
        changes = [100 * (losses[s] / base[s] - 1) for s in losses if s in base and suffix]
        uses = [budgets(run.summary) for run in same]
        rounds = max(run.summary["rounds_done"] for run in same)
        cells = []
        for resource in limited:
            own = [u[resource] for u in uses if resource in u]
            over = fmean(u["rounds_over"] for u in own) if own else 0
            worst = max((u["worst_ratio"] for u in own), default=0.0)
            ratios = spread([u["ratio"] for u in own], ".2f")
            cells.append(f"{ratios}, {worst:.2f}, {over:.3g}/{rounds}" if own else "-")
        rows.append(
            [
                *(config, CONDITIONS[suffix], spread(list(losses.values()), ".3f")),
                spread(changes, "+.1f").replace("± +", "± ") + "%" if changes else "",
                accounting(same[0].summary) or "-",
                *cells,
            ]
        )
    names = [SHORT.get(r, r) for r in limited]
    text = "loss: validation, mean of the last 5 evaluations; ± over seeds."
    if names:
        text += (
            f" {', '.join(names)}: usage over budget as the mean of the last 5 rounds, the worst "
            "client and round, and the rounds in which any client was over, of all."
        )
    columns = ("run", "condition", "loss", "change", "budgets in", *names)
    return Sheet(columns, rows, text, "robustness")


def _losses(same: Sequence[Loaded]) -> dict[int, float]:
    """By seed."""
    found = ((run.seed, run.summary["validation"].get("loss")) for run in same)
    return {seed: float(loss) for seed, loss in found if loss is not None}
