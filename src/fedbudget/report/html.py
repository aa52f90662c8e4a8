"""One self-contained HTML page: verdict, tables, figures, configuration."""

import html
import io
import re
from collections.abc import Sequence

import matplotlib
from matplotlib.figure import Figure

from fedbudget.report.figures import pictures
from fedbudget.report.load import Loaded, by_name
from fedbudget.report.sheets import Sheet
from fedbudget.report.standing import budgets
from fedbudget.report.tables import comparison, device_classes

STYLE = """
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 56rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; display: block; overflow-x: auto; }
th, td { padding: .35rem .6rem; border-bottom: 1px solid #8886; text-align: right; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
figure { margin: 1.5rem 0; background: #fff; border-radius: .5rem; padding: .5rem; }
figure svg { width: 100%; height: auto; }
figcaption { color: #333; font-size: .9rem; padding: 0 .5rem; }
.note { font-size: .9rem; opacity: .8; }
pre { overflow-x: auto; font-size: .85rem; }
"""


def page(runs: Sequence[Loaded], more: Sequence[Sheet] = ()) -> str:
    """`more` are tables of a protocol, shown after the comparison."""
    own = device_classes(runs)
    sheets = [comparison(runs), *more, *([own] if own else [])]
    tables = "\n".join(sheet.html() for sheet in sheets)
    figures = "\n".join(
        f"<figure>{_svg(p.figure, p.name)}\n<figcaption>{html.escape(p.caption)}</figcaption></figure>"
        for p in pictures(runs)
    )
    folders = ", ".join(str(r.path) for r in runs)
    configs = "".join(
        f"<details><summary>{html.escape(str(r.path))}</summary>"
        f"<pre>{html.escape(r.config)}</pre></details>"
        for r in runs
    )
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>fedbudget report</title><style>{STYLE}</style></head><body>
<h1>fedbudget report</h1>
<p>{html.escape(verdict(runs))}</p>
{tables}
{figures}
<p class="note">Read from {html.escape(folders)}.</p>
<h2>Configuration</h2>{configs}
</body></html>
"""


def verdict(runs: Sequence[Loaded]) -> str:
    """The result in a sentence."""
    scored = [r for r in runs if "loss" in r.summary["validation"]]
    if not scored:
        return "No run has been evaluated yet."
    best = min(scored, key=lambda r: float(r.summary["validation"]["loss"]))
    lowest = float(best.summary["validation"]["loss"])
    sentences = [f"{best.name} ends lowest, at a validation loss of {lowest:.3f}."]
    for run in scored:
        limits = budgets(run.summary)
        kept = [r for r, use in limits.items() if not use["rounds_over"]]
        if limits:
            loss = float(run.summary["validation"]["loss"])
            seed = f" (seed {run.seed})" if len(scored) > len(by_name(scored)) else ""
            sentences.append(
                f"{run.name}{seed} kept {len(kept)} of {len(limits)} budgets in all "
                f"{run.summary['rounds_done']} rounds, at {loss / lowest - 1:+.1%} loss."
            )
    return " ".join(sentences)


def _svg(figure: Figure, name: str) -> str:
    """Without the XML head; what it refers to inside keeps a name of its own on the page."""
    out = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": name, "svg.fonttype": "none"}):
        figure.savefig(out, format="svg")
    return re.sub(r"^.*?(?=<svg)", "", out.getvalue(), flags=re.DOTALL)
