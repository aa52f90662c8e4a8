"""The world of a simulated fleet: a clock, and each device's heat, charge and presence.

A device heats while it trains and cools between rounds; above a limit it throttles. Its battery
pays for the work and is charged with the time. All of it follows from counted usage and device
profiles, in the devices' own time: nothing here is measured.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from fedbudget import seeds
from fedbudget.resources.devices import Device
from fedbudget.selection import Candidate
from fedbudget.types import Knobs
from fedbudget.units import show

NOBODY_S = 60.0
"""that a server without a pause waits where it finds nobody to ask"""
WorldState = dict[str, Any]
"""{"clock": seconds, "devices": {client: [rise, charge, when]}}: plain, so a checkpoint can hold it"""


@dataclass(frozen=True)
class Kind:
    """A device class: its profile, and what the profile does not say."""

    device: Device
    forecast: Callable[[Knobs], Mapping[str, float]]
    """counted usage of a round with these knobs"""
    memory: float = math.inf
    """bytes there are; work that needs more fails"""
    battery: float = math.inf
    """joules of a full one"""
    charging: float = 0.0
    """watts, all the time"""
    reserve: float = 0.2
    """share of the battery below which a device is not asked"""
    present: float = 1.0
    """chance that a device can be asked in a round"""
    hot: float = math.inf
    """kelvin above ambient from which it throttles"""
    slow: float = 0.5
    """share of speed and power that is left then"""


class Condition(NamedTuple):
    """How a device is at some moment."""

    rise: float
    """kelvin above ambient"""
    charge: float
    """joules; infinite where there is no battery"""


class Fate(NamedTuple):
    """What becomes of a device that is asked."""

    seconds: float
    """that the server waits for it"""
    after: Condition
    """when it is done"""
    energy: float
    """joules it spends"""
    throttled: bool
    failure: str | None
    """why no reply comes"""


@dataclass(frozen=True)
class World:
    kinds: Sequence[Kind]
    """client i is of kind i modulo their number"""
    deadline: float = math.inf
    """seconds after which the server goes on without those who are not done"""
    pause: float = 0.0
    """seconds between rounds"""

    def init(self) -> WorldState:
        return {"clock": 0.0, "devices": {}}

    def kind(self, client: int) -> Kind:
        return self.kinds[client % len(self.kinds)]

    def condition(self, state: WorldState, client: int) -> Condition:
        """As it is now: cooled, and charged, since its last work."""
        kind = self.kind(client)
        known = state["devices"].get(str(client))
        if known is None:
            return Condition(0.0, kind.battery)
        rise, charge, when = known
        idle = state["clock"] - when
        cooled = rise * math.exp(-idle / kind.device.time_constant_s)
        full = kind.battery if charge is None else min(kind.battery, charge + kind.charging * idle)
        return Condition(cooled, full)

    def present(
        self, state: WorldState, seed: int, round: int, clients: Sequence[int]
    ) -> list[int]:
        """Those that are there and have charge to spare."""
        chances = seeds.rng(seed, round, seeds.SERVER, "presence").random(len(clients))
        found = []
        for client, chance in zip(clients, chances, strict=True):
            kind = self.kind(client)
            if chance < kind.present and self._charged(state, client, kind):
                found.append(client)
        return found

    def _charged(self, state: WorldState, client: int, kind: Kind) -> bool:
        if kind.battery == math.inf or str(client) not in state["devices"]:
            return True
        return self.condition(state, client).charge >= kind.reserve * kind.battery

    def fate(self, state: WorldState, client: int, knobs: Knobs) -> Fate:
        """Of a device with these knobs, as it is now."""
        kind, now = self.kind(client), self.condition(state, client)
        usage = kind.forecast(knobs)
        if usage["memory"] > kind.memory:
            need, there = show(usage["memory"], "memory"), show(kind.memory, "memory")
            return Fate(0.0, now, 0.0, False, f"it needs {need} of memory and has {there}")
        device = kind.device
        link = (
            usage["communication"] / device.up_bytes_per_s
            + usage["downlink"] / device.down_bytes_per_s
        )
        busy, throttled = _busy(kind, now.rise, usage["time"] - link)
        seconds, energy = busy + link, usage["energy"]
        failure = None
        if seconds > self.deadline:
            energy *= self.deadline / seconds
            failure = f"it takes {seconds:.3g} s of its time; the deadline is {self.deadline:.3g} s"
            busy, seconds = min(busy, self.deadline), self.deadline
        if energy > now.charge + kind.charging * seconds:
            # what it draws and what is charged are even over its time
            share = now.charge / (energy - kind.charging * seconds)
            failure = "its battery ran empty"
            busy, seconds, energy = share * busy, share * seconds, share * energy
        charge = max(0.0, now.charge + kind.charging * seconds - energy)
        after = Condition(_heated(kind, now.rise, busy), min(kind.battery, charge))
        return Fate(seconds, after, energy, throttled, failure)

    def candidate(self, state: WorldState, known: Candidate, knobs: Knobs) -> Candidate:
        """With what a selection may know of a device that is there."""
        kind, now = self.kind(known.client), self.condition(state, known.client)
        charge = 1.0 if math.isinf(kind.battery) else now.charge / kind.battery
        seconds = self.fate(state, known.client, knobs).seconds
        return known._replace(seconds=seconds, warmth=now.rise / kind.hot, charge=charge)

    def facts(self, state: WorldState, fates: Mapping[int, Fate]) -> dict[str, Any]:
        """For a round's record: the clock when it ends, and how it was for those who were asked."""
        charges = {c: f.after.charge for c, f in fates.items() if not math.isinf(f.after.charge)}
        return {
            "clock_s": state["clock"],
            "seconds": {str(c): fate.seconds for c, fate in fates.items()},
            "rise": {str(c): fate.after.rise for c, fate in fates.items()},
            "charge": {str(c): v / self.kind(c).battery for c, v in charges.items()},
            "wasted_j": sum(fate.energy for fate in fates.values() if fate.failure),
            "throttled": sorted(c for c, fate in fates.items() if fate.throttled),
        }

    def advance(self, state: WorldState, fates: Mapping[int, Fate]) -> WorldState:
        """After a round: the server waited for the slowest, and then for the pause.

        Where nobody could be asked, it looks again after a while: devices charge meanwhile.
        """
        devices = dict(state["devices"])
        for client, fate in fates.items():
            charge = None if math.isinf(fate.after.charge) else fate.after.charge
            devices[str(client)] = [fate.after.rise, charge, state["clock"] + fate.seconds]
        nobody = 0.0 if self.pause else NOBODY_S
        waited = max((fate.seconds for fate in fates.values()), default=nobody)
        return {"clock": state["clock"] + waited + self.pause, "devices": devices}


def _busy(kind: Kind, rise: float, work: float) -> tuple[float, bool]:
    """Seconds that `work` seconds at full speed take a device that starts this warm."""
    until = _until_hot(kind, rise)
    if work <= until:
        return work, False
    return until + (work - until) / kind.slow, True


def _until_hot(kind: Kind, rise: float) -> float:
    """Seconds at full power until it throttles; infinite where it never gets that warm."""
    steady = kind.device.watts * kind.device.kelvin_per_watt
    if rise >= kind.hot:
        return 0.0
    if steady <= kind.hot:
        return math.inf
    return kind.device.time_constant_s * math.log((steady - rise) / (steady - kind.hot))


def _heated(kind: Kind, rise: float, busy: float) -> float:
    """Rise after so many busy seconds: first-order, to the steady one of each power."""
    steady, constant = kind.device.watts * kind.device.kelvin_per_watt, kind.device.time_constant_s
    full = min(busy, _until_hot(kind, rise))
    rise = steady + (rise - steady) * math.exp(-full / constant)
    if busy > full:
        rise = steady * kind.slow + (rise - steady * kind.slow) * math.exp(
            -(busy - full) / constant
        )
    return rise
