"""Meters: what a client's work took, read from clocks, the kernel and sensors.

time         seconds, from the job's arrival to the encoded update; the network is not in it
cpu_time     CPU seconds of the process
memory       the most that the process held while it worked, above what it held before its model was
             built: weights, gradients, activations, temporary tensors, fragments; without the pages of
             files, which are the code of libraries as it is first used; Linux only
energy       joules of the processor and its memory, whoever used them meanwhile; Linux with RAPL only
temperature  of the processor when the work was done; Linux with a sensor only

What cannot be read is left out. Nothing here follows from a formula: CPU seconds times a profile's
watts are `estimated`, an accounting of its own. RAPL is read from Linux's powercap files, and the
temperature from the ones that psutil reads too: zeus and codecarbon would add pandas and much else.
"""

import ctypes
import os
import re
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from fedbudget.errors import UserError
from fedbudget.resources.devices import Device, rise
from fedbudget.types import Knobs

STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
_HELD = re.compile(rb"(?:Vm|Rss)(HWM|RSS|File):\s+(\d+) kB")
_ZONES = re.compile(r"package|dram")
"""RAPL's domains that add up: a processor, and memory where it is told apart"""
_PROCESSOR = re.compile(r"cpu|soc|x86_pkg|coretemp|k10temp", re.IGNORECASE)


class Zone(NamedTuple):
    """A RAPL counter of microjoules, which begins again at 0 after `range_uj`."""

    path: Path
    range_uj: int


class Start(NamedTuple):
    """Clocks and counters when work begins."""

    wall_s: float
    cpu_s: float
    energy_uj: tuple[int | None, ...]


@dataclass
class Sensors:
    """What this process can read. Make it before the model: memory is counted from there."""

    baseline: int | None
    """bytes held now, files apart; None where the system does not tell"""
    zones: tuple[Zone, ...] = ()
    thermometer: Path | None = None
    """millidegrees"""
    last: object = None
    """what the last work was; None where something else was done since"""

    @property
    def resources(self) -> tuple[str, ...]:
        """What they give, besides the bytes of frames."""
        return (
            *("time", "cpu_time"),
            *(("memory",) if self.baseline is not None else ()),
            *(("energy",) if self.zones else ()),
            *(("temperature",) if self.thermometer else ()),
        )

    def start(self, work: object = None) -> Start:
        """`work` compares equal where as much memory is needed again: what the last one freed will do
        then; what other work freed would count as this one's, and is given back."""
        if self.baseline is not None:
            if work is None or work != self.last:
                give_back()
            begin_anew()
        self.last = work
        counters = tuple(map(_number, (zone.path for zone in self.zones)))
        return Start(time.perf_counter(), time.process_time(), counters)

    def since(self, start: Start, workers: int = 1) -> dict[str, float]:
        """What has been used, a share of it where several clients were trained at once.

        A temperature is in degrees Celsius: its rise is the profile's to tell.
        """
        wall_s, cpu_s = time.perf_counter() - start.wall_s, time.process_time() - start.cpu_s
        found = {"time": wall_s, "cpu_time": cpu_s}
        if self.baseline is not None:
            now = held()
            found["memory"] = float(max(0, now["HWM"] - now["File"] - self.baseline))
        if self.zones and (joules := self._joules(start)) is not None:
            found["energy"] = joules
        found = {resource: amount / workers for resource, amount in found.items()}
        if self.thermometer and (millidegrees := _number(self.thermometer)) is not None:
            found["temperature"] = 1e-3 * millidegrees
        return found

    def _joules(self, start: Start) -> float | None:
        total = 0
        for zone, before in zip(self.zones, start.energy_uj, strict=True):
            now = _number(zone.path)
            if now is None or before is None:
                return None
            total += (now - before) % zone.range_uj
        return 1e-6 * total


def sensors(cpu: bool = True, system: Path = Path("/sys/class")) -> Sensors:
    """Those of this machine; of work on an accelerator only the clocks tell the whole."""
    if not cpu:
        return Sensors(None)
    return Sensors(_baseline(), _zones(system / "powercap"), _thermometer(system))


