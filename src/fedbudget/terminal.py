"""Where the command line prints."""

import sys

from rich.console import Console


def console() -> Console:
    # a pipe has no width: tables and lines keep theirs
    return Console(width=None if sys.stdout.isatty() else 160)


def say(text: str) -> None:
    """A line as it stands: no markup, no colour, no wrapping."""
    console().print(text, highlight=False, soft_wrap=True, markup=False)
