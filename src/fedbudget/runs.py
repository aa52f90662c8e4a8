"""The run folder: complete at any moment, whatever kills the run.

config.toml          the whole configuration, resolved
facts.json           what a reader of the records must know, and the settings as they are trained
                     with, written before the first round
rounds.jsonl         a line a round, flushed
checkpoint/          the last two states
model.safetensors    the final model, by the module's own names
summary.json         the result, written when the run stops
clients/             what the nodes of a Flower simulation keep from round to round
"""

import json
import os
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from fedbudget.engines.engine import Versions
from fedbudget.errors import UserError
from fedbudget.files import write
from fedbudget.records import plain, read_records
from fedbudget.rounds import State
from fedbudget.types import Ack, Buffer, RoundRecord

VERSION = 2
KEPT = 2
OUTPUTS = (
    *("model.safetensors", "personal.safetensors"),
    *("facts.json", "summary.json", "rounds.jsonl"),
)
CHECKPOINT = re.compile(r"round-\d{8}\.safetensors", re.ASCII)
KINDS = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
"""what safetensors calls the types that a state may have"""


class Checkpoint(NamedTuple):
    state: State
    clients: Mapping[int, Versions]


@dataclass(frozen=True)
class RunFolder:
    path: Path
    lock: int | None = None
    """of the one process that writes here, an open file; None for readers"""

    @staticmethod
    def create(path: Path, config: str, overwrite: bool = False) -> "RunFolder":
        """A new, empty run folder. An older run in its place is removed only when told.

        The config comes last and goes first: a folder with one is a run that can go on.
        """
        folder = RunFolder(path)
        if found := folder.found():
            if not overwrite:
                run = f"already holds a run; go on with it (fedbudget resume {path}),"
                rest = f"holds {', '.join(found)} but no config.toml, so no run can go on there;"
                raise UserError(
                    f"{path} {run if 'config.toml' in found else rest} choose another --out, or "
                    "add --overwrite"
                )
            with folder.held():
                pass  # a run that is under way is not removed
            for old in (
                folder.config_file,
                *folder.checkpoints(),
                *(path / name for name in OUTPUTS),
                *(path / "clients").glob("*.safetensors"),
            ):
                old.unlink(missing_ok=True)
        try:
            folder.checkpoint_folder.mkdir(parents=True, exist_ok=True)
            folder.rounds_file.touch()
        except OSError as error:
            raise UserError(f"{path}: cannot make the run folder: {error.strerror}") from None
        folder.save_config(config)
        return folder

    def found(self) -> list[str]:
        """What a run here would write over; empty ones are of a run that was never begun."""
        names = ("config.toml", "checkpoint", *OUTPUTS)
        return [name for name in names if _filled(self.path / name)]

    def save_config(self, config: str) -> None:
        self._write(self.config_file, config.encode())

    @contextmanager
    def held(self) -> Iterator["RunFolder"]:
        """The folder for its one writer; a process that dies lets go, whatever kills it."""
        name = self.path / ".lock"
        lock = _locked(name)
        try:
            for part in (*self.path.glob(".*.part"), *self.checkpoint_folder.glob(".*.part")):
                part.unlink()  # of a process that was killed while it wrote
            yield replace(self, lock=lock)
        finally:
            with suppress(OSError):  # Windows keeps the name of an open file
                if _is(lock, name):
                    name.unlink()
            os.close(lock)

    def _check(self) -> None:
        """Still the folder that was locked? One of the same name may be another run's by now."""
        if self.lock is not None and not _is(self.lock, self.path / ".lock"):
            raise UserError(
                f"{self.path}: the folder, or its .lock, was removed while its run went on; it ends"
            )

    def _write(self, file: Path, *body: Buffer) -> None:
        self._check()
        write(file, *body)

    @property
    def config_file(self) -> Path:
        return self.path / "config.toml"

    @property
    def rounds_file(self) -> Path:
        return self.path / "rounds.jsonl"

    @property
    def model_file(self) -> Path:
        return self.path / "model.safetensors"

    @property
    def checkpoint_folder(self) -> Path:
        return self.path / "checkpoint"

    def append(self, record: RoundRecord) -> None:
        line = json.dumps(plain(record.to_json()), allow_nan=False)
        self._check()
        try:
            with self.rounds_file.open("a") as f:
                f.write(line + "\n")
                f.flush()
                os.fsync(f.fileno())  # the checkpoint that follows must not outlive its line
        except OSError as error:
            raise UserError(f"{self.rounds_file}: cannot write: {error.strerror}") from None

    def records(self) -> list[dict[str, Any]]:
        """Rounds so far; a line that was cut off by a crash is left out."""
        return read_records(self.rounds_file)

    def checkpoints(self) -> list[Path]:
        """Newest first; other files beside them are the user's."""
        every = self.checkpoint_folder.glob("round-*.safetensors")
        return sorted((p for p in every if CHECKPOINT.fullmatch(p.name)), reverse=True)

    def save_checkpoint(self, state: State, clients: Mapping[int, Versions]) -> None:
        """The server's state, and what each client keeps for its next round."""
        tensors = {f"server/{name}": t.contiguous() for name, t in state.server.items()}
        for client, versions in clients.items():
            for round, kept in versions.items():
                where = f"client/{client}/{round}"
                tensors |= {f"{where}/{name}": t.contiguous() for name, t in kept.items()}
        meta = {
            "version": VERSION,
            "round": state.round,
            "control": state.control,
            "acks": {client: [ack.round, *ack.counts] for client, ack in state.acks.items()},
            "changed": state.changed,
            "selection": state.selection,
            "world": state.world,
            "crc32": {name: _crc(t) for name, t in tensors.items()},
        }
        text = json.dumps(meta)
        about = {"fedbudget": text, "crc32": str(zlib.crc32(text.encode()))}
        body = pieces(tensors, about)  # clients' states may be larger than the memory
        file = self.checkpoint_folder / f"round-{state.round:08d}.safetensors"
        self._write(file, *body)
        # damaged ones of later rounds do not count: the run has gone back behind them
        for old in [p for p in self.checkpoints() if p.name <= file.name][KEPT:]:
            old.unlink()

    def load_checkpoint(self, warn: Callable[[str], None]) -> Checkpoint | None:
        """The newest state that can be read; `warn` hears of each that cannot. None: no state."""
        paths = self.checkpoints()
        for path in paths:
            try:
                return _read_state(path)
            except (SafetensorError, OSError, ValueError, LookupError, TypeError) as error:
                why = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
                then = "; taking the one before" if path != paths[-1] else ""
                warn(f"{path} cannot be used ({why}){then}")
        if paths:
            raise UserError(
                f"{self.path}: no checkpoint can be read; start the run again with --overwrite"
            )
        return None

    def start_again(self, checkpoint_every: int, warn: Callable[[str], None]) -> None:
        """A run without a checkpoint begins anew, but only where there cannot have been one."""
        done = len(self.records())
        if done > checkpoint_every:
            raise UserError(
                f"{self.checkpoint_folder}: no checkpoint is here, but {self.rounds_file.name} has "
                f"{done} rounds; put the folder back, or start the run again with --overwrite"
            )
        if done:
            warn(f"{self.path} was stopped before its first checkpoint; it begins at round 1 again")
        self.checkpoint_folder.mkdir(exist_ok=True)
        self.cut_back(0)

    def cut_back(self, round: int) -> None:
        """Forget rounds after a checkpoint's: they will be run again."""
        kept = [r for r in self.records() if r["round"] <= round]
        if [r["round"] for r in kept] != list(range(1, round + 1)):
            raise UserError(
                f"{self.rounds_file}: the checkpoint is of round {round}, but {len(kept)} of its "
                "rounds are here; put the file back, or start the run again"
            )
        self._write(self.rounds_file, "".join(json.dumps(r) + "\n" for r in kept).encode())

    def save_model(self, tensors: Mapping[str, Tensor]) -> None:
        self._write(self.model_file, save(dict(tensors)))

    def has_model(self) -> bool:
        """Whole, not cut off; its numbers are not looked at."""
        try:
            with safe_open(self.model_file, framework="pt"):
                return True
        except (SafetensorError, OSError):
            return False

    def save_personal(self, models: Iterable[tuple[int, Mapping[str, Tensor]]]) -> None:
        """Each agent's own model, as `agent number/tensor name`."""
        tensors = {f"{agent}/{n}": t.clone() for agent, own in models for n, t in own.items()}
        if not tensors:
            return  # they are on the agents' own disks
        self._write(self.path / "personal.safetensors", save(tensors))

    def save_facts(self, facts: Mapping[str, Any]) -> None:
        """A run that goes on keeps the command it was begun with."""
        kept = {key: told for key, told in self.facts().items() if key == "command"}
        text = json.dumps(plain({**facts, **kept}), indent=2, allow_nan=False)
        self._write(self.path / "facts.json", (text + "\n").encode())

    def facts(self) -> dict[str, Any]:
        """Nothing where they are missing or damaged."""
        try:
            known = json.loads((self.path / "facts.json").read_text())
        except (OSError, ValueError):
            return {}
        return known if isinstance(known, dict) else {}

    def forget_summary(self) -> None:
        """The run is not finished any more."""
        (self.path / "summary.json").unlink(missing_ok=True)

    def save_summary(self, summary: Mapping[str, Any]) -> None:
        text = json.dumps(plain(summary), indent=2, allow_nan=False)
        self._write(self.path / "summary.json", (text + "\n").encode())


