"""What a codec costs in training: one model and fixed knobs, every way an update can travel.

Codecs differ in nothing but what is sent, at one step size. Server optimisers have three trials each
on seed 0, all on 2-bit updates; the best goes on with the other seeds.
`CODECS` is the list to add a codec to.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean

import matplotlib
from matplotlib.figure import Figure

from fedbudget.config import Config, find_config, load
from fedbudget.files import write
from fedbudget.report.figures import COLOURS
from fedbudget.report.load import Loaded, load_run
from fedbudget.report.sheets import Sheet, spread
from fedbudget.report.tables import change
from fedbudget.training import train_all

PRESET = "codecs"
QUICK = (
    *("rounds=2", "workers=1", "model.size=1x16", "model.context=32", "data.validation=0.02"),
    "train.steps=2",
)
"""that it works, not what comes out"""
ERROR = 'codec.feedback="error"'


@dataclass(frozen=True)
class Case:
    """A way to send or to average: what is changed in the preset."""

    name: str
    changes: tuple[str, ...]
    family: str = ""
    """those of one have one colour in the figure"""
    trials: tuple[str, ...] = field(default=("",))
    """what else to change, the best of which is taken"""


def _case(codec: str, family: str, *changes: str, name: str = "") -> Case:
    return Case(name or codec, (f'codec.name="{codec}"', *changes), family)


CODECS = (
    _case("raw32", "raw"),
    *(_case(name, "EDEN") for name in ("eden4", "eden3", "eden2", "eden1.6", "eden1")),
    *(_case(name, "uniform") for name in ("int8", "uniform4", "uniform2")),
    *(_case(name, "QSGD") for name in ("qsgd8", "qsgd4", "qsgd2")),
    _case("sign", "with error feedback", ERROR, name="sign+error"),
    _case("eden1", "with error feedback", ERROR, name="eden1+error"),
    _case("topk10%", "with error feedback", ERROR, name="topk10%+error"),
    _case("topk1%", "with error feedback", ERROR, name="topk1%+error"),
    _case("topk1%", "DGC", 'codec.feedback="momentum"', name="topk1%+dgc"),
    _case("topk60%+eden2", "the papers' sparsity", ERROR, name="topk60%+eden2+error"),
    _case("eden2", "skipping", ERROR, "codec.skip=1.5", name="eden2+error+skip1.5"),
    _case("eden2", "skipping", ERROR, "codec.skip=2.5", name="eden2+error+skip2.5"),
    _case("eden2", "coded downlink", 'codec.down="int8"', name="eden2, int8 down"),
    _case("eden2", "coded downlink", 'codec.down="eden4"', name="eden2, eden4 down"),
)
OTHERS = ("train.lr=2e-3", "train.lr=8e-3")
"""step sizes beside the preset's"""
STEP_SIZES = tuple(Case(n, (f'codec.name="{n}"',), trials=OTHERS) for n in ("raw32", "eden2"))


def _server(name: str, key: str, values: Sequence[float]) -> Case:
    trials = tuple(f"train.{key}={value}" for value in values)
    return Case(name, ('codec.name="eden2"', f'train.server="{name}"'), trials=trials)


SERVERS = (
    _server("mean", "server_lr", (1.0, 1.4, 2.0)),
    _server("momentum", "server_momentum", (0.3, 0.5, 0.8)),
    _server("nesterov", "server_momentum", (0.3, 0.6, 0.8)),
    _server("adam", "server_lr", (0.003, 0.01, 0.03)),
    _server("yogi", "server_lr", (0.003, 0.01, 0.03)),
)


@dataclass(frozen=True)
class Found:
    case: Case
    tried: dict[str, float]
    """trial -> loss on seed 0"""
    best: str
    runs: Sequence[Loaded]
    """of the best trial, one a seed"""


class Bench:
    """Trains what is not there yet, in `out`."""

    def __init__(self, out: Path, seeds: int, overrides: Sequence[str]) -> None:
        self.out = out
        self.seeds = seeds
        self.overrides = tuple(overrides)

    def found(self, case: Case) -> Found:
        tried = {trial: loss(self._trained(case, trial, 1)[0]) for trial in case.trials}
        best = min(tried, key=lambda trial: tried[trial])
        return Found(case, tried, best, self._trained(case, best, self.seeds))

    def config(self, case: Case, trial: str, seed: int) -> Config:
        own = (*self.overrides, *case.changes, *([trial] if trial else []))
        return load(find_config(PRESET), [*own, f'name="{case.name}"', f"seed={seed}"])

    def _trained(self, case: Case, trial: str, seeds: int) -> list[Loaded]:
        """OUT/NAME/seed-i, or with trials OUT/NAME/KEY-VALUE/seed-i."""
        folder = self.out / case.name
        if trial:
            folder /= trial.removeprefix("train.").replace("=", "-")
        places = {folder / f"seed-{s}": self.config(case, trial, s) for s in range(seeds)}
        train_all(places)
        return [load_run(place) for place in places]


def loss(run: Loaded) -> float:
    return float(run.summary["validation"]["loss"])


def replies(run: Loaded) -> int:
    return sum(len(r["cohort"]) - len(r["dropped"]) for r in run.records)


