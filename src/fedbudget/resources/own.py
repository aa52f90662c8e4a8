"""A resource of one's own: what a round takes of it, from its knobs and from what is counted of it."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from fedbudget.errors import UserError
from fedbudget.types import Knobs
from fedbudget.units import UNITS

RESERVED = (*UNITS, "device", "accounting", "resources")


class Resource(NamedTuple):
    """Counted like the others, before a round and after it; budgets may name it."""

    name: str
    amount: Callable[[Knobs, Mapping[str, float]], float]
    """(knobs, counted usage in SI units) -> how much of it a client's round takes"""
    unit: str = ""
    """as budgets write it, such as "EUR"; without one they are plain numbers"""


def check(resources: Sequence[Resource]) -> tuple[Resource, ...]:
    """Each is a Resource with a name of its own."""
    seen: set[str] = set()
    for i, own in enumerate(resources):
        if not isinstance(own, Resource):
            raise UserError(
                f"resources[{i}] is a {type(own).__name__}; it must be a fedbudget.Resource"
            )
        if not isinstance(own.name, str) or not own.name.isidentifier():
            raise UserError(
                f"resources[{i}]: the name {own.name!r} must have letters, digits and _ only"
            )
        if own.name in RESERVED or own.name in seen:
            raise UserError(f"resources[{i}]: the name {own.name!r} is taken; choose another")
        if not callable(own.amount):
            raise UserError(
                f"resources[{i}]: {own.name}'s amount is a {type(own.amount).__name__}; it must be a "
                "function of (knobs, counted)"
            )
        if not isinstance(own.unit, str) or not re.fullmatch(r"|[^\s\d%]\S*", own.unit):
            raise UserError(
                f"resources[{i}]: the unit {own.unit!r} must be a word such as EUR or gCO2, or empty"
            )
        seen.add(own.name)
    return tuple(resources)


def added(
    resources: Sequence[Resource], knobs: Knobs, counted: Mapping[str, float]
) -> dict[str, float]:
    """Counted usage, and after it the user's own; each sees those before it."""
    found = dict(counted)
    for own in resources:
        try:
            given = own.amount(knobs, found)
            if isinstance(given, str | bytes):
                raise TypeError(f"{given!r} is text")
            amount = float(given)
        except UserError:
            raise
        except Exception as error:  # it is the user's function: anything may come out of it
            raise UserError(
                f"the resource {own.name} has no amount at {knobs}: {type(error).__name__}: {error}; its "
                "function takes (knobs, counted) and returns a number"
            ) from error
        if not (math.isfinite(amount) and amount >= 0):
            raise UserError(
                f"the resource {own.name} comes to {amount} at {knobs}; it must be finite, 0 or more"
            )
        found[own.name] = amount
    return found
