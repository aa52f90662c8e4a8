"""Layers: one set per layer of a flat model, and sets on models given as named tensors."""

import difflib
from collections.abc import Mapping
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor

from fedbudget.constraints.constraint import ConstraintSet, check_size, checked
from fedbudget.errors import UserError
from fedbudget.models.flat import Layout

Spans = tuple[tuple[int, int], ...]
"""the parts (start, stop) of the vector that belong to one layer"""


def per_layer(layout: Layout, sets: Mapping[str, ConstraintSet]) -> ConstraintSet:
    """A set for each named layer of the flat model vector; the other layers are free.

    A name is a tensor's ("fc.weight") or the prefix of several ("fc"), which then are one vector.
    Running statistics are not weights: no set is about them.
    """
    weights = [name for name in layout.names if name not in layout.statistics]
    spans = dict(zip(layout.names, pairwise(layout.offsets), strict=True))
    taken: dict[str, str] = {}
    parts = []
    for prefix, set in sets.items():
        inside = [name for name in weights if name == prefix or name.startswith(f"{prefix}.")]
        if not inside:
            raise UserError(_unknown(prefix, weights))
        for name in inside:
            if name in taken:
                raise UserError(
                    f"{name} has two sets, of {taken[name]!r} and of {prefix!r}; "
                    "give one set, which may be an intersection"
                )
            taken[name] = prefix
        parts.append((tuple(spans[name] for name in inside), set))
    project = partial(_per_layer, size=layout.size, parts=tuple(parts))
    return ConstraintSet(
        "one set per layer", project, all(set.convex for set in sets.values()), stackable=True
    )


def on_tensors(
    set: ConstraintSet | Mapping[str, ConstraintSet], tensors: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """A whole model, as named tensors, projected on a set or on one set per layer.

    One set sees all tensors as one vector, in the order of the mapping. Tensors that are not
    floating, such as counters, are left as they are.
    """
    floating = {name: t for name, t in tensors.items() if t.is_floating_point()}
    if len({t.dtype for t in floating.values()}) > 1:
        raise UserError("the model's tensors have several floating dtypes; they must have one")
    shapes = tuple(tuple(t.shape) for t in floating.values())
    layout = Layout(tuple(floating), shapes, (0,) * len(shapes))
    if isinstance(set, Mapping):
        set = per_layer(layout, set)
    if not layout.size:
        return dict(tensors)
    vector = set.project(torch.cat([t.flatten() for t in floating.values()]))
    return {**tensors, **layout.named(vector)}


def _per_layer(x: Tensor, size: int, parts: tuple[tuple[Spans, ConstraintSet], ...]) -> Tensor:
    check_size(checked(x), size, "the set of a model")
    result = x.clone()
    for spans, set in parts:
        nearest = set.project(torch.cat([x[..., start:stop] for start, stop in spans], -1))
        widths = [stop - start for start, stop in spans]
        for (start, stop), piece in zip(spans, nearest.split_with_sizes(widths, -1), strict=True):
            result[..., start:stop] = piece
    return result


def _unknown(prefix: str, weights: list[str]) -> str:
    """The sentence about a layer that does not exist."""
    words = [name.split(".") for name in weights]
    known = list(dict.fromkeys(".".join(w[:i]) for w in words for i in range(1, len(w) + 1)))
    near = difflib.get_close_matches(prefix, known, 3) or known[:8]
    return f"there is a set for layer {prefix!r}, which the model lacks; it has {', '.join(near)}"
