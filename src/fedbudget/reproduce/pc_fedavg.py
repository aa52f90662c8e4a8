"""PC-FedAvg: the paper's figures 1-4, and what it lacks.

Each method is trained at the same penalties and the same step sizes; a point is one run. What is
compared is the least objective at a given distance of the worst agent from its set.
"""

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from fedbudget.build import own_workers, prepare
from fedbudget.config import Config, find_config, load
from fedbudget.files import write
from fedbudget.models.flat import FlatModel
from fedbudget.reproduce import optimum
from fedbudget.reproduce.many import train_all
from fedbudget.reproduce.pc_figures import curves_figure, local_steps_figure, sweep_figure
from fedbudget.reproduce.pc_tables import LEVEL, OURS, Point, tables
from fedbudget.threads import one_thread

PROJECTED = "PC-FedAvg, projected"
METHODS = {
    OURS: ("pc-fedavg", ()),
    PROJECTED: ("pc-fedavg", ("constraints.projected=true",)),
    "penalised FedAvg": ("penalised-fedavg", ()),
    "penalised FedProx": ("penalised-fedprox", ("train.mu=0.1",)),
    "penalised SCAFFOLD": ("penalised-scaffold", ()),
}
LEAST_SHARE, MOST_SHARE = 0.07, 0.35
"""radii of the first and the last agent, of the unconstrained model's l1 norm"""


@dataclass(frozen=True)
class Setting:
    """What differs from one data set to another."""

    batch: int
    base: float
    """step sizes are multiples of this share of the presets': inputs differ in size"""
    steps: tuple[float, ...]
    """multiples to try; the same for every method"""
    longer: int
    """rounds of the runs over seeds, as a multiple of the sweep's"""


SETTINGS = {"mnist": Setting(600, 1.0, (1.0, 3.0), 2), "cifar10": Setting(125, 0.1, (1.0,), 1)}


@dataclass(frozen=True)
class Scale:
    """How much is run."""

    datasets: tuple[str, ...]
    rounds: int
    """of the sweep"""
    rhos: tuple[float, ...]
    projected_steps: tuple[float, ...]
    """multiples of the step size for the variant without a penalty"""
    seeds: int
    local_steps: tuple[int, ...]
    oracle_iterations: int


FULL = Scale(
    datasets=("mnist", "cifar10"),
    rounds=100,
    rhos=(0.1, 0.3, 1.0, 3.0, 10.0, 30.0),
    projected_steps=(0.03, 0.1, 0.3, 1.0, 3.0, 10.0),
    seeds=3,
    local_steps=(1, 5, 10, 20),
    oracle_iterations=400,
)
QUICK = Scale(
    datasets=("mnist",),
    rounds=10,
    rhos=(0.1, 1.0),
    projected_steps=(1.0, 3.0),
    seeds=1,
    local_steps=(1, 10),
    oracle_iterations=30,
)


@dataclass(frozen=True)
class Study:
    """One data set's runs: where they go, how many, and who hears of them."""

    dataset: str
    scale: Scale
    folder: Path
    radius: tuple[float, float]
    """of the first agent and the last"""
    tell: Callable[[str], None]

    @property
    def setting(self) -> Setting:
        return SETTINGS[self.dataset]


def run(out: Path, quick: bool, tell: Callable[[str], None]) -> list[str]:
    """All data sets into a folder; returns the lines to print."""
    scale = QUICK if quick else FULL
    lines: list[str] = []
    for dataset in scale.datasets:
        text = reproduce(dataset, scale, out, tell)
        write(out / f"{dataset}.md", text.encode())
        lines += [text]
    return lines


def reproduce(dataset: str, scale: Scale, out: Path, tell: Callable[[str], None]) -> str:
    """One data set: sweep, seeds, local steps, the sets' own limit; tables as Markdown."""
    folder = out / "runs" / dataset
    radius = _radii(dataset, scale, folder, tell)
    study = Study(dataset, scale, folder, radius, tell)
    sweep = list(_sweep(study))
    chosen = {method: _choose([p for p in sweep if p.method == method]) for method in METHODS}
    repeated = list(_repeat(study, chosen))
    longer = list(_local_steps(study, chosen[OURS]))
    limits = _limits(study)
    out.mkdir(parents=True, exist_ok=True)
    sweep_figure(sweep, limits, LEVEL).savefig(out / f"{dataset}-sweep.png", dpi=120)
    alike = [p for p in sweep if p.step == 1 and p.rho == 1 and p.method != PROJECTED]
    for key, title in (
        ("worst_infeasibility", "worst agent's distance to its set"),
        ("infeasibility", "mean distance to the own set"),
        ("objective", "objective at the mean model"),
    ):
        name = f"{dataset}-{key.replace('_', '-')}"
        curves_figure(repeated, key, title).savefig(out / f"{name}.png", dpi=120)
        curves_figure(alike, key, title).savefig(out / f"{name}-rho1.png", dpi=120)
    local_steps_figure(longer).savefig(out / f"{dataset}-local-steps.png", dpi=120)
    return "\n".join(tables(dataset, radius, limits, sweep, repeated, chosen))


def _base(dataset: str, radius: tuple[float, float] | None, extra: Sequence[str]) -> list[str]:
    found = [f"data.source={dataset}", f"train.batch={SETTINGS[dataset].batch}", *extra]
    if radius:
        found.append(f"constraints.radius=[{radius[0]:.6g}, {radius[1]:.6g}]")
    return found


