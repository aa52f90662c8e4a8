"""The simulated fleet that a config describes, and who is asked in it."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from fedbudget import selection
from fedbudget.config import Config
from fedbudget.errors import UserError
from fedbudget.resources import devices
from fedbudget.resources.costs import Costs
from fedbudget.resources.devices import Device
from fedbudget.selection import Selection
from fedbudget.units import parse
from fedbudget.world import Kind, World


def working(config: Config, name: str) -> Device:
    """A device profile, at the rate that it reaches in the config's world."""
    device = devices.named(name)
    share = config.world.efficiency if config.world.on else 1.0
    return replace(device, flops_per_s=device.flops_per_s * share)


def selected(config: Config) -> Selection:
    match config.world.select:
        case "uniform":
            return selection.uniform()
        case "power-of-choice":
            return selection.power_of_choice()
        case "oort":
            return selection.oort()
        case _ if not config.world.on:
            raise UserError(
                "world.select = 'sparing' looks at heat and charge; set world.on = true"
            )
        case _:
            return selection.sparing()


def world(config: Config, kinds: Sequence[Costs]) -> World | None:
    table = config.world
    if not table.on:
        return None
    if not kinds:
        raise UserError(
            "world.on = true: devices need a model whose work is counted; name a budget, or a "
            "model of ours"
        )
    if config.engine == "flower":
        raise UserError("world.on = true: a simulated fleet is for engine = 'embedded'")
    number = len(kinds)
    memory = _each("memory", table.memory, number)
    battery = _each("battery", table.battery, number)
    charging = _each("charging", table.charging, number)
    present = _each("present", table.present, number)
    hot = _each("hot", table.hot, number)
    found = [
        Kind(
            known.device,
            known.forecast,
            _amount("memory", memory[i], "memory"),
            _amount("battery", battery[i], "energy"),
            _number("charging", charging[i], 0, math.inf),
            table.reserve,
            _number("present", present[i], 0, 1),
            _amount("hot", hot[i], "temperature", known.device.ambient_c),
            table.slow,
        )
        for i, known in enumerate(kinds)
    ]
    return World(found, table.deadline or math.inf, table.pause)


PLANNING = ("planner", "rotation", "static", "fedpaq", "cocofl", "heterofl", "adaptive")
"""controllers whose knobs are within limits from the first round on"""


def bearable(
    config: Config, there: World | None, limits: list[dict[str, float]]
) -> list[dict[str, float]]:
    """Budgets, and what the devices themselves can bear: their memory, and the server's deadline.

    Both are about counted work, as all of the simulated world is.
    """
    counted = config.budget.accounting == "counted"
    if there is None or not counted or config.control.controller not in PLANNING:
        return limits
    found = []
    for i, own in enumerate(limits):
        both = dict(own)
        for resource, most in (("memory", there.kind(i).memory), ("time", there.deadline)):
            if math.isfinite(most):
                both[resource] = min(most, own.get(resource, most))
        found.append(both)
    return found


def _each(key: str, given: Any, number: int) -> list[Any]:
    """A figure for each device class."""
    if not isinstance(given, list):
        return [given] * number
    if len(given) != number:
        raise UserError(
            f"world.{key} has {len(given)} figures; budget.device names {number} device classes"
        )
    return given


def _amount(key: str, given: str | float, resource: str, ambient_c: float = 0.0) -> float:
    """In SI units; infinite where nothing is given."""
    if given == "":
        return math.inf
    amount = parse(given, resource, f"world.{key}")
    if amount.kind == "share":
        raise UserError(f"world.{key} = {given!r}: a share of what? Give an amount")
    if amount.kind == "celsius":
        if amount.value <= ambient_c:
            raise UserError(f"world.{key} = {given!r} is not above the ambient {ambient_c:g} C")
        return amount.value - ambient_c
    return amount.value


def _number(key: str, given: float, low: float, high: float) -> float:
    if not low <= given <= high:
        raise UserError(f"world.{key} = {given}: it must be from {low:g} to {high:g}")
    return float(given)
