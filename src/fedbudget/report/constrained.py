"""Runs whose agents have private sets: the objective, and how far agents are outside."""

from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean, stdev

from fedbudget.report.chart import Chart, Panel, far_apart
from fedbudget.report.course import by_run
from fedbudget.report.load import Loaded, by_name
from fedbudget.report.sheets import Sheet
from fedbudget.report.sound import number

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
        "and worst; with seeds the mean over those that reached the round, and their range as a band."
    )
    return Chart("constraints", "Objective and infeasibility", text, [panels])


AGENTS = {
    "distance": ("Distance to the own set", "distance before projection (norm)"),
    "projected_sparsity": ("Sparsity", "share of weights that are 0"),
}


def agents_chart(runs: Sequence[Loaded]) -> Chart | None:
    """A point an agent, of runs that have ended."""
    panels = []
    for key, (title, y) in AGENTS.items():
        curves = {n: [_agents(run, key) for run in same] for n, same in by_name(runs).items()}
        lines = [replace(line, points=True) for line in by_run(runs, curves)]
        if lines:
            panels.append(Panel(title, "agent", y, lines, zero=True))
    if not panels:
        return None
    text = (
        "Each agent's own model when the run ended: its distance to the agent's set, and the share "
        "of weights that are 0 once it is put into the set; with seeds the mean, and their range "
        "as a bar. Of the first 1000 agents; not of runs with privacy, nor of Flower nodes, which "
        "keep these figures to themselves. No sparsity for top-k sets: it would tell their k."
    )
    return Chart("agents", "Each agent's own model", text, [panels])


def _agents(run: Loaded, key: str) -> dict[int, float]:
    """By agent; empty where the summary does not say."""
    agents = (run.summary.get("personal") or {}).get("agents")
    found = agents.get(key) if isinstance(agents, dict) else None
    if not isinstance(found, list):
        return {}
    return {agent: float(value) for agent, value in enumerate(found) if number(value)}


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
    return {key: float(v) for key, v in found.items() if number(v)}
