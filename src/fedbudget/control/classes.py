"""A controller for each device class: client i is of class i modulo their number."""

from collections.abc import Mapping, Sequence
from functools import partial

from fedbudget.control.controller import Controller, ControlState
from fedbudget.types import Knobs, Reply


def by_class(controllers: Sequence[Controller]) -> Controller:
    """Each hears of its own class's replies only."""
    return Controller(
        partial(_init, controllers),
        partial(_knobs, controllers),
        partial(_update, controllers),
        partial(_duals, controllers),
    )


def _init(controllers: Sequence[Controller]) -> ControlState:
    return {"classes": [controller.init() for controller in controllers]}


def _knobs(controllers: Sequence[Controller], state: ControlState, client: int) -> Knobs:
    which = client % len(controllers)
    return controllers[which].knobs(state["classes"][which], client)


def _update(
    controllers: Sequence[Controller], state: ControlState, replies: Sequence[Reply]
) -> ControlState:
    number = len(controllers)
    own = [[r for r in replies if r.client % number == which] for which in range(number)]
    parts = zip(controllers, state["classes"], own, strict=True)
    return {"classes": [controller.update(part, some) for controller, part, some in parts]}


def _duals(
    controllers: Sequence[Controller], state: ControlState, client: int
) -> Mapping[str, float]:
    which = client % len(controllers)
    return controllers[which].duals(state["classes"][which], client)
