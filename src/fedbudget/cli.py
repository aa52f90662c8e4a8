"""The command line. Torch is imported only by commands that need it."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedbudget.errors import UserError

if TYPE_CHECKING:
    from rich.console import Console

    from fedbudget.config import Config
    from fedbudget.plan import Plan
    from fedbudget.runs import Checkpoint, RunFolder

app = typer.Typer(
    help="Federated training that keeps every device within its budgets.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
)

Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override a config key; may be repeated."),
]
Target = Annotated[
    float | None, typer.Option(help="Also what it cost each run to reach this validation loss.")
]
Overwrite = Annotated[bool, typer.Option(help="Replace a run that is already there.")]
STOPPED = 130
"""exit code of a run that was asked to stop, as shells have it for Ctrl-C"""


def main() -> None:
    """Entry point: a user's mistake is one sentence and exit code 2."""
    try:
        app()
    except UserError as error:
        print(f"fedbudget: {error}", file=sys.stderr)
        sys.exit(2)
    except OSError as error:
        print(
            f"fedbudget: {error.filename or 'a file'}: {error.strerror or error}", file=sys.stderr
        )
        sys.exit(2)
    except KeyboardInterrupt:
        print("fedbudget: stopped; finished rounds are kept", file=sys.stderr)
        sys.exit(STOPPED)


@app.command()
def run(
    config: Annotated[str, typer.Argument(help="A preset's name or a TOML file.")],
    set_: Set = None,
    out: Annotated[Path | None, typer.Option(help="Run folder; default runs/NAME.")] = None,
    overwrite: Overwrite = False,
) -> None:
    """Train one run, with live progress.

    Example: `fedbudget run fedavg --set rounds=20 --set train.lr=2e-3 --out runs/a`
    """
    from fedbudget.config import find_config, load

    path = find_config(config)
    settings = load(path, set_ or [])
    _train(settings, out or _free(settings.name), overwrite)


@app.command()
def resume(
    folder: Annotated[Path, typer.Argument(help="The folder of a run that stopped early.")],
) -> None:
    """Go on with a run after its last checkpoint.

    Example: `fedbudget resume runs/a`
    """
    _resume(folder)


@app.command()
def compare(
    configs: Annotated[list[str], typer.Argument(help="Presets' names or TOML files.")],
    seeds: Annotated[int, typer.Option(min=1, help="Seeds 0, 1, ... for each.")] = 3,
    set_: Set = None,
    out: Annotated[Path, typer.Option(help="Folder for all the runs.")] = Path("runs/compare"),
    target: Target = None,
) -> None:
    """Train several configs with several seeds each; print mean and spread.

    Called again, it goes on where it stopped. Example: `fedbudget compare fedavg planner
    --seeds 3 --out runs/c`
    """
    from fedbudget.config import find_config, load

    paths = [find_config(c) for c in configs]
    every = {}
    for path in paths:
        for seed in range(seeds):
            settings = load(path, [*(set_ or []), f"seed={seed}"])
            every[out / settings.name / f"seed-{seed}"] = settings
    if len(every) < len(paths) * seeds:
        raise UserError("compare: two configs have the same name; give them different ones")
    for place, settings in every.items():
        if not (place / "config.toml").exists():
            _train(settings, place)
        elif load(place / "config.toml") != settings:
            raise UserError(
                f"{place} was made with another configuration; choose another --out or remove it"
            )
        else:
            _resume(place)
    _show(list(every), out / "report.html", target)


@app.command()
def plan(
    config: Annotated[str, typer.Argument(help="A preset's name or a TOML file.")],
    set_: Set = None,
    rows: Annotated[int, typer.Option(min=1, help="How many settings to show.")] = 12,
) -> None:
    """Which knobs the budgets allow, which resource binds, or why nothing fits. No training.

    Example: `fedbudget plan planner --set budget.communication="60 kB"`
    """
    from fedbudget.build import build_search
    from fedbudget.choices import table, why
    from fedbudget.config import find_config, load
    from fedbudget.control.planner import affordable
    from fedbudget.resources.budget import tell

    known, grid, progress, classes = build_search(load(find_config(config), set_ or []))
    for i, limits in enumerate(classes):
        choices = affordable(known.forecast, grid, progress, limits)
        whose = f"device class {i}" if len(classes) > 1 else "client"
        _say(f"budgets per {whose} and round, counted on {known.device.name}: {tell(limits)}")
        _console().print(table(choices[:rows], limits))
        _say(why(choices, limits))


@app.command()
def reproduce(
    what: Annotated[str, typer.Argument(help="cafl: table 1; theory: its theorems and lemma.")],
    out: Annotated[
        Path | None, typer.Option(help="Folder for tables and figures; default runs/WHAT.")
    ] = None,
) -> None:
    """What CAFL-L and CAFL say, beside what their own controllers and proxies give. No training.

    Example: `fedbudget reproduce cafl --out runs/r`
    """
    folder = out or Path("runs") / what
    match what:
        case "cafl":
            from fedbudget.reproduce import cafl

            lines = cafl.run(folder)
        case "theory":
            from fedbudget.reproduce import theory

            lines = theory.run(folder)
        case _:
            raise UserError(f"reproduce {what}: it must be cafl or theory")
    print("\n".join(lines))
    _say(f"wrote tables and figures to {folder}/")


@app.command()
def report(
    folders: Annotated[list[Path], typer.Argument(help="Run folders, or folders of them.")],
    out: Annotated[
        Path | None, typer.Option(help="Also write FILE.html, .md, .png, .svg or .pdf.")
    ] = None,
    target: Target = None,
) -> None:
    """Compare runs in a table, and write it with a figure.

    Example: `fedbudget report runs/a runs/b --out report.html --target 1.8`
    """
    _show(folders, out, target)


