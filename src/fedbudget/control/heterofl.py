"""HeteroFL-like partial depth (Diao et al. 2021): each device has the largest model it can train.

HeteroFL cuts a model's width; here it is the depth that trains: the deepest top part whose base steps
fit a device's budgets, always the same one. Where not even the top group alone fits, it takes as many
steps of that as do.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from fedbudget.control.controller import Controller
from fedbudget.control.frontier import Forecast
from fedbudget.control.room import Limits, fixed_by_class, no_room, room
from fedbudget.resources.budget import each_class
from fedbudget.types import Knobs


def heterofl(forecast: Forecast, base: Knobs, classes: Sequence[Limits]) -> Controller:
    """`classes` has the budgets of each device class; client i is of class i modulo their number."""
    return fixed_by_class(each_class(classes, partial(_knobs, forecast, base)))


def _knobs(forecast: Forecast, base: Knobs, limits: Limits) -> Knobs:
    tops = [replace(base, layers=k) for k in range(base.layers, 0, -1)]
    found = [own for top in tops if (own := room(forecast, top, limits)) is not None]
    if not found:
        raise no_room("heterofl", forecast, tops, limits)
    return next((own for own in found if own.steps == base.steps), found[-1])
