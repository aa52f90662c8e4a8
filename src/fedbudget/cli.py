"""The command line. Torch is imported only by commands that need it."""

import os
import signal
import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from fedbudget import interrupt
from fedbudget.errors import UserError
from fedbudget.garbage import uncollected
from fedbudget.options import Json, Overwrite, Quiet, Seeds, Set, Target, Track, a_loss, tracked

app = typer.Typer(
    help="Federated training that keeps every device within its budgets.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
)


def main() -> None:
    """Entry point: a user's mistake is one sentence and exit code 2."""
    try:
        if any(given in ("", "--out=") for given in sys.argv[1:]):
            raise UserError("an argument is empty; is there a variable that is not set?")
        with interrupt.listening():
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
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever presses on is heard already
        print("fedbudget: stopped; finished rounds are kept", file=sys.stderr)
        sys.exit(130)  # as shells have it


@app.command()
def run(
    config: Annotated[str, typer.Argument(help="A preset's name or a TOML file.")],
    set_: Set = None,
    out: Annotated[Path | None, typer.Option(help="Run folder; default runs/NAME.")] = None,
    overwrite: Overwrite = False,
    resume: Annotated[
        bool,
        typer.Option("--resume", help="Go on with the run at --out; start it if none is there."),
    ] = False,
    accept_changes: Annotated[
        bool,
        typer.Option(
            "--accept-changes",
            help="With --resume: go on with these settings where the run was made with others, "
            "such as more rounds.",
        ),
    ] = False,
    engine: Annotated[
        Literal["embedded", "flower"] | None,
        typer.Option(help="The config's, if not given; flower is Flower's simulation."),
    ] = None,
    track: Track = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Train one run, with live progress.

    With --resume the same command can be given again and again until the run is finished. A run
    that was made with other settings is then refused, unless --accept-changes is given.

    Example: `fedbudget run fedavg --set rounds=20 --set train.lr=2e-3 --out runs/a`
    """
    from fedbudget.config import find_config, load
    from fedbudget.terminal import point_to, shown
    from fedbudget.training import train, train_or_resume

    if accept_changes and not resume:
        raise UserError("--accept-changes is for --resume: add it")
    if overwrite and resume:
        raise UserError("--overwrite removes what --resume would go on with; choose one of them")
    changes = [*(set_ or []), *([f"engine={engine}"] if engine else []), *tracked(track)]
    settings = load(find_config(config), changes)
    show = shown(json, quiet)
    if resume:
        folder = out or Path("runs") / settings.folder
        train_or_resume(settings, folder, accept_changes, show)
    else:
        folder = out or _free(settings.folder)
        train(settings, folder, overwrite, show=show)
    point_to(folder, show)


@app.command()
def resume(
    folder: Annotated[Path, typer.Argument(help="The folder of a run that stopped early.")],
    track: Track = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Go on with a run after its last checkpoint.

    Example: `fedbudget resume runs/a`
    """
    from fedbudget import training
    from fedbudget.terminal import point_to, shown

    show = shown(json, quiet)
    training.resume(folder, track=track, show=show)
    point_to(folder, show)


@app.command()
def compare(
    configs: Annotated[list[str], typer.Argument(help="Presets' names or TOML files.")],
    protocol: Annotated[
        Literal["quality", "target", "robustness"],
        typer.Option(
            help="quality under budget; cost to a target loss; or robustness: each config also "
            "with 30% of the clients dropping out, and with half the fleet at half the budget."
        ),
    ] = "quality",
    seeds: Seeds = 3,
    set_: Set = None,
    out: Annotated[Path, typer.Option(help="Folder for all the runs.")] = Path("runs/compare"),
    target: Annotated[
        float | None,
        typer.Option(
            help="Also what it cost each run to reach this validation loss; by default, with "
            "--protocol target, the first config's mean loss at 60% of its rounds.",
            callback=a_loss,
        ),
    ] = None,
    track: Track = None,
) -> None:
    """Train several configs with several seeds each; print mean and spread.

    Called again, it goes on where it stopped. Example: `fedbudget compare fedavg planner
    --protocol target --seeds 3 --out runs/c`
    """
    from fedbudget.config import find_config
    from fedbudget.protocols import plan_runs
    from fedbudget.report.show import show
    from fedbudget.training import train_all

    paths = [find_config(c) for c in configs]
    every = plan_runs(paths, [*(set_ or []), *tracked(track)], seeds, out, protocol)
    train_all(every)
    show(list(every), out / "report.html", target, protocol)


@app.command()
def plan(
    config: Annotated[str, typer.Argument(help="A preset's name or a TOML file.")],
    set_: Set = None,
    rows: Annotated[int, typer.Option(min=1, help="How many settings to show.")] = 12,
) -> None:
    """Which knobs the budgets allow, which resource binds, or why nothing fits. No training.

    Example: `fedbudget plan planner --set budget.communication="60 kB"`
    """
    with uncollected():
        from fedbudget.build import build_courses, build_search
        from fedbudget.choices import explained, foretold
        from fedbudget.config import find_config, load
        from fedbudget.terminal import console, say
        from fedbudget.threads import one_thread

        settings = load(find_config(config), set_ or [])
        own = settings.control.controller
        warnings: tuple[str, ...] = ()
        with one_thread():  # small work: threads would take longer to meet than to do it
            if own in ("planner", "rotation", "fixed"):
                kinds, grids, progress, limits, warnings = build_search(settings)
                parts = explained(kinds, grids, progress, limits, rows)
            else:
                courses, warnings = build_courses(settings)
                parts = foretold(courses)
    for part in parts:
        say(part) if isinstance(part, str) else console().print(part)
    for warning in warnings:
        say(warning)
    if own == "fixed":
        say(
            "This is what the planner would do; control.controller = 'fixed' keeps the knobs in [train]."
        )


@app.command()
def reproduce(
    what: Annotated[str, typer.Argument(help="cafl, theory, pc-fedavg, policies or codecs.")],
    out: Annotated[
        Path | None, typer.Option(help="Folder for tables and figures; default runs/WHAT.")
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="cafl: no training; others: a few rounds, for a look.")
    ] = False,
    full: Annotated[
        bool,
        typer.Option("--full", help="cafl: also train the 8 x 128 model of table 1, one seed."),
    ] = False,
    seeds: Seeds = 3,
    set_: Set = None,
) -> None:
    """What the papers say, beside what their own methods give here.

    cafl: table 1 and figures 2-4: resource rows from controllers and proxies alone, and unless
    --quick the training behind them, into OUT/training. theory: CAFL's theorems, no training.
    pc-fedavg: figures 1-4 on MNIST and CIFAR-10, and its rates. policies: what others do under
    constraints beside the planner, in one table. codecs: what each way to send an update, and each
    server optimiser, does to the loss. Called again, each goes on where it stopped.

    Example: `fedbudget reproduce cafl --quick --out runs/r`
    """
    from fedbudget.reproduce import named
    from fedbudget.terminal import say

    folder = out or Path("runs") / what
    lines = named.reproduce(what, folder, seeds, quick, full, set_ or [])
    print("\n".join(lines))
    say(f"wrote tables and figures to {folder}/")


