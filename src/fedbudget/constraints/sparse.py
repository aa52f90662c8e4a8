"""Sparsity: at most k coordinates that are not zero. Not convex."""

from functools import partial

import torch
from torch import Tensor

from fedbudget.constraints.constraint import ConstraintSet, checked, per_agent
from fedbudget.errors import UserError


def top_k(k: int | Tensor) -> ConstraintSet:
    """At most k coordinates are not zero; k is one number or one per agent."""
    count = torch.as_tensor(k).detach().clone()
    if count.is_floating_point() or (count < 1).any():
        raise UserError("k of top-k must be a whole number of 1 or more")
    return ConstraintSet("top-k", partial(_top_k, k=count), convex=False, stackable=True)


def _top_k(x: Tensor, k: Tensor) -> Tensor:
    """The k largest magnitudes stay; of equal ones, the first."""
    limit = per_agent(k, checked(x), "k")
    inside = (x != 0).sum(-1, keepdim=True) <= limit
    order = x.abs().argsort(stable=True, dim=-1, descending=True)
    first = (torch.arange(x.shape[-1], device=x.device) < limit).expand(x.shape)
    kept = torch.zeros_like(x, dtype=torch.bool).scatter(-1, order, first)
    return torch.where(inside | kept, x, 0.0)
