"""Runs as the command line has them: train into a folder, go on with one, or with many."""

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from fedbudget import epsilon
from fedbudget.build import build, own_workers
from fedbudget.callbacks import Callback, closing, guarded
from fedbudget.config import Config, differences, load, to_toml, validate
from fedbudget.engines.choose import choose
from fedbudget.engines.engine import Engine
from fedbudget.errors import UserError, about
from fedbudget.plan import Plan
from fedbudget.progress import Live, watched
from fedbudget.report.sound import NUMBERS, sound_record
from fedbudget.rounds import State, first_state
from fedbudget.runner import Stop, execute, facts
from fedbudget.runs import Checkpoint, RunFolder
from fedbudget.summary import LAST, cautions
from fedbudget.terminal import Show, command, console, json_lines, quoted, say
from fedbudget.tracking.ledger import FILE
from fedbudget.tracking.named import check, named

STOPPED = 130
"""exit code of a run that was asked to stop, as shells have it for Ctrl-C"""
SUMMED = frozenset({*NUMBERS, "usage", "dropped"})
"""what every record must have for its summary"""
NAMED = 3
"""differences that a sentence names; the others are counted"""


MakeEngine = Callable[[], AbstractContextManager[Engine]]
Where = Callable[[Plan, Config], MakeEngine]
"""where a run's clients train"""


def train(
    settings: Config,
    out: Path,
    overwrite: bool = False,
    where: Where | None = None,
    show: Show = "live",
) -> None:
    """A new run. Nothing is written before everything has been checked."""
    plan = _plan(settings)
    trackers = named(settings.track, out, [], True, _warn)
    folder = RunFolder.create(out, to_toml(settings), overwrite)
    with folder.held() as folder:
        (out / FILE).unlink(missing_ok=True)  # of a run that was here
        _finish(plan, settings, folder, trackers, where=where, show=show)


def resume(
    path: Path,
    where: Where | None = None,
    track: Sequence[str] | None = None,
    show: Show = "live",
) -> None:
    """Go on with a run; one that is finished says so. `track` replaces its trackers."""
    if not (path / "config.toml").is_file():
        raise UserError(f"{path}: no run is here (config.toml is missing)")
    settings = load(path / "config.toml")
    if track is not None:
        settings = settings.model_copy(update={"track": list(track)})
    if edits := differences(same_result(made_with(path)), same_result(settings)):
        _refuse(settings, RunFolder(path), edits)
    if finished(path):
        say(f"{path} is finished: {settings.rounds} rounds", show)
        return
    _go_on(settings, RunFolder(path), where, show=show)


def train_or_resume(
    settings: Config, path: Path, accept_changes: bool = False, show: Show = "live"
) -> None:
    """Go on with the run at `path`, or start it there if none is.

    A run that was made with other settings goes on with the new ones only when told, and only where
    its checkpoint fits them.
    """
    if not (path / "config.toml").is_file():
        train(settings, path, show=show)
        return
    before = made_with(path)
    changed = differences(same_result(before), same_result(settings))
    if changed and not accept_changes:
        raise UserError(
            f"{path} was made with other settings: {_told(changed)}; go on without them, add "
            "--accept-changes, or choose another --out"
        )
    if settings.rounds == before.rounds and finished(path):
        say(f"{path} is finished: {before.rounds} rounds", show)
        return
    _go_on(settings, RunFolder(path), changed=changed, show=show)


def _go_on(
    settings: Config,
    folder: RunFolder,
    where: Where | None = None,
    changed: Mapping[str, str] | None = None,
    show: Show = "live",
) -> None:
    """Train on from the last checkpoint; `changed` says what the settings change in the run."""
    plan = _plan(settings, begun=not changed)
    with folder.held() as folder:
        start = folder.load_checkpoint(_warn)
        if start is None:
            folder.start_again(settings.checkpoint_every, _warn)
        else:
            if changed and (problem := misfit(start.state, plan, changed)):
                raise UserError(f"{folder.path} cannot go on with {_told(changed)}: {problem}")
            _enough(folder.config_file, plan.rounds, start.state.round)
            _sound(folder, start.state.round)
            folder.cut_back(start.state.round)
        # other settings are another run to a tracker, with the rounds so far
        trackers = named(settings.track, folder.path, folder.records(), bool(changed), _warn)
        if changed:
            folder.forget_summary()  # before the new config, beside which it would not be true
        if changed or same_result(load(folder.config_file)) != same_result(settings):
            folder.save_config(to_toml(settings))
            if (
                known := folder.facts()
            ):  # killed before the first round, it was accepted all the same
                folder.save_facts({**known, "config": settings.model_dump(mode="json")})
        _finish(plan, settings, folder, trackers, start, where, show)


