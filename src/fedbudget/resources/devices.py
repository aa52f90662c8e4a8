"""Device profiles: the figures that turn counted work into joules, seconds and degrees.

Each figure names its source. "peak" figures are upper bounds from data sheets: joules and seconds
computed with them are lower bounds of what a device really takes, and are called counted, never
measured.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from fedbudget.errors import UserError


@dataclass(frozen=True)
class Device:
    name: str
    flops_per_s: float
    """fp32 operations a second at peak"""
    watts: float
    """power while it trains"""
    memory_bytes_per_s: float
    up_bytes_per_s: float
    down_bytes_per_s: float
    ambient_c: float
    kelvin_per_watt: float
    """steady rise above ambient per watt"""
    time_constant_s: float
    """time to 63% of that rise"""
    sources: Mapping[str, str] = field(default_factory=dict, repr=False, hash=False)


RASPBERRY_PI_5 = Device(
    name="raspberry-pi-5",
    flops_per_s=153.6e9,
    watts=7.0,
    memory_bytes_per_s=17e9,
    up_bytes_per_s=1.25e6,
    down_bytes_per_s=6.25e6,
    ambient_c=25.0,
    kelvin_per_watt=8.0,
    time_constant_s=120.0,
    sources={
        "flops_per_s": "BCM2712: 4 Cortex-A76 x 2.4 GHz x 2 NEON pipes x 4 lanes x 2 (FMA); peak",
        "watts": "assumed: all four cores busy, board without peripherals",
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
    memory_bytes_per_s=68e9,
    up_bytes_per_s=1.25e6,
    down_bytes_per_s=6.25e6,
    ambient_c=25.0,
    kelvin_per_watt=2.5,
    time_constant_s=180.0,
    sources={
        "flops_per_s": "1,024 CUDA cores x 625 MHz x 2 (FMA), 8 GB module at 15 W; peak",
        "watts": "the module's 15 W power mode",
        "memory_bytes_per_s": "128-bit LPDDR5, 68 GB/s; peak",
        "up_bytes_per_s": "assumed: a 10 Mbit/s uplink",
        "down_bytes_per_s": "assumed: a 50 Mbit/s downlink",
        "ambient_c": "assumed: a room",
        "kelvin_per_watt": "assumed: the reference heat sink with its fan",
        "time_constant_s": "assumed",
    },
)
DEVICES = {d.name: d for d in (RASPBERRY_PI_5, JETSON_ORIN_NANO)}


def named(name: str) -> Device:
    if name not in DEVICES:
        raise UserError(f"budget.device = {name!r} is unknown; known are {', '.join(DEVICES)}")
    return DEVICES[name]