def _config(study: Study, method: str, extra: Sequence[str]) -> Config:
    preset, fixed = METHODS[method]
    return load(find_config(preset), [*_base(study.dataset, study.radius, extra), *fixed])


def _radii(
    dataset: str, scale: Scale, folder: Path, tell: Callable[[str], None]
) -> tuple[float, float]:
    """Shares of the l1 norm that FedAvg without constraints ends with."""
    tell(f"{dataset}: FedAvg without constraints")
    changes = _base(
        dataset, None, ["algorithm=fedavg", f"rounds={2 * scale.rounds}", "name=fedavg"]
    )
    config = load(find_config("penalised-fedavg"))
    step = config.train.lr * SETTINGS[dataset].base
    config = load(find_config("penalised-fedavg"), [*changes, f"train.lr={step!r}"])
    place = folder / "unconstrained"
    train_all({place: config}, 1, lambda place: None)
    from safetensors.torch import load_file

    weights = load_file(place / "model.safetensors")
    norm = math.fsum(float(w.abs().sum()) for w in weights.values())
    return round(LEAST_SHARE * norm, 3), round(MOST_SHARE * norm, 3)


def _sweep(study: Study) -> Iterator[Point]:
    runs, points = {}, {}
    for method in METHODS:
        trials = product(study.scale.rhos, study.setting.steps)
        if method == PROJECTED:  # it has no penalty: as many trials, of the step size
            trials = product((0.0,), study.scale.projected_steps)
        for rho, step in trials:
            place = study.folder / "sweep" / f"{_slug(method)}-rho{rho:g}-step{step:g}"
            runs[place] = _trial(study, method, rho, step, 0, study.scale.rounds)
            points[place] = (method, rho, step, 0)
    yield from _train(study, "sweep", runs, points)


def _trial(
    study: Study, method: str, rho: float, step: float, seed: int, rounds: int, *extra: str
) -> Config:
    own = load(find_config(METHODS[method][0])).train.lr * study.setting.base
    changes = [
        f"constraints.rho={rho!r}",
        f"train.lr={step * own!r}",
        f"rounds={rounds}",
        f"seed={seed}",
        f"name={_slug(method)}",
    ]
    return _config(study, method, [*changes, *extra])


def _train(
    study: Study,
    what: str,
    runs: Mapping[Path, Config],
    points: Mapping[Path, tuple[str, float, float, int]],
) -> Iterator[Point]:
    left = [len(runs)]

    def done(place: Path) -> None:
        left[0] -= 1
        study.tell(f"{study.dataset}: {what}: {place.name} done, {left[0]} left")

    for place, summary in train_all(runs, own_workers("cpu"), done).items():
        lines = (place / "rounds.jsonl").read_text().splitlines()
        yield Point(*points[place], summary, [json.loads(line) for line in lines])


def _choose(points: Sequence[Point]) -> Point:
    """The least objective within LEVEL of every agent's set; else the nearest to it."""
    within = [p for p in points if p.final["worst_infeasibility"] <= LEVEL]
    if within:
        return min(within, key=lambda p: p.final["objective"])
    return min(points, key=lambda p: p.final["worst_infeasibility"])


def _repeat(study: Study, chosen: Mapping[str, Point]) -> Iterator[Point]:
    """Each method's choice, over seeds."""
    rounds = study.scale.rounds * study.setting.longer
    runs, points = {}, {}
    for method, at in chosen.items():
        for seed in range(study.scale.seeds):
            place = study.folder / "seeds" / f"{_slug(method)}-{seed}"
            runs[place] = _trial(study, method, at.rho, at.step, seed, rounds)
            points[place] = (method, at.rho, at.step, seed)
    yield from _train(study, "seeds", runs, points)


def _local_steps(study: Study, at: Point) -> Iterator[Point]:
    runs, points = {}, {}
    for steps in study.scale.local_steps:
        place = study.folder / "local-steps" / f"{steps}"
        changed = f"train.steps={steps}"
        runs[place] = _trial(study, OURS, at.rho, at.step, 0, study.scale.rounds, changed)
        points[place] = (f"{steps} local steps", at.rho, at.step, 0)
    yield from _train(study, "local steps", runs, points)


def _limits(study: Study) -> dict[str, float]:
    """What the sets allow: the optimum of the mean, and of one model that obeys every agent."""
    radius, iterations = study.radius, study.scale.oracle_iterations
    place = study.folder / f"optima-{iterations}.json"
    if place.exists():
        known = json.loads(place.read_text())
        if tuple(known["radius"]) == radius:
            return dict(known["least"])
    study.tell(f"{study.dataset}: optima over the least and the mean radius")
    ready = prepare(_config(study, OURS, []))
    clients = [ready.clients[i] for i in range(len(ready.clients))]
    classes = FlatModel(ready.make_model()).layout.shapes[-1][0]
    with one_thread():
        found = {
            name: optimum.least(clients, classes, r, iterations)[0]
            for name, r in (("least radius", radius[0]), ("mean radius", sum(radius) / 2))
        }
    write(place, json.dumps({"radius": radius, "least": found}).encode())
    return found


def _slug(method: str) -> str:
    return method.lower().replace(",", "").replace(" ", "-")
