"""What the step size owes to the knobs: a factor for the samples behind one optimiser step."""

import math
from collections.abc import Callable
from functools import partial

from fedbudget.control.policies import Base, lr_divisor
from fedbudget.types import Knobs

StepRule = Callable[[Knobs], float]


def linear(base: Knobs) -> StepRule:
    """In proportion to the effective batch b G (Goyal et al. 2017)."""
    return partial(_power, base=base, exponent=1.0)


def square_root(base: Knobs) -> StepRule:
    """With the square root of the effective batch, as suits Adam (Malladi et al. 2022)."""
    return partial(_power, base=base, exponent=0.5)


def tokens(base: Knobs) -> StepRule:
    """The CAFL-L authors' code: divided by the local run's tokens over their target, at most 5."""
    return partial(_tokens, target=Base(base.layers, base.steps * base.accumulate, base.batch))


def _power(knobs: Knobs, *, base: Knobs, exponent: float) -> float:
    share = knobs.batch * knobs.accumulate / (base.batch * base.accumulate)
    return math.pow(share, exponent)


def _tokens(knobs: Knobs, *, target: Base) -> float:
    return 1 / lr_divisor(target, knobs)
