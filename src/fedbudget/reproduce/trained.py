"""CAFL-L's training rows and its figures 2, 3 and 4: FedAvg, the published controllers, ours.

Every run is real: knobs are applied, updates are encoded, sent and decoded. Each is held against
budgets at the ratios of the papers' table 1 to FedAvg's usage, in both accountings: the papers'
proxies, and counted, where every accumulated sample and every byte is in.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from fedbudget.build import prepare
from fedbudget.config import Config, find_config, load
from fedbudget.files import write
from fedbudget.report.load import Loaded, by_name, find_runs
from fedbudget.report.sheets import Sheet, spread
from fedbudget.reproduce.training_figures import amount, loss_figure, usage_figure
from fedbudget.resources import proxies
from fedbudget.resources.costs import Costs
from fedbudget.summary import LAST
from fedbudget.training import train_all
from fedbudget.types import Knobs

RESOURCES = ("energy", "communication", "memory", "temperature")
ACCOUNTINGS = {"paper": "paper proxy", "counted": "counted"}
PAPER_LOSS = {"FedAvg": 1.93, "CAFL-L": 2.10}
"""both papers' table 1; with label smoothing of 0.05 in the loss"""
RATIOS = {"energy": "26.5%", "communication": "11.6%", "memory": "83.9%", "temperature": "161%"}
"""table 1: budget over FedAvg's usage"""
Usage = Mapping[str, float]


@dataclass(frozen=True)
class Case:
    """A run of the table: what a preset is called here, and what is changed in it."""

    name: str
    preset: str
    changes: tuple[str, ...] = ()
    paper: str = ""
    """the row of the papers' table 1 that it stands beside"""


@dataclass(frozen=True)
class Group:
    """Runs of one model, in one table and one set of figures."""

    title: str
    prefix: str
    """of the files' names"""
    cases: tuple[Case, ...]
    reference: str
    """the preset whose base knobs are FedAvg's"""
    budgets: tuple[str, ...] = ()
    """overrides that give the reference its budgets in the accounting that it does not name"""


SMALL = Group(
    "2 x 128",
    "",
    (
        Case("fedavg", "fedavg", paper="FedAvg"),
        Case("cafl-l", "cafl-l", paper="CAFL-L"),
        Case("cafl", "cafl", paper="CAFL-L"),
        Case("planner", "planner"),
    ),
    "cafl-l",
)
SERVER = ("train.server=nesterov", "train.server_momentum=0.6")
"""what the presets of 2 x 128 have; here for every case alike"""
LARGE = Group(
    "8 x 128, the model behind table 1",
    "table1-",
    (
        Case("table1-fedavg", "table1", (*SERVER, "control.controller=fixed"), "FedAvg"),
        Case("table1-clamped", "table1", SERVER, "CAFL-L"),
        Case(
            "table1-planner",  # with what configs/planner.toml has, and the step size for its batch
            "table1",
            (
                *(*SERVER, "control.controller=planner", "budget.accounting=counted"),
                *(f'budget.{resource}="{share}"' for resource, share in RATIOS.items()),
                "train.betas=[0.5, 0.999]",
                "train.lr_rule=square-root",
            ),
        ),
    ),
    "table1",
    tuple(f'budget.{resource}="{share}"' for resource, share in RATIOS.items()),
)


@dataclass(frozen=True)
class Measure:
    """Usage and budgets of one model, in both accountings."""

    known: Costs
    budgets: Mapping[str, Usage]
    """accounting -> resource -> limit"""

    def of_round(self, record: Mapping[str, Any], accounting: str) -> list[Usage]:
        """Each client's usage; where none was reported, what its knobs come to.

        That is so for records of old, and for the proxies of a codec that they have no level for:
        the level enters their communication only, which is left out then.
        """
        reported = record.get("usage", {})
        if accounting in reported:
            return list(reported[accounting].values())
        given, found = record["knobs"], []
        for client in (c for c in record["cohort"] if str(c) not in record["dropped"]):
            knobs = Knobs(**given.get(str(client), given.get("*")))
            if accounting == "counted":
                found.append(self.known.forecast(knobs))
            elif proxies.level(knobs.codec) is not None:
                found.append(self.known.paper(knobs))
            else:
                usage = self.known.paper(replace(knobs, codec="raw32"))
                found.append({r: u for r, u in usage.items() if r != "communication"})
        return list(found)

    def course(self, run: Loaded, accounting: str, resource: str) -> dict[int, float]:
        """By round: mean over the cohort, as the papers have it."""
        found = {}
        for record in run.records:
            used = [u[resource] for u in self.of_round(record, accounting) if resource in u]
            if used:
                found[int(record["round"])] = fmean(used)
        return found


