"""Garbage collection, put off."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Iterator[None]:
    """Imports make no garbage; looking for it takes a fifth of a short command's time.

    What was imported is set aside afterwards too: the search at exit then passes it by.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
