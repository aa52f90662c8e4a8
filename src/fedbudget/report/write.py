"""Write a report in the format its file name asks for."""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedbudget.errors import UserError
from fedbudget.files import write
from fedbudget.report.load import Loaded, told_apart
from fedbudget.report.sheets import Sheet

PICTURES = (".png", ".svg", ".pdf")
FORMATS = (".html", ".md", *PICTURES)


def write_report(
    runs: Sequence[Loaded], path: Path, more: Sequence[Sheet] = (), folder: bool = False
) -> list[Path]:
    """The files it wrote: one page; the loss as named and each other figure beside it; or, into a
    folder, the page and every figure in each format.

    `more` are tables of a protocol, for a page.
    """
    if folder or path.is_dir():
        bodies = {path / "report.html": _page(runs, more)}
        for (name, suffix), body in _pictures(runs, PICTURES).items():
            bodies[path / f"{name}{suffix}"] = body
    elif path.suffix == ".html":
        bodies = {path: _page(runs, more)}
    elif path.suffix == ".md":
        bodies = {path: _markdown(runs, more)}
    elif path.suffix in PICTURES:
        bodies = {
            path if name == "loss" else path.with_stem(f"{path.stem}-{name}"): body
            for (name, _), body in _pictures(runs, [path.suffix]).items()
        }
    else:
        raise UserError(
            f"{path}: {path.suffix!r} is not one of {', '.join(FORMATS)}; a folder's name ends in /"
        )
    for own, body in bodies.items():
        own.parent.mkdir(parents=True, exist_ok=True)
        write(own, body)
    return list(bodies)


def _page(runs: Sequence[Loaded], more: Sequence[Sheet]) -> bytes:
    from fedbudget.report.page import page

    return page(runs, more).encode()


def _markdown(runs: Sequence[Loaded], more: Sequence[Sheet]) -> bytes:
    """The verdict, all tables, and what is wrong with the data."""
    from fedbudget.report.accountings import accountings_sheet
    from fedbudget.report.constrained import constrained_sheet
    from fedbudget.report.differences import differences
    from fedbudget.report.tables import markdown
    from fedbudget.report.traffic import failures_sheet
    from fedbudget.report.verdict import verdict

    runs = told_apart(runs)
    about = (constrained_sheet(runs), accountings_sheet(runs), failures_sheet(runs))
    rest = (*more, *about, differences(runs))
    notes = [f"- {run.path}: {note}\n" for run in runs for note in run.notes]
    told = "".join(f"- {line}\n" for line in verdict(runs))
    tables = [told, markdown(runs), *(sheet.markdown() for sheet in rest if sheet)]
    return "\n".join([*tables, *(["".join(notes)] if notes else [])]).encode(errors="replace")


def _pictures(runs: Sequence[Loaded], suffixes: Sequence[str]) -> dict[tuple[str, str], bytes]:
    """(chart, format) -> the file. What it shows and what made the data is in it as well."""
    from fedbudget.report.charts import charts
    from fedbudget.report.figures import drawn, style

    found = {}
    for chart in charts(told_apart(runs)):
        text = " ".join([chart.caption, *(f"Made by: {c}" for c in chart.commands)])
        figure = drawn(chart)
        for suffix in suffixes:
            about = "Subject" if suffix == ".pdf" else "Description"
            metadata: dict[str, Any] = {"Title": chart.title, about: text}
            buffer = io.BytesIO()
            with style():  # letters stay letters in an SVG
                figure.savefig(buffer, format=suffix[1:], dpi=160, metadata=metadata)
            found[chart.name, suffix] = buffer.getvalue()
    return found
