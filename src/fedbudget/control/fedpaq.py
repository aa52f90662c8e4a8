"""FedPAQ (Reisizadeh et al. 2020): all layers, few local steps, and a quantised update.

Both of its knobs are spent on the budgets: as many of the base knobs' steps as fit, and of the
codes with which that many fit the finest.
"""

from collections.abc import Sequence
from dataclasses import replace

from fedbudget.control.controller import Controller
from fedbudget.control.frontier import Forecast
from fedbudget.control.room import Limits, fixed_by_class, no_room, room
from fedbudget.resources.budget import each_class
from fedbudget.types import Knobs

CODECS = ("qsgd8", "qsgd4", "qsgd2")
"""the paper's quantiser (QSGD, Alistarh et al. 2017), the finest first"""


def fedpaq(
    forecast: Forecast, base: Knobs, classes: Sequence[Limits], codecs: Sequence[str] = CODECS
) -> Controller:
    """`classes` has the budgets of each device class; client i is of class i modulo their number."""
    return fixed_by_class(
        each_class(classes, lambda limits: _knobs(forecast, base, limits, codecs))
    )


def _knobs(forecast: Forecast, base: Knobs, limits: Limits, codecs: Sequence[str]) -> Knobs:
    tried = [replace(base, codec=codec) for codec in codecs]
    found = [own for knobs in tried if (own := room(forecast, knobs, limits)) is not None]
    if not found:
        raise no_room("fedpaq", forecast, tried, limits)
    return max(found, key=lambda knobs: knobs.steps)  # the first of equals
