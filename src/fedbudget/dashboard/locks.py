"""Who writes a run: the process that holds the lock of its folder.

Looking must not get in the way. A run that starts takes its lock or gives up, so the lock is tried
only when it is not new, and a lock that nobody holds is tried once.
"""

import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from fedbudget.dashboard.folders import RefusedError, opened

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

NEW_S = 2.0
"""a younger lock is taken for held"""
RECENT_S = 900.0
"""where locks cannot be tried, a run that wrote this recently is taken for running"""


class Holder(NamedTuple):
    pid: int
    """0: not said yet"""
    lock: Path


@dataclass
class Locks:
    free: dict[Path, tuple[int, int]] = field(default_factory=dict)
    """locks that a killed process left: inode and time of change"""

    def holder(self, folder: Path) -> Holder | None:
        lock = folder / ".lock"
        try:
            about = os.lstat(lock)
            with os.fdopen(opened(lock), "rb") as file:
                digits = file.read(20).strip()
        except (OSError, RefusedError):
            return None
        # no system has processes of more digits
        found = Holder(int(digits) if digits.isdigit() and len(digits) < 10 else 0, lock)
        age = time.time() - about.st_mtime
        if fcntl is None:
            return found if age < RECENT_S or _recent(folder) else None
        if 0 <= age < NEW_S:
            return found
        mark = (about.st_ino, about.st_mtime_ns)
        if self.free.get(lock) == mark:
            return None
        if taken(lock):
            return found
        self.free[lock] = mark
        return None


def can_signal() -> bool:
    return fcntl is not None


def taken(lock: Path) -> bool:
    """Another process holds it."""
    if fcntl is None:
        return False
    try:
        file = os.open(lock, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(file)
    return False


def _recent(folder: Path) -> bool:
    try:
        return time.time() - os.lstat(folder / "rounds.jsonl").st_mtime < RECENT_S
    except OSError:
        return False
