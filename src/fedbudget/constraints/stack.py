"""Stack: the sets of many agents as one, for points with a row per agent."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from fedbudget.constraints.constraint import ConstraintSet
from fedbudget.errors import UserError


class _UnlikeError(Exception):
    """These sets cannot be one batched set."""


def stack(sets: Sequence[ConstraintSet]) -> ConstraintSet:
    """Row i of the points (..., m, d) is projected on sets[i]: at once for sets of one kind."""
    if not sets:
        raise UserError("a stack needs at least one set; give one for each agent")
    try:
        together = _merged(list(sets))
    except _UnlikeError:
        project = partial(_row_by_row, sets=tuple(sets))
    else:
        project = partial(_together, set=together, agents=len(sets))
    kinds = ", ".join(dict.fromkeys(set.name for set in sets))
    return ConstraintSet(f"stack of {kinds}", project, all(set.convex for set in sets))


def _merged(values: list[Any]) -> Any:
    """Values that differ only in their tensors' numbers as one value with stacked tensors."""
    first = values[0]
    if any(type(value) is not type(first) for value in values):
        raise _UnlikeError
    if isinstance(first, Tensor):
        if any(value.shape != first.shape for value in values):
            raise _UnlikeError
        return torch.stack(values)
    if isinstance(first, ConstraintSet):
        if not all(value.stackable for value in values):
            raise _UnlikeError
        project = _merged([value.project for value in values])
        return ConstraintSet(first.name, project, first.convex, stackable=True)
    if isinstance(first, partial):
        functions = [(value.func, *value.keywords) for value in values]
        if any(function != functions[0] for function in functions):
            raise _UnlikeError
        keywords = {k: _merged([value.keywords[k] for value in values]) for k in first.keywords}
        return partial(first.func, **keywords)
    if isinstance(first, tuple):
        if any(len(value) != len(first) for value in values):
            raise _UnlikeError
        return tuple(_merged(list(column)) for column in zip(*values, strict=True))
    if any(value != first for value in values):
        raise _UnlikeError
    return first


def _together(x: Tensor, set: ConstraintSet, agents: int) -> Tensor:
    _check(x, agents)
    return set.project(x)


def _row_by_row(x: Tensor, sets: tuple[ConstraintSet, ...]) -> Tensor:
    _check(x, len(sets))
    rows = zip(sets, x.unbind(-2), strict=True)
    return torch.stack([set.project(row) for set, row in rows], -2)


def _check(x: Tensor, agents: int) -> None:
    if x.dim() < 2 or x.shape[-2] != agents:
        raise UserError(
            f"the points have shape {tuple(x.shape)}; a stack of {agents} sets needs "
            f"(..., {agents}, coordinates)"
        )
