"""Garbage collection, put off."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Iterator[None]:
    """Imports make no garbage; looking for it takes a tenth of a short command's time."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
