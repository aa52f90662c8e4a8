"""Usage over budget and the duals that answer it, by round."""

from collections.abc import Collection, Sequence
from statistics import fmean

from fedbudget.report.chart import Chart, Line, Panel, far_apart, in_rows
from fedbudget.report.course import Course, Point, line
from fedbudget.report.load import Loaded, by_name
from fedbudget.report.standing import Limit, classes, device_class, limits, worst

RATIO = "usage / budget (1 = the limit)"
DUAL = "dual λ (no unit)"


def usage_chart(runs: Sequence[Loaded]) -> Chart | None:
    """A panel a resource; with device classes a row a run."""
    budgeted = {n: same for n, same in by_name(runs).items() if limits(same[0])}
    if not budgeted:
        return None
    if any(classes(run) > 1 for same in budgeted.values() for run in same):
        every = [_class_row(name, same) for name, same in budgeted.items()]
        rows: list[Sequence[Panel]] = [row for row in every if row]
    else:
        rows = _resource_rows(runs, budgeted)
    if not rows:
        return None
    text = (
        "Usage over budget, the worst client of each round and seed; the line across at 1 is "
        "the budget. Counted and the papers' proxies (paper) are different units."
    )
    return Chart("usage", "Usage over budget", text, rows)


def _resource_rows(
    runs: Sequence[Loaded], budgeted: dict[str, list[Loaded]]
) -> list[Sequence[Panel]]:
    """A row for each accounting, or two panels a row when there is one."""
    places = {name: place for place, name in enumerate(by_name(runs))}
    kinds: dict[str, dict[str, list[tuple[str, Limit]]]] = {}
    for name, same in budgeted.items():
        for limit in limits(same[0]):
            of = kinds.setdefault(limit.accounting, {}).setdefault(limit.resource, [])
            of.append((name, limit))
    rows: list[Sequence[Panel]] = []
    for accounting, resources in kinds.items():
        panels = []
        for resource, known in resources.items():
            amounts = {limit.written() for _, limit in known}
            title = f"{resource}, {accounting}"
            title += f": budget {amounts.pop()}" if len(amounts) == 1 else ""
            lines = [
                line(course, name, places[name])
                for name, limit in known
                if (course := _worst_of(budgeted[name], limit, None))
            ]
            panels += [_ratios(title, lines)] if lines else []
        rows += in_rows(panels, 2 if len(kinds) == 1 else max(1, len(panels)))
    return rows


def _class_row(name: str, same: Sequence[Loaded]) -> list[Panel]:
    """A panel a resource, a line a device class."""
    panels = []
    for limit in limits(same[0]):
        several = len(limit.classes) > 1
        lines = [
            line(course, _class(which, several), which)
            for which in range(len(limit.classes))
            if (course := _worst_of(same, limit, which))
        ]
        title = f"{name}: {limit.resource}, {limit.accounting}: budget {limit.written()}"
        panels += [_ratios(title, lines)] if lines else []
    return panels


def _ratios(title: str, lines: Sequence[Line]) -> Panel:
    """On a log scale where values are far above the limit."""
    high = max((y for line in lines for y in line.y), default=0.0)
    log = high > 4 and far_apart(lines, 1.0)
    return Panel(title, "round", RATIO, lines, limit=1.0, log=log, zero=not log)


def _class(which: int, several: bool) -> str:
    return f"device class {which}" if several else "all"


def _worst_of(same: Sequence[Loaded], limit: Limit, which: int | None) -> Course:
    """By round, over all seeds."""
    found: dict[int, float] = {}
    for run in same:
        for round, ratio in worst(run, limit, which):
            found[round] = max(ratio, found.get(round, 0.0))
    return {round: (x, x, x) for round, x in sorted(found.items())}


def duals_chart(runs: Sequence[Loaded]) -> Chart | None:
    """A panel a run; with device classes a row a run, a panel a resource."""
    known = {n: s for n, s in by_name(runs).items() if any(r.get("duals") for r in s[0].records)}
    if not known:
        return None
    resources = list(dict.fromkeys(r for same in known.values() for r in _resources(same[0])))
    if any(classes(same[0]) > 1 for same in known.values()):
        rows: list[Sequence[Panel]] = [_dual_row(name, same) for name, same in known.items()]
    else:
        panels = []
        for name, same in known.items():
            lines = [
                line(dual_course(same, resource, 0, 1), resource, resources.index(resource))
                for resource in _resources(same[0])
            ]
            panels.append(Panel(name, "round", DUAL, lines, zero=True))
        rows = in_rows(panels, 2)
    text = (
        "Duals that the knobs of each round came from, the mean over the clients; the band is "
        "their range. A dual grows while its resource is over budget."
    )
    return Chart("duals", "Duals", text, rows)


def _dual_row(name: str, same: Sequence[Loaded]) -> list[Panel]:
    number = classes(same[0])
    panels = []
    for resource in _resources(same[0]):
        lines = [
            line(dual_course(same, resource, which, number), _class(which, number > 1), which)
            for which in range(number)
        ]
        panels.append(Panel(f"{name}: {resource}", "round", DUAL, lines, zero=True))
    return panels


def _resources(run: Loaded) -> list[str]:
    names = [r for x in run.records for own in x.get("duals", {}).values() for r in own]
    return list(dict.fromkeys(names))


def _shared(run: Loaded, clients: Collection[str]) -> bool:
    """Whether they have one set of duals: a client's own would be 0 when it is first asked."""
    seen: set[str] = set()
    for record in run.records:
        given = {c: own for c, own in record.get("duals", {}).items() if c in clients}
        first = [any(own.values()) for c, own in given.items() if c not in seen]
        if any(first) and all(own == next(iter(given.values())) for own in given.values()):
            return True
        seen |= {str(client) for client in record["cohort"]}
    return False


def dual_course(same: Sequence[Loaded], resource: str, which: int, number: int) -> dict[int, Point]:
    """By round: mean and range over the class's clients; who sits out keeps its dual, first 0, or has
    that of its class where the class has one.
    """
    found: dict[int, list[float]] = {}
    for run in same:
        everyone = range(int(run.summary.get("clients", 0)) or number)
        now = {c: 0.0 for c in everyone if device_class(c, number) == which}
        shared = _shared(run, set(map(str, now)))
        for record in run.records:
            given = record.get("duals", {})
            if "*" in given:
                now = dict.fromkeys(now, given["*"].get(resource, 0.0))
            asked = {int(c): own.get(resource, 0.0) for c, own in given.items() if c != "*"}
            known = {c: dual for c, dual in asked.items() if c in now}
            if shared and known:
                now = dict.fromkeys(now, next(iter(known.values())))
            now |= known
            found.setdefault(int(record["round"]), []).extend(now.values())
    return {round: (fmean(x), min(x), max(x)) for round, x in sorted(found.items()) if x}
