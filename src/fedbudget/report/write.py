"""Write a report in the format its file name asks for."""

import io
from collections.abc import Sequence
from pathlib import Path

from fedbudget.errors import UserError
from fedbudget.report.load import Loaded
from fedbudget.report.sheets import Sheet
from fedbudget.runs import write

FORMATS = (".html", ".md", ".png", ".svg", ".pdf")


def write_report(runs: Sequence[Loaded], path: Path, more: Sequence[Sheet] = ()) -> list[Path]:
    """The files it wrote: one page, or the loss as named and each other figure beside it.

    `more` are tables of a protocol, for a page.
    """
    match path.suffix:
        case ".html":
            from fedbudget.report.html import page

            bodies = {path: page(runs, more).encode()}
        case ".md":
            from fedbudget.report.tables import markdown

            text = "\n".join([markdown(runs), *(sheet.markdown() for sheet in more)])
            bodies = {path: text.encode()}
        case ".png" | ".svg" | ".pdf":
            from fedbudget.report.figures import pictures

            bodies = {}
            for picture in pictures(runs):
                buffer = io.BytesIO()
                picture.figure.savefig(buffer, format=path.suffix[1:], dpi=160)
                own = path if picture.name == "loss" else _beside(path, picture.name)
                bodies[own] = buffer.getvalue()
        case other:
            raise UserError(f"--out {path}: {other!r} is not one of {', '.join(FORMATS)}")
    path.parent.mkdir(parents=True, exist_ok=True)
    for own, body in bodies.items():
        write(own, body)
    return list(bodies)


def _beside(path: Path, name: str) -> Path:
    return path.with_stem(f"{path.stem}-{name}")
