"""Weights & Biases: its server, or with WANDB_MODE=offline files that `wandb sync` sends later."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedbudget.callbacks import Callback, Facts, Record, Summary
from fedbudget.errors import UserError
from fedbudget.tracking.figures import numbers, words

if TYPE_CHECKING:
    from wandb import Run


def wandb(folder: str | Path = ".", key: str = "", goes_on: bool = False) -> Callback:
    """Needs `fedbudget[wandb]` and, unless WANDB_MODE is offline, an account.

    `key` is the run's id there; with `goes_on` it gets more rounds.
    """
    import wandb as library

    if os.environ.get("WANDB_MODE", "online") == "online":
        try:  # now, because a question would be lost in the live view
            known = library.login()
        except (library.Error, OSError):
            known = False
        if not known:
            raise UserError(
                "track = 'wandb': no account is known here; run `wandb login`, "
                "or set WANDB_MODE=offline"
            )
    board = _Board(Path(folder), key, goes_on)
    return Callback(board.start, board.round, board.end, board.close)


class _Board:
    def __init__(self, folder: Path, key: str, goes_on: bool) -> None:
        self.folder, self.key, self.goes_on = folder, key, goes_on
        self.run: Run | None = None
        self.facts: Facts = {}
        self.ended = False

    def start(self, facts: Facts, config: Mapping[str, Any]) -> None:
        import wandb as library

        self.facts = facts
        offline = os.environ.get("WANDB_MODE") == "offline"  # there it has nothing to ask
        self.run = library.init(
            project=os.environ.get("WANDB_PROJECT", "fedbudget"),
            name=str(facts.get("name", "run")),
            id=self.key or None,
            resume="allow" if self.goes_on and not offline else None,
            dir=str(self.folder),
            config=dict(config),
            # what it prints and what it reads of the terminal would spoil the live view
            settings=library.Settings(silent=True, console="off"),
        )

    def round(self, record: Record) -> None:
        assert self.run is not None
        told: dict[str, Any] = {**numbers(record, self.facts.get("budgets", {})), **words(record)}
        self.run.log(told, step=record["round"])

    def end(self, summary: Summary) -> None:
        assert self.run is not None
        self.run.summary.update({"summary": dict(summary)})
        self.ended = True

    def close(self) -> None:
        if self.run is not None:
            self.run.finish(exit_code=0 if self.ended else 1)
