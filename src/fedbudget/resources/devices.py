"""Device profiles: the figures that turn counted work into joules, seconds and degrees.

Each figure names its source. "peak" figures are upper bounds from data sheets: joules and seconds
computed with them are lower bounds of what a device really takes, and are called counted, never
measured. A profile can also be a TOML file, such as `fedbudget profile` writes: then time and
memory are those that were measured, as functions of the knobs (`fitted`).
"""

import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from fedbudget.errors import UserError
from fedbudget.resources.fitted import Fitted, read_fitted


@dataclass(frozen=True)
class Device:
    name: str
    flops_per_s: float
    """fp32 operations a second at peak"""
    watts: float
    """power while it trains"""
    watts_per_core: float
    """power of one busy core"""
    memory_bytes_per_s: float
    up_bytes_per_s: float
    down_bytes_per_s: float
    ambient_c: float
    kelvin_per_watt: float
    """steady rise above ambient per watt"""
    time_constant_s: float
    """time to 63% of that rise"""
    sources: Mapping[str, str] = field(default_factory=dict, repr=False, hash=False)
    fitted: Fitted | None = field(default=None, repr=False)
    """time and memory as they were measured, in place of those that follow from the figures"""


def rise(device: Device, watts: float, seconds: float) -> float:
    """Kelvin above ambient after so many seconds at some power, first-order, from cold."""
    return watts * device.kelvin_per_watt * -math.expm1(-seconds / device.time_constant_s)


SMARTWATCH = Device(
    name="smartwatch",
    flops_per_s=54.4e9,
    watts=1.0,
    watts_per_core=0.25,
    memory_bytes_per_s=8.5e9,
    up_bytes_per_s=0.125e6,
    down_bytes_per_s=0.25e6,
    ambient_c=30.0,
    kelvin_per_watt=12.0,
    time_constant_s=150.0,
    sources={
        "flops_per_s": "Snapdragon W5+ Gen 1: 4 Cortex-A53 x 1.7 GHz x 4 lanes x 2 (FMA); peak",
        "watts": "assumed: what a watch's case can give off for minutes",
        "watts_per_core": "assumed: the above over four cores",
        "memory_bytes_per_s": "LPDDR4 at 2,133 MHz on a 16-bit bus; peak",
        "up_bytes_per_s": "assumed: 1 Mbit/s over Bluetooth",
        "down_bytes_per_s": "assumed: 2 Mbit/s over Bluetooth",
        "ambient_c": "assumed: between a room and the skin it lies on",
        "kelvin_per_watt": "assumed: 42 C at 1 W, about the most that skin bears for long",
        "time_constant_s": "assumed",
    },
)
PHONE = Device(
    name="phone",
    flops_per_s=392e9,
    watts=4.0,
    watts_per_core=0.5,
    memory_bytes_per_s=76.8e9,
    up_bytes_per_s=2.5e6,
    down_bytes_per_s=12.5e6,
    ambient_c=25.0,
    kelvin_per_watt=5.0,
    time_constant_s=300.0,
    sources={
        "flops_per_s": "Snapdragon 8 Gen 3: Cortex-X4 3.3 GHz (4 NEON pipes), 3 Cortex-A720 3.2 GHz and "
        "2 at 3.0 GHz (2 pipes), 2 Cortex-A520 2.3 GHz (1), x 4 lanes x 2 (FMA); peak",
        "watts": "assumed: the processor's sustained power in a phone without a fan",
        "watts_per_core": "assumed: the above over eight cores",
        "memory_bytes_per_s": "LPDDR5X at 4,800 MHz on a 64-bit bus; peak",
        "up_bytes_per_s": "assumed: a 20 Mbit/s uplink (LTE)",
        "down_bytes_per_s": "assumed: a 100 Mbit/s downlink",
        "ambient_c": "assumed: a room",
        "kelvin_per_watt": "assumed: a case at 45 C with 4 W",
        "time_constant_s": "assumed",
    },
)
AR_HEADSET = Device(
    name="ar-headset",
    flops_per_s=207e9,
    watts=5.0,
    watts_per_core=0.8,
    memory_bytes_per_s=51.2e9,
    up_bytes_per_s=6.25e6,
    down_bytes_per_s=25e6,
    ambient_c=25.0,
    kelvin_per_watt=4.0,
    time_constant_s=240.0,
    sources={
        "flops_per_s": "Snapdragon XR2 Gen 2: 2 fast and 4 efficient cores; 2.36 and 2.05 GHz and 2 NEON "
        "pipes x 4 lanes x 2 (FMA) for each are assumed; peak",
        "watts": "assumed: the processor's share, displays and cameras apart",
        "watts_per_core": "assumed: the above over six cores, rounded",
        "memory_bytes_per_s": "assumed: LPDDR5-6400 on a 64-bit bus; peak",
        "up_bytes_per_s": "assumed: 50 Mbit/s over Wi-Fi",
        "down_bytes_per_s": "assumed: 200 Mbit/s over Wi-Fi",
        "ambient_c": "assumed: a room",
        "kelvin_per_watt": "assumed: 45 C at 5 W, with a small fan",
        "time_constant_s": "assumed",
    },
)
LAPTOP = Device(
    name="laptop",
    flops_per_s=794e9,
    watts=15.0,
    watts_per_core=5.0,
    memory_bytes_per_s=119.5e9,
    up_bytes_per_s=2.5e6,
    down_bytes_per_s=12.5e6,
    ambient_c=25.0,
    kelvin_per_watt=3.0,
    time_constant_s=120.0,
    sources={
        "flops_per_s": "Core Ultra 7 155U: 2 P-cores 4.8 GHz x 2 pipes x 8 lanes x 2 (FMA), 8 E-cores "
        "3.8 GHz x 2 pipes x 4 lanes x 2; peak, at turbo clocks",
        "watts": "the processor's base power, 15 W",
        "watts_per_core": "assumed: one P-core at its turbo clock",
        "memory_bytes_per_s": "LPDDR5X-7467 on a 128-bit bus; peak",
        "up_bytes_per_s": "assumed: a 20 Mbit/s uplink",
        "down_bytes_per_s": "assumed: a 100 Mbit/s downlink",
        "ambient_c": "assumed: a room",
        "kelvin_per_watt": "assumed: 70 C at 15 W, with its fan",
        "time_constant_s": "assumed",
    },
)
RASPBERRY_PI_5 = Device(
    name="raspberry-pi-5",
    flops_per_s=153.6e9,
    watts=7.0,
    watts_per_core=1.4,
    memory_bytes_per_s=17e9,
    up_bytes_per_s=1.25e6,
    down_bytes_per_s=6.25e6,
    ambient_c=25.0,
    kelvin_per_watt=8.0,
    time_constant_s=120.0,
    sources={
        "flops_per_s": "BCM2712: 4 Cortex-A76 x 2.4 GHz x 2 NEON pipes x 4 lanes x 2 (FMA); peak",
        "watts": "assumed: all four cores busy, board without peripherals",
        "watts_per_core": "assumed: the above without 1.4 W for an idle board, over four cores",
        "memory_bytes_per_s": "LPDDR4X-4267 on a 32-bit bus; peak",
        "up_bytes_per_s": "assumed: a 10 Mbit/s uplink",
        "down_bytes_per_s": "assumed: a 50 Mbit/s downlink",
        "ambient_c": "assumed: a room",
        "kelvin_per_watt": "assumed: bare board, about 81 C at 7 W in a room of 25 C",
        "time_constant_s": "assumed",
    },
)
JETSON_ORIN_NANO = Device(
    name="jetson-orin-nano",
    flops_per_s=1.28e12,
    watts=15.0,
    watts_per_core=1.5,
    memory_bytes_per_s=68e9,
    up_bytes_per_s=1.25e6,
    down_bytes_per_s=6.25e6,
    ambient_c=25.0,
    kelvin_per_watt=2.5,
    time_constant_s=180.0,
    sources={
        "flops_per_s": "1,024 CUDA cores x 625 MHz x 2 (FMA), 8 GB module at 15 W; peak",
        "watts": "the module's 15 W power mode",
        "watts_per_core": "assumed: one of the six Cortex-A78AE, the GPU idle",
        "memory_bytes_per_s": "128-bit LPDDR5, 68 GB/s; peak",
        "up_bytes_per_s": "assumed: a 10 Mbit/s uplink",
        "down_bytes_per_s": "assumed: a 50 Mbit/s downlink",
        "ambient_c": "assumed: a room",
        "kelvin_per_watt": "assumed: the reference heat sink with its fan",
        "time_constant_s": "assumed",
    },
)
DEVICES = {
    d.name: d for d in (SMARTWATCH, PHONE, AR_HEADSET, RASPBERRY_PI_5, JETSON_ORIN_NANO, LAPTOP)
}
FIGURES = tuple(f.name for f in fields(Device) if f.type is float)


