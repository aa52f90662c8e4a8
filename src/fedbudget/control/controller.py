"""What a controller is, and the one that never changes its mind."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

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