def check_budgets(resources: Iterable[str], there: Sensors) -> None:
    """A budget for what nothing measures would never be kept nor broken."""
    known = (*(r for r in there.resources if r != "cpu_time"), "communication", "downlink")
    if odd := [resource for resource in resources if resource not in known]:
        raise UserError(
            f"budget.{odd[0]}: accounting = 'measured', and this machine cannot measure it; it can "
            f"measure {', '.join(known)}"
        )


def same_memory(knobs: Knobs) -> Knobs:
    """Equal for knobs that need as much: a third step takes no more than the second."""
    return replace(knobs, steps=min(2, knobs.steps), accumulate=min(2, knobs.accumulate))


def measured(
    read: Mapping[str, float], up_bytes: int, down_bytes: int, ambient_c: float | None = None
) -> dict[str, float]:
    """As a client reports it: with the bytes of its frames, and heat as a rise above the ambient."""
    bytes_ = {"communication": float(up_bytes), "downlink": float(down_bytes)}
    found = {**_rounded(read), **bytes_}
    if "temperature" in found:
        celsius = found.pop("temperature")
        if ambient_c is not None:
            found["temperature"] = max(0.0, celsius - ambient_c)
    return found


def estimated(read: Mapping[str, float], device: Device) -> dict[str, float]:
    """Energy and heat from the time that the work took and the profile's watts per core."""
    energy = read["cpu_time"] * device.watts_per_core
    seconds = max(read["time"], read["cpu_time"])
    watts = energy / seconds if seconds > 0 else 0.0
    return _rounded({"energy": energy, "temperature": rise(device, watts, seconds)})


def held() -> dict[str, int]:
    """Resident bytes of the process: now (RSS), of files (File), and the most since the peak began anew
    (HWM)."""
    found = _HELD.findall(os.pread(_opened(os.getpid(), STATUS, os.O_RDONLY), 1 << 14, 0))
    return {name.decode(): 1024 * int(kilobytes) for name, kilobytes in found}


def begin_anew() -> None:
    """The peak of what is held: from now on."""
    os.write(_opened(os.getpid(), CLEAR, os.O_WRONLY), b"5")


@lru_cache(maxsize=2)
def _opened(process: int, path: Path, how: int) -> int:
    """A file of the kernel about this process, open for good: to open it takes longer than to read it."""
    return os.open(path, how)


def give_back() -> None:
    """Freed memory, back to the system: it would count as the next client's."""
    if libc := _libc():
        libc.malloc_trim(0)


@lru_cache(maxsize=1)
def _libc() -> Any:
    """glibc, the one with an allocator that can be told; None elsewhere."""
    try:
        libc = ctypes.CDLL(None)
        return libc if hasattr(libc, "malloc_trim") else None
    except (OSError, TypeError):
        return None


def _baseline() -> int | None:
    try:
        give_back()
        begin_anew()
        now = held()
    except OSError:
        return None
    return now["RSS"] - now["File"] if {"RSS", "HWM", "File"} <= set(now) else None


def _zones(folder: Path) -> tuple[Zone, ...]:
    found = []
    for own in sorted(folder.glob("intel-rapl:*")):
        try:
            if _ZONES.match((own / "name").read_text()):
                range_uj = int((own / "max_energy_range_uj").read_bytes())
                int(
                    (own / "energy_uj").read_bytes()
                )  # for root only, unless its owner says otherwise
                found.append(Zone(own / "energy_uj", range_uj))
        except (OSError, ValueError):
            return ()  # without one of them a sum would be too small
    return tuple(found)


def _thermometer(system: Path) -> Path | None:
    """The processor's."""
    zones = [(zone / "type", zone / "temp") for zone in system.glob("thermal/thermal_zone*")]
    chips = [(chip / "name", chip / "temp1_input") for chip in system.glob("hwmon/hwmon*")]
    for name, value in (*sorted(zones), *sorted(chips)):
        with suppress(OSError):
            if _PROCESSOR.search(name.read_text()) and _number(value) is not None:
                return value
    return None


def _number(path: Path) -> int | None:
    """What a file of the kernel says; None where it says nothing, so that no client fails by it."""
    try:
        return int(path.read_bytes())
    except (OSError, ValueError):
        return None


def _rounded(amounts: Mapping[str, float]) -> dict[str, float]:
    """To the digits that mean something: there is a line of them for each client and round."""
    return {resource: float(f"{amount:.5g}") for resource, amount in amounts.items()}
