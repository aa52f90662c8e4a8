"""Options that several commands share."""

from math import isfinite
from typing import Annotated

import typer

from fedbudget.errors import UserError


def a_loss(target: float | None) -> float | None:
    """A loss that a run may reach."""
    if target is not None and not (isfinite(target) and target > 0):
        raise UserError(f"--target {target:g}: it must be a validation loss, a number above 0")
    return target


Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Override a config key, KEY= takes it out; may be repeated.",
    ),
]
Target = Annotated[
    float | None,
    typer.Option(help="Also what it cost each run to reach this validation loss.", callback=a_loss),
]
Track = Annotated[
    list[str] | None,
    typer.Option(
        "--track",
        metavar="NAME",
        help="tensorboard, mlflow, wandb, or package.module:function; may be repeated.",
    ),
]
Json = Annotated[
    bool, typer.Option("--json", help="One JSON object a line on stdout: start, rounds, end.")
]
Quiet = Annotated[bool, typer.Option("--quiet", help="Print warnings and errors only.")]
Overwrite = Annotated[bool, typer.Option(help="Replace a run that is already there.")]
Seeds = Annotated[int, typer.Option(min=1, help="Seeds 0, 1, ... for each.")]


def tracked(track: list[str] | None) -> list[str]:
    """As an override of the config; Python and TOML write a list of words alike."""
    return [f"track={track}"] if track else []
