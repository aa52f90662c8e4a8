"""Usage beside its budget, and for each resource the client that takes most of its own."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from fedbudget.units import show

Usage = Mapping[str, Mapping[str, Mapping[str, float]]]
"""accounting -> client number -> resource -> amount"""
Budgets = Mapping[str, Sequence[Mapping[str, float]]]
"""accounting -> the limits of each device class; client i is of class i modulo their number"""

ROUNDING = 1e-9
"""over a limit by less is rounding"""


class Gauge(NamedTuple):
    """One client's usage of one resource in one round."""

    accounting: str
    resource: str
    limit: float
    amount: float | None = None
    """None: not known yet"""
    client: int = 0

    @property
    def share(self) -> float:
        return (self.amount or 0.0) / self.limit

    @property
    def over(self) -> bool:
        return self.share > 1 + ROUNDING

    def told(self, value: float) -> str:
        """With its unit; the papers' proxies have none."""
        return f"{value:.3g}" if self.accounting == "paper" else show(value, self.resource)


def empty(budgets: Budgets) -> list[Gauge]:
    """Before the first round: the tightest limit of each resource."""
    return [
        Gauge(accounting, resource, min(limits[resource] for limits in classes))
        for accounting, classes in budgets.items()
        for resource in (classes[0] if classes else ())
    ]


def all_gauges(usage: Usage, budgets: Budgets) -> list[Gauge]:
    """Every client's, for each resource that has a budget and was reported."""
    return [
        Gauge(accounting, resource, limits[resource], used[resource], int(client))
        for accounting, classes in budgets.items()
        for client, used in usage.get(accounting, {}).items()
        for limits in (classes[int(client) % len(classes)],)
        for resource in limits
        if used.get(resource) is not None
    ]


def worst_gauges(usage: Usage, budgets: Budgets) -> list[Gauge]:
    """For each resource, in the budgets' order, the client with the largest share of its limit.

    >>> worst_gauges({"counted": {"0": {"energy": 1.0}, "1": {"energy": 1.5}}},
    ...              {"counted": [{"energy": 1.0}, {"energy": 3.0}]})
    [Gauge(accounting='counted', resource='energy', limit=1.0, amount=1.0, client=0)]
    """
    worst: dict[tuple[str, str], Gauge] = {}
    for gauge in all_gauges(usage, budgets):
        at = gauge.accounting, gauge.resource
        if at not in worst or gauge.share > worst[at].share:
            worst[at] = gauge
    order = [(g.accounting, g.resource) for g in empty(budgets)]
    return [worst[at] for at in order if at in worst]
