"""The processes behind runs: ask one to stop, start one that goes on."""

import os
import signal
import stat
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from fedbudget.dashboard.folders import RefusedError, opened
from fedbudget.dashboard.locks import Holder, can_signal, taken
from fedbudget.errors import UserError

LOG = "resume.log"


@dataclass
class Processes:
    asked: dict[Path, int] = field(default_factory=dict)
    """runs that were asked to stop, and the process that was"""
    started: dict[Path, subprocess.Popen[bytes]] = field(default_factory=dict)
    failed: dict[Path, str] = field(default_factory=dict)
    """why a run did not go on"""

    def stop(self, folder: Path, holder: Holder | None) -> None:
        """SIGINT, as Ctrl-C: the run ends after its round. Only ever once: twice is at once."""
        if holder is None or not holder.pid:
            raise UserError("nothing is running here")
        if self.asked.get(folder) == holder.pid:
            raise UserError("it was asked to stop already; it ends after its round")
        interrupt(holder)
        self.asked[folder] = holder.pid

    def resume(self, folder: Path) -> None:
        """`fedbudget resume` in a session of its own: it outlives the dashboard."""
        if self.alive(folder) or taken(folder / ".lock"):
            raise UserError("it is running already")
        command = [sys.executable, "-m", "fedbudget.cli", "resume", str(folder)]
        log = _log(folder / LOG)
        try:
            self.started[folder] = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        except OSError as error:
            raise UserError(f"the resume cannot be started: {error.strerror}") from None
        finally:
            os.close(log)
        self.asked.pop(folder, None)
        self.failed.pop(folder, None)

    def alive(self, folder: Path) -> bool:
        """A process that was started here is still there; one that has ended is let go."""
        process = self.started.get(folder)
        if process is None:
            return False
        code = process.poll()
        if code is None:
            return True
        del self.started[folder]
        if code not in (0, 130):
            self.failed[folder] = f"the resume ended with code {code}: {_last(folder / LOG)}"
        return False


def interrupt(holder: Holder) -> None:
    """Signal the process that holds a lock, and no other."""
    if not can_signal():
        raise UserError("this system has no locks by which a run's process can be known")
    handle = None
    with suppress(AttributeError, OSError):
        handle = os.pidfd_open(holder.pid)  # the number cannot come to mean another process
    try:
        if not taken(holder.lock):
            raise UserError("nothing is running here: its lock is free")
        if reason := stranger(holder):
            raise UserError(f"process {holder.pid} is not signalled: {reason}")
        if handle is not None:
            signal.pidfd_send_signal(handle, signal.SIGINT)
        else:
            os.kill(holder.pid, signal.SIGINT)
    except OSError as error:
        raise UserError(f"process {holder.pid}: {error.strerror}") from None
    finally:
        if handle is not None:
            os.close(handle)


def stranger(holder: Holder) -> str | None:
    """Why a process is not one of this user's fedbudget commands; None where it is."""
    proc = Path("/proc") / str(holder.pid)
    if proc.is_dir():
        if proc.stat().st_uid != os.getuid():
            return "it belongs to another user"
        words = [os.fsdecode(w) for w in (proc / "cmdline").read_bytes().split(b"\0")]
        if not _holds(proc, holder.lock):
            return "it does not have the lock open"
    else:
        listed = subprocess.run(
            ["ps", "-p", str(holder.pid), "-o", "uid=", "-o", "command="],
            capture_output=True,
            text=True,
            check=False,
        ).stdout.split()
        if not listed:
            return "it is not there"
        if listed[0] != str(os.getuid()):
            return "it belongs to another user"
        words = listed[1:]
    return None if _fedbudget(words) else "it is not the fedbudget command; stop it where it runs"


def _holds(proc: Path, lock: Path) -> bool:
    about = lock.stat()
    for file in (proc / "fd").iterdir():
        with suppress(OSError):
            if os.path.samestat(file.stat(), about):
                return True
    return False


def _fedbudget(words: list[str]) -> bool:
    """`fedbudget ...`, `python .../fedbudget ...` or `python -m fedbudget.cli ...`"""
    script = any(Path(w).name in ("fedbudget", "fedbudget.exe") for w in words[:2])
    return script or any(
        a == "-m" and b in ("fedbudget.cli", "fedbudget") for a, b in pairwise(words)
    )


def _log(path: Path) -> int:
    """Empty and open for writing: no link, and no pipe that would wait for a reader."""
    flags = os.O_WRONLY | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    if path.is_symlink():
        raise UserError(f"{path.name} is a link, and links are not followed: remove it")
    try:
        file = os.open(path, flags, 0o644)
    except OSError as error:
        raise UserError(f"{path.name} cannot be written: {error.strerror}") from None
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise UserError(f"{path.name} is not a file: remove it")
    os.ftruncate(file, 0)
    return file


def _last(log: Path) -> str:
    """The last line of what a process printed."""
    try:
        with os.fdopen(opened(log), "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - 4000))
            lines = file.read(4000).decode(errors="replace").split("\n")
    except (OSError, RefusedError):
        return f"{log.name} cannot be read"
    return next((line.strip()[:300] for line in reversed(lines) if line.strip()), "no output")
