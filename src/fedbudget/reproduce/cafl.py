"""CAFL-L and CAFL: the resource rows of table 1, by running controllers against the proxies alone.

No training: usage follows from the knobs. Every row starts at lambda = 0 and is the mean of the
last 5 of 50 rounds, in both accountings: the papers' proxies, and what the same knobs cost when
everything is counted, the accumulated samples and the forward pass through frozen layers too.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import fmean

import matplotlib
import torch
from matplotlib.figure import Figure

from fedbudget.build import budgets
from fedbudget.config import Config, find_config, load
from fedbudget.control.controller import Controller, fixed
from fedbudget.control.deadzones import one_sided, two_sided
from fedbudget.control.duals import ascent, augmented_lagrangian, log_barrier, nupi
from fedbudget.control.paper import Simulated, clamped, dual_controller, simulate
from fedbudget.control.planner import Search, planner
from fedbudget.control.policies import Base, cafl, cafl_l
from fedbudget.data.examples import Windows
from fedbudget.files import write
from fedbudget.models.flat import FlatModel
from fedbudget.models.gpt import GPT
from fedbudget.models.size import parse_size
from fedbudget.report.figures import COLOURS
from fedbudget.resources import devices
from fedbudget.resources.costs import Costs, costs
from fedbudget.resources.proxies import LEVELS
from fedbudget.task import classify
from fedbudget.types import Knobs
from fedbudget.units import show

RESOURCES = ("energy", "communication", "temperature", "memory")
PAPER: Mapping[str, Mapping[str, float]] = {
    "budget": {"energy": 1.20e6, "communication": 0.60e6, "temperature": 1.00, "memory": 0.26},
    "FedAvg": {"energy": 4.52e6, "communication": 5.18e6, "temperature": 0.62, "memory": 0.31},
    "CAFL-L": {"energy": 1.35e6, "communication": 0.28e6, "temperature": 0.57, "memory": 0.24},
}
"""table 1 of both papers, as printed"""
COUNTING = "planner, counted budgets"
VOCABULARY = 65
ROUNDS = 50
LAST = 5


@dataclass(frozen=True)
class Row:
    """A controller's course under one preset."""

    name: str
    path: Sequence[Simulated]
    counted: Sequence[Mapping[str, float]]
    """usage in the last rounds, in counted units"""

    def mean(self, resource: str) -> float:
        return fmean(step.usage[resource] for step in self.path[-LAST:])

    def counted_mean(self, resource: str) -> float:
        return fmean(usage[resource] for usage in self.counted)


@dataclass(frozen=True)
class Preset:
    """One of the papers' models, its base knobs and its budgets."""

    name: str
    known: Costs
    base: Knobs
    budgets: Mapping[str, float]

    @property
    def counted_budgets(self) -> dict[str, float]:
        """At the same ratios to what the base knobs use."""
        proxy, counted = self.known.paper(self.base), self.known.forecast(self.base)
        return {r: limit / proxy[r] * counted[r] for r, limit in self.budgets.items()}


