"""Federated training that keeps every device within its budgets."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedbudget.api import Budget, planner, train
    from fedbudget.errors import UserError
    from fedbudget.resources.own import Resource
    from fedbudget.result import Run

__version__ = "0.1.0"
__all__ = ["Budget", "Resource", "Run", "UserError", "planner", "train"]


def __getattr__(name: str) -> Any:
    # torch takes seconds to import: it waits until something needs it
    if name in ("Budget", "planner", "train"):
        from fedbudget import api

        return getattr(api, name)
    if name == "Run":
        from fedbudget.result import Run

        return Run
    if name == "Resource":
        from fedbudget.resources.own import Resource

        return Resource
    if name == "UserError":
        from fedbudget.errors import UserError

        return UserError
    raise AttributeError(f"module 'fedbudget' has no attribute {name!r}")
