"""Norm balls: l1, l2, l-infinity, l2,1 over groups, nuclear norm. A radius may be one per agent."""

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from fedbudget.constraints.constraint import (
    ConstraintSet,
    Numbers,
    check_size,
    checked,
    per_agent,
    per_coordinate,
    points,
    radius_of,
    scaled,
    slack,
)
from fedbudget.errors import UserError

_BLOCK = 1 << 17
"""elements projected at once: they stay in the processor's cache, which is twice as fast"""


def l1_ball(radius: Numbers) -> ConstraintSet:
    """sum |x_i| <= radius: sparse models."""
    return ConstraintSet("l1 ball", partial(_l1, radius=radius_of(radius)), stackable=True)


def l2_ball(radius: Numbers) -> ConstraintSet:
    """sqrt(sum x_i^2) <= radius."""
    return ConstraintSet("l2 ball", partial(_l2, radius=radius_of(radius)), stackable=True)


def linf_ball(radius: Numbers) -> ConstraintSet:
    """max |x_i| <= radius."""
    return ConstraintSet(
        "l-infinity ball", partial(_linf, radius=radius_of(radius)), stackable=True
    )


def group_l1_ball(
    radius: Numbers, *, sizes: Sequence[int] | None = None, labels: Sequence[int] | None = None
) -> ConstraintSet:
    """sum over groups of their l2 norms <= radius: whole groups become zero.

    Groups are consecutive coordinates of the given `sizes`, or any, with the group number of each
    coordinate in `labels`.
    """
    if (sizes is None) == (labels is None):
        raise UserError("a group l1 ball needs either the sizes of its groups or labels, not both")
    given = torch.as_tensor(sizes if labels is None else labels)
    least = 1 if labels is None else 0
    whole_numbers = given.dim() == 1 and len(given) > 0 and not given.is_floating_point()
    if not whole_numbers or (given < least).any():
        what = "sizes" if labels is None else "labels"
        raise UserError(f"group {what} must be a list of whole numbers of {least} or more")
    if labels is None:
        given = torch.arange(len(given)).repeat_interleave(given)
    order = {label: i for i, label in enumerate(dict.fromkeys(given.tolist()))}
    group_of = torch.tensor([order[label] for label in given.tolist()])
    project = partial(_group_l1, radius=radius_of(radius), group_of=group_of, groups=len(order))
    return ConstraintSet("group l1 ball", project, stackable=True)


def nuclear_ball(radius: Numbers, shape: tuple[int, int]) -> ConstraintSet:
    """Sum of singular values <= radius for x as a matrix (rows, columns): low rank."""
    if len(shape) != 2 or min(shape) < 1:
        raise UserError(
            f"the matrix shape is {tuple(shape)}; it must be (rows, columns), each >= 1"
        )
    project = partial(_nuclear, radius=radius_of(radius), shape=(shape[0], shape[1]))
    return ConstraintSet("nuclear norm ball", project, stackable=True)


def _l1(x: Tensor, radius: Tensor) -> Tensor:
    return in_blocks(_rows_to_l1, x, per_agent(radius, checked(x), "the radius"))


def _rows_to_l1(x: Tensor, r: Tensor) -> Tensor:
    sizes = x.double().abs()
    inside = sizes.sum(-1, keepdim=True) <= r * (1 + slack(x))
    if inside.all():
        return x
    return torch.where(inside, x, on_simplex(sizes, r).to(x.dtype).copysign(x))


def _l2(x: Tensor, radius: Tensor) -> Tensor:
    wide = points(x)
    r = per_agent(radius, wide, "the radius")
    unit, scale = scaled(wide)
    norm = torch.linalg.vector_norm(unit, dim=-1, keepdim=True)  # 1 or more, unless x is 0
    inside = norm <= r / scale * (1 + slack(x))
    return torch.where(inside, x, (unit * (r / norm.clamp(min=1))).to(x.dtype))


