"""The one exception a user's mistake raises: one sentence, exit code 2."""


class UserError(Exception):
    """What was wrong, where, and what would be right."""


class StateLostError(UserError):
    """A client no longer has what it should have kept; the server takes it for a new one."""
