"""The terminal: what was typed there, and where the command line prints."""

import json
import os
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from rich.console import Console

from fedbudget.callbacks import Callback
from fedbudget.errors import UserError
from fedbudget.records import plain

Show = Literal["live", "quiet", "json"]
"""what a training prints: for people; nothing but warnings; or one JSON object a line on stdout"""


def shown(json: bool, quiet: bool) -> Show:
    """What --json and --quiet ask for."""
    if json and quiet:
        raise UserError("--quiet prints nothing and --json prints objects; choose one of them")
    return "json" if json else "quiet" if quiet else "live"


def console(show: Show = "live") -> Console:
    # a pipe has no width: tables and lines keep theirs
    return Console(width=None if sys.stdout.isatty() else 160, quiet=show != "live")


def say(text: str, show: Show = "live") -> None:
    """A line as it stands: no markup, no colour, no wrapping."""
    if show == "json":
        print(text, file=sys.stderr)
    else:
        console(show).print(text, highlight=False, soft_wrap=True, markup=False)


def point_to(folder: Path, show: Show) -> None:
    """How to see a finished run."""
    page = f"fedbudget report {quoted(folder)} --out report.html"
    say(f"see it: {page}, or fedbudget dashboard {quoted(folder.parent)}", show)


def quoted(path: Path) -> str:
    """As a shell takes it."""
    return shlex.quote(str(path))


def command() -> str:
    """What the user typed; empty where this is part of another program."""
    program = Path(sys.argv[0])
    ours = program.stem == "fedbudget" or program.parts[-2:] == ("fedbudget", "cli.py")
    return shlex.join(["fedbudget", *sys.argv[1:]]) if ours else ""


def json_lines() -> Callback:
    """Start, rounds and end as JSON objects on stdout, one a line."""
    return Callback(
        start=lambda facts, config: _object("start", {**facts, "config": config}),
        round=lambda record: _object("round", record),
        end=lambda summary: _object("end", summary),
    )


def _object(event: str, about: Mapping[str, Any]) -> None:
    try:
        sys.stdout.write(json.dumps({"event": event, **plain(about)}, allow_nan=False) + "\n")
        sys.stdout.flush()
    except BrokenPipeError:  # nobody reads any more: what is left in the buffer goes nowhere
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise
