"""Policies: knobs from duals, in the papers' terms and then in ours.

k counts unfrozen blocks, s local steps, b the examples of a micro-batch, q the compression level.
A resource that has no dual counts as 0.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import ceil, floor, inf
from typing import NamedTuple

from fedbudget.errors import UserError
from fedbudget.types import Knobs


class Base(NamedTuple):
    """k, s and b: where a policy starts from, and what it gives."""

    k: int
    s: int
    b: int


PRICED = ("communication", "memory", "energy", "temperature")
"""the resources whose duals turn knobs, in both papers"""
ROUNDING = 1e-9
"""far more than a product of floats is off by, far less than the least step of a knob"""
FAR = 1e9
"""a dual that turns every knob as far as it goes"""


class Threshold(NamedTuple):
    """Compress at level q as soon as a resource's dual is above a value."""

    q: int
    resource: str
    above: float


Prices = Mapping[str, float]
"""resource -> lambda"""
Policy = Callable[[Prices, Base], Base]

THRESHOLDS = (
    Threshold(1, "communication", 0.03),
    Threshold(1, "memory", 0.04),
    Threshold(2, "communication", 0.08),
    Threshold(2, "memory", 0.07),
)
"""The authors' code; neither paper gives a rule for q."""

RULES = (
    "communication > 0.03: int8",
    "memory > 0.04: int8",
    "communication > 0.08: eden2",
    "memory > 0.07: eden2",
)
"""the same as a config writes it"""

FLOOR_S, FLOOR_B = 10, 8
"""CAFL-L's least s and b"""
CODECS: Mapping[int, str] = {0: "raw32", 1: "int8", 2: "eden2"}
"""q -> the codec that writes it"""


def cafl_l(
    prices: Prices,
    base: Base,
    *,
    a_k: float | None = None,
    b_s: float = 1.6,
    g_b: float = 8.0,
    s_min: int = FLOOR_S,
    b_min: int = FLOOR_B,
) -> Base:
    """CAFL-L eqs 5-7.

    Its weights are unpublished. The defaults are the factors of the same authors' CAFL (section 5.1)
    without its weights for each resource: a_k = 1.8 k0, b_s = 1.6, g_b = 8.
    """
    communication, memory, energy, temperature = _pressures(prices)
    a_k = 1.8 * base.k if a_k is None else a_k
    return Base(
        max(1, base.k - _floor(a_k * (communication + memory + 0.5 * temperature))),
        max(s_min, _floor(base.s * (1 - b_s * (energy + temperature)))),
        max(b_min, _floor(base.b / (1 + g_b * (temperature + memory)))),
    )


def cafl(prices: Prices, base: Base, *, s_min: int = FLOOR_S, b_min: int = FLOOR_B) -> Base:
    """CAFL eqs 10-12 with the weights of the authors' code; the floors' defaults are CAFL-L's.

    k falls by one as soon as any of its duals is above 0 (eq. 10 rounds up).
    """
    communication, memory, energy, temperature = _pressures(prices)
    depth = 0.8 * communication + 0.8 * memory + 0.4 * temperature
    steps = 0.9 * energy + 1.1 * temperature
    return Base(
        max(1, base.k - ceil(base.k * min(1.0, 1.8 * depth))),
        max(s_min, _floor(base.s * (1 - min(1.6 * steps, 0.9)))),
        max(b_min, _floor(base.b / (1 + 8 * temperature + 6 * memory))),
    )


def _floor(value: float) -> int:
    """Of what is a whole number but for rounding, that number: 180 (1 - 0.9) is 17.999999999999996.

    >>> _floor(180 * (1 - 0.9)), _floor(17.9)
    (18, 17)
    """
    return floor(value + ROUNDING)


def _pressures(prices: Prices) -> tuple[float, float, float, float]:
    c, m, e, t = (prices.get(name, 0.0) for name in PRICED)
    return c, m, e, t


def compression(prices: Prices, thresholds: Sequence[Threshold] = THRESHOLDS) -> int:
    """q: the highest level whose threshold is passed, else 0.

    >>> compression({"communication": 0.05}), compression({"memory": 0.08}), compression({})
    (1, 2, 0)
    """
    return max((t.q for t in thresholds if prices.get(t.resource, 0.0) > t.above), default=0)