def misfit(state: State, plan: Plan, changed: Mapping[str, str]) -> str | None:
    """Why a run cannot go on from a state under a changed plan; None where it can."""
    fresh = first_state(plan)
    if state.round > plan.rounds:
        return f"it has done {state.round} rounds already"
    if len(state.weights) != len(fresh.weights) or len(state.changed) != len(fresh.changed):
        return "its checkpoint is of another model"
    if state.server.keys() != fresh.server.keys():
        return "its checkpoint is of another algorithm"
    if max(state.acks, default=0) >= len(plan.clients):
        return f"there are {len(plan.clients)} clients now, and it has trained {max(state.acks)}"
    if state.control != fresh.control and any(
        k.startswith(("budget.", "control.")) for k in changed
    ):
        return "its controller has learnt under other budgets or rules"
    told = ("train.cohort", "data.clients") if plan.recipe.privacy.on else ()
    if any(k.startswith("privacy.") or k in told for k in changed):
        return "its records do not say that earlier rounds had other noise"
    return None


def _refuse(settings: Config, folder: RunFolder, edits: Mapping[str, str]) -> None:
    """A config.toml that does not say what the run was made with, unless it ends where it stopped."""
    problem = None
    if complete(folder.path):
        problem = None if "rounds" in edits else "it is finished"
    if start := folder.load_checkpoint(_warn):
        _enough(folder.config_file, settings.rounds, start.state.round)
        if list(edits) == ["rounds"] and start.state.round == settings.rounds:
            return
        problem = problem or misfit(start.state, _plan(settings), edits)
    config, path = quoted(folder.config_file), quoted(folder.path)
    accept = f", or accept it: fedbudget run {config} --resume --accept-changes --out {path}"
    raise UserError(
        f"{folder.config_file} was changed since the run was made: {_told(edits)}; put it back"
        + (f", for the run cannot go on so: {problem}" if problem else accept)
    )


def _enough(config: Path, rounds: int, done: int) -> None:
    if done > rounds:
        raise UserError(
            f"{config} asks for {rounds} rounds, but {done} are done; set rounds to what they "
            f"were, at least to {done}"
        )


def _sound(folder: RunFolder, done: int) -> None:
    """Before any training: can the rounds so far be summed up with those to come?"""
    for record in folder.records():
        if record["round"] <= done and not (record.keys() >= SUMMED and sound_record(record)):
            raise UserError(
                f"{folder.rounds_file}: the line of round {record['round']} is not what a run "
                "writes; put the file back, or start the run again with --overwrite"
            )


def _told(changed: Mapping[str, str]) -> str:
    """A few of the changes, and how many more there are."""
    some = [f"{key}: {change}" for key, change in list(changed.items())[:NAMED]]
    rest = len(changed) - len(some)
    return ", ".join(some) + (f" and {rest} more" if rest else "")


def _warn(text: str) -> None:
    print(f"fedbudget: {text}", file=sys.stderr)


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
            with about(settings.name):
                _plan(settings)
            checked.add(settings.name)  # what fits does not depend on the seed
    for place, settings in every.items():
        try:
            if (place / "config.toml").exists():
                resume(place, where, settings.track)
            else:
                train(settings, place, where=where)
        except SystemExit as stop:
            if stop.code == STOPPED:
                _warn(f"the same command again goes on with this run and the rest of {len(every)}")
            raise


def same_result(settings: Config) -> Config:
    """Without what changes how a run is done but not a bit of what comes out."""
    return settings.model_copy(update={"workers": 0, "checkpoint_every": 1, "track": []})


def made_with(path: Path) -> Config:
    """What a run's config.toml said when it was made; of older runs, what it says now."""
    known = RunFolder(path).facts().get("config")
    if isinstance(known, dict):
        with suppress(UserError):  # of a version that had other keys
            return validate(known, str(path))
    return load(path / "config.toml")


