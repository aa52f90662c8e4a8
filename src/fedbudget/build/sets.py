"""The private constraint sets that a config deals out to simulated agents."""

import numpy as np

from fedbudget import constraints
from fedbudget.build.materials import call
from fedbudget.config import Config
from fedbudget.constraints import ConstraintSet
from fedbudget.errors import UserError
from fedbudget.models.flat import Layout
from fedbudget.tables import Constraints


def constraint_sets(config: Config, layout: Layout, agents: int) -> list[ConstraintSet]:
    """Each agent's set over the flat model; radii are spread evenly from the first to the last."""
    table = config.constraints
    first, last = table.radius if isinstance(table.radius, tuple) else (table.radius,) * 2
    radii = np.linspace(first, last, agents)
    try:
        sets = [_set(table, agent, float(radii[agent])) for agent in range(agents)]
        if table.layers:
            sets = [constraints.per_layer(layout, dict.fromkeys(table.layers, s)) for s in sets]
        elif layout.statistics:
            own = [n for n in layout.names if n not in layout.statistics]
            raise UserError(
                "the model has running statistics, which are not weights: name the layers the "
                f"sets are about in constraints.layers, such as {own[0].split('.')[0]!r}"
            )
    except UserError as error:
        raise UserError(f"[constraints]: {error}") from None
    return sets


def _set(table: Constraints, agent: int, radius: float) -> ConstraintSet:
    match table.set:
        case "l1":
            return constraints.l1_ball(radius)
        case "l2":
            return constraints.l2_ball(radius)
        case "linf":
            return constraints.linf_ball(radius)
        case "simplex":
            return constraints.simplex(radius)
        case "nonnegative":
            return constraints.nonnegative()
        case "box":
            return constraints.box(table.low, table.high)
        case "topk":
            return constraints.top_k(table.keep)
        case name if ":" in name:
            made = call(name, "constraints.set", table, agent)
            if not isinstance(made, ConstraintSet):
                raise UserError(
                    f"set = {name!r}: it must return a ConstraintSet, not a {type(made).__name__}"
                )
            return made
        case other:
            raise UserError(
                f"set = {other!r} is unknown; it is l1, l2, linf, simplex, nonnegative, box, topk "
                "or package.module:function"
            )
