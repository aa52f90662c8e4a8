"""The course of a run so far, from rounds.jsonl: read once, then only what was added."""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from io import BufferedReader
from pathlib import Path
from typing import Any, NamedTuple

from fedbudget.dashboard.folders import opened
from fedbudget.report import sound

Budgets = Mapping[str, Sequence[Mapping[str, float]]]
"""accounting -> a device class each -> resource -> limit, as facts.json has them"""

SAMPLES = 24
"""lines that are enough for the picture of a run which has a summary"""
POINTS = 240
TAIL = 1 << 13
OVER = 1 + 1e-9
LONGEST = 18
"""digits of a client"""


class Standing(NamedTuple):
    """A budget so far."""

    worst: float
    """the largest share of it that any client used in any round"""
    over: int
    """rounds in which a client was over it"""


@dataclass(frozen=True)
class Course:
    file: int = 0
    """inode: a run that goes on may replace the file"""
    offset: int = 0
    """where the next unread line begins"""
    round: int = 0
    points: tuple[tuple[int, float], ...] = ()
    """(round, validation loss)"""
    standing: Mapping[str, Standing] = field(default_factory=dict)
    wall_s: float = 0.0
    whole: bool = False
    """every line was read"""
    damaged: int = 0
    cut: bool = False
    """the last line has no end"""
    lost: int = 0
    """the last round whose loss is not a number"""


def read(path: Path, before: Course, whole: bool, budgets: Budgets) -> Course:
    """The course, given what was read before; not `whole`: a sample of lines and the last ones."""
    with os.fdopen(opened(path), "rb") as file:
        about = os.fstat(file.fileno())
        again = about.st_ino != before.file or about.st_size < before.offset
        if again or (whole and not before.whole):
            before = Course(file=about.st_ino, whole=whole or about.st_size <= TAIL)
            if not before.whole:
                for line in _sample(file, about.st_size):
                    before = _add(before, line, {})
                before = replace(before, offset=_tail(file, about.st_size))
        file.seek(before.offset)
        rest = file.read()
    end = rest.rfind(b"\n") + 1
    known = 0 if before.whole else before.round
    for line in rest[:end].splitlines():
        before = _add(before, line, budgets if whole else {}, known)
    return replace(before, offset=before.offset + end, cut=bool(rest[end:].strip()))


def _sample(file: BufferedReader, size: int) -> Iterator[bytes]:
    """Lines that stand about evenly in the file, each once."""
    last = -1
    for i in range(SAMPLES):
        at = i * (size - TAIL) // SAMPLES
        if at <= last:
            continue
        file.seek(at)
        if at:
            file.readline()  # from the middle of a line to its end
        if file.tell() <= last:
            continue
        line = file.readline()
        last = file.tell() - 1
        if last < size - TAIL:
            yield line


def _tail(file: BufferedReader, size: int) -> int:
    """Where the last whole lines begin: about TAIL bytes from the end, more where lines are long."""
    length = TAIL
    while length < size:
        file.seek(size - length)
        block = file.read(length)
        begin = block.find(b"\n") + 1
        if 0 < begin < block.rfind(b"\n") + 1:
            return size - length + begin
        length *= 4
    return 0


def _add(course: Course, line: bytes, budgets: Budgets, known: int = 0) -> Course:
    """With one more line; rounds up to `known` were seen already."""
    try:
        record = json.loads(line)
        number = record["round"]
        if not sound.count(number) or isinstance(number, bool):
            raise ValueError
    except (ValueError, LookupError, TypeError, RecursionError):
        return replace(course, damaged=course.damaged + bool(line.strip()))
    if number <= known:
        return course
    points, lost = course.points, course.lost
    validation = record.get("validation")
    if isinstance(validation, dict):
        loss = _number(validation.get("loss"))
        if loss is not None:
            if len(points) >= POINTS:
                points = points[::2]
            points = (*points, (number, loss))
        elif "loss" in validation:
            lost = number
    return replace(
        course,
        round=number,
        points=points,
        lost=lost,
        wall_s=course.wall_s + (_number(record.get("wall_s")) or 0.0),
        standing=_stand(course.standing, record.get("usage"), budgets),
    )


def _stand(before: Mapping[str, Standing], usage: Any, budgets: Budgets) -> Mapping[str, Standing]:
    """Budgets after a round. Client i is of device class i modulo their number."""
    found = dict(before)
    for accounting, classes in budgets.items():
        clients = usage.get(accounting) if isinstance(usage, dict) else None
        if not isinstance(clients, dict):
            continue
        for resource in classes[0]:
            title = named(resource, accounting)
            shares = [
                used / limit
                for client, each in clients.items()
                if isinstance(each, dict)
                and (used := _number(each.get(resource))) is not None
                and client.isdecimal()
                and len(client) <= LONGEST
                and (limit := classes[int(client) % len(classes)].get(resource))
            ]
            if shares:
                worst, over = found.get(title, Standing(0.0, 0))
                most = max(shares)
                found[title] = Standing(max(worst, most), over + (most > OVER))
    return found


def named(resource: str, accounting: str) -> str:
    """A budget as people tell it; those of the papers' proxies are another thing."""
    return resource if accounting == "counted" else f"{resource} ({accounting})"


def _number(value: Any) -> float | None:
    return float(value) if sound.number(value) else None
