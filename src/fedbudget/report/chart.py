"""A chart as a value: matplotlib draws it for papers (`figures`), a script on the page."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Line:
    """A course; `low` and `high` are the ends of a band around it, or empty."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] = ()
    high: Sequence[float] = ()
    place: int = 0
    """its colour and dashes; the same run has the same place in every chart"""
    steps: bool = False
    points: bool = False
    """values that have nothing to do with their neighbours; the band is a bar at each"""

    def to_json(self) -> dict[str, Any]:
        band = {"low": _numbers(self.low), "high": _numbers(self.high)} if self.banded else {}
        own = {"name": self.name, "place": self.place, "steps": self.steps}
        own |= {"points": True} if self.points else {}
        return {**own, "x": _numbers(self.x), "y": _numbers(self.y), **band}

    @property
    def banded(self) -> bool:
        return any(low < high for low, high in zip(self.low, self.high, strict=True))


@dataclass(frozen=True)
class Strip:
    """Shares from 0 to 1 by row and round, drawn as shades."""

    rows: Sequence[str]
    """bottom up"""
    x: Sequence[int]
    shares: Sequence[Sequence[float]]
    """(rows, rounds)"""

    def to_json(self) -> dict[str, Any]:
        shares = [_numbers(row) for row in self.shares]
        return {"rows": list(self.rows), "x": list(self.x), "shares": shares}


@dataclass(frozen=True)
class Panel:
    """One pair of axes; each says its unit."""

    title: str
    x: str
    y: str
    lines: Sequence[Line] = ()
    limit: float | None = None
    """a horizontal line that should not be crossed"""
    log: bool = False
    zero: bool = False
    """the y axis begins at 0"""
    whole: bool = False
    """y counts things"""
    categories: Sequence[str] = ()
    """names of y = 0, 1, ..."""
    strip: Strip | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            "title": self.title,
            "x": self.x,
            "y": self.y,
            "limit": self.limit,
            "log": self.log,
            "zero": self.zero,
            "whole": self.whole,
            "categories": list(self.categories),
            "lines": [line.to_json() for line in self.lines],
            "strip": self.strip.to_json() if self.strip else None,
        }


@dataclass(frozen=True)
class Chart:
    name: str
    """part of a file's name"""
    title: str
    caption: str
    rows: Sequence[Sequence[Panel]]
    """as they are printed; a page lets them flow"""
    commands: Sequence[str] = ()
    """what made the data"""

    @property
    def panels(self) -> list[Panel]:
        return [panel for row in self.rows for panel in row]

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "title": self.title,
            "caption": self.caption,
            "commands": list(self.commands),
            "panels": [panel.to_json() for panel in self.panels],
        }


def in_rows(panels: Sequence[Panel], columns: int) -> list[Sequence[Panel]]:
    return [panels[i : i + columns] for i in range(0, len(panels), columns)]


def far_apart(lines: Iterable[Line], factor: float) -> bool:
    """Whether a log scale shows more: all above 0, the largest `factor` times the least."""
    values = [y for line in lines for y in line.y]
    return bool(values) and min(values) > 0 and max(values) > factor * min(values)


def _numbers(values: Sequence[float]) -> list[float | None]:
    """Six digits: more cannot be seen, and the page stays small. JSON has no NaN."""
    return [
        v if isinstance(v, int) else float(f"{v:.6g}") if math.isfinite(v) else None for v in values
    ]
