"""A constraint set: a projection with a name. Distance and membership are derived from it.

Points are (..., d). A number of a set (a radius) may be one or one per agent, of shape (m,) for
points (..., m, d); a vector of a set may be (d,) or (m, d). Projections compute in float64 and
answer in the dtype they were given. A point that is not finite has no projection: NaN comes back.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from fedbudget.errors import UserError

Numbers = float | Sequence[float] | Tensor
SLACK = 8
"""A border is this many units of rounding thick, so that a projected point is its own projection."""


@dataclass(frozen=True, repr=False, eq=False)
class ConstraintSet:
    """A closed set that one agent keeps its model in, and tells nobody."""

    name: str
    """the kind of set, without its numbers"""
    project: Callable[[Tensor], Tensor]
    """(..., d) -> (..., d), the nearest points; a point of the set comes back bit for bit"""
    convex: bool = True
    stackable: bool = False
    """whether `project` is a partial whose tensors may get a leading dimension of agents"""

    def __repr__(self) -> str:
        """The kind only: the numbers are the agent's secret, and reprs end up in logs."""
        return f"ConstraintSet({self.name})"


def distance(set: ConstraintSet, x: Tensor) -> Tensor:
    """How far each point is from the set, (..., d) -> (...); exactly 0 inside."""
    far = length(points(x) - set.project(x).double()).squeeze(-1)
    return far.clamp(max=torch.finfo(x.dtype).max).to(x.dtype)


def contains(set: ConstraintSet, x: Tensor, tolerance: float = 1e-6) -> Tensor:
    """Which points are at most `tolerance` away from the set, (..., d) -> bool (...)."""
    return distance(set, x) <= tolerance


def whole() -> ConstraintSet:
    """The whole space: an agent without a constraint."""
    return ConstraintSet("whole space", checked, stackable=True)


def around(set: ConstraintSet, centre: Numbers) -> ConstraintSet:
    """The set moved by `centre`, of shape (d,) or (m, d): a ball around the centre, for example."""
    middle = vectors(centre, "the centre")
    if not middle.isfinite().all():
        raise UserError("the centre has a coordinate that is not finite; give finite numbers")
    project = partial(_around, set=set, centre=middle)
    return ConstraintSet(f"{set.name} around a centre", project, set.convex, stackable=True)


def _around(x: Tensor, set: ConstraintSet, centre: Tensor) -> Tensor:
    wide = points(x)
    middle = per_coordinate(centre, wide, "the centre")
    shifted = wide - middle
    nearest = set.project(shifted)
    size = torch.maximum(largest(wide), largest(middle))
    inside = largest(nearest - shifted) <= slack(x) * size  # what x - centre itself rounds away
    return torch.where(inside, x, (nearest + middle).to(x.dtype))


def checked(x: Tensor) -> Tensor:
    """The points as they are, if they are points."""
    if not x.is_floating_point() or x.dim() == 0:
        raise UserError(
            f"points to project have dtype {x.dtype} and shape {tuple(x.shape)}; "
            "they must be floating and of shape (..., coordinates)"
        )
    return x


def points(x: Tensor) -> Tensor:
    """The points in float64."""
    return checked(x).double()


def numbers(value: Numbers, what: str) -> Tensor:
    """A copy in float64, without NaN."""
    found = torch.as_tensor(value, dtype=torch.float64).detach().clone()
    if found.isnan().any():
        raise UserError(f"{what} is not a number (NaN); give a number")
    return found


def vectors(value: Numbers, what: str) -> Tensor:
    """The same with a dimension for coordinates, of length 1 when one number is for all."""
    found = numbers(value, what)
    return found if found.dim() else found.unsqueeze(0)


def radius_of(value: Numbers) -> Tensor:
    """A radius >= 0, or one per agent."""
    radius = numbers(value, "the radius")
    if (radius < 0).any():
        raise UserError(f"the radius is {float(radius.min()):g}; it must be 0 or more")
    return radius


def per_agent(number: Tensor, x: Tensor, what: str) -> Tensor:
    """() or (m,) -> something that broadcasts over the coordinates of x (..., m, d)."""
    if not _fits(number.shape, x.shape[:-1]):
        raise UserError(
            f"{what} is given for {'x'.join(map(str, number.shape))} agents, but the points have "
            f"shape {tuple(x.shape)}; give one number, or points of shape (agents, coordinates)"
        )
    return number.to(x.device).unsqueeze(-1)


def per_coordinate(vector: Tensor, x: Tensor, what: str) -> Tensor:
    """(d,), (1,) or (m, d), checked to be about the coordinates of x (..., m, d)."""
    if not _fits(vector.shape, x.shape):
        raise UserError(
            f"{what} has shape {tuple(vector.shape)}, but the points have shape {tuple(x.shape)}; "
            "their last dimensions must be equal"
        )
    return vector.to(x.device)


def check_size(x: Tensor, size: int, what: str) -> None:
    """Points of a set that is about `size` coordinates have that many."""
    if x.shape[-1] != size:
        raise UserError(
            f"{what} is about {size} coordinates, but the points have shape {tuple(x.shape)}; "
            "their last dimension must be equal"
        )


def _fits(shape: Sequence[int], target: Sequence[int]) -> bool:
    """Whether a shape can be broadcast to a target without changing the target."""
    pairs = zip(reversed(shape), reversed(target), strict=False)
    return len(shape) <= len(target) and all(a in (1, b) for a, b in pairs)


def slack(x: Tensor) -> float:
    """The relative rounding that a test for "inside" allows points of this dtype."""
    return SLACK * torch.finfo(x.dtype).eps


def largest(x: Tensor) -> Tensor:
    """max |x_i|, (..., d) -> (..., 1)."""
    return x.abs().amax(-1, keepdim=True)


def scaled(x: Tensor) -> tuple[Tensor, Tensor]:
    """x as (x / scale, scale), the largest coordinate being 1: its squares cannot overflow."""
    scale = largest(x)
    scale = torch.where(scale > 0, scale, 1.0)
    return x / scale, scale


def length(x: Tensor) -> Tensor:
    """The l2 norm, (..., d) -> (..., 1), without overflow or underflow."""
    unit, scale = scaled(x)
    norm: Tensor = torch.linalg.vector_norm(unit, dim=-1, keepdim=True)
    return (norm * scale).clamp(max=torch.finfo(x.dtype).max)
