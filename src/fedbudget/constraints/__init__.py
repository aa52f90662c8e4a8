"""Private convex sets of agents: what a model may look like, known to its agent only.

A set is a value with one function, its projection; distance and membership follow from it.
"""

from fedbudget.constraints.balls import group_l1_ball, l1_ball, l2_ball, linf_ball, nuclear_ball
from fedbudget.constraints.constraint import ConstraintSet, around, contains, distance, whole
from fedbudget.constraints.intersection import intersection
from fedbudget.constraints.layers import on_tensors, per_layer
from fedbudget.constraints.polyhedra import affine, box, half_space, nonnegative, simplex
from fedbudget.constraints.sparse import top_k
from fedbudget.constraints.stack import stack

__all__ = [
    "ConstraintSet",
    "affine",
    "around",
    "box",
    "contains",
    "distance",
    "group_l1_ball",
    "half_space",
    "intersection",
    "l1_ball",
    "l2_ball",
    "linf_ball",
    "nonnegative",
    "nuclear_ball",
    "on_tensors",
    "per_layer",
    "simplex",
    "stack",
    "top_k",
    "whole",
]
