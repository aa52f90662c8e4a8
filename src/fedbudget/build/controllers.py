"""The controller that a config names."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from fedbudget.config import Config
from fedbudget.control.adaptive import adaptive
from fedbudget.control.classes import by_class
from fedbudget.control.cocofl import cocofl
from fedbudget.control.controller import Controller, fixed
from fedbudget.control.deadzones import one_sided, two_sided
from fedbudget.control.duals import Rule, ascent, augmented_lagrangian, log_barrier, nupi
from fedbudget.control.fedpaq import fedpaq
from fedbudget.control.frontier import Grid, Progress
from fedbudget.control.heterofl import heterofl
from fedbudget.control.paper import clamped, dual_controller
from fedbudget.control.planner import Search, planner
from fedbudget.control.policies import FLOOR_B, FLOOR_S, Base, cafl, cafl_l
from fedbudget.control.rotation import Cycle, rotation
from fedbudget.control.static import static
from fedbudget.errors import UserError
from fedbudget.resources.budget import of_client
from fedbudget.resources.costs import Costs
from fedbudget.types import Knobs


def search(config: Config, known: Costs) -> tuple[Grid, Progress]:
    control = config.control
    wide = Search(
        tuple(control.batches),
        tuple(control.codecs),
        control.least_steps,
        control.most_steps,
        control.noise_scale,
    )
    return wide.over(known, config.train.layers or known.layout.depth, config.train.cohort)


def of_kinds(
    config: Config,
    knobs: Knobs,
    kinds: Sequence[Costs],
    limits: list[dict[str, float]],
    depth: int,
    clients: int,
) -> Controller:
    """One for all, or one for each kind of device where they differ."""
    if len(kinds) > 1 and limits:
        pairs = zip(kinds, limits, strict=True)
        return by_class([controller(config, knobs, k, [own], depth, clients) for k, own in pairs])
    return controller(config, knobs, kinds[0] if kinds else None, limits, depth, clients)


def controller(
    config: Config,
    knobs: Knobs,
    known: Costs | None,
    limits: list[dict[str, float]],
    depth: int,
    clients: int,
) -> Controller:
    """`knobs` are the base ones, `limits` those of each device class."""
    control = config.control
    if control.controller == "rotation":
        return _rotation(config, knobs, known, limits)
    if control.controller == "fixed" or known is None:
        return fixed(knobs)
    base = Base(knobs.layers - 1, knobs.steps, knobs.batch)
    accounting = known.accounting
    match control.controller:
        case "planner":
            return planner(known.expected, *search(config, known), limits, accounting)
        case "static":
            return static(known.forecast, knobs, limits)
        case "fedpaq":
            return fedpaq(known.forecast, knobs, limits)
        case "cocofl":
            return cocofl(known.forecast, knobs, limits, config.seed)
        case "heterofl":
            return heterofl(known.forecast, knobs, limits)
        case "adaptive":
            return adaptive(known.forecast, knobs, limits, config.rounds)
        case "clamped" if len(limits) > 1:
            raise UserError("control.controller = 'clamped' knows one device class only")
        case "clamped":
            return clamped(
                base,
                depth,
                limits[0],
                accounting=accounting,
                sparsify=control.sparsify,
            )
        case name:
            own = {c: of_client(limits, c) for c in range(clients)}
            return dual_controller(
                base,
                depth,
                limits[0],
                partial(  # the papers' floors, unless a config begins below them
                    cafl_l if name == "cafl-l" else cafl,
                    s_min=min(FLOOR_S, base.s),
                    b_min=min(FLOOR_B, base.b),
                ),
                _rule(config),
                accounting=accounting,
                per="client" if len(limits) > 1 else "cohort",
                per_client=own if len(limits) > 1 else None,
                preserve_tokens=control.preserve_tokens,
                ema=control.ema,
                sparsify=control.sparsify,
            )


def _rotation(
    config: Config, knobs: Knobs, known: Costs | None, limits: list[dict[str, float]]
) -> Controller:
    """All layers, then each group alone, bottom up: by the planner where there are budgets."""
    control = config.control
    cycle = Cycle(control.whole_rounds, control.group_rounds)
    top = knobs.layers  # of those that may train at all
    places = [(top, 0), *((1, above) for above in reversed(range(top)))]
    if known is None or not limits:
        whole, *groups = (fixed(replace(knobs, layers=k, above=above)) for k, above in places)
        return rotation(whole, groups, cycle)
    grid, progress = search(config, known)
    whole, *groups = (
        planner(
            *(known.expected, replace(grid, layers=(k,), above=above), progress, limits),
            known.accounting,
        )
        for k, above in places
    )
    return rotation(whole, groups, cycle)


def _rule(config: Config) -> Rule:
    control = config.control
    zones = {"one-sided": one_sided, "two-sided": two_sided}
    match control.rule:
        case "nupi":
            return nupi(control.eta)
        case "augmented":
            return augmented_lagrangian(control.eta)
        case "barrier":
            return log_barrier(control.eta)
        case _:
            return ascent(control.eta, partial(zones[control.zone], eps=control.epsilon))
