"""Sets with flat sides: box, non-negative numbers, simplex, half-space, affine subspace."""

from functools import partial

import torch
from torch import Tensor

from fedbudget.constraints.balls import in_blocks, on_simplex
from fedbudget.constraints.constraint import (
    ConstraintSet,
    Numbers,
    check_size,
    checked,
    length,
    numbers,
    per_agent,
    per_coordinate,
    points,
    slack,
    vectors,
    whole,
)
from fedbudget.errors import UserError

_PASSES = 3
"""A huge point leaves a rounding error after one projection; each further one removes it."""


def box(low: Numbers, high: Numbers) -> ConstraintSet:
    """low <= x <= high; each a number, (d,) or (m, d), and infinite where there is no bound."""
    bottom, top = vectors(low, "low"), vectors(high, "high")
    try:
        shape = (bottom > top).shape
    except RuntimeError:
        raise UserError(
            f"low has shape {tuple(bottom.shape)} and high {tuple(top.shape)}; "
            "give both one number, or one number per coordinate"
        ) from None
    bottom, top = bottom.expand(shape).clone(), top.expand(shape).clone()
    empty = (bottom > top) | (bottom == torch.inf) | (top == -torch.inf)
    if empty.any():
        where = ", ".join(map(str, empty.nonzero()[0].tolist()))
        raise UserError(f"the box is empty: low is above high at [{where}]; swap or widen them")
    project = partial(_box, low=bottom, high=top)
    return ConstraintSet("box", project, stackable=True)


def nonnegative() -> ConstraintSet:
    """x >= 0."""
    return ConstraintSet("non-negative", _nonnegative, stackable=True)


def simplex(total: Numbers = 1.0) -> ConstraintSet:
    """x >= 0 and sum x_i = total, one number or one per agent."""
    sums = numbers(total, "the simplex's total")
    if (sums <= 0).any() or sums.isinf().any():
        raise UserError("the simplex's total must be above 0 and finite: no other sum has points")
    return ConstraintSet("simplex", partial(_simplex, total=sums), stackable=True)


def half_space(normal: Numbers, offset: Numbers) -> ConstraintSet:
    """normal . x <= offset; normal is (d,) or (m, d), offset a number or (m,)."""
    a = vectors(normal, "the normal")
    b = numbers(offset, "the offset")
    norm = length(a)
    if not a.isfinite().all() or (norm == 0).any():
        raise UserError("the normal of a half-space must be finite and not all zeros")
    if b.dim() and b.shape != a.shape[:-1]:
        raise UserError(
            f"the half-space has normals of shape {tuple(a.shape)} and offsets of shape "
            f"{tuple(b.shape)}; give one offset for each normal"
        )
    if (b == -torch.inf).any():
        raise UserError("the half-space is empty: its offset is minus infinity; give a number")
    b = b.expand(a.shape[:-1]) / norm.squeeze(-1)
    return ConstraintSet(
        "half-space", partial(_half_space, normal=a / norm, offset=b), stackable=True
    )


def affine(matrix: Numbers, offset: Numbers) -> ConstraintSet:
    """matrix @ x = offset, with a matrix (k, d) of any rank and an offset (k,)."""
    a, b = numbers(matrix, "the matrix"), numbers(offset, "the offset")
    if a.dim() != 2 or b.shape != a.shape[:1] or not a.numel():
        raise UserError(
            f"the matrix has shape {tuple(a.shape)} and the offset {tuple(b.shape)}; "
            "they must be (equations, coordinates) and (equations,)"
        )
    if not (a.isfinite().all() and b.isfinite().all()):
        raise UserError("the matrix and the offset of an affine set must be finite")
    norm = length(a)
    norm = torch.where(norm > 0, norm, 1.0)
    a, b = a / norm, b / norm.squeeze(-1)
    u, s, v = torch.linalg.svd(a, full_matrices=False)
    rank = int((s > s[0] * max(a.shape) * torch.finfo(s.dtype).eps).sum())
    basis = v[:rank].clone()
    level = (u[:, :rank].mT @ b) / s[:rank]
    if (a @ (basis.mT @ level) - b).abs().max() > 1e-9 * b.abs().max():
        raise UserError(
            "the affine set is empty: its equations contradict each other; drop or mend one"
        )
    if not rank:
        return whole()
    return ConstraintSet("affine", partial(_affine, basis=basis, level=level), stackable=True)


def _box(x: Tensor, low: Tensor, high: Tensor) -> Tensor:
    bottom = per_coordinate(low, checked(x), "the box").to(x.dtype)
    return x.clamp(bottom, high.to(bottom))


def _nonnegative(x: Tensor) -> Tensor:
    return checked(x).clamp(min=0)


def _simplex(x: Tensor, total: Tensor) -> Tensor:
    return in_blocks(_rows_to_simplex, x, per_agent(total, checked(x), "the simplex's total"))


def _rows_to_simplex(x: Tensor, sums: Tensor) -> Tensor:
    wide = x.double()
    close = (wide.sum(-1, keepdim=True) - sums).abs() <= slack(x) * sums
    inside = close & (wide >= 0).all(-1, keepdim=True)
    return torch.where(inside, x, on_simplex(wide, sums).to(x.dtype))


def _half_space(x: Tensor, normal: Tensor, offset: Tensor) -> Tensor:
    """x - max(a.x - b, 0) a for |a| = 1."""
    wide = points(x)
    check_size(x, normal.shape[-1], "the half-space")
    a = per_coordinate(normal, wide, "the half-space's normal")
    b = per_agent(offset, wide, "the half-space's offset")
    nearest = wide
    for _ in range(_PASSES):
        nearest = nearest - ((a * nearest).sum(-1, keepdim=True) - b).clamp(min=0) * a
    excess = (a * wide).sum(-1, keepdim=True) - b
    inside = excess <= slack(x) * torch.maximum(length(wide), b.abs())
    return torch.where(inside, x, nearest.to(x.dtype))


def _affine(x: Tensor, basis: Tensor, level: Tensor) -> Tensor:
    """x - Q'(Q x - c) for Q (k, d) with orthonormal rows."""
    wide = points(x)
    check_size(x, basis.shape[-1], "the affine set")
    q, c = basis.to(x.device), level.to(x.device)
    if q.dim() > 2:
        per_coordinate(q[..., 0, :], wide, "the affine set")
    nearest = wide
    for _ in range(_PASSES):
        nearest = nearest - torch.einsum("...kd,...k->...d", q, _residual(nearest, q, c))
    inside = length(_residual(wide, q, c)) <= slack(x) * torch.maximum(length(wide), length(c))
    return torch.where(inside, x, nearest.to(x.dtype))


def _residual(x: Tensor, q: Tensor, c: Tensor) -> Tensor:
    return torch.einsum("...kd,...d->...k", q, x) - c
