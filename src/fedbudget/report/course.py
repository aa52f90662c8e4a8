"""The course of a run: usage over budget, duals and knobs by round."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import fmean, median_low
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedbudget.report.figures import STYLES, colour, legend_below, ratio_axis, style, tidy
from fedbudget.report.load import Loaded, by_name
from fedbudget.report.standing import Limit, classes, device_class, limits, worst

KNOBS = {
    "layers": "layer groups trained",
    "steps": "local steps",
    "batch": "examples a micro-batch",
    "accumulate": "micro-batches a step",
    "examples": "examples a local run",
    "codec": "codec of the update",
}
"""a run's knobs, and what they make together"""
Point = tuple[float, float, float]
"""line, and the band's lower and upper end"""


def usage_figure(runs: Sequence[Loaded]) -> Figure | None:
    """Usage over budget, worst client: a panel a resource; with device classes a row a run."""
    budgeted = {n: same for n, same in by_name(runs).items() if limits(same[0])}
    if not budgeted:
        return None
    if any(classes(run) > 1 for same in budgeted.values() for run in same):
        return _by_class(budgeted, _usage_row, "usage / budget")
    kinds: dict[tuple[str, str], dict[str, list[Loaded]]] = {}
    for name, same in budgeted.items():
        for limit in limits(same[0]):
            kinds.setdefault((limit.accounting, limit.resource), {})[name] = same
    accountings = list(dict.fromkeys(a for a, _ in kinds))
    wide = max(sum(a == one for a, _ in kinds) for one in accountings)
    columns = wide if len(accountings) > 1 else min(2, wide)
    height = len(accountings) if len(accountings) > 1 else -(-wide // columns)
    names = list(budgeted)
    with style(9):
        figure, panels = _sheet(height, columns)
        for at, ((accounting, resource), known) in zip(
            _places(kinds, accountings, columns), kinds.items(), strict=True
        ):
            axes = panels[at]
            axes.set_visible(True)
            written = set()
            for name, same in known.items():
                limit = next(x for x in limits(same[0]) if x.resource == resource)
                written.add(limit.written())
                i = names.index(name)
                _line(axes, _worst_of(same, limit, None), name, i)
            amount = f"\nbudget {written.pop()}" if len(written) == 1 else ""
            tidy(axes, "usage / budget", f"{resource}, {accounting}{amount}")
            ratio_axis(axes)
        return _finished(figure)


def _places(
    kinds: Iterable[tuple[str, str]], accountings: Sequence[str], columns: int
) -> list[tuple[int, int]]:
    """(row, column): a row for each accounting, or all in reading order when there is one."""
    found: list[tuple[int, int]] = []
    for accounting, _ in kinds:
        n = sum(1 for known, _ in list(kinds)[: len(found)] if known == accounting)
        row = accountings.index(accounting)
        found.append((row, n) if len(accountings) > 1 else divmod(n, columns))
    return found


def _worst_of(same: Sequence[Loaded], limit: Limit, which: int | None) -> dict[int, Point]:
    """By round, over all seeds."""
    found: dict[int, float] = {}
    for run in same:
        for round, ratio in worst(run, limit, which):
            found[round] = max(ratio, found.get(round, 0.0))
    return {round: (x, x, x) for round, x in sorted(found.items())}


def _usage_row(same: Sequence[Loaded]) -> dict[str, dict[int, dict[int, Point]]]:
    """panel -> device class -> course"""
    return {
        f"{limit.resource}, {limit.accounting}\nbudget {limit.written()}": {
            which: _worst_of(same, limit, which) for which in range(len(limit.classes))
        }
        for limit in limits(same[0])
    }


def duals_figure(runs: Sequence[Loaded]) -> Figure | None:
    """Each resource's dual; with device classes a panel a resource, the classes apart."""
    known = {n: s for n, s in by_name(runs).items() if any(r.get("duals") for r in s[0].records)}
    if not known:
        return None
    if any(classes(same[0]) > 1 for same in known.values()):
        return _by_class(known, _duals_row, "dual λ (no unit)")
    columns = min(2, len(known))
    resources = list(dict.fromkeys(r for same in known.values() for r in _resources(same[0])))
    with style(9):
        figure, panels = _sheet(-(-len(known) // columns), columns, 1.3 if columns == 1 else 1)
        for i, (name, same) in enumerate(known.items()):
            axes = panels[divmod(i, columns)]
            axes.set_visible(True)
            for resource in _resources(same[0]):
                of = _dual_course(same, resource, 0, 1)
                _line(axes, of, resource, resources.index(resource))
            tidy(axes, "dual λ (no unit)", name)
        return _finished(figure)


def _duals_row(same: Sequence[Loaded]) -> dict[str, dict[int, dict[int, Point]]]:
    number = classes(same[0])
    return {
        resource: {which: _dual_course(same, resource, which, number) for which in range(number)}
        for resource in _resources(same[0])
    }


def _resources(run: Loaded) -> list[str]:
    names = [r for x in run.records for own in x.get("duals", {}).values() for r in own]
    return list(dict.fromkeys(names))


def _dual_course(
    same: Sequence[Loaded], resource: str, which: int, number: int
) -> dict[int, Point]:
    """By round: mean and range over the class's clients; who sits out keeps its dual, first 0."""
    found: dict[int, list[float]] = {}
    for run in same:
        everyone = range(int(run.summary.get("clients", 0)) or number)
        now = {c: 0.0 for c in everyone if device_class(c, number) == which}
        for record in run.records:
            given = record.get("duals", {})
            if "*" in given:
                now = dict.fromkeys(now, given["*"].get(resource, 0.0))
            for client in set(map(str, now)) & set(given):
                now[int(client)] = given[client].get(resource, 0.0)
            found.setdefault(int(record["round"]), []).extend(now.values())
    return {round: (fmean(x), min(x), max(x)) for round, x in found.items() if x}


def knobs_figure(runs: Sequence[Loaded]) -> Figure | None:
    """A panel a knob as steps over rounds: a line a run, or a device class where there are some."""
    lines: dict[str, tuple[list[Loaded], int, int]] = {}
    for name, same in by_name(runs).items():
        number = classes(same[0])
        for which in range(number):
            label = f"{name}, class {which}" if number > 1 else name
            lines[label] = (same, which, number)
    coded = {label: {k: _knob_course(*of, knob=k) for k in KNOBS} for label, of in lines.items()}
    if not any(course for knobs in coded.values() for course in knobs.values()):
        return None
    codecs = sorted({c for knobs in coded.values() for p in knobs["codec"].values() for c in p})
    codecs.sort(key=bits)
    with style(9):
        figure, panels = _sheet(3, 2)
        for i, (knob, title) in enumerate(KNOBS.items()):
            axes = panels[divmod(i, 2)]
            axes.set_visible(True)
            for j, (label, knobs) in enumerate(coded.items()):
                course = knobs[knob]
                if knob == "codec":
                    course = {r: tuple(map(codecs.index, p)) for r, p in course.items()}
                _line(axes, course, label, j, steps=True)
            tidy(axes, "", title)
            if knob == "codec":
                axes.set_yticks(range(len(codecs)), codecs)
                axes.set_ylim(-0.5, len(codecs) - 0.5)
            else:
                axes.set_ylim(0, max(axes.get_ylim()[1], 2) * 1.05)
                axes.yaxis.get_major_locator().set_params(integer=True)
        return _finished(figure)


def _knob_course(same: Sequence[Loaded], which: int, number: int, *, knob: str) -> dict[int, Any]:
    """By round: the middle client's, the least and the most; codecs in the order of their bits."""
    found: dict[int, list[Any]] = {}
    order: Callable[[Any], Any] = bits if knob == "codec" else float
    for run in same:
        for record in run.records:
            given: Mapping[str, Any] = record.get("knobs", {})
            for client in record.get("cohort", ()):
                own = given.get(str(client), given.get("*"))
                if own is not None and device_class(client, number) == which:
                    found.setdefault(int(record["round"]), []).append(_value(own, knob))
    middle = {}
    for round, values in found.items():
        ranked = sorted(values, key=order)
        middle[round] = (ranked[median_low(range(len(ranked)))], ranked[0], ranked[-1])
    return middle


def _value(knobs: Mapping[str, Any], name: str) -> Any:
    if name == "examples":
        return knobs["steps"] * knobs["batch"] * knobs["accumulate"]
    return knobs[name]


def bits(codec: str) -> tuple[float, str]:
    """A codec's place among the others: bits a number, as its name has them.

    >>> sorted(["raw32", "eden1.6", "int8", "topk10%", "sign"], key=bits)
    ['sign', 'eden1.6', 'topk10%', 'int8', 'raw32']
    """
    share, plus, inner = codec.rpartition("+")
    if codec.startswith("topk") and not plus:
        share, inner = codec, "raw32"
    digits = inner.lstrip("abcdefghijklmnopqrstuvwxyz")
    number = float(digits) if digits.replace(".", "", 1).isdigit() else 1.0
    if share:
        number *= float(share.removeprefix("topk").removesuffix("%")) / 100
    return number, codec


def _by_class(
    groups: Mapping[str, Sequence[Loaded]],
    row: Callable[[Sequence[Loaded]], dict[str, dict[int, dict[int, Point]]]],
    y: str,
) -> Figure:
    """A row a run, a panel a resource, a colour a device class."""
    rows = {name: row(same) for name, same in groups.items()}
    with style(9):
        figure, panels = _sheet(len(rows), max(map(len, rows.values())), 0.8)
        for i, (name, found) in enumerate(rows.items()):
            for j, (title, courses) in enumerate(found.items()):
                axes = panels[i, j]
                axes.set_visible(True)
                for which, course in courses.items():
                    several = len(courses) > 1
                    _line(axes, course, f"device class {which}" if several else "all", which)
                tidy(axes, y if j == 0 else "", f"{name}: {title}")
                if "budget" in y:
                    ratio_axis(axes)
        return _finished(figure)


def _sheet(rows: int, columns: int, scale: float = 1.0) -> tuple[Figure, Any]:
    """Panels that stay hidden until something is drawn in them."""
    size = (max(6.4, 4.2 * columns * scale), 0.7 + 2.3 * rows)
    figure = Figure(figsize=size, layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False)
    for axes in panels.flat:
        axes.set_visible(False)
    return figure, panels


def _line(axes: Axes, course: Mapping[int, Any], label: str, i: int, steps: bool = False) -> None:
    """A course and its band; a single round is a dot."""
    if not course:
        return
    rounds = list(course)
    line, low, high = np.array([course[r] for r in rounds], dtype=float).T
    look: dict[str, Any] = {
        "color": colour(i),
        "label": label,
        "linestyle": STYLES[i % len(STYLES)],
    }
    if len(rounds) == 1:
        look["marker"] = "o"
    axes.plot(rounds, line, drawstyle="steps-mid" if steps else "default", linewidth=1.6, **look)
    if (high > low).any():
        how: Any = "mid" if steps else None
        axes.fill_between(rounds, low, high, color=colour(i), alpha=0.15, linewidth=0, step=how)


def _finished(figure: Figure) -> Figure:
    shown = [axes for axes in figure.axes if axes.get_visible()]
    for axes in shown:
        axes.set_xlabel("round")
    legend_below(figure)
    return figure
