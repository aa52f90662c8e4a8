"""Budgets: amounts as the user wrote them, and as numbers once FedAvg's own usage is known."""

from collections.abc import Callable, Mapping, Sequence

from fedbudget.errors import UserError
from fedbudget.resources.own import Resource
from fedbudget.types import Accounting
from fedbudget.units import UNITS, Amount, parse, show


def read(table: Mapping[str, str | float], own: Sequence[Resource] = ()) -> dict[str, Amount]:
    """Read every budget of a table; an empty one is refused."""
    if not table:
        raise UserError(f"budget: name at least one resource, such as {', '.join(UNITS)}")
    units = {resource.name: resource.unit for resource in own}
    return {name: parse(text, name, unit=units.get(name, "")) for name, text in table.items()}


def resolve(
    amounts: Mapping[str, Amount],
    reference: Mapping[str, float],
    ambient_c: float,
    accounting: Accounting = "counted",
) -> dict[str, float]:
    """SI numbers: shares of the reference usage, and degrees Celsius as a rise above ambient.

    The papers' proxies have no unit, but for bytes.
    """
    found: dict[str, float] = {}
    for resource, amount in amounts.items():
        if resource not in reference:
            raise UserError(
                f"budget.{resource}: nothing counts it; counted are {', '.join(reference)}"
            )
        unitless = accounting == "paper" and resource != "communication"
        if unitless and amount.kind in ("si", "celsius"):
            raise UserError(
                f"budget.{resource}: the papers' proxies have no unit; write a plain number or a share "
                f'such as "27%", or set budget.accounting = "counted"'
            )
        match amount.kind:
            case "share":
                found[resource] = amount.value * reference[resource]
            case "celsius" if amount.value <= ambient_c:
                raise UserError(
                    f"budget.{resource} = {amount.value:g} C is not above the device's ambient "
                    f"{ambient_c:g} C"
                )
            case "celsius":
                found[resource] = amount.value - ambient_c
            case _:
                found[resource] = amount.value
    return found


def of_client(classes: Sequence[Mapping[str, float]], client: int) -> Mapping[str, float]:
    """Client i is of device class i modulo their number."""
    return classes[client % len(classes)]


def tell(budgets: Mapping[str, float], written: Callable[[float, str], str] = show) -> str:
    return ", ".join(f"{r} <= {written(b, r)}" for r, b in budgets.items())
