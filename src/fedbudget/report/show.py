"""A report as the command line has it: verdict and tables on the terminal, and all of it as files."""

import sys
from collections.abc import Sequence
from pathlib import Path

from fedbudget.report.accountings import accountings_sheet
from fedbudget.report.load import Loaded, find_runs, told_apart
from fedbudget.report.robustness import robustness_sheet
from fedbudget.report.sheets import Sheet
from fedbudget.report.tables import comparison, device_classes
from fedbudget.report.target import default_target, target_sheet
from fedbudget.report.verdict import verdict
from fedbudget.report.write import write_report
from fedbudget.terminal import console, say


def show(
    folders: Sequence[Path],
    out: Path | None,
    target: float | None = None,
    protocol: str = "quality",
    folder: bool = False,
) -> None:
    """`folder`: `out` is one, for the page and every figure in each format."""
    runs = told_apart(find_runs(folders))
    more = []
    if protocol == "target" or target is not None:
        loss, at = default_target(runs) if target is None else (target, None)
        more.append(target_sheet(runs, loss, at))
    if protocol == "robustness":
        more.append(robustness_sheet(runs))
    own = device_classes(runs)
    shown = [comparison(runs), *more, *filter(None, [accountings_sheet(runs)])]
    if own and protocol != "robustness":  # there the table says it already
        shown.append(own)
    files = _written(runs, out, more, protocol, folder) if out is not None else []
    there = console()
    for run in runs:
        for note in run.notes:
            print(f"fedbudget: warning: {run.path}: {note}", file=sys.stderr)
    for line in verdict(runs):
        there.print(line, highlight=False, markup=False, soft_wrap=not there.is_terminal)
    for sheet in shown:
        there.print(sheet.terminal(there.width))
    if files:
        say(f"wrote {', '.join(map(str, files))}")


def _written(
    runs: Sequence[Loaded], out: Path, more: Sequence[Sheet], protocol: str, folder: bool
) -> list[Path]:
    """Before anything is printed: whoever reads that may stop after a line."""
    files = write_report(runs, out, more, folder)
    if protocol != "quality":
        files += write_report(runs, out.with_name(f"{protocol}.md"), more)
    return files
