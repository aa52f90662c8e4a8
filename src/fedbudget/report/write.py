"""Write a report in the format its file name asks for."""

import io
from collections.abc import Sequence
from pathlib import Path

from fedbudget.errors import UserError
from fedbudget.report.load import Loaded
from fedbudget.runs import write

FORMATS = (".html", ".md", ".png", ".svg", ".pdf")


def write_report(runs: Sequence[Loaded], path: Path) -> None:
    match path.suffix:
        case ".html":
            from fedbudget.report.html import page

            body = page(runs).encode()
        case ".md":
            from fedbudget.report.tables import markdown

            body = markdown(runs).encode()
        case ".png" | ".svg" | ".pdf":
            from fedbudget.report.figures import loss_figure

            buffer = io.BytesIO()
            loss_figure(runs).savefig(buffer, format=path.suffix[1:], dpi=160)
            body = buffer.getvalue()
        case other:
            raise UserError(f"--out {path}: {other!r} is not one of {', '.join(FORMATS)}")
    path.parent.mkdir(parents=True, exist_ok=True)
    write(path, body)
