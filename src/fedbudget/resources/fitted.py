"""Fitted: time and memory of one model on one machine, as functions of the knobs.

    bytes(k, b)         = v_k + w_k b^q
    seconds(k, s, b, G) = r + f bytes + s (o_k + G (m_k + u_k b^p)) + codec

with a row for each number k of trained layer groups, and one power for all. f: a run touches its
memory for the first time, for which the system takes its time. The coefficients are found by least
squares on relative errors, none below zero; the powers by trying.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedbudget.errors import UserError
from fedbudget.types import Knobs

POWERS = np.linspace(0.5, 1.5, 101)
SAME = 1e-6
"""relative difference of FLOPs that is rounding"""
Vector = NDArray[np.float64]
Columns = tuple[Vector, Vector]
"""(trials, coefficients), and what the coefficients should add up to, (trials,)"""


class Trial(NamedTuple):
    """One local run that was measured."""

    knobs: Knobs
    seconds: float
    bytes: float
    """peak memory; 0 where it is not known"""
    joules: float
    """0 where there is no sensor"""


@dataclass(frozen=True)
class Fitted:
    """For one model; rows have k = 1 first."""

    parameters: tuple[int, ...]
    """that train: which model it is for"""
    flops: tuple[float, ...]
    """of an example"""
    optimizer: str
    run_s: float
    """of a local run, whatever its steps"""
    byte_s: float
    """of a byte of memory, once in a run"""
    step_s: tuple[float, ...]
    """of a step: the optimiser"""
    batch_s: tuple[float, ...]
    """of a micro-batch, whatever its size"""
    example_s: tuple[float, ...]
    """of an example, the first of a micro-batch"""
    time_power: float
    base_bytes: tuple[float, ...]
    """held whatever the batch; () where memory is not measured"""
    example_bytes: tuple[float, ...]
    memory_power: float
    codec_s: Mapping[str, float]
    """seconds a number that is encoded, beyond writing it as it is"""

    def seconds(self, knobs: Knobs, numbers: int) -> float:
        """Of a local run whose update has so many numbers."""
        k = knobs.layers + knobs.above - 1
        batch = self.batch_s[k] + self.example_s[k] * math.pow(knobs.batch, self.time_power)
        step = self.step_s[k] + knobs.accumulate * batch
        codec = self.codec_s.get(knobs.codec, max(self.codec_s.values(), default=0.0))
        once = self.run_s + self.byte_s * (self.bytes(knobs) or 0.0) + numbers * codec
        return once + knobs.steps * step

    def bytes(self, knobs: Knobs) -> float | None:
        if not self.base_bytes:
            return None
        k = knobs.layers + knobs.above - 1
        return self.base_bytes[k] + self.example_bytes[k] * math.pow(knobs.batch, self.memory_power)

    def check(self, parameters: Sequence[int], flops: Sequence[float], optimizer: str) -> None:
        """It tells nothing of other models than the one it was measured with."""
        same = tuple(parameters) == self.parameters and optimizer == self.optimizer
        if not (same and np.allclose(flops, self.flops, rtol=SAME, atol=0)):
            raise UserError(
                f"budget.device: the profile was measured with a model of {self.parameters[-1]:,} "
                f"parameters in {len(self.parameters)} layer groups, {self.flops[-1] / 1e6:.3g} MFLOP "
                f"an example, {self.optimizer}; this one has {parameters[-1]:,} in {len(parameters)}, "
                f"{flops[-1] / 1e6:.3g} MFLOP, {optimizer}: run fedbudget profile with this config"
            )

    def to_table(self) -> dict[str, Any]:
        """As TOML has it."""
        return {key: list(v) if isinstance(v, tuple) else v for key, v in asdict(self).items()}


def fit(
    trials: Sequence[Trial],
    parameters: Sequence[int],
    flops: Sequence[float],
    optimizer: str,
    codec_s: Mapping[str, float],
) -> Fitted:
    """From trials of some numbers of layer groups; those between are interpolated."""
    depth = len(parameters)
    known = sorted({t.knobs.layers for t in trials})
    base: tuple[float, ...] = ()
    slope: tuple[float, ...] = ()
    memory_power = 1.0
    held = [t for t in trials if t.bytes > 0]
    if known == sorted({t.knobs.layers for t in held}):
        memory_power, found = _best_power(held, known, _memory_columns)
        base, slope = (_every(known, found[i::2], depth) for i in range(2))

    def time_columns(trials: Sequence[Trial], known: list[int], power: float) -> Columns:
        held = (base[k - 1] + slope[k - 1] * b**memory_power for k, b in map(_at, trials))
        return _time_columns(trials, known, power, list(held) if base else [0.0] * len(trials))

    time_power, (run_s, byte_s, *rows) = _best_power(trials, known, time_columns)
    step_s, batch_s, example_s = (_every(known, rows[i::3], depth) for i in range(3))
    return Fitted(
        tuple(parameters),
        tuple(flops),
        optimizer,
        run_s,
        byte_s,
        step_s,
        batch_s,
        example_s,
        time_power,
        base,
        slope,
        memory_power,
        dict(codec_s),
    )


def _at(trial: Trial) -> tuple[int, int]:
    return trial.knobs.layers, trial.knobs.batch


def _time_columns(
    trials: Sequence[Trial], known: list[int], power: float, held: Sequence[float]
) -> Columns:
    """(trials, 2 + 3 rows): the run, its bytes; for each k steps, micro-batches, examples to a power."""
    table = np.zeros((len(trials), 2 + 3 * len(known)))
    for row, trial, size in zip(table, trials, held, strict=True):
        knobs, at = trial.knobs, 2 + 3 * known.index(trial.knobs.layers)
        batches = knobs.steps * knobs.accumulate
        row[:2] = 1, size
        row[at : at + 3] = knobs.steps, batches, batches * knobs.batch**power
    return table, np.array([t.seconds for t in trials])


def _memory_columns(trials: Sequence[Trial], known: list[int], power: float) -> Columns:
    table = np.zeros((len(trials), 2 * len(known)))
    for row, trial in zip(table, trials, strict=True):
        at = 2 * known.index(trial.knobs.layers)
        row[at : at + 2] = 1, trial.knobs.batch**power
    return table, np.array([t.bytes for t in trials])


def _best_power(
    trials: Sequence[Trial],
    known: list[int],
    columns: Callable[[Sequence[Trial], list[int], float], Columns],
) -> tuple[float, list[float]]:
    """The power with the least squares of relative errors, and the coefficients there."""
    best: tuple[float, float, list[float]] | None = None
    for power in POWERS:
        table, amounts = columns(trials, known, power)
        relative = table / amounts[:, None]
        found = _not_below_zero(relative)
        error = float(np.square(relative @ found - 1).sum())
        if best is None or error < best[0]:
            best = error, float(power), found.tolist()
    assert best is not None
    return best[1], best[2]


def _not_below_zero(table: Vector) -> Vector:
    """Least squares of table x = 1 with x >= 0: columns that would go below zero are left out."""
    left = list(range(table.shape[1]))
    found = np.zeros(table.shape[1])
    while left:
        some = np.linalg.lstsq(table[:, left], np.ones(len(table)), rcond=None)[0]
        if some.min() >= 0:
            found[left] = some
            break
        left.pop(int(some.argmin()))
    return found


def _every(known: list[int], values: Sequence[float], depth: int) -> tuple[float, ...]:
    """A value for each k."""
    return tuple(np.interp(np.arange(1, depth + 1), known, values).tolist())


def read_fitted(table: Any, where: str) -> Fitted:
    """From a profile's table; UserError where it cannot be one."""
    rows = ("parameters", "flops", "step_s", "batch_s", "example_s", "base_bytes", "example_bytes")
    single = ("run_s", "byte_s", "time_power", "memory_power")
    keys = {*rows, *single, "optimizer", "codec_s"}
    if not isinstance(table, dict) or set(table) != keys:
        raise UserError(f"{where}: fitted must have {', '.join(sorted(keys))} and no more")
    depth = len(table["parameters"]) if isinstance(table["parameters"], list) else 0
    for key in rows:
        row = table[key]
        lengths = {0, depth} if key.endswith("_bytes") else {depth}
        if not isinstance(row, list) or len(row) not in lengths or not all(map(_amount, row)):
            raise UserError(
                f"{where}: fitted.{key} must have a number for each of the {depth} layer groups"
            )
    if bad := next((key for key in single if not _amount(table[key])), None):
        raise UserError(
            f"{where}: fitted.{bad} = {table[bad]!r}: it must be a number, not below zero"
        )
    codecs = table["codec_s"]
    if not isinstance(codecs, dict) or not all(map(_amount, codecs.values())):
        raise UserError(f"{where}: fitted.codec_s has seconds a number for each codec")
    if depth == 0 or len(table["base_bytes"]) != len(table["example_bytes"]):
        raise UserError(f"{where}: fitted has rows of different lengths")
    values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in table.items()}
    return Fitted(**values)


def _amount(value: Any) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and bool(np.isfinite(value)) and value >= 0