def uplink(run: Loaded) -> float:
    """Bytes a reply, frames included."""
    return float(run.summary["wire"]["up_bytes"]) / replies(run)


def _codecs(found: Sequence[Found]) -> Sheet:
    """A row a codec; the first is what all are compared with."""
    first = found[0].runs
    rows = []
    for own in found:
        runs = own.runs
        kept = fmean(sum(len(r["skipped"]) for r in run.records) / replies(run) for run in runs)
        down = fmean(run.summary["wire"]["down_bytes"] / replies(run) for run in runs)
        sent = fmean(map(uplink, runs))
        rows.append(
            [
                own.case.name,
                spread([loss(run) for run in runs], ".3f"),
                change(runs, first) if own is not found[0] else "",
                f"{sent / 1e3:.1f} kB",
                f"{100 * sent / fmean(map(uplink, first)):.1f}%",
                f"{down / 1e3:.1f} kB",
                f"{100 * kept:.0f}%" if kept else "",
            ]
        )
    text = (
        "loss: validation, mean of the last 5 rounds, ± over seeds; against raw32 seed by seed. uplink "
        "and downlink: bytes of the frames a reply, and their share of raw32's; kept back: replies "
        "without an update (skip)."
    )
    columns = ("codec", "loss", "against raw32", "uplink", "share", "downlink", "kept back")
    return Sheet(columns, rows, text, "codecs in training")


def _servers(found: Sequence[Found]) -> Sheet:
    first = found[0].runs
    rows = [
        [
            own.case.name,
            _written(own.best),
            spread([loss(run) for run in own.runs], ".3f"),
            change(own.runs, first) if own is not found[0] else "",
            ", ".join(f"{_written(trial)}: {value:.3f}" for trial, value in own.tried.items()),
        ]
        for own in found
    ]
    text = "All with eden2 updates; the best trial on seed 0 went on with the other seeds."
    columns = ("server", "taken", "loss", "against mean", "tried on seed 0")
    return Sheet(columns, rows, text, "server optimisers")


def _steps(found: Sequence[Found], travelled: Sequence[Found]) -> Sheet:
    presets = {own.case.name: loss(own.runs[0]) for own in travelled}
    rows = [
        [own.case.name, *(f"{x:.3f}" for x in (presets[own.case.name], *own.tried.values()))]
        for own in found
    ]
    columns = ("codec", "the preset's", *map(_written, OTHERS))
    return Sheet(columns, rows, "Seed 0.", "step sizes")


def _written(trial: str) -> str:
    """ "train.server_lr=0.01" -> "server_lr 0.01"."""
    return trial.removeprefix("train.").replace("=", " ")


def figure(found: Sequence[Found]) -> Figure:
    """A line a codec, by what it sends: its loss with the range over seeds, and its bytes."""
    order = sorted(found, key=lambda own: -fmean(map(uplink, own.runs)))
    families = list(dict.fromkeys(own.case.family for own in found))
    shades = dict(zip(families, (*COLOURS, "0.35", "0.6"), strict=False))
    colours = [shades[own.case.family] for own in order]
    losses = [[loss(run) for run in own.runs] for own in order]
    places = range(len(order))
    with matplotlib.rc_context({"font.size": 9, "svg.fonttype": "none"}):
        out = Figure(figsize=(9.0, 1.4 + 0.22 * len(order)), layout="constrained")
        left, right = out.subplots(1, 2, sharey=True, width_ratios=(3, 2))
        left.hlines(places, [min(x) for x in losses], [max(x) for x in losses], colors=colours)
        left.scatter([fmean(x) for x in losses], places, c=colours, zorder=3)
        left.axvline(fmean(loss(run) for run in found[0].runs), color="0.5", linewidth=0.8)
        left.set_yticks(places, [own.case.name for own in order])
        left.set_xlabel(f"validation loss; the line is {found[0].case.name}'s")
        right.barh(places, [fmean(map(uplink, own.runs)) / 1e3 for own in order], color=colours)
        right.set_xscale("log")
        right.xaxis.set_major_formatter("{x:g}")
        right.set_xlabel("uplink, kB a reply")
        for axes in (left, right):
            axes.grid(axis="x", alpha=0.3)
            axes.spines[["top", "right"]].set_visible(False)
    return out


def run(
    out: Path,
    seeds: int = 3,
    quick: bool = False,
    overrides: Sequence[str] = (),
    codecs: Sequence[Case] = CODECS,
    servers: Sequence[Case] = SERVERS,
    steps: Sequence[Case] = STEP_SIZES,
) -> list[str]:
    """Train what is not there yet; codecs.md and codecs.png into `out`; the lines to print."""
    bench = Bench(out, 1 if quick else seeds, [*(QUICK if quick else ()), *overrides])
    travelled = [bench.found(case) for case in codecs]
    stepped = [bench.found(case) for case in servers]
    single = Bench(out, 1, bench.overrides)
    sheets = (
        *(_codecs(travelled), _servers(stepped)),
        _steps([single.found(case) for case in steps], travelled),
    )
    lines = [sheet.markdown() for sheet in sheets]
    figure(travelled).savefig(out / "codecs.png", dpi=130)
    write(out / "codecs.md", "\n".join(lines).encode())
    return lines
