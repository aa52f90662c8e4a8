"""A table that can be written for a terminal, as Markdown and as JSON for the page."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean, stdev
from typing import Any, Self

from rich import box
from rich.cells import cell_len
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
    spare: Sequence[str] = ()
    """columns that a narrow terminal leaves out, the first ones first"""

    def terminal(self, width: int | None = None) -> Table:
        """As wide as it needs to be; within `width`, columns go first, then lines break at words.

        A name or a number is never cut.
        """
        if width is not None and self.spare and not self._fits(width):
            return self._without(width).terminal(width)
        table = Table(
            box=box.SIMPLE_HEAD,
            padding=0,
            title=escape(self.title) or None,
            caption=escape(self.caption),
            caption_justify="left",
        )
        for i, column in enumerate(self.columns):
            words = [word for cell in self._column(i) for word in cell.split()]
            table.add_column(
                escape(column),
                justify="left" if i == 0 else "right",
                no_wrap=i == 0 and (width is None or self._fits(width)),
                overflow="fold",
                min_width=max(map(cell_len, words), default=0),
            )
        for row in self.rows:
            table.add_row(*map(escape, row))
        return table

    def _column(self, i: int) -> list[str]:
        return [self.columns[i], *(row[i] for row in self.rows)]

    def _fits(self, width: int) -> bool:
        """With each row on one line, and a space between columns and at both ends."""
        widest = [max(map(cell_len, self._column(i))) for i in range(len(self.columns))]
        return sum(widest) + len(widest) + 1 <= width

    def _without(self, width: int) -> Self:
        """With as many of the spare columns as there is room for."""
        left_out: list[str] = []
        found = self
        for column in self.spare:
            if found._fits(width):
                break
            if column in self.columns:
                left_out.append(column)
                kept = [i for i, name in enumerate(self.columns) if name not in left_out]
                rows = [[row[i] for i in kept] for row in self.rows]
                found = replace(self, columns=[self.columns[i] for i in kept], rows=rows)
        names = [name for name in self.columns if name in left_out]
        more = f"A wider terminal or --out shows more: {', '.join(names)}."
        return replace(found, caption=f"{self.caption} {more}".strip(), spare=())

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
