"""Run folders below a root: which there are, and by what name a browser may ask for one."""

import os
import stat
from pathlib import Path
from urllib.parse import quote

from fedbudget.errors import UserError

MARKS = frozenset({"rounds.jsonl", "summary.json", "facts.json"})
"""a folder with one of these is a run"""
READ = ("rounds.jsonl", "summary.json", "facts.json", "config.toml")
DEPTH = 6
LARGEST = 4 << 20
"""bytes of a settings file; nothing that a run writes comes near"""

KINDS = {
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFDIR: "a folder",
}

Signature = tuple[tuple[int, int, int], ...]


class RefusedError(Exception):
    """A file that is not read, and why."""


DAMAGE = (
    *(UserError, RefusedError, OSError, RecursionError),
    *(ValueError, LookupError, TypeError, AttributeError, ArithmeticError),
)
"""what a file that was written by something else may lead to"""


def find(root: Path) -> dict[str, Path]:
    """Each run's address and folder. Links to folders are not followed."""
    found: dict[str, Path] = {}
    _walk(root, root, 0, found)
    return dict(sorted(found.items()))


def _walk(root: Path, folder: Path, depth: int, found: dict[str, Path]) -> None:
    below = []
    run = False
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                run = run or entry.name in MARKS
                if not entry.name.startswith(".") and entry.is_dir(follow_symlinks=False):
                    below.append(entry.name)
    except OSError:
        return  # not ours to read; nobody can have asked for it
    if run:
        found[address(root, folder)] = folder
    elif depth < DEPTH:
        for name in below:
            _walk(root, folder / name, depth + 1, found)


def address(root: Path, folder: Path) -> str:
    """The path below the root as a URL has it: plain text whatever bytes a name is made of."""
    return quote(os.fsencode(folder.relative_to(root)), safe="/")


def label(root: Path, folder: Path) -> str:
    """The same for people."""
    below = root.name if folder == root else folder.relative_to(root).as_posix()
    return os.fsencode(below).decode(errors="replace")


def signature(folder: Path) -> Signature:
    """Changes whenever a file that is read here does. Links stand for themselves."""
    base = os.fspath(folder)  # quicker than paths; this is asked every second
    return tuple(_mark(f"{base}{os.sep}{name}") for name in ("", *READ, ".lock"))


def _mark(path: str) -> tuple[int, int, int]:
    try:
        about = os.lstat(path)
    except OSError:
        return (0, 0, 0)
    return (about.st_ino, about.st_mtime_ns, about.st_size)


def refused(folder: Path) -> list[str]:
    """Files of a run that are not read, and why: a link leads elsewhere, a pipe waits for ever."""
    found = []
    for name in READ:
        try:
            kind = stat.S_IFMT(os.lstat(folder / name).st_mode)
        except OSError:
            continue  # none is there; who reads it will say so
        if kind == stat.S_IFLNK:
            found.append(f"{name} is a link, and links are not followed")
        elif kind != stat.S_IFREG:
            found.append(f"{name} is {KINDS.get(kind, 'not a file')}, and only files are read")
    return found


def opened(path: Path) -> int:
    """A regular file, open for reading: no link, and no pipe that would wait for a writer."""
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    if path.is_symlink():
        raise RefusedError(f"{path.name} is a link, and links are not followed")
    try:
        file = os.open(path, flags | getattr(os, "O_BINARY", 0))
    except OSError as error:
        raise RefusedError(f"{path.name}: {error.strerror}") from None
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise RefusedError(f"{path.name} is not a file")
    return file


def text(path: Path) -> str | None:
    """A small file; None where there is none."""
    if not os.path.lexists(path):
        return None
    with os.fdopen(opened(path), "rb") as file:
        body = file.read(LARGEST + 1)
    if len(body) > LARGEST:
        raise RefusedError(f"{path.name} is too large")
    return body.decode(errors="replace")