def named(name: str) -> Device:
    """A shipped profile, or one in a TOML file."""
    if name.endswith(".toml"):
        return load(Path(name))
    if name not in DEVICES:
        raise UserError(
            f"budget.device = {name!r} is unknown; known are {', '.join(DEVICES)}, or name a TOML file"
        )
    return DEVICES[name]


def load(path: Path) -> Device:
    """A profile from a file; what is wrong with it is one sentence."""
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"budget.device = {str(path)!r}: {error.strerror}") from None
    except ValueError as error:
        raise UserError(f"{path}: not valid TOML: {error}") from None
    known = ("name", *FIGURES, "sources", "fitted")
    if odd := [key for key in table if key not in known]:
        raise UserError(
            f"{path}: {odd[0]!r} is no figure of a device; there are {', '.join(known)}"
        )
    sources = table.get("sources", {})
    if not isinstance(sources, dict) or not all(isinstance(s, str) for s in sources.values()):
        raise UserError(f"{path}: sources has a sentence for each figure")
    if missing := [key for key in FIGURES if key not in sources]:
        raise UserError(f"{path}: sources.{missing[0]} is missing: say where the figure is from")
    name = table.get("name", path.stem)
    if not isinstance(name, str):
        raise UserError(f"{path}: name = {name!r}: it must be text")
    fitted = read_fitted(table["fitted"], str(path)) if "fitted" in table else None
    figures = {key: _figure(table, key, path) for key in FIGURES}
    return Device(name, **figures, sources=sources, fitted=fitted)


def _figure(table: Mapping[str, Any], key: str, path: Path) -> float:
    if key not in table:
        raise UserError(f"{path}: {key} is missing")
    value = table[key]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UserError(f"{path}: {key} = {value!r}: it must be a number")
    link = key in ("up_bytes_per_s", "down_bytes_per_s")  # inf: transfers take no time
    if not (math.isfinite(value) or (link and value == math.inf)) or (
        value <= 0 and key != "ambient_c"
    ):
        raise UserError(f"{path}: {key} = {value}: it must be a finite number above zero")
    return float(value)
