"""Intersection: a point in several convex sets at once, by Dykstra's algorithm.

Boyle and Dykstra (1986); it stops by the rule of Birgin and Raydan (2005), which, unlike the change
of the point over a cycle, cannot be met by an iterate that only rests for a while.
"""

from functools import partial

import torch
from torch import Tensor

from fedbudget.constraints.constraint import (
    ConstraintSet,
    distance,
    largest,
    length,
    points,
    slack,
)
from fedbudget.errors import UserError

_RESTARTS = 4
"""A huge point is first approached to its own precision, then from there to the result's."""


def intersection(
    *sets: ConstraintSet, tolerance: float = 1e-8, max_iterations: int = 1000
) -> ConstraintSet:
    """The points that are in all sets, each up to tolerance * max(1, largest coordinate).

    An iteration brings a far point nearer by about the size of the sets. When the cap ends it
    early, the answer is in the intersection but may not be its nearest point.
    """
    if not sets:
        raise UserError("an intersection needs at least one set; whole() is the one without limits")
    for set in sets:
        if not set.convex:
            raise UserError(f"{set.name} is not convex; an intersection needs convex sets")
    if not tolerance > 0 or max_iterations < 1:
        raise UserError("an intersection's tolerance must be above 0 and max_iterations 1 or more")
    project = partial(_intersection, sets=sets, tolerance=tolerance, cap=max_iterations)
    name = "intersection of " + ", ".join(set.name for set in sets)
    return ConstraintSet(name, project, stackable=True)


def _intersection(x: Tensor, sets: tuple[ConstraintSet, ...], tolerance: float, cap: int) -> Tensor:
    point = points(x)
    allowed = max(tolerance, slack(x))
    inside = untouched = _inside(point, sets, allowed)
    for _ in range(_RESTARTS):
        if inside.all():
            return torch.where(untouched, x, point.to(x.dtype))
        point = torch.where(inside, point, _dykstra(point, ~inside, sets, tolerance, cap))
        inside = inside | _inside(point, sets, tolerance)
    raise UserError(
        f"no point of the intersection was found in {cap} iterations; the sets may have no point "
        "in common, or need more max_iterations or a larger tolerance"
    )


def _inside(x: Tensor, sets: tuple[ConstraintSet, ...], tolerance: float) -> Tensor:
    """(..., d) -> (..., 1); a point that is not finite is left as it is."""
    far = torch.stack([distance(set, x) for set in sets]).amax(0).unsqueeze(-1)
    return (far <= tolerance * largest(x).clamp(min=1)) | far.isnan()


def _dykstra(
    start: Tensor, moving: Tensor, sets: tuple[ConstraintSet, ...], tolerance: float, cap: int
) -> Tensor:
    """Near the projection of each moving row; a row stops when a cycle moves it no more."""
    point = start
    enough = tolerance / (2 * len(sets)) * largest(start).clamp(min=1)
    removed = [torch.zeros_like(start) for _ in sets]  # what each set took away last time
    for _ in range(cap):
        after, moved = point, torch.zeros_like(enough)
        for i, set in enumerate(sets):
            given_back = after + removed[i]
            nearest = set.project(given_back)
            removed[i] = given_back - nearest
            moved = torch.maximum(moved, length(nearest - after))
            after = nearest
        point = torch.where(moving, after, point)
        moving = moving & (moved > enough)
        if not moving.any():
            break
    return point
