"""Room: how much of a method's own knobs a device's budgets leave it.

The methods of others fix most knobs and have no say in the rest. Two things are done for all of
them alike: a batch is split into micro-batches until it fits the memory, which leaves the gradient
as it is, and steps are left out until the round fits.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from fedbudget.control.classes import by_class
from fedbudget.control.controller import Controller, fixed
from fedbudget.control.frontier import Forecast, farthest, why_not
from fedbudget.errors import UserError
from fedbudget.types import Knobs

Limits = Mapping[str, float]


def micro_batches(knobs: Knobs) -> Iterator[Knobs]:
    """The same examples a step, in smaller and smaller micro-batches.

    >>> [(k.batch, k.accumulate) for k in micro_batches(Knobs(1, 1, 8, 3))]
    [(8, 3), (4, 6), (2, 12), (1, 24)]
    """
    yield knobs
    while knobs.batch % 2 == 0:
        knobs = replace(knobs, batch=knobs.batch // 2, accumulate=knobs.accumulate * 2)
        yield knobs


def room(forecast: Forecast, knobs: Knobs, limits: Limits) -> Knobs | None:
    """As many of the knobs' steps as fit, in the largest micro-batches that do; None if none fit."""
    for own in micro_batches(knobs):
        found = farthest(forecast, replace(own, steps=1), own.steps, limits)
        if found is not None:
            return found
    return None


def no_room(name: str, forecast: Forecast, tried: Sequence[Knobs], limits: Limits) -> UserError:
    """What to tell the user when a method can do nothing within the limits."""
    settings = [own for knobs in tried for own in micro_batches(replace(knobs, steps=1))]
    return UserError(f"{name}: {why_not(forecast, settings, limits)}")


def fixed_by_class(knobs: Sequence[Knobs]) -> Controller:
    """Each device class's own knobs in every round."""
    return by_class([fixed(own) for own in knobs]) if len(knobs) > 1 else fixed(knobs[0])
