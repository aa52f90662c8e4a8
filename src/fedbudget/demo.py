"""The demo: the same small training without budgets, by the papers' method and by the planner."""

from collections.abc import Sequence
from pathlib import Path

from fedbudget.build import build
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
    every = {
        out / name: load(find_config("demo"), [*changes, f"name={name}", *own])
        for name, own in RUNS.items()
    }
    for settings in every.values():
        build(settings)  # what is wrong with the last is told before the first one trains
    for folder, settings in every.items():
        train(settings, folder, overwrite=True)
    return list(every)