def complete(path: Path) -> bool:
    about = path / "summary.json"
    try:
        known = json.loads(about.read_text()) if about.exists() else {}
    except ValueError:
        return False  # it is written anew when the run ends
    return isinstance(known, dict) and bool(known.get("complete"))


def finished(path: Path) -> bool:
    """Whether nothing is left to do. Where a model was lost, a checkpoint may still have it; records that
    are kept without either are as they are meant to be.
    """
    folder = RunFolder(path)
    if not complete(path) or folder.has_model():
        return complete(path)
    if not folder.checkpoints():
        if folder.model_file.exists():
            _warn(
                f"{folder.model_file} is damaged, and no checkpoint is here to write it again from"
            )
        return True
    _warn(f"{folder.model_file} is missing or damaged; it is written again")
    return False


def _plan(settings: Config, begun: bool = False) -> Plan:
    """For a server, which accounts for the clients' noise."""
    check(settings.track)
    plan = build(settings, begun=begun)
    epsilon.ready(plan.recipe.privacy)
    return plan


def _finish(
    plan: Plan,
    settings: Config,
    folder: RunFolder,
    trackers: Sequence[Callback],
    start: Checkpoint | None = None,
    where: Where | None = None,
    show: Show = "live",
) -> None:
    """Train to the end; exit code 130 where the user stopped it."""
    for warning in plan.warnings:
        _warn(f"warning: {warning}")
    done = start.state.round if start else 0
    workers = min(settings.workers or own_workers(plan.accelerator), plan.cohort)
    lines = [guarded(json_lines(), "--json", _warn)] if show == "json" else []
    callbacks = [*lines, *trackers]
    screen = console(show)
    stop = Stop(silent=screen.is_interactive and not screen.quiet)
    live = Live(*(screen, plan.name, plan.rounds, plan.budgets, done), stopping=lambda: stop.asked)
    with closing(callbacks), live, stop:

        def go(engine: MakeEngine) -> dict[str, Any]:
            return execute(
                plan,
                folder,
                _facts(plan, settings),
                partial(watched, engine, live),
                settings.checkpoint_every,
                live,
                stop,
                start,
                settings.constraints.save_personal,
                command(),
                callbacks,
                settings.model_dump(mode="json"),
            )

        try:
            if where is not None:
                summary = go(where(plan, settings))
            elif settings.engine == "flower":
                summary = _on_flower(plan, settings, folder, workers, go)
            else:
                summary = go(partial(choose, plan, workers, settings.fleet.deadline))
        except KeyboardInterrupt:  # asked twice
            _warn(f"stopped; finished rounds are kept: fedbudget resume {quoted(folder.path)}")
            sys.exit(STOPPED)
    if guarantee := epsilon.sentence(summary):
        say(guarantee, show)
    if not summary["complete"]:
        say(
            f"stopped after round {summary['rounds_done']} of {plan.rounds}; "
            f"go on with: fedbudget resume {quoted(folder.path)}",
            show,
        )
        sys.exit(STOPPED)
    for caution in cautions(folder.records()):
        _warn(f"warning: {caution}")
    say(_result(summary), show)
    say(f"wrote {folder.path}/: model.safetensors, rounds.jsonl, summary.json, config.toml", show)


def _result(summary: Mapping[str, Any]) -> str:
    """The end of a run in a line: scores, and each budget's share that its worst client took."""
    scores = [f"{k} {v:.3f}" for k, v in summary["validation"].items() if k != "best_loss"]
    used = [
        f"{resource} {use['worst_ratio']:.1%}"
        + (
            f" (over in {use['rounds_over']} of {summary['rounds']} rounds)"
            if use["rounds_over"]
            else ""
        )
        for uses in summary["usage"].values()
        for resource, use in uses.items()
        if "budget" in use
    ]
    mean = f" (mean of the last {LAST} evaluations)" if scores and summary["rounds"] > 1 else ""
    ends = [f"{summary['name']}: {', '.join(scores) or 'not evaluated'}{mean}"]
    return "; ".join([*ends, *([f"worst use of its budgets: {', '.join(used)}"] if used else [])])


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
