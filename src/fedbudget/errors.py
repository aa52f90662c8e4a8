"""The one exception a user's mistake raises: one sentence, exit code 2."""

from collections.abc import Iterator
from contextlib import contextmanager


class UserError(Exception):
    """What was wrong, where, and what would be right."""


class StateLostError(UserError):
    """A client no longer has what it should have kept; the server takes it for a new one."""


@contextmanager
def about(whose: str) -> Iterator[None]:
    """A refusal in here begins with what it is about; "" adds nothing."""
    try:
        yield
    except UserError as error:
        if not whose:
            raise
        raise UserError(f"{whose}: {error}") from None
