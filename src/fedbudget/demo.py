"""The demo: the same small training without budgets, by the papers' method and by the planner."""

from collections.abc import Sequence
from pathlib import Path

from fedbudget.config import find_config, load
from fedbudget.data.files import UnreachableError, find
from fedbudget.data.sources import SHAKESPEARE
from fedbudget.terminal import say
from fedbudget.training import train

RUNS = {
    "fedavg": ["control.controller=fixed"],
    # as published: its budgets are those of the proxies; a model this small takes less memory than the
    # proxy says of an idle device, so no knob could meet the papers' share of it
    "cafl-l": ["control.controller=cafl-l", "budget.accounting=paper", "budget.memory="],
    # smaller batches than the step size was made for
    "planner": ["control.controller=planner", "train.lr_rule=square-root"],
}
"""name -> what it changes in the preset `demo`"""


def demo(out: Path, changes: Sequence[str]) -> list[Path]:
    """Train all of them; the run folders."""
    settings = load(find_config("demo"), changes)
    if settings.data.source == "tinyshakespeare" and not settings.data.path:
        try:
            find(SHAKESPEARE)
        except UnreachableError:
            say("No network and no Tiny Shakespeare: training on Python's own help texts instead.")
            changes = [*changes, "data.source=topics"]
    for name, own in RUNS.items():
        settings = load(find_config("demo"), [*changes, f"name={name}", *own])
        train(settings, out / name, overwrite=True)
    return [out / name for name in RUNS]