def pieces(tensors: Mapping[str, Tensor], about: Mapping[str, str]) -> Iterator[Buffer]:
    """A safetensors file piece by piece, where `save` would copy all of it into one."""
    head: dict[str, Any] = {"__metadata__": dict(about)}
    at = 0
    for name, tensor in tensors.items():
        head[name] = {
            "dtype": KINDS[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [at, at + tensor.nbytes],
        }
        at += tensor.nbytes
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)
    yield len(text).to_bytes(8, "little") + text
    for tensor in tensors.values():
        yield tensor.numpy().reshape(-1).view(np.uint8).data


def _filled(path: Path) -> bool:
    if path.is_dir():
        return any(path.iterdir())
    return path.exists() and path.stat().st_size > 0


def _locked(name: Path) -> int:
    """An open file that is locked and is the one of that name: whoever leaves removes it."""
    while True:
        lock = os.open(name, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            if fcntl is not None:  # systems without such locks go on
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.read(lock, 20).decode(errors="replace").strip()
            os.close(lock)
            raise UserError(
                f"{name.parent}: process {holder or '?'} is writing this run; "
                "stop it first, or choose another --out"
            ) from None
        if _is(lock, name):
            break
        os.close(lock)
    with suppress(OSError):  # the number is for people: a full disk does not matter here
        os.ftruncate(lock, 0)
        os.write(lock, f"{os.getpid()}\n".encode())
    return lock


def _is(lock: int, name: Path) -> bool:
    """Whether an open file is the one of that name."""
    try:
        return os.path.samestat(os.fstat(lock), name.stat())
    except (FileNotFoundError, NotADirectoryError):
        return False


def _read_state(path: Path) -> Checkpoint:
    with safe_open(path, framework="pt") as f:
        about = f.metadata() or {}
        tensors = {name: f.get_tensor(name) for name in f.keys()}  # noqa: SIM118
    text = about.pop("fedbudget", "")
    if not text or set(about) - {"crc32"}:
        raise ValueError("it is not a checkpoint")
    if about and about["crc32"] != str(zlib.crc32(text.encode())):  # older ones have none
        raise ValueError("checksum does not match")
    meta = json.loads(text)
    if meta["version"] != VERSION:
        raise ValueError(f"version {meta['version']}, this is {VERSION}")
    if path.stem != f"round-{meta['round']:08d}":
        raise ValueError(f"it is of round {meta['round']}")
    if {name: _crc(t) for name, t in tensors.items()} != meta["crc32"]:
        raise ValueError("checksum does not match")
    server: dict[str, Tensor] = {}
    clients: dict[int, dict[int, dict[str, Tensor]]] = {}
    for name, tensor in tensors.items():
        match name.split("/"):
            case ["server", inner]:
                server[inner] = tensor
            case ["client", number, round, inner]:
                clients.setdefault(int(number), {}).setdefault(int(round), {})[inner] = tensor
            case _:
                raise ValueError(f"it holds {name!r}, which nothing writes")
    acks = {int(client): Ack(ack[0], tuple(ack[1:])) for client, ack in meta["acks"].items()}
    more = {name: meta[name] for name in ("selection", "world") if name in meta}  # not of old
    state = State(meta["round"], server, meta["control"], acks, tuple(meta["changed"]), **more)
    return Checkpoint(state, clients)


def _crc(tensor: Tensor) -> int:
    return zlib.crc32(tensor.numpy().reshape(-1).view(np.uint8).data)
