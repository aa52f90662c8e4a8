"""Budgets: amounts as the user wrote them, and as numbers once FedAvg's own usage is known."""

import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from fedbudget.errors import UserError, about
from fedbudget.resources.own import Resource
from fedbudget.types import Accounting
from fedbudget.units import UNITS, Amount, parse, show

Own = TypeVar("Own")
Decided = TypeVar("Decided")


def read(table: Mapping[str, str | float], own: Sequence[Resource] = ()) -> dict[str, Amount]:
    """Read every budget of a table; an empty one is refused."""
    if not isinstance(table, Mapping):
        raise UserError(
            f'budget is {table!r}; name resources: fedbudget.Budget(communication="600 kB")'
        )
    if not table:
        raise UserError(f"budget: name at least one resource, such as {', '.join(UNITS)}")
    units = {resource.name: resource.unit for resource in own}
    for name in table:
        if name not in UNITS and name not in units:
            raise nothing_counts(name, [*UNITS, *units])
    return {name: parse(text, name, unit=units.get(name, "")) for name, text in table.items()}


def nothing_counts(
    resource: str, known: Iterable[str], what: str = "nothing counts it"
) -> UserError:
    """What to tell who names a resource that is none, with the one that was meant if it can be told."""
    near = {"uplink": ["communication"], "heat": ["temperature"]}.get(resource)
    known = list(known)
    near = near or difflib.get_close_matches(resource, known, 1)
    hint = f"did you mean {near[0]}? " if near else ""
    return UserError(f"budget.{resource}: {what}; {hint}known are {', '.join(known)}")


def read_classes(budget: Any, own: Sequence[Resource] = ()) -> list[dict[str, Amount]]:
    """Read what is asked of each device class; nothing where there is no budget."""
    if budget is None or budget == {}:
        return []
    try:
        classes = split(budget) if isinstance(budget, Mapping) else [budget]
    except ValueError as error:
        raise UserError(str(error)) from None
    return each_class(classes, lambda table: read(table, own))


def split(limits: Mapping[str, Any], *more: object) -> list[dict[str, str | float]]:
    """The limits of each device class, as they were written; one class without lists.

    more: other lists that have an entry for each class. ValueError where they do not fit together.
    """
    lengths = {len(v) for v in (*more, *limits.values()) if isinstance(v, list)}
    if 0 in lengths:
        raise ValueError("budget: a list is empty; it has one limit for each device class")
    if len(lengths) > 1:
        raise ValueError(
            "budget: lists have one limit for each device class, so all must be equally long; "
            f"they have {', '.join(map(str, sorted(lengths)))}"
        )
    return [
        {r: v[i] if isinstance(v, list) else v for r, v in limits.items()}
        for i in range(next(iter(lengths), 1) if limits else 0)
    ]


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
            what = "the papers' proxies do not know it"
            raise nothing_counts(resource, reference, *([what] if accounting == "paper" else []))
        unitless = accounting == "paper" and resource != "communication"
        if unitless and amount.kind in ("si", "celsius"):
            raise UserError(
                f"budget.{resource}: the papers' proxies have no unit; write a plain number or a share "
                f'such as "27%", or set budget.accounting = "counted"'
            )
        match amount.kind:
            case "share" if reference[resource] == 0:
                raise UserError(
                    f"budget.{resource} = {100 * amount.value:.4g}% of FedAvg's: FedAvg takes none of "
                    "it; write an amount"
                )
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


def named_class(index: int, classes: int) -> str:
    """What a sentence calls a device class; "" where there is but one."""
    return f"device class {index}" if classes > 1 else ""


def each_class(classes: Sequence[Own], decide: Callable[[Own], Decided]) -> list[Decided]:
    """What is decided for each device class; a refusal says which one it is about."""
    found = []
    for i, own in enumerate(classes):
        with about(named_class(i, len(classes))):
            found.append(decide(own))
    return found


def tell(budgets: Mapping[str, float], written: Callable[[float, str], str] = show) -> str:
    return ", ".join(f"{r} <= {written(b, r)}" for r, b in budgets.items())
