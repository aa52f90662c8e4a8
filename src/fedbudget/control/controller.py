"""What a controller is, and the one that never changes its mind."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from fedbudget.codecs import named
from fedbudget.errors import UserError
from fedbudget.types import Knobs, Reply

ControlState = dict[str, Any]
"""plain JSON values, so that a checkpoint can hold it"""


def no_duals(state: ControlState, client: int) -> Mapping[str, float]:
    return {}


class Controller(NamedTuple):
    """Knobs for each client before a round, and a new state after it."""

    init: Callable[[], ControlState]
    knobs: Callable[[ControlState, int], Knobs]
    """(state, client) -> the client's knobs for this round"""
    update: Callable[[ControlState, Sequence[Reply]], ControlState]
    """(state, accepted replies) -> state"""
    duals: Callable[[ControlState, int], Mapping[str, float]] = no_duals
    """(state, client) -> resource -> the multiplier behind the client's knobs"""


def fixed(knobs: Knobs) -> Controller:
    """The same knobs for every client in every round: FedAvg."""
    return Controller(dict, partial(_always, knobs=knobs), _keep)


def _always(state: ControlState, client: int, *, knobs: Knobs) -> Knobs:
    return knobs


def _keep(state: ControlState, replies: Sequence[Reply]) -> ControlState:
    return state


def possible(knobs: Mapping[int, Knobs], depth: int) -> None:
    """A controller may be anybody's: what it asks for must be a setting at all."""
    checked: Knobs | None = None
    for own in knobs.values():
        if checked is not None and own is checked:  # most often all have the same
            continue
        if not isinstance(own, Knobs):
            raise UserError(f"the controller gives a {type(own).__name__}; it must give Knobs")
        numbers = (own.layers, own.steps, own.batch, own.accumulate, own.above)
        least = min(own.layers, own.batch, own.accumulate) if all(map(_whole, numbers)) else 0
        if least < 1 or min(own.steps, own.above) < 0:
            raise UserError(
                f"the controller asks for {own}; layers, batch and accumulate are whole numbers from 1 "
                "on, steps and above from 0 on"
            )
        if own.layers + own.above > depth:
            raise UserError(f"the controller asks for {own}; the model has {depth} layer groups")
        named(own.codec)
        checked = own


def _whole(value: object) -> bool:
    return isinstance(value, int)
