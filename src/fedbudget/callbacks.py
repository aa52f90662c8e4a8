"""Callbacks: functions that hear of a run's start, of each round, and of its end."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

Facts = Mapping[str, Any]
"""of facts.json: name, seed, budgets, ...; also `done`, the rounds that were there before"""
Record = Mapping[str, Any]
"""a line of rounds.jsonl"""
Summary = Mapping[str, Any]
"""summary.json"""


def _nothing(*told: Any) -> None:
    pass


class Callback(NamedTuple):
    """What somebody wants to hear of a run; all of it is plain data.

    >>> rounds = []
    >>> Callback(round=rounds.append).round({"round": 1})
    >>> rounds
    [{'round': 1}]
    """

    start: Callable[[Facts, Mapping[str, Any]], None] = _nothing
    """(facts, config), before the first round"""
    round: Callable[[Record], None] = _nothing
    end: Callable[[Summary], None] = _nothing
    """when the run is finished or was asked to stop"""
    close: Callable[[], None] = _nothing
    """last of all, also after an error or a second Ctrl-C"""


@contextmanager
def closing(callbacks: Sequence[Callback]) -> Iterator[None]:
    """Close all of them, whatever happens."""
    try:
        yield
    finally:
        for callback in callbacks:
            callback.close()


def guarded(callback: Callback, name: str, warn: Callable[[str], None]) -> Callback:
    """The same, but an error in it is told once and ends the callback, not the run."""
    working = True

    def safe(call: Callable[..., None]) -> Callable[..., None]:
        def called(*told: Any) -> None:
            nonlocal working
            if not working:
                return
            try:
                call(*told)
            except Exception as error:  # a server that is gone must not end a training of hours
                working = False
                why = str(error).strip().splitlines()[0][:200] if str(error).strip() else ""
                warn(f"{name} failed and is off now: {type(error).__name__}: {why}")
                callback_close()

        return called

    def callback_close() -> None:
        try:
            callback.close()
        except Exception:  # it has failed already, and that was told
            return

    return Callback(
        safe(callback.start), safe(callback.round), safe(callback.end), safe(callback.close)
    )
