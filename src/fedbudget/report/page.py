"""One self-contained HTML page: a JSON document, and a script that draws it. No network."""

import json
from collections.abc import Sequence
from importlib import resources
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fedbudget.errors import UserError
from fedbudget.report.accountings import accountings_sheet
from fedbudget.report.charts import charts
from fedbudget.report.constrained import constrained_sheet
from fedbudget.report.differences import differences
from fedbudget.report.load import Loaded, told_apart
from fedbudget.report.sheets import Sheet
from fedbudget.report.tables import comparison, device_classes
from fedbudget.report.traffic import failures_sheet
from fedbudget.report.verdict import verdict

POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"
)
"""what the page may load: nothing from anywhere"""

PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<title>fedbudget report</title>
<style>{style}</style>
<script>{plotly}</script>
<script>{script}</script>
</head><body>
<header><h1>fedbudget report</h1><button type="button" data-theme-toggle>theme</button></header>
<main id="report"></main>
<noscript><p>Tables and figures are drawn by JavaScript, which is switched off here.</p></noscript>
<script type="application/json" id="document">{document}</script>
<script>
window.fedbudget.render(
  document.getElementById("report"),
  JSON.parse(document.getElementById("document").textContent));
</script>
</body></html>
"""


def document(runs: Sequence[Loaded], more: Sequence[Sheet] = ()) -> dict[str, Any]:
    """Everything on the page, ready for JSON. `more` are tables of a protocol."""
    runs = told_apart(runs)
    sheets = [comparison(runs), *more, constrained_sheet(runs), device_classes(runs)]
    sheets.append(accountings_sheet(runs))
    return {
        "verdict": verdict(runs),
        "notes": [f"{run.path}: {note}." for run in runs for note in run.notes],
        "sheets": [sheet.to_json() for sheet in sheets if sheet],
        "charts": [chart.to_json() for chart in charts(runs)],
        "failures": _sheet(failures_sheet(runs)),
        "differences": _sheet(differences(runs)),
        "configs": [
            {"folder": str(run.path), "name": run.name, "seed": run.seed, "text": run.config}
            for run in runs
            if run.config
        ],
        "folders": [str(run.path) for run in runs],
    }


def _sheet(sheet: Sheet | None) -> dict[str, Any] | None:
    return sheet.to_json() if sheet else None


def page(runs: Sequence[Loaded], more: Sequence[Sheet] = ()) -> str:
    # a name such as </script> must not end the script
    text = json.dumps(document(runs, more), allow_nan=False, separators=(",", ":"))
    return PAGE.format(
        policy=POLICY,
        style=static("report.css"),
        plotly=plotly(),
        script=static("report.js"),
        document=text.replace("<", "\\u003c"),
    )


def static(name: str) -> str:
    """A file of the page."""
    return (resources.files("fedbudget.report") / "static" / name).read_text(encoding="utf-8")


def plotly() -> str:
    """Plotly's script, from the Python package that carries it; the package is not imported."""
    spec = find_spec("plotly")
    for place in (spec.submodule_search_locations or ()) if spec else ():
        file = Path(place) / "package_data" / "plotly.min.js"
        if file.exists():
            return file.read_text(encoding="utf-8")
    raise UserError(
        "the package plotly is not installed, or without its script: pip install plotly"
    )
