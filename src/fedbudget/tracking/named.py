"""Trackers by their names in a config or after --track."""

from collections.abc import Callable, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from fedbudget.build.materials import call
from fedbudget.callbacks import Callback, Record, guarded
from fedbudget.errors import UserError
from fedbudget.tracking.ledger import Ledger
from fedbudget.tracking.mlflow import mlflow, place
from fedbudget.tracking.tensorboard import tensorboard
from fedbudget.tracking.wandb import wandb

NEEDED = {
    "tensorboard": ("tensorboard",),
    "mlflow": ("mlflow", "sqlalchemy", "alembic"),
    "wandb": ("wandb",),
}
"""the packages of each"""


def check(names: Sequence[str]) -> None:
    """Known names whose packages are installed, before anything is built or written."""
    for name in names:
        if ":" in name:
            continue
        if name not in NEEDED:
            raise UserError(
                f"track = {name!r}: it must be {', '.join(NEEDED)} or package.module:function"
            )
        if missing := [package for package in NEEDED[name] if not _installed(package)]:
            raise UserError(
                f"track = {name!r} needs the package {missing[0]}: pip install 'fedbudget[{name}]'"
            )


def _installed(package: str) -> bool:
    spec = find_spec(package)
    return spec is not None and spec.origin is not None  # a mere folder of that name has none


def named(
    names: Sequence[str],
    folder: Path,
    past: Sequence[Record],
    fresh: bool,
    warn: Callable[[str], None],
) -> list[Callback]:
    """The trackers of a run in `folder` that has `past` rounds; one that fails is off from then on.

    `fresh`: it is another run than the one that was tracked in this folder.
    """
    check(names)
    ledger = Ledger(folder, fresh)
    made = []
    for name in dict.fromkeys(names):
        if ":" in name:
            callback, where = _own(name), ""
        else:
            callback, where = _known(name, folder, ledger)
        kept = ledger.kept(callback, name, where, past)
        made.append(guarded(kept, f"tracking with {name}", warn))
    return made


def _known(name: str, folder: Path, ledger: Ledger) -> tuple[Callback, str]:
    match name:
        case "tensorboard":
            where = "tensorboard"
            make = partial(tensorboard, folder / where)
        case "mlflow":
            where = place()
            make = partial(mlflow, where, ledger.key)
        case _:
            where = "wandb"
            make = partial(wandb, folder, ledger.key)
    return make(goes_on=ledger.last(name, where) > 0), where


def _own(name: str) -> Callback:
    made = call(name, "track")
    if not isinstance(made, Callback):
        raise UserError(
            f"track = {name!r}: it must return a fedbudget.callbacks.Callback, "
            f"not a {type(made).__name__}"
        )
    return made
