"""The terminal: what was typed there, and where the command line prints."""

import shlex
import sys
from pathlib import Path

from rich.console import Console


def console() -> Console:
    # a pipe has no width: tables and lines keep theirs
    return Console(width=None if sys.stdout.isatty() else 160)


def say(text: str) -> None:
    """A line as it stands: no markup, no colour, no wrapping."""
    console().print(text, highlight=False, soft_wrap=True, markup=False)


def command() -> str:
    """What the user typed; empty where this is part of another program."""
    program = Path(sys.argv[0])
    ours = program.stem == "fedbudget" or program.parts[-2:] == ("fedbudget", "cli.py")
    return shlex.join(["fedbudget", *sys.argv[1:]]) if ours else ""
