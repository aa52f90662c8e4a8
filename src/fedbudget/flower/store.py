"""What a client keeps from round to round: in Flower's context, and on the node's own disk.

Flower keeps a context for as long as a run lasts. A run that is resumed is a new one to Flower, so
a node with a folder also writes its state there, under the number of our run.
"""

import os
from collections.abc import Iterator, MutableMapping
from pathlib import Path

from flwr.app import ConfigRecord, Context
from safetensors import SafetensorError

from fedbudget.engines.engine import Versions, pack, unpack

RECORD = "fedbudget-state"


class Shelf(MutableMapping[int, Versions]):
    """Clients' states as files of one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def _file(self, client: int) -> Path:
        return self.folder / f"{client}.safetensors"

    def __getitem__(self, client: int) -> Versions:
        try:
            return unpack(self._file(client).read_bytes())
        except (OSError, SafetensorError, ValueError):
            raise KeyError(client) from None  # as good as lost: the server takes it for a new one

    def __setitem__(self, client: int, versions: Versions) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        part = self._file(client).with_suffix(f".part-{os.getpid()}")
        with part.open("wb") as f:
            f.write(pack(versions))
            f.flush()
            os.fsync(f.fileno())
        part.replace(self._file(client))

    def __delitem__(self, client: int) -> None:
        self._file(client).unlink()

    def __iter__(self) -> Iterator[int]:
        return iter(sorted(int(f.stem) for f in self.folder.glob("*.safetensors")))

    def __len__(self) -> int:
        return sum(1 for _ in self)


def recall(context: Context, shelf: Shelf | None, client: int, round: int) -> Versions:
    """The versions that a client has; from its disk where the context does not know the round."""
    record = context.state.config_records.get(RECORD)
    body = record.get("versions") if record is not None else None
    versions = unpack(body) if isinstance(body, bytes) else {}
    if round and round not in versions and shelf is not None:
        return shelf.get(client, versions)
    return versions


def keep(context: Context, shelf: Shelf | None, client: int, versions: Versions) -> None:
    if not versions:
        return
    context.state[RECORD] = ConfigRecord({"versions": pack(versions)})
    if shelf is not None:
        shelf[client] = versions
