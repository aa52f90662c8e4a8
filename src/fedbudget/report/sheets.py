"""A table that can be written for a terminal, as Markdown and as JSON for the page."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

from rich import box
from rich.markup import escape
from rich.table import Table


def spread(values: Sequence[float], form: str) -> str:
    """Mean, and standard deviation where there are several.

    >>> spread([1.0, 2.0, 3.0], ".1f")
    '2.0 ± 1.0'
    """
    if not values:
        return "-"
    mean = format(fmean(values), form)
    return f"{mean} ± {stdev(values):{form}}" if len(values) > 1 else mean


@dataclass(frozen=True)
class Sheet:
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str = ""
    title: str = ""

    def terminal(self) -> Table:
        table = Table(
            box=box.SIMPLE_HEAD,
            padding=0,
            title=escape(self.title) or None,
            caption=escape(self.caption),
            caption_justify="left",
        )
        for i, column in enumerate(self.columns):
            table.add_column(column, justify="left" if i == 0 else "right")
        for row in self.rows:
            table.add_row(*map(escape, row))
        return table

    def markdown(self) -> str:
        lines = [f"**{self.title}**", ""] if self.title else []
        lines += [_row(self.columns), "|" + "---|" * len(self.columns)]
        lines += [_row(row) for row in self.rows]
        return "\n".join(lines) + (f"\n\n{self.caption}\n" if self.caption else "\n")

    def to_json(self) -> dict[str, Any]:
        return {
            "title": self.title,
            "columns": list(self.columns),
            "rows": [list(row) for row in self.rows],
            "caption": self.caption,
        }


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
