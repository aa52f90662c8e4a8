"""What clients keep from round to round: in memory up to a limit, the rest in mapped files."""

import tempfile
from collections.abc import Iterator, MutableMapping

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedbudget.engines.engine import Versions

HELD = 1 << 30
"""bytes of state that stay in memory"""
BLOCK = 64 << 20
"""bytes of a mapped file, or a state's where that is larger"""
ALIGNED = 16

Slot = npt.NDArray[np.uint8]


class States(MutableMapping[int, Versions]):
    """client -> {round: state}.

    The files have no name, so nothing is left behind, however the process ends. A state that is
    replaced gives its room to the next one of its size.
    """

    def __init__(self, held: int = HELD) -> None:
        self.held = held
        self.in_memory = 0
        self._kept: dict[int, Versions] = {}
        self._slots: dict[int, Slot] = {}
        """where a tensor begins -> the mapped room it has"""
        self._free: dict[int, list[Slot]] = {}
        """bytes -> room that nothing uses"""
        self._block = np.empty(0, np.uint8)

    def __getitem__(self, client: int) -> Versions:
        return self._kept[client]

    def __setitem__(self, client: int, versions: Versions) -> None:
        before = self._tensors(client)
        kept = {
            round: {
                name: t if t.data_ptr() in before else self._stored(t) for name, t in state.items()
            }
            for round, state in versions.items()
        }
        self._kept[client] = kept
        after = self._tensors(client)
        for at in before.keys() - after.keys():
            self._release(before[at])

    def __delitem__(self, client: int) -> None:
        for tensor in self._tensors(client).values():
            self._release(tensor)
        del self._kept[client]

    def __iter__(self) -> Iterator[int]:
        return iter(self._kept)

    def __len__(self) -> int:
        return len(self._kept)

    def _tensors(self, client: int) -> dict[int, Tensor]:
        """A client's tensors by where they begin."""
        states = self._kept.get(client, {}).values()
        return {t.data_ptr(): t for state in states for t in state.values() if t.nbytes}

    def _stored(self, tensor: Tensor) -> Tensor:
        if self.in_memory + tensor.nbytes <= self.held:
            self.in_memory += tensor.nbytes
            return tensor
        slot = self._room(tensor.nbytes)
        mapped = torch.from_numpy(slot).view(tensor.dtype).view(tensor.shape)
        mapped.copy_(tensor)
        self._slots[mapped.data_ptr()] = slot
        return mapped

    def _release(self, tensor: Tensor) -> None:
        slot = self._slots.pop(tensor.data_ptr(), None)
        if slot is None:
            self.in_memory -= tensor.nbytes
        else:
            self._free.setdefault(len(slot), []).append(slot)

    def _room(self, size: int) -> Slot:
        if free := self._free.get(size):
            return free.pop()
        start = len(self._block) % ALIGNED  # a block's length is a multiple of it
        if len(self._block) - start < size:
            whole = max(BLOCK, size + -size % ALIGNED)
            with tempfile.TemporaryFile() as file:
                self._block = np.memmap(file, np.uint8, "w+", shape=(whole,))
            start = 0
        slot, self._block = self._block[start : start + size], self._block[start + size :]
        return slot