def measure(group: Group, overrides: Sequence[str]) -> Measure:
    path = find_config(group.reference)
    limits: dict[str, Usage] = {}
    for accounting in ACCOUNTINGS:
        own = load(path, overrides)
        changes = group.budgets if own.budget.accounting != accounting else ()
        # the planner's accounting is counted and the papers' controllers know both: fixed fits all
        as_fixed = (f"budget.accounting={accounting}", "control.controller=fixed")
        ready = prepare(load(path, [*overrides, *changes, *as_fixed]))
        limits[accounting] = ready.limits[0]
    assert ready.known is not None
    return Measure(ready.known, limits)


def check(full: bool, overrides: Sequence[str]) -> None:
    """That every case can be read with them, before anything is written."""
    for group in (SMALL, LARGE) if full else (SMALL,):
        plan(group, 1, overrides, Path())


def plan(group: Group, seeds: int, overrides: Sequence[str], out: Path) -> dict[Path, Config]:
    """Folder -> config: OUT/training/NAME/seed-i. A seed of every case, then the next seed."""
    return {
        out / "training" / case.name / f"seed-{seed}": load(
            find_config(case.preset),
            [*case.changes, f"name={case.name}", *overrides, f"seed={seed}"],
        )
        for seed in range(seeds)
        for case in group.cases
    }


def table(group: Group, runs: Sequence[Loaded], by: Measure) -> Sheet:
    """Two rows a run, one for each accounting; every ratio is to that accounting's budget."""
    cases = {case.name: case for case in group.cases}
    rows = []
    for name, same in by_name(runs).items():
        paper = cases[name].paper
        losses = [run.summary["validation"].get("loss") for run in same]
        loss = spread([x for x in losses if x is not None], ".3f")
        beside = f"{PAPER_LOSS[paper]:.2f} ({paper})" if paper else ""
        sent = f"{fmean(run.summary['wire']['up_bytes'] for run in same) / 1e6:.1f} MB"
        for accounting, label in ACCOUNTINGS.items():
            cells = (_cell(same, by, accounting, resource) for resource in RESOURCES)
            rows.append([name, str(len(same)), loss, beside, label, *cells, sent])
    for accounting, label in ACCOUNTINGS.items():
        limits = by.budgets[accounting]
        amounts = (amount(limits[r], resource=r, accounting=accounting) for r in RESOURCES)
        rows.append(["budget", "", "", "", label, *amounts, ""])
    text = (
        f"loss: validation, mean of the last {LAST} evaluations, ± over seeds; the papers' beside "
        "it is of their own run (8 x 128), with label smoothing in it. Usage: mean of the "
        f"last {LAST} rounds over the cohort, over its budget in the same accounting, and in "
        "brackets the rounds in which the cohort's mean was over, mean over seeds. The proxies "
        "leave accumulated samples out of energy, and know 32, 8 and 2 bits only (- elsewhere). "
        "sent: uplink bytes on the wire, all rounds."
    )
    head = ("run", "seeds", "loss", "papers' loss", "accounting", *RESOURCES, "sent")
    return Sheet(head, rows, text, f"{group.title}: training")


def _cell(same: Sequence[Loaded], by: Measure, accounting: str, resource: str) -> str:
    """ "4.25 J = 1.00x (3)": usage, over its budget, rounds over."""
    courses = [list(by.course(run, accounting, resource).values()) for run in same]
    if not all(courses):
        return "-"
    budget = by.budgets[accounting][resource]
    used = fmean(fmean(course[-LAST:]) for course in courses)
    over = fmean(sum(u > budget * (1 + 1e-9) for u in course) for course in courses)
    brackets = f" ({over:.3g})" if over else ""
    written = amount(used, resource=resource, accounting=accounting)
    return f"{written} = {used / budget:.2f}x{brackets}"


def run(out: Path, seeds: int, full: bool, overrides: Sequence[str] = ()) -> list[str]:
    """Train what is not there yet; a page and the figures of each group into `out`; what to print."""
    groups = [(SMALL, seeds), *([(LARGE, 1)] if full else [])]
    every = [plan(group, number, overrides, out) for group, number in groups]
    train_all({place: settings for some in every for place, settings in some.items()})
    lines: list[str] = []
    for (group, _), places in zip(groups, every, strict=True):
        by = measure(group, overrides)
        runs = find_runs(places)
        page = [table(group, runs, by).markdown()]
        figures = {
            "figure2": usage_figure(runs, by, ("memory", "communication")),
            "figure3": usage_figure(runs, by, ("energy", "temperature")),
            "figure4": loss_figure(runs, PAPER_LOSS),
        }
        for name, figure in figures.items():
            for suffix in ("png", "svg"):
                figure.savefig(out / f"{group.prefix}{name}.{suffix}", dpi=130)
            page.append(f"![{CAPTIONS[name]}]({group.prefix}{name}.png)\n")
        write(out / f"{group.prefix}training.md", "\n".join(page).encode())
        lines += page
    return lines


CAPTIONS = {
    "figure2": "CAFL-L figure 2: memory and communication by round, both accountings",
    "figure3": "CAFL-L figure 3: energy and temperature by round, both accountings",
    "figure4": "CAFL-L figure 4: validation loss by round",
}
