"""Ctrl-C while modules are imported: some swallow it, others fail of it in ways of their own."""

import signal
import threading
from types import FrameType

_heard = threading.Event()


def listen() -> None:
    """From here on, what is pressed is known whatever becomes of its KeyboardInterrupt."""
    _heard.clear()
    ours = threading.current_thread() is threading.main_thread()
    if ours and signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # it may be ignored
        signal.signal(signal.SIGINT, _hear)


def heard() -> bool:
    return _heard.is_set()


def _hear(number: int, frame: FrameType | None) -> None:
    _heard.set()
    raise KeyboardInterrupt
