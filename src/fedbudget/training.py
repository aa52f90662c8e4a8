"""Runs as the command line has them: train into a folder, go on with one, or with many."""

import json
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

from fedbudget.build import build, cores
from fedbudget.config import Config, load, to_toml
from fedbudget.engines.choose import choose
from fedbudget.engines.engine import Engine
from fedbudget.errors import UserError
from fedbudget.plan import Plan
from fedbudget.progress import Live
from fedbudget.runner import Stop, execute, facts
from fedbudget.runs import Checkpoint, RunFolder
from fedbudget.terminal import console, say

STOPPED = 130
"""exit code of a run that was asked to stop, as shells have it for Ctrl-C"""


MakeEngine = Callable[[], AbstractContextManager[Engine]]
Where = Callable[[Plan, Config], MakeEngine]
"""where a run's clients train"""


def train(settings: Config, out: Path, overwrite: bool = False, where: Where | None = None) -> None:
    """A new run. Nothing is written before everything has been checked."""
    plan = build(settings)
    folder = RunFolder.create(out, to_toml(settings), overwrite)
    with folder.held():
        _finish(plan, settings, folder, where=where)


def resume(path: Path, where: Where | None = None) -> None:
    """Go on with a run; one that is finished says so."""
    if not (path / "config.toml").is_file():
        raise UserError(f"{path}: no run is here (config.toml is missing)")
    settings = load(path / "config.toml")
    folder = RunFolder(path)
    if complete(path):
        say(f"{path} is finished: {settings.rounds} rounds")
        return
    plan = build(settings)
    with folder.held():
        start = folder.load_checkpoint(lambda text: print(f"fedbudget: {text}", file=sys.stderr))
        folder.cut_back(start.state.round if start else 0)
        _finish(plan, settings, folder, start, where)


def train_all(every: Mapping[Path, Config], where: Where | None = None) -> None:
    """Each run into its folder: a finished one is kept, one that stopped goes on.

    All are checked before the first one trains.
    """
    checked = set()
    for place, settings in every.items():
        if (place / "config.toml").exists():
            if same_result(load(place / "config.toml")) != same_result(settings):
                raise UserError(
                    f"{place} was made with another configuration; "
                    "choose another --out or remove it"
                )
        elif settings.name not in checked:
            build(settings)
            checked.add(settings.name)  # what fits does not depend on the seed
    for place, settings in every.items():
        if (place / "config.toml").exists():
            resume(place, where)
        else:
            train(settings, place, where=where)


def same_result(settings: Config) -> Config:
    """Without what changes how a run is done but not a bit of what comes out."""
    return settings.model_copy(update={"workers": 0, "checkpoint_every": 1})


def complete(path: Path) -> bool:
    about = path / "summary.json"
    try:
        known = json.loads(about.read_text()) if about.exists() else {}
    except ValueError:
        return False  # it is written anew when the run ends
    return isinstance(known, dict) and bool(known.get("complete"))


def _finish(
    plan: Plan,
    settings: Config,
    folder: RunFolder,
    start: Checkpoint | None = None,
    where: Where | None = None,
) -> None:
    """Train to the end; exit code 130 where the user stopped it."""
    for warning in plan.warnings:
        print(f"fedbudget: warning: {warning}", file=sys.stderr)
    done = start.state.round if start else 0
    workers = min(settings.workers or cores(), plan.cohort)
    with Live(console(), plan.name, plan.rounds, plan.cohort, done) as live, Stop() as stop:

        def go(engine: MakeEngine) -> dict[str, Any]:
            return execute(
                plan,
                folder,
                _facts(plan, settings),
                engine,
                settings.checkpoint_every,
                live,
                stop,
                start,
                settings.constraints.save_personal,
            )

        if where is not None:
            summary = go(where(plan, settings))
        elif settings.engine == "flower":
            summary = _on_flower(plan, settings, folder, workers, go)
        else:
            summary = go(partial(choose, plan, workers))
    if not summary["complete"]:
        say(
            f"stopped after round {summary['rounds_done']} of {plan.rounds}; "
            f"go on with: fedbudget resume {folder.path}"
        )
        sys.exit(STOPPED)
    say(f"wrote {folder.path}/: model.safetensors, rounds.jsonl, summary.json, config.toml")


def _on_flower(
    plan: Plan,
    settings: Config,
    folder: RunFolder,
    workers: int,
    go: Callable[[MakeEngine], dict[str, Any]],
) -> dict[str, Any]:
    try:
        from fedbudget.flower.simulation import simulate
    except ImportError as error:
        raise UserError(
            f"engine = 'flower' needs Flower ({error}): pip install 'fedbudget[flower]'"
        ) from None
    return simulate(plan, folder.path / "clients", workers, settings.fleet, go)


def _facts(plan: Plan, settings: Config) -> dict[str, Any]:
    """What a summary says of the config."""
    about = facts(plan, settings.algorithm, settings.control.controller)
    if plan.constraints is not None:
        table = settings.constraints
        about |= {
            "dataset": settings.data.source,
            "rho": table.rho,
            "local_steps": settings.train.steps,
            "projected": table.projected,
        }
    return about
