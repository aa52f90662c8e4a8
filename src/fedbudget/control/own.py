"""A controller of the user's own that a config names: what goes wrong in it is said in one sentence."""

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import ParamSpec, TypeVar

from fedbudget.control.controller import Controller, ControlState
from fedbudget.errors import UserError
from fedbudget.types import Knobs, Reply

P = ParamSpec("P")
Given = TypeVar("Given")


def guarded(controller: Controller, where: str) -> Controller:
    """The same controller; whatever it raises is a UserError that begins with `where`."""
    return Controller(
        partial(_init, controller, where),
        partial(_knobs, controller, where),
        partial(_update, controller, where),
        partial(_duals, controller, where),
    )


def within(where: str, work: Callable[P, Given], *given: P.args, **named: P.kwargs) -> Given:
    """What the user's function returns."""
    try:
        return work(*given, **named)
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"{where}: {type(error).__name__}: {error}") from error


def _init(controller: Controller, where: str) -> ControlState:
    return _plain(within(f"{where}, init", controller.init), f"{where}, init")


def _knobs(controller: Controller, where: str, state: ControlState, client: int) -> Knobs:
    return within(f"{where}, knobs", controller.knobs, state, client)


def _update(
    controller: Controller, where: str, state: ControlState, replies: Sequence[Reply]
) -> ControlState:
    return _plain(within(f"{where}, update", controller.update, state, replies), f"{where}, update")


def _duals(
    controller: Controller, where: str, state: ControlState, client: int
) -> Mapping[str, float]:
    return within(f"{where}, duals", controller.duals, state, client)


def _plain(state: ControlState, where: str) -> ControlState:
    """A checkpoint must hold it, and give it back as it was."""
    try:
        same = json.loads(json.dumps(state, allow_nan=False)) == state
    except (TypeError, ValueError, RecursionError) as error:
        raise UserError(f"{where}: its state must be plain JSON: {error}") from None
    if not (same and isinstance(state, dict)):
        raise UserError(
            f"{where}: its state must be plain JSON: a dict whose keys are texts, of lists and numbers"
        )
    return state
