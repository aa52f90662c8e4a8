"""Files that are whole or not there."""

import os
from pathlib import Path

from fedbudget.errors import UserError
from fedbudget.types import Buffer


def write(path: Path, *body: Buffer) -> None:
    """One piece after another, whole or not at all: a temporary name, fsync, rename."""
    part = path.with_name(f".{path.name}.part")
    try:
        with part.open("wb") as f:
            for piece in body:
                f.write(piece)
            f.flush()
            os.fsync(f.fileno())
        part.replace(path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise UserError(f"{path}: cannot write: {error.strerror}") from None
