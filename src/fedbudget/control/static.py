"""Static: the config's knobs for everyone in every round, refused where they break a budget."""

from collections.abc import Sequence
from functools import partial

from fedbudget.control.controller import Controller, fixed
from fedbudget.control.frontier import Forecast, within
from fedbudget.control.room import Limits, room
from fedbudget.errors import UserError
from fedbudget.resources.budget import each_class
from fedbudget.types import Knobs
from fedbudget.units import show


def static(forecast: Forecast, knobs: Knobs, classes: Sequence[Limits]) -> Controller:
    """All device classes have the same knobs, so the poorest decides."""
    each_class(classes, partial(_check, forecast, knobs))
    return fixed(knobs)


def _check(forecast: Forecast, knobs: Knobs, limits: Limits) -> None:
    usage = forecast(knobs)
    if not within(usage, limits):
        worst = max(limits, key=lambda r: usage[r] / limits[r])
        raise UserError(
            f"static: the knobs in [train] take {show(usage[worst], worst)} of {worst}, above the "
            f"budget, {show(limits[worst], worst)}; {_instead(forecast, knobs, limits)}"
        )


def _instead(forecast: Forecast, knobs: Knobs, limits: Limits) -> str:
    fits = room(forecast, knobs, limits)
    if fits is None:
        return "no number of steps fits: take fewer layers or another codec"
    return f"what fits is steps={fits.steps} batch={fits.batch} accumulate={fits.accumulate}"
