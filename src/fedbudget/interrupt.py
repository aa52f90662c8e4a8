"""Ctrl-C while modules are imported: some swallow it, others fail of it in ways of their own."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_heard = threading.Event()


@contextmanager
def listening() -> Iterator[None]:
    """In here, an error that follows a Ctrl-C is a KeyboardInterrupt, whatever it was made into."""
    _heard.clear()
    ours = threading.current_thread() is threading.main_thread()
    if ours and signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # it may be ignored
        signal.signal(signal.SIGINT, _hear)
    try:
        yield
    except Exception:
        if heard():
            raise KeyboardInterrupt from None
        raise


def heard() -> bool:
    return _heard.is_set()


def _hear(number: int, frame: FrameType | None) -> None:
    _heard.set()
    raise KeyboardInterrupt
