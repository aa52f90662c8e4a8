"""Runs whose agents have private sets: the objective, and how far agents are outside."""

from collections.abc import Sequence
from statistics import fmean, stdev

from fedbudget.report.chart import Chart, Panel, far_apart
from fedbudget.report.course import by_run
from fedbudget.report.load import Loaded, by_name
from fedbudget.report.sheets import Sheet

FIGURES = {
    "objective": ("Objective", "mean training loss (nats)"),
    "infeasibility": ("Mean infeasibility", "distance to the own set (norm)"),
    "worst_infeasibility": ("Worst agent", "distance to the own set (norm)"),
}
FAR = 20.0


def constrained_chart(runs: Sequence[Loaded]) -> Chart | None:
    panels = []
    for key, (title, y) in FIGURES.items():
        curves = {n: [dict(r.scores(key)) for r in same] for n, same in by_name(runs).items()}
        lines = by_run(runs, curves)
        if lines:
            away = key != "objective"
            log = away and far_apart(lines, FAR)
            panels.append(Panel(title, "round", y, lines, log=log, zero=away and not log))
    if not panels:
        return None
    text = (
        "Agents with private sets: the objective (mean over agents of the loss of the mean model "
        "on their own data), and the Euclidean distance of each agent's own model to its set, mean "
        "and worst; with seeds the mean, and their range as a band."
    )
    return Chart("constraints", "Objective and infeasibility", text, [panels])


def constrained_sheet(runs: Sequence[Loaded]) -> Sheet | None:
    """What runs with private sets ended at, and figures of the agents' own models."""
    known = {name: same for name, same in by_name(runs).items() if any(_own(run) for run in same)}
    keys = list(dict.fromkeys(key for same in known.values() for run in same for key in _own(run)))
    if not keys:
        return None
    rows = [
        [name, str(len(same)), *(_cell(same, key) for key in keys)] for name, same in known.items()
    ]
    text = (
        "objective and distances: mean of the last 5 evaluations, ± over seeds; projected: after "
        "each agent's own model was put into its set; sparsity: share of weights that are 0."
    )
    names = [key.replace("_", " ") for key in keys]
    return Sheet(("run", "seeds", *names), rows, text, "agents with private sets")


def _cell(same: Sequence[Loaded], key: str) -> str:
    values = [own[key] for run in same if key in (own := _own(run))]
    if len(values) < 2:
        return f"{values[0]:.3g}" if values else "-"
    return f"{fmean(values):.3g} ± {stdev(values):.1g}"


def _own(run: Loaded) -> dict[str, float]:
    """Names and values that a summary has of them."""
    away = run.summary.get("infeasibility")
    found = {
        "objective": run.summary.get("objective"),
        **({"mean distance": away.get("mean"), "worst distance": away.get("max")} if away else {}),
        **(run.summary.get("personal") or {}),
    }
    return {key: float(v) for key, v in found.items() if isinstance(v, int | float)}