def _linf(x: Tensor, radius: Tensor) -> Tensor:
    r = per_agent(radius, checked(x), "the radius").to(x.dtype)
    return x.clamp(-r, r)


def _group_l1(x: Tensor, radius: Tensor, group_of: Tensor, groups: int) -> Tensor:
    wide = points(x)
    check_size(x, group_of.shape[-1], "the group l1 ball")
    r = per_agent(radius, wide, "the radius")
    where = per_coordinate(group_of, wide, "the group labels").expand(x.shape)
    unit, scale = scaled(wide)
    squares = unit.new_zeros((*x.shape[:-1], groups)).scatter_add(-1, where, unit.square())
    norms = squares.sqrt()  # of unit; those of x are norms * scale
    sizes = (norms * scale).clamp(max=torch.finfo(norms.dtype).max)
    inside = sizes.sum(-1, keepdim=True) <= r * (1 + slack(x))
    per_unit = on_simplex(sizes, r) / torch.where(norms > 0, norms, 1.0)
    return torch.where(inside, x, (unit * per_unit.gather(-1, where)).to(x.dtype))


def _nuclear(x: Tensor, radius: Tensor, shape: tuple[int, int]) -> Tensor:
    wide = points(x)
    check_size(x, shape[0] * shape[1], "the nuclear norm ball")
    r = per_agent(radius, wide, "the radius")
    finite = wide.isfinite().all(-1, keepdim=True)  # the decomposition refuses others
    unit, scale = scaled(torch.where(finite, wide, 0.0))
    u, s, v = torch.linalg.svd(unit.reshape(*x.shape[:-1], *shape), full_matrices=False)
    sizes = (s * scale).clamp(max=torch.finfo(s.dtype).max)
    rounding = max(slack(x), slack(s) * max(shape))
    inside = sizes.sum(-1, keepdim=True) <= r * (1 + rounding)
    nearest = ((u * on_simplex(sizes, r).unsqueeze(-2)) @ v).flatten(-2)
    nearest = torch.where(finite, nearest, torch.nan)
    return torch.where(inside & finite, x, nearest.to(x.dtype))


def in_blocks(project: Callable[[Tensor, Tensor], Tensor], x: Tensor, number: Tensor) -> Tensor:
    """project(x, number) for x (..., d) and number (..., 1), a few rows at a time."""
    rows = x.reshape(-1, x.shape[-1])
    of_rows = number.expand(*x.shape[:-1], 1).reshape(-1, 1)
    size = max(1, _BLOCK // x.shape[-1])
    blocks = [slice(i, i + size) for i in range(0, max(1, len(rows)), size)]
    return torch.cat([project(rows[b], of_rows[b]) for b in blocks]).view(x.shape)


def on_simplex(x: Tensor, total: Tensor) -> Tensor:
    """The nearest point of {w >= 0, sum w = total}; x (..., d) and total (..., 1) in float64.

    w = max(x - threshold, 0), with the exact threshold of Michelot (1986). The answer does not
    change when all of x moves by a constant. With the maximum at 0 and the total at 1, the
    threshold is in [-1, 0): what lies lower cannot matter, and nothing overflows or cancels,
    however large x is.
    """
    unit = torch.where(total > 0, total, 1.0)
    low = ((x - x.amax(-1, keepdim=True)) / unit).clamp(min=-1)
    threshold = ((low.sum(-1, keepdim=True) - 1) / x.shape[-1]).clamp(min=-1)
    count = torch.full_like(threshold, x.shape[-1] + 1)
    while True:
        active = low > threshold
        left = active.sum(-1, keepdim=True).to(low.dtype)
        if torch.equal(left, count):
            break
        count = left
        # it rises to the answer from below; the maximum keeps rounding from turning it back
        rise = ((low * active).sum(-1, keepdim=True) - 1) / count
        threshold = torch.maximum(threshold, rise)
    w = (low - threshold).clamp(min=0)
    return w / w.sum(-1, keepdim=True) * total