def read_rules(rules: Sequence[str], where: str) -> tuple[tuple[Threshold, ...], dict[int, str]]:
    """Thresholds as a config writes them, and the codec of each level; a codec that is named later
    compresses more.

    >>> read_rules(["energy > 0.1: eden1"], "")
    ((Threshold(q=1, resource='energy', above=0.1),), {0: 'raw32', 1: 'eden1'})
    >>> read_rules(RULES, "") == (THRESHOLDS, CODECS)
    True
    """
    found = [re.fullmatch(r"(\w+) *> *(\d*\.?\d+(?:[eE]-?\d+)?) *: *(\S+)", rule) for rule in rules]
    for rule, parts in zip(rules, found, strict=True):
        if parts is None:
            raise UserError(
                f"{where}: {rule!r} is no rule; write a resource, the dual above which it compresses, "
                f"and a codec, such as {RULES[0]!r}"
            )
    parsed = [parts.groups() for parts in found if parts]
    names = [CODECS[0], *dict.fromkeys(codec for _, _, codec in parsed)]
    levels = tuple(Threshold(names.index(c, 1), r, float(above)) for r, above, c in parsed)
    if far := [rule for rule, level in zip(rules, levels, strict=True) if level.above == inf]:
        raise UserError(f"{where}: {far[0]!r}: the dual must be finite")
    return levels, dict(enumerate(names))


def accumulation(target: Base, s: int, b: int) -> int:
    """G = max(1, ceil(s0 b0 / (s b))) micro-batches per step, CAFL-L eq. 8 and CAFL eq. 14.

    >>> accumulation(Base(3, 180, 8), 144, 8)
    2
    """
    return max(1, -(-target.s * target.b // (s * b)))


def token_ratio(target: Base, knobs: Knobs) -> float:
    """Tokens of a local run over its target s0 b0.

    CAFL's lemma 1 has it near 1. Rounding G up makes it anything from 1 to almost 2:

    >>> token_ratio(Base(3, 180, 8), Knobs(layers=2, steps=144, batch=8, accumulate=2))
    1.6
    """
    return knobs.steps * knobs.batch * knobs.accumulate / (target.s * target.b)


def lr_divisor(target: Base, knobs: Knobs) -> float:
    """What the authors' code divides the learning rate by: the token ratio, from 1 to 5."""
    return min(5.0, max(1.0, token_ratio(target, knobs)))


def to_knobs(
    setting: Base,
    q: int,
    target: Base,
    depth: int,
    codecs: Mapping[int, str] = CODECS,
    preserve_tokens: bool = True,
    sparsify: bool = False,
) -> Knobs:
    """The papers' setting as ours. Our top group is norm and head, so layers = k + 1 <= depth."""
    codec = codecs[q]
    return Knobs(
        layers=min(setting.k + 1, depth),
        steps=setting.s,
        batch=setting.b,
        accumulate=accumulation(target, setting.s, setting.b) if preserve_tokens else 1,
        codec=f"topk{sparsity(setting.k)}%+{codec}" if sparsify else codec,
    )


def reachable(
    policy: Policy,
    budgets: Iterable[str],
    base: Base,
    depth: int,
    *,
    thresholds: Sequence[Threshold] = THRESHOLDS,
    codecs: Mapping[int, str] = CODECS,
    preserve_tokens: bool = True,
    sparsify: bool = False,
) -> list[Knobs]:
    """The least that any duals of these budgets can lead to, for each batch and each G.

    Layers and compression go all the way at once. Steps and batch do not: with tokens preserved, fewer
    steps may take more micro-batches. Of the steps with one G the fewest take the least of everything.
    """
    prices = dict.fromkeys(budgets, FAR)
    least, q = policy(prices, base), compression(prices, thresholds)
    found = []
    for b in range(least.b, base.b + 1):
        s = least.s
        while s <= base.s:
            setting = Base(least.k, s, b)
            knobs = to_knobs(setting, q, base, depth, codecs, preserve_tokens, sparsify)
            found.append(knobs)
            if knobs.accumulate == 1:
                break
            s = -(-base.s * base.b // (b * (knobs.accumulate - 1)))
    return found


def sparsity(k: int) -> int:
    """Percentage of the numbers that the authors' code counts as sent."""
    return 80 if k > 2 else 60