@app.command()
def report(
    folders: Annotated[list[Path], typer.Argument(help="Run folders, or folders of them.")],
    out: Annotated[
        str | None,
        typer.Option(
            help="Also write FILE.html, .md, .png, .svg or .pdf; a folder (FOLDER/) gets the page "
            "and every figure in each format."
        ),
    ] = None,
    target: Target = None,
) -> None:
    """Compare runs in a table, and write it with figures; runs may be under way or cut off.

    The page is one file that loads nothing from anywhere.

    Example: `fedbudget report runs/a runs/b --out report.html --target 1.8`
    """
    from fedbudget.report.show import show

    folder = out is not None and out.endswith(("/", os.sep))
    show(folders, Path(out) if out is not None else None, target, folder=folder)


@app.command()
def dashboard(
    root: Annotated[Path, typer.Argument(help="A folder with run folders in it.")] = Path("runs"),
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Where to listen; 0 is any free port.")
    ] = 8642,
    host: Annotated[
        str, typer.Option(help="Address to listen on; one that others can reach asks for a token.")
    ] = "127.0.0.1",
    open_: Annotated[bool, typer.Option("--open/--no-open", help="Open the browser.")] = True,
    control: Annotated[
        bool,
        typer.Option("--control", help="With --host: runs can be stopped and resumed from afar."),
    ] = False,
    token: Annotated[
        bool,
        typer.Option("--token", help="Ask for a token on this machine too, if others use it."),
    ] = False,
) -> None:
    """A web page of the runs in a folder, live while they train.

    Example: `fedbudget dashboard runs/`
    """
    try:
        from fedbudget.dashboard.server import serve
    except ImportError as error:
        raise UserError(
            f"the dashboard needs a web server ({error}): pip install 'fedbudget[dashboard]'"
        ) from None
    serve(root, host, port, open_, control, token)


@app.command()
def profile(
    config: Annotated[str, typer.Argument(help="Whose model: a preset or a TOML file.")] = "fedavg",
    set_: Set = None,
    out: Annotated[Path, typer.Option(help="The profile.")] = Path("device.toml"),
    plot: Annotated[Path | None, typer.Option(help="Also draw the fit: .png, .svg, .pdf.")] = None,
) -> None:
    """Measure this machine with a config's model: a device profile, in under a minute.

    Example: `fedbudget profile planner --out my-laptop.toml`
    """
    from fedbudget import predictions

    predictions.run(config, set_ or [], out, plot)


@app.command()
def bench(
    repeat: Annotated[int, typer.Option(min=1, help="Repetitions of each measurement.")] = 7,
) -> None:
    """How fast this machine is, and how near training, codecs and rounds come to it.

    Half a minute on one core: shares of a matrix product's rate, GB/s, and a round beside a plain
    loop. Other frameworks beside ours: `make bench` in the repository. Example: `fedbudget bench`
    """
    from fedbudget import bench as measured
    from fedbudget.terminal import console, say

    facts = measured.machine()
    console().print(measured.table(facts, measured.quantities(repeat)))
    if facts["load"] is not None and facts["load"] > 1:
        say("Other work was running: ratios may hold, rates do not.")


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

    if name is None:
        for preset, path in config.presets().items():
            print(f"{preset:18} {path.read_text().splitlines()[0].lstrip('# ')}")
        return
    print(f"wrote {config.copy_preset(name, out or Path(f'{name}.toml'), overwrite)}")


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for the runs.")] = Path("runs/demo"),
    set_: Set = None,
    track: Track = None,
) -> None:
    """Train a small language model across 16 clients, without budgets and within them.

    FedAvg first; then CAFL-L, whose duals follow the papers' own proxies; then the planner, which
    keeps each client within a quarter of FedAvg's counted energy and an eighth of its uplink. Three
    to four minutes on two cores.

    Example: `fedbudget demo --out runs/demo`
    """
    from fedbudget import demo as runs
    from fedbudget.report.show import show

    show(runs.demo(out, [*(set_ or []), *tracked(track)]), out / "report.html")


def _free(name: str) -> Path:
    """runs/NAME, or runs/NAME-2 and so on where that is taken."""
    path, i = Path("runs") / name, 1
    while (path / "config.toml").exists():
        i += 1
        path = Path("runs") / f"{name}-{i}"
    return path


if __name__ == "__main__":
    main()
