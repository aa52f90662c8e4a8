"""CoCoFL-like (Pfeiffer et al. 2023): freeze and quantise; a random part of the model each round.

A client trains a contiguous part of the layer groups, drawn anew for each client and round from
those whose base steps fit its budgets and that lie in no larger one that does, as in the authors'
code. Where no part fits with all steps, one layer group is drawn, with as many steps as fit.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from fedbudget import seeds
from fedbudget.control.controller import Controller, ControlState
from fedbudget.control.frontier import Forecast
from fedbudget.control.room import no_room, room
from fedbudget.resources.budget import each_class
from fedbudget.types import Knobs, Reply


@dataclass(frozen=True)
class Parts:
    """What each device class draws from."""

    seed: int
    classes: Sequence[Sequence[Knobs]]


def cocofl(
    forecast: Forecast, base: Knobs, classes: Sequence[Mapping[str, float]], seed: int
) -> Controller:
    """`classes` has the budgets of each device class; client i is of class i modulo their number."""
    parts = Parts(seed, each_class(classes, partial(_fitting, forecast, base)))
    return Controller(_init, partial(_knobs, parts), _update)


def _fitting(forecast: Forecast, base: Knobs, limits: Mapping[str, float]) -> list[Knobs]:
    every = [
        replace(base, layers=k, above=above)
        for k in range(base.layers, 0, -1)
        for above in range(base.layers - k + 1)
    ]
    found = [own for part in every if (own := room(forecast, part, limits)) is not None]
    whole = [own for own in found if own.steps == base.steps]
    largest = [own for own in whole if not any(_inside(own, other) for other in whole)]
    single = [own for own in found if own.layers == 1]
    if not found:
        raise no_room("cocofl", forecast, every, limits)
    return largest or single or found


def _inside(part: Knobs, other: Knobs) -> bool:
    """Whether all its layer groups train in the other too, and more."""
    (low, high), (first, last) = part.groups(0), other.groups(0)
    return first <= low and high <= last and part.layers < other.layers


def _init() -> ControlState:
    return {"round": 0}


def _knobs(parts: Parts, state: ControlState, client: int) -> Knobs:
    own = parts.classes[client % len(parts.classes)]
    rng = seeds.rng(parts.seed, state["round"], client, "part")
    return own[int(rng.integers(len(own)))]


def _update(state: ControlState, replies: Sequence[Reply]) -> ControlState:
    return {"round": state["round"] + 1}
