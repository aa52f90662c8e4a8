"""The knobs by round, and which layer groups were trained."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import median_low
from typing import Any, NamedTuple

from fedbudget.report.chart import Chart, Panel, Strip, in_rows
from fedbudget.report.course import line
from fedbudget.report.load import Loaded, by_name
from fedbudget.report.standing import classes, device_class

KNOBS = {
    "layers": ("Layer groups trained", "layer groups"),
    "steps": ("Local steps", "steps"),
    "batch": ("Examples a micro-batch", "examples"),
    "accumulate": ("Micro-batches a step", "micro-batches"),
    "examples": ("Examples a local run", "examples"),
    "codec": ("Codec of the update", "codec"),
}
"""a run's knobs, and what they make together: title, y axis"""


class Kind(NamedTuple):
    """One device class of the runs of one name."""

    label: str
    same: Sequence[Loaded]
    which: int
    number: int

    def knobs(self) -> Iterator[tuple[int, Mapping[str, Any]]]:
        """(round, knobs) of every client of the class that was asked."""
        for run in self.same:
            for record in run.records:
                given: Mapping[str, Any] = record.get("knobs", {})
                for client in record.get("cohort", ()):
                    own = given.get(str(client), given.get("*"))
                    if own is not None and device_class(client, self.number) == self.which:
                        yield int(record["round"]), own


def kinds(runs: Sequence[Loaded]) -> list[Kind]:
    found = []
    for name, same in by_name(runs).items():
        number = classes(same[0])
        for which in range(number):
            label = f"{name}, class {which}" if number > 1 else name
            found.append(Kind(label, same, which, number))
    return found


def knobs_chart(runs: Sequence[Loaded]) -> Chart | None:
    """A panel a knob as steps over rounds: a line a run, or a device class where there are some."""
    courses = [(kind.label, _courses(kind)) for kind in kinds(runs)]
    if not any(course for _, own in courses for course in own.values()):
        return None
    codecs = sorted({c for _, own in courses for p in own["codec"].values() for c in p}, key=bits)
    order = {codec: i for i, codec in enumerate(codecs)}
    panels = []
    for knob, (title, y) in KNOBS.items():
        lines = []
        for place, (label, own) in enumerate(courses):
            course = own[knob]
            if knob == "codec":
                course = {r: tuple(order[c] for c in p) for r, p in course.items()}
            if course:
                lines.append(line(course, label, place, steps=True))
        coded = knob == "codec"
        names = codecs if coded else ()
        panels.append(
            Panel(title, "round", y, lines, zero=not coded, whole=not coded, categories=names)
        )
    text = "Knobs by round: the middle client's; the band is the range over clients and seeds."
    return Chart("knobs", "Knobs", text, in_rows(panels, 2))


def _courses(kind: Kind) -> dict[str, dict[int, Any]]:
    """knob -> round -> the middle client's, the least and the most; codecs by their bits."""
    found: dict[str, dict[int, list[Any]]] = {knob: {} for knob in KNOBS}
    for round, own in kind.knobs():
        for knob, rounds in found.items():
            rounds.setdefault(round, []).append(_value(own, knob))
    return {knob: _middle(rounds, knob) for knob, rounds in found.items()}


def _middle(rounds: Mapping[int, list[Any]], knob: str) -> dict[int, Any]:
    order: Callable[[Any], Any] = bits if knob == "codec" else float
    middle = {}
    for round in sorted(rounds):
        ranked = sorted(rounds[round], key=order)
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
    try:
        number = float(digits) if digits else 1.0
        if share:
            number *= float(share.removeprefix("topk").removesuffix("%")) / 100
    except ValueError:  # a name of someone's own
        number = 1.0
    return number, codec


def layers_chart(runs: Sequence[Loaded]) -> Chart | None:
    """A strip a run or device class: which layer groups trained in which round."""
    panels = []
    for kind in kinds(runs):
        trained: dict[int, list[range]] = {}
        """round -> the groups that each client trained, counted from the top"""
        for round, own in kind.knobs():
            above = int(own.get("above", 0))
            trained.setdefault(round, []).append(range(above, above + int(own["layers"])))
        most = max((own.stop for cohort in trained.values() for own in cohort), default=0)
        names = _groups(kind.same, most)
        if len(names) > 1:
            rounds = sorted(trained)
            shares = [
                [sum(i in own for own in trained[r]) / len(trained[r]) for r in rounds]
                for i in reversed(range(len(names)))
            ]
            panels.append(
                Panel(kind.label, "round", "layer group", strip=Strip(names, rounds, shares))
            )
    if not panels:
        return None
    text = (
        "Layer groups by round, the input's at the bottom: filled where every client that was asked "
        "trained the group, empty where all had it frozen; shades between are shares of them."
    )
    return Chart("layers", "Trained layers", text, in_rows(panels, 2))


def _groups(same: Sequence[Loaded], most: int) -> list[str]:
    """Their names, bottom up; numbers from the top where the run does not say."""
    named = next((list(run.facts["layers"]) for run in same if run.facts.get("layers")), [])
    if len(named) >= most:
        return named
    return [f"{i} from the top" for i in range(most, 1, -1)] + ["top"]
