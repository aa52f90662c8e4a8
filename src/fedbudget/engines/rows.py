"""Rows: what many agents keep from round to round, one array per name, a row per agent."""

import shutil
import tempfile
from collections.abc import Iterator, MutableMapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedbudget.algorithms.algorithm import ClientState
from fedbudget.engines.engine import Versions
from fedbudget.errors import UserError

MAPPED_ABOVE = 256 << 20
"""bytes of an array from which on it lives in a file"""
_SLOTS = 2
"""versions of a client's state: the valid one, and one that the server may not have used"""


class _Entry(NamedTuple):
    slot: int
    names: tuple[str, ...]


class Rows(MutableMapping[int, Versions]):
    """client -> {round: state}, as views into arrays (2, agents, numbers).

    A large array is mapped to a file that has no name, so nothing is left behind, however the
    process ends; rows that no agent has used take no memory.
    """

    def __init__(self, agents: int, mapped_above: int = MAPPED_ABOVE) -> None:
        self.agents, self.mapped_above = agents, mapped_above
        self._arrays: dict[str, npt.NDArray[Any]] = {}
        self._kept: dict[int, dict[int, _Entry]] = {}

    def __getitem__(self, client: int) -> Versions:
        return {
            round: {name: torch.from_numpy(self._arrays[name][slot, client]) for name in names}
            for round, (slot, names) in self._kept[client].items()
        }

    def __setitem__(self, client: int, versions: Versions) -> None:
        if len(versions) > _SLOTS:
            raise ValueError(f"{len(versions)} versions of a client's state; there are {_SLOTS}")
        before = self._kept.get(client, {})
        taken = {round: before[round].slot for round in versions if round in before}
        free = [slot for slot in range(_SLOTS) if slot not in taken.values()]
        entries = {}
        for round, state in versions.items():
            slot = taken[round] if round in taken else free.pop()
            for name, vector in state.items():
                self._array(name, vector)[slot, client] = vector.numpy()
            entries[round] = _Entry(slot, tuple(state))
        self._kept[client] = entries

    def __delitem__(self, client: int) -> None:
        del self._kept[client]

    def __iter__(self) -> Iterator[int]:
        return iter(self._kept)

    def __len__(self) -> int:
        return len(self._kept)

    def names(self, client: int, round: int) -> tuple[str, ...]:
        """The vectors of a version; none where there is no such version."""
        entry = self._kept.get(client, {}).get(round)
        return entry.names if entry else ()

    def gather(self, clients: Sequence[int], rounds: Sequence[int]) -> dict[str, Tensor]:
        """A version of each client's state, (clients, numbers); all must have the same names."""
        names = self.names(clients[0], rounds[0])
        if not names:
            return {}
        slots = [self._kept[c][r].slot for c, r in zip(clients, rounds, strict=True)]
        return {name: torch.from_numpy(self._arrays[name][slots, clients]) for name in names}

    def put(
        self, clients: Sequence[int], valid: Sequence[int], round: int, state: ClientState
    ) -> None:
        """A new version (clients, numbers) for each, beside its valid one."""
        kept: list[dict[int, _Entry]] = []
        for client, good in zip(clients, valid, strict=True):
            entry = self._kept.get(client, {}).get(good)
            kept.append({} if entry is None else {good: entry})
        if state:
            slots = [next((1 - e.slot for e in entries.values()), 0) for entries in kept]
            for name, rows in state.items():
                self._array(name, rows)[slots, clients] = rows.numpy()
            for entries, slot in zip(kept, slots, strict=True):
                entries[round] = _Entry(slot, tuple(state))
        self._kept.update({c: e for c, e in zip(clients, kept, strict=True) if e})

    @property
    def bytes(self) -> int:
        """What the agents' rows take, those in files too."""
        sizes = {name: array[0, 0].nbytes for name, array in self._arrays.items()}
        versions = [entry for entries in self._kept.values() for entry in entries.values()]
        return sum(sizes[name] for entry in versions for name in entry.names)

    @property
    def mapped(self) -> bool:
        """Whether any array lives in a file."""
        return any(isinstance(array, np.memmap) for array in self._arrays.values())

    def _array(self, name: str, like: Tensor) -> npt.NDArray[Any]:
        if name not in self._arrays:
            shape = (_SLOTS, self.agents, like.shape[-1])
            dtype = like.numpy().dtype
            size = int(np.prod(shape)) * dtype.itemsize
            if size <= self.mapped_above:
                self._arrays[name] = np.zeros(shape, dtype)
            else:
                _check_room(size)
                with tempfile.TemporaryFile() as file:
                    self._arrays[name] = np.memmap(file, dtype, "w+", shape=shape)
        return self._arrays[name]


def _check_room(size: int) -> None:
    """A mapped file that does not fit would end the process when its pages are written."""
    folder = tempfile.gettempdir()
    free = shutil.disk_usage(folder).free
    if free < size:
        raise UserError(
            f"the agents' state needs {size / 1e9:.1f} GB of temporary files, and {folder} has "
            f"{free / 1e9:.1f} GB; set TMPDIR to a folder with more"
        )
