"""Where clients compute: on the CPU, or on an accelerator for each worker process."""

import subprocess
import sys
from typing import Any

import torch

from fedbudget.errors import UserError

_TRIAL = """
import time, torch
torch.set_num_threads(1)
a, b = torch.randn(256, 256), torch.randn(256, 256)
x, y = a.bfloat16(), b.bfloat16()
exact = a @ b
error = ((x @ y).float() - exact).norm() / exact.norm()
assert error < 0.02, f"its products are off by {error:.0%}"
def best(p, q):
    took = []
    for _ in range(5):
        started = time.perf_counter()
        p @ q
        took.append(time.perf_counter() - started)
    return min(took)
print(max(best(a, b) / best(x, y) for _ in range(3)))
"""
TRIAL_S = 120


def count(accelerator: str) -> int:
    """How many of them this machine has; 1 for the CPU."""
    return 1 if accelerator == "cpu" else int(torch.get_device_module(accelerator).device_count())


def place(accelerator: str, worker: int = 0) -> torch.device:
    """A worker's own: they share the accelerators evenly."""
    if accelerator == "cpu":
        return torch.device("cpu")
    if not (there := count(accelerator)):
        raise UserError(
            f"accelerator = {accelerator!r}: torch finds none on this machine; take cpu"
        )
    return torch.device(accelerator, worker % there)


def moved(value: Any, device: torch.device) -> Any:
    """A batch on the device, whatever its tensors are nested in."""
    if isinstance(value, torch.Tensor):
        return value.to(device, non_blocking=True)
    if isinstance(value, dict):
        return {key: moved(v, device) for key, v in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(moved(v, device) for v in value)
    return value


def bfloat16_gain(trial: str = _TRIAL) -> float:
    """How much faster than float32 matrix products are in bfloat16, on one core.

    Tried in a process of its own: a CPU may advertise what then ends the process.
    """
    command = [sys.executable, "-c", trial]
    try:
        tried = subprocess.run(command, capture_output=True, text=True, timeout=TRIAL_S)
    except subprocess.TimeoutExpired:
        raise UserError(f"bfloat16 took more than {TRIAL_S} s for a trial; take float32") from None
    if tried.returncode:
        last = tried.stderr.strip().splitlines()[-1:] or [f"it ended with {tried.returncode}"]
        raise UserError(f"bfloat16 does not work on this CPU ({last[0]}); take float32")
    return float(tried.stdout)


def check_precision(precision: str, accelerator: str) -> None:
    """bfloat16 on a CPU only where it works and is faster."""
    if precision == "bfloat16" and accelerator == "cpu" and (gain := bfloat16_gain()) <= 1:
        raise UserError(
            f"train.precision = 'bfloat16': this CPU's products are {gain:.2f} times as fast as in "
            "float32; take float32"
        )
