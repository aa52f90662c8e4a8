"""Flower: budgets for an existing app, and runs over its fleets.

Two lines give any Flower app budgets: `Budgeted(strategy, ...)` on the server, `budget_mod` among the
mods of the ClientApp. Names are imported when they are asked for, so that a node never loads what
only the server needs.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedbudget.flower.mod import budget_mod, freeze, knobs_of
    from fedbudget.flower.strategy import Budgeted

__all__ = ["Budgeted", "budget_mod", "freeze", "knobs_of"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = "strategy" if name == "Budgeted" else "mod"
    return getattr(import_module(f"{__name__}.{home}"), name)