@app.command()
def presets(
    name: Annotated[str | None, typer.Argument(help="Copy this preset; none lists all.")] = None,
    out: Annotated[Path | None, typer.Option(help="Where to; default NAME.toml here.")] = None,
    overwrite: Annotated[bool, typer.Option(help="Replace a file that is there.")] = False,
) -> None:
    """List the presets, or copy one to change it.

    Example: `fedbudget presets fedavg --out mine.toml`
    """
    from fedbudget import config

    known = config.presets()
    if name is None:
        for preset, path in known.items():
            print(f"{preset:18} {path.read_text().splitlines()[0].lstrip('# ')}")
        return
    if name not in known:
        raise UserError(f"no preset is named {name!r}; there are {', '.join(known)}")
    target = out or Path(f"{name}.toml")
    if target.exists() and not overwrite:
        raise UserError(f"{target} is there already; choose another --out or add --overwrite")
    target.write_bytes(known[name].read_bytes())
    print(f"wrote {target}")


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for the runs.")] = Path("runs/demo"),
    set_: Set = None,
) -> None:
    """Train a small language model across 16 clients, without budgets and within them.

    FedAvg first, then the planner, which keeps each client within a quarter of FedAvg's energy
    and an eighth of its uplink: about two minutes on two cores.

    Example: `fedbudget demo --out runs/demo`
    """
    from fedbudget.config import find_config, load
    from fedbudget.data.files import UnreachableError, find
    from fedbudget.data.sources import SHAKESPEARE

    changes = list(set_ or [])
    settings = load(find_config("demo"), changes)
    if settings.data.source == "tinyshakespeare" and not settings.data.path:
        try:
            find(SHAKESPEARE)
        except UnreachableError:
            _say("No network and no Tiny Shakespeare: training on Python's own help texts instead.")
            changes.append("data.source=topics")
    for name, controller in (("fedavg", "fixed"), ("planner", "planner")):
        named = [*changes, f"name={name}", f"control.controller={controller}"]
        _train(load(find_config("demo"), named), out / name, overwrite=True)
    _show([out / "fedavg", out / "planner"], out / "report.html")


def _console() -> "Console":
    from rich.console import Console

    # a pipe has no width: tables and lines keep theirs
    return Console(width=None if sys.stdout.isatty() else 160)


def _say(text: str) -> None:
    _console().print(text, highlight=False, soft_wrap=True, markup=False)


def _free(name: str) -> Path:
    """runs/NAME, or runs/NAME-2 and so on where that is taken."""
    path, i = Path("runs") / name, 1
    while (path / "config.toml").exists():
        i += 1
        path = Path("runs") / f"{name}-{i}"
    return path


def _train(settings: "Config", out: Path, overwrite: bool = False) -> None:
    """A new run. Nothing is written before everything has been checked."""
    from fedbudget.build import build
    from fedbudget.config import to_toml
    from fedbudget.runs import RunFolder

    plan = build(settings)
    _finish(plan, settings, RunFolder.create(out, to_toml(settings), overwrite))


def _resume(path: Path) -> None:
    """Go on with a run; one that is finished says so."""
    import json

    from fedbudget.build import build
    from fedbudget.config import load
    from fedbudget.runs import RunFolder

    if not (path / "config.toml").is_file():
        raise UserError(f"{path}: no run is here (config.toml is missing)")
    settings = load(path / "config.toml")
    folder = RunFolder(path)
    about = path / "summary.json"
    try:
        known = json.loads(about.read_text()) if about.exists() else {}
    except ValueError:
        known = {}  # it is written anew when the run ends
    if isinstance(known, dict) and known.get("complete"):
        _say(f"{path} is finished: {settings.rounds} rounds")
        return
    plan = build(settings)
    start = folder.load_checkpoint(lambda text: print(f"fedbudget: {text}", file=sys.stderr))
    folder.cut_back(start.state.round if start else 0)
    _finish(plan, settings, folder, start)


def _finish(
    plan: "Plan", settings: "Config", folder: "RunFolder", start: "Checkpoint | None" = None
) -> None:
    """Train to the end; exit code 130 where the user stopped it."""
    from fedbudget.build import cores
    from fedbudget.progress import Live
    from fedbudget.runner import Stop, execute

    for warning in plan.warnings:
        print(f"fedbudget: warning: {warning}", file=sys.stderr)
    done = start.state.round if start else 0
    with Live(_console(), plan.name, plan.rounds, plan.cohort, done) as live, Stop() as stop:
        summary = execute(
            plan,
            folder,
            _facts(plan, settings),
            settings.workers or cores(),
            settings.checkpoint_every,
            live,
            stop,
            start,
            settings.constraints.save_personal,
        )
    if not summary["complete"]:
        _say(
            f"stopped after round {summary['rounds_done']} of {plan.rounds}; "
            f"go on with: fedbudget resume {folder.path}"
        )
        sys.exit(STOPPED)
    _say(f"wrote {folder.path}/: model.safetensors, rounds.jsonl, summary.json, config.toml")


def _facts(plan: "Plan", settings: "Config") -> dict[str, Any]:
    """What a summary says of the config."""
    from fedbudget.runner import facts

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


def _show(folders: list[Path], out: Path | None, target: float | None = None) -> None:
    from fedbudget.report.load import find_runs
    from fedbudget.report.tables import target_table, terminal
    from fedbudget.report.write import write_report

    runs = find_runs(folders)
    _console().print(terminal(runs))
    if target is not None:
        _console().print(target_table(runs, target))
    if out is not None:
        write_report(runs, out)
        _say(f"wrote {out}")


if __name__ == "__main__":
    main()
