"""Budgets: amounts as the user wrote them, and as numbers once FedAvg's own usage is known."""

from collections.abc import Mapping, Sequence

from fedbudget.errors import UserError
from fedbudget.units import UNITS, Amount, parse, show


def read(table: Mapping[str, str | float]) -> dict[str, Amount]:
    """Read every budget of a table; an empty one is refused."""
    if not table:
        raise UserError(f"budget: name at least one resource, such as {', '.join(UNITS)}")
    return {resource: parse(text, resource) for resource, text in table.items()}


def resolve(
    amounts: Mapping[str, Amount], reference: Mapping[str, float], ambient_c: float
) -> dict[str, float]:
    """SI numbers: shares of the reference usage, and degrees Celsius as a rise above ambient."""
    found: dict[str, float] = {}
    for resource, amount in amounts.items():
        if resource not in reference:
            raise UserError(
                f"budget.{resource}: nothing counts it; counted are {', '.join(reference)}"
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


def tell(budgets: Mapping[str, float]) -> str:
    return ", ".join(f"{r} <= {show(b, r)}" for r, b in budgets.items())
