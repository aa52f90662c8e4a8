"""A course: a value by round, and the ends of a band around it."""

from collections.abc import Mapping, Sequence
from statistics import fmean

from fedbudget.report.chart import Line
from fedbudget.report.load import Loaded, by_name

Point = tuple[float, float, float]
"""line, and the band's lower and upper end"""
Course = Mapping[int, Point]


def over_seeds(curves: Sequence[Mapping[int, float]]) -> dict[int, Point]:
    """Mean and range of each round over the seeds that have it.

    >>> over_seeds([{1: 2.0, 2: 1.0}, {1: 4.0}, {}])
    {1: (3.0, 2.0, 4.0), 2: (1.0, 1.0, 1.0)}
    """
    rounds = sorted(set().union(*curves))
    values = {round: [curve[round] for curve in curves if round in curve] for round in rounds}
    return {round: (fmean(x), min(x), max(x)) for round, x in values.items()}


def line(course: Course, name: str, place: int, steps: bool = False) -> Line:
    y, low, high = zip(*course.values(), strict=True) if course else ((), (), ())
    return Line(name, list(course), y, low, high, place, steps)


def by_run(
    runs: Sequence[Loaded], curves: Mapping[str, Sequence[Mapping[int, float]]]
) -> list[Line]:
    """A line for each name that has something to show, in its own place."""
    found = []
    for place, name in enumerate(by_name(runs)):
        course = over_seeds(curves.get(name, ()))
        if course:
            found.append(line(course, name, place))
    return found