def preset(name: str) -> Preset:
    """A config's model and budgets; no data is read: characters do not change a cost."""
    config: Config = load(find_config(name))
    layers, width = parse_size(config.model.size)
    context = config.model.context
    model = FlatModel(GPT(VOCABULARY, context, layers, width, max(1, width // 32)))
    tokens = torch.zeros(4 * context, dtype=torch.uint8)
    windows = Windows(tokens, context, ((0, len(tokens)),))
    device = devices.named(config.budget.devices[0])
    accounting = config.budget.accounting
    known = costs(
        model, classify(), windows, config.train.optimizer, device, gpt=True, accounting=accounting
    )
    train = config.train
    base = Knobs(train.layers or model.layout.depth, train.steps, train.batch)
    return Preset(name, known, base, budgets(config, [known], base)[0])


def controllers(of: Preset) -> dict[str, Controller]:
    """FedAvg, the published equations, the authors' code, and ours on the same proxies."""
    base = Base(of.base.layers - 1, of.base.steps, of.base.batch)
    depth = of.known.layout.depth
    dual = partial(dual_controller, base, depth, of.budgets)
    found = {
        "FedAvg": fixed(of.base),
        "CAFL-L eqs 5-7": dual(cafl_l, ascent()),
        "CAFL eqs 10-12, one-sided": dual(cafl, ascent(zone=one_sided)),
        "CAFL eqs 10-12, two-sided": dual(cafl, ascent(zone=two_sided)),
        "CAFL, nuPI": dual(cafl, nupi()),
        "CAFL, augmented Lagrangian": dual(cafl, augmented_lagrangian()),
        "CAFL, log-barrier": dual(cafl, log_barrier()),
        "the authors' code (clamped)": clamped(base, depth, of.budgets),
    }
    wide = Search(batches=(2, 4, 8, 16), codecs=tuple(LEVELS))
    grid, progress = wide.over(of.known, of.base.layers, cohort=6)
    grid = replace(grid, layers=grid.layers[1:])  # the papers train one block at least
    found["planner"] = planner(of.known.paper, grid, progress, [of.budgets], accounting="paper")
    found[COUNTING] = planner(of.known.forecast, grid, progress, [of.counted_budgets])
    return found


def rows(of: Preset) -> list[Row]:
    found = []
    for name, controller in controllers(of).items():
        if name == COUNTING:
            told = simulate(controller, of.known.forecast, ROUNDS, "counted")
            path = [step._replace(usage=of.known.paper(step.knobs)) for step in told]
        else:
            path = simulate(controller, of.known.paper, ROUNDS)
        counted = [of.known.forecast(step.knobs) for step in path[-LAST:]]
        found.append(Row(name, path, counted))
    return found


def printed(value: float, resource: str) -> str:
    """As table 1 prints it: energy in 1e6, communication in MB."""
    return f"{value / 1e6:.2f}" if resource in ("energy", "communication") else f"{value:.2f}"


def cell(row: Row, resource: str, budget: float) -> str:
    """The mean of the last rounds, as in the papers; "over" if any of them was."""
    worst = max(step.usage[resource] for step in row.path[-LAST:])
    over = " over" if worst > budget * (1 + 1e-9) else ""
    return printed(row.mean(resource), resource) + over


HEAD = ("controller", "energy (1e6)", "comm (MB)", "temp", "memory", "ends at", "samples")
COUNTED_HEAD = ("controller", "energy of FedAvg's", *RESOURCES)


def table(of: Preset, found: Sequence[Row]) -> list[list[str]]:
    """The paper's lines where it has them, then each controller's."""
    lines = []
    if of.name == "table1":
        for name in ("FedAvg", "CAFL-L"):
            paper = (printed(PAPER[name][r], r) for r in RESOURCES)
            lines.append([f"paper: {name}", *paper, "", ""])
    lines.append(["budget", *(printed(of.budgets[r], r) for r in RESOURCES), "", ""])
    target = of.base.steps * of.base.batch
    for row in found:
        k = row.path[-1].knobs
        ends = f"k={k.layers - 1} s={k.steps} b={k.batch} G={k.accumulate} {k.codec}"
        samples = k.steps * k.batch * k.accumulate / target
        cells = (cell(row, r, of.budgets[r]) for r in RESOURCES)
        lines.append([row.name, *cells, ends, f"{samples:.2f}x"])
    return lines


def counted_table(of: Preset, found: Sequence[Row]) -> list[list[str]]:
    """Usage over budgets at the same ratios to FedAvg's, all in counted units."""
    limits = of.counted_budgets
    reference = of.known.forecast(of.base)["energy"]
    units = (show(limits[r], r) for r in RESOURCES)
    lines = [["budget", f"{limits['energy'] / reference:.2f}x", *units]]
    for row in found:
        cells = []
        for r in RESOURCES:
            over = max(usage[r] for usage in row.counted) > limits[r] * (1 + 1e-9)
            cells.append(f"{row.counted_mean(r) / limits[r]:.2f}x" + " over" * over)
        lines.append([row.name, f"{row.counted_mean('energy') / reference:.2f}x", *cells])
    return lines


def markdown(of: Preset, found: Sequence[Row]) -> str:
    """The papers' proxies, and below them the same knobs counted, over their budgets."""
    proxies = _written([list(HEAD), *table(of, found)])
    return proxies + "\n" + _written([list(COUNTED_HEAD), *counted_table(of, found)])


def _written(lines: list[list[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    lines.insert(1, ["-" * width for width in widths])
    padded = ([c.ljust(w) for c, w in zip(line, widths, strict=True)] for line in lines)
    return "".join(f"| {' | '.join(line)} |\n" for line in padded)


def figure(of: Preset, found: Sequence[Row]) -> Figure:
    """Usage over budget by round, each resource apart: who comes within, and when."""
    shown = [r for r in found if r.name in SHOWN]
    with matplotlib.rc_context({"font.size": 9, "svg.fonttype": "none"}):
        out = Figure(figsize=(9.0, 5.6), layout="constrained")
        for axes, resource in zip(out.subplots(2, 2).flat, RESOURCES, strict=True):
            for row, colour, style in zip(shown, COLOURS, STYLES, strict=False):
                ratios = [s.usage[resource] / of.budgets[resource] for s in row.path]
                axes.plot(range(1, ROUNDS + 1), ratios, style, color=colour, label=row.name)
            axes.axhline(1, color="black", linewidth=0.8)
            axes.set_title(resource, loc="left")
            axes.set_ylabel("usage / budget")
            axes.set_xlabel("round")
            axes.set_yscale("log")
            low, high = axes.get_ylim()
            ticks = COARSE if high > 4 * low else FINE
            axes.set_yticks([t for t in ticks if low < t < high], minor=False)
            axes.set_yticks([], minor=True)
            axes.yaxis.set_major_formatter(_plain)
            axes.grid(alpha=0.3)
            axes.spines[["top", "right"]].set_visible(False)
        handles, labels = out.axes[0].get_legend_handles_labels()
        out.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False)
    return out


SHOWN = (
    *("FedAvg", "CAFL-L eqs 5-7", "CAFL eqs 10-12, one-sided"),
    *("CAFL, augmented Lagrangian", "the authors' code (clamped)", "planner"),
)
COARSE = (0.25, 0.5, 1, 2, 4, 8, 16)
FINE = (0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1, 1.1, 1.2)
STYLES = ("-", "--", "-.", ":", "-", "-")


def _plain(value: float, position: int | None) -> str:
    return f"{value:g}"


def run(out: Path) -> list[str]:
    """All three presets into a folder; returns the lines to print."""
    out.mkdir(parents=True, exist_ok=True)
    lines: list[str] = []
    for name in ("table1", "cafl-l", "cafl-l-6x256"):
        of = preset(name)
        found = rows(of)
        text = markdown(of, found)
        write(out / f"{name}.md", text.encode())
        figure(of, found).savefig(out / f"{name}.png", dpi=120)
        about = (
            f"papers' proxies, then counted over budget, mean of the last {LAST} of {ROUNDS} rounds; "
            '"over": at least one of these was over budget'
        )
        lines += [f"{name}: {about}", "", text]
    return lines
