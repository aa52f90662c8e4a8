"""Amounts as people write them, "600 kB", "1.2 kJ", "41 C", "27%", and as SI numbers."""

import math
import re
from typing import NamedTuple

from fedbudget.errors import UserError

UNITS = {
    "energy": "J",
    "communication": "B",
    "downlink": "B",
    "memory": "B",
    "temperature": "K",
    "time": "s",
}
"""unit of each resource that is known; a user's own may have one (`resources.own`)"""

_PREFIX = {
    "": 1.0,
    "u": 1e-6,
    "µ": 1e-6,
    "μ": 1e-6,
    "m": 1e-3,
    "k": 1e3,
    "M": 1e6,
    "G": 1e9,
    "T": 1e12,
}
_BINARY = {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30}
_TIMES = {"s": 1.0, "ms": 1e-3, "min": 60.0, "h": 3600.0}
_AMOUNT = re.compile(
    r"^\s*([-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?)\s*([^\s\d]\S*)?\s*$"
)


class Amount(NamedTuple):
    """A number, and how it is meant."""

    value: float
    kind: str
    """ "plain" (a number without a unit), "si", "share" (of FedAvg's usage) or "celsius" (absolute, for
    temperature)"""


def parse(text: str | float, resource: str, key: str = "", unit: str = "") -> Amount:
    """Read a budget, or what another key says of a resource; a plain number is SI.

    unit: that of a user's own resource.

    >>> parse("600 kB", "communication").value
    600000.0
    >>> parse("27%", "energy")
    Amount(value=0.27, kind='share')
    >>> parse("41 C", "temperature")
    Amount(value=41.0, kind='celsius')
    """
    base = unit or UNITS.get(resource, "")
    where = f"{key or f'budget.{resource}'} = {text!r}"
    if isinstance(text, bool) or not isinstance(text, int | float | str):
        raise UserError(f"{where}: it must be a number or text such as {_example(base)}")
    if isinstance(text, str):
        match = _AMOUNT.match(text)
        if match is None:
            raise UserError(f"{where}: write a number and a unit, such as {_example(base)}")
        amount = _with_unit(float(match[1]), match[2] or "", base, where)
    else:
        try:
            amount = Amount(float(text), "plain")
        except OverflowError:  # a whole number with hundreds of digits
            amount = Amount(math.inf, "plain")
    cold = amount.kind == "celsius"  # what is too cold the device's surroundings say
    if not math.isfinite(amount.value) or (amount.value <= 0 and not cold):
        raise UserError(f"{where}: it must be a finite number above zero")
    return amount


def _with_unit(number: float, unit: str, base: str, where: str) -> Amount:
    if unit == "%":
        return Amount(number / 100, "share")
    if unit == "":
        return Amount(number, "plain")
    if base == "K" and unit in ("C", "°C"):
        return Amount(number, "celsius")
    scale = _TIMES.get(unit) if base == "s" else None
    if scale is None and unit == base:
        scale = 1.0
    if scale is None and base in UNITS.values() and unit.endswith(base):
        prefix = unit.removesuffix(base)
        scale = _PREFIX.get(prefix, _BINARY.get(prefix) if base == "B" else None)
        if base == "B" and scale is not None and scale < 1:  # "mB" is a slip for "MB"
            scale = None
    if base == "J" and unit.endswith("Wh"):
        hours = _PREFIX.get(unit.removesuffix("Wh"))
        scale = 3600.0 * hours if hours is not None else None
    if scale is None:
        raise UserError(f"{where}: the unit {unit!r} is unknown here; write {_example(base)}")
    return Amount(number * scale, "si")


def _example(base: str) -> str:
    own = f'"2 {base}" or "27%"' if base else 'a plain number or "27%"'
    return {
        "J": '"1.2 kJ" or "27%"',
        "B": '"600 kB", "256 MiB" or "27%"',
        "K": '"41 C" (absolute), "16 K" (rise above ambient) or "90%"',
        "s": '"30 s", "2 min" or "27%"',
    }.get(base, own)


def show(value: float, resource: str, unit: str = "") -> str:
    """For people: three digits and a prefix.

    >>> show(600000, "communication"), show(0.0123, "energy"), show(3.5, "money")
    ('600 kB', '12.3 mJ', '3.5')
    """
    unit = unit or UNITS.get(resource, "")
    if not unit:
        return f"{value:.3g}"
    if unit == "K" or unit not in UNITS.values() or value == 0 or (unit == "B" and value < 1):
        return f"{value:.3g} {unit}"
    for prefix in ("T", "G", "M", "k", ""):
        if value >= _PREFIX[prefix]:
            return f"{value / _PREFIX[prefix]:.3g} {prefix}{unit}"
    return f"{value * 1e3:.3g} m{unit}" if value >= 1e-3 else f"{value * 1e6:.3g} µ{unit}"
