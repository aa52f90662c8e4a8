"""How clients stood to their budgets, round by round. Client i is of device class i mod n."""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any, NamedTuple

from fedbudget.report.load import Loaded
from fedbudget.summary import LAST
from fedbudget.units import show

OVER = 1 + 1e-9
"""usage / budget from which a round counts as over; summaries have the same"""


class Limit(NamedTuple):
    """A run's budget for one resource."""

    accounting: str
    resource: str
    classes: tuple[float, ...]
    """one for each device class"""
    unit: str = ""

    def written(self) -> str:
        """Each class's limit once, with its unit; the papers' proxies have none."""
        plain = self.accounting == "paper"
        amounts = [f"{b:.3g}" if plain else show(b, self.resource, self.unit) for b in self.classes]
        return ", ".join(dict.fromkeys(amounts))


def budgets(summary: Mapping[str, Any]) -> dict[str, Any]:
    """The resources of a run that have a budget, in whichever accounting it is."""
    return {
        resource: use
        for accounting in summary["usage"].values()
        for resource, use in accounting.items()
        if "budget" in use
    }


def accounting(summary: Mapping[str, Any]) -> str:
    """The accounting of a run's budgets; "" without budgets."""
    for name, uses in summary["usage"].items():
        if any("budget" in use for use in uses.values()):
            return str(name)
    return ""


def limits(run: Loaded) -> list[Limit]:
    found = []
    for resource, use in budgets(run.summary).items():
        given = use["budget"]
        classes = tuple(given) if isinstance(given, list) else (given,)
        found.append(Limit(accounting(run.summary), resource, classes, use.get("unit", "")))
    return found


def classes(run: Loaded) -> int:
    """How many device classes a run's budgets tell apart."""
    return max((len(limit.classes) for limit in limits(run)), default=1)


def device_class(client: str | int, number: int) -> int:
    return int(client) % number


def shares(run: Loaded, limit: Limit) -> list[tuple[int, dict[str, float]]]:
    """(round, client -> usage / budget) of each round that anyone reported in."""
    found = []
    number = len(limit.classes)
    for record in run.records:
        used = record.get("usage", {}).get(limit.accounting, {})
        ratios = {
            c: u[limit.resource] / limit.classes[device_class(c, number)]
            for c, u in used.items()
            if limit.resource in u
        }
        if ratios:
            found.append((int(record["round"]), ratios))
    return found


def worst(run: Loaded, limit: Limit, which: int | None = None) -> list[tuple[int, float]]:
    """(round, usage / budget of the worst client), of one device class or of all."""
    number = classes(run)
    found = []
    for round, ratios in shares(run, limit):
        own = [x for c, x in ratios.items() if which in (None, device_class(c, number))]
        if own:
            found.append((round, max(own)))
    return found


CLASS_COLUMNS = (
    *("run", "device class", "resource", "accounting", "budget"),
    *(f"last {LAST} rounds", "worst", "rounds over"),
)


def class_rows(runs: Sequence[Loaded]) -> list[list[str]]:
    """Usage over budget of each device class, for runs that have several."""
    rows = []
    for run in runs:
        number = classes(run)
        if number < 2:
            continue
        last = {int(r["round"]) for r in run.records[-LAST:]}
        seed = f" (seed {run.seed})" if sum(r.name == run.name for r in runs) > 1 else ""
        for which in range(number):
            for limit in limits(run):
                course = worst(run, limit, which)
                own = limit._replace(classes=(limit.classes[which],))
                end = [
                    x
                    for round, ratios in shares(run, limit)
                    for c, x in ratios.items()
                    if round in last and device_class(c, number) == which
                ]
                rows.append(
                    [
                        *(run.name + seed, str(which), limit.resource, limit.accounting),
                        own.written(),
                        f"{fmean(end):.2f}" if end else "-",
                        f"{max((x for _, x in course), default=0):.2f}",
                        f"{sum(x > OVER for _, x in course)} of {len(course)}",
                    ]
                )
    return rows
