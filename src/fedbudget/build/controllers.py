"""The controller that a config names."""

from collections.abc import Mapping, Sequence
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
from fedbudget.control.frontier import Grid, Progress, why_not
from fedbudget.control.heterofl import heterofl
from fedbudget.control.paper import clamped, dual_controller
from fedbudget.control.planner import Search, planner
from fedbudget.control.policies import (
    FLOOR_B,
    FLOOR_S,
    PRICED,
    Base,
    Policy,
    cafl,
    cafl_l,
    reachable,
)
from fedbudget.control.rotation import Cycle, rotation
from fedbudget.control.static import static
from fedbudget.errors import UserError
from fedbudget.resources.budget import of_client
from fedbudget.resources.costs import Costs
from fedbudget.types import Knobs

DUAL = ("cafl-l", "cafl", "clamped")
"""the papers' controllers"""


def search(config: Config, known: Costs) -> tuple[Grid, Progress]:
    control = config.control
    wide = Search(
        tuple(control.batches),
        tuple(control.codecs),
        control.least_steps,
        control.most_steps,
        control.noise_scale,
        control.thrift,
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
        if config.control.controller in DUAL and config.control.per == "cohort":
            raise UserError("control.per = 'cohort': devices differ in what they take; take class")
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
    if control.controller in DUAL and knobs.accumulate > 1:
        raise UserError(
            f"train.accumulate = {knobs.accumulate}: {control.controller} chooses it itself, to keep "
            "steps x batch; set it to 1"
        )
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
        case _:
            return _duals(config, base, known, limits, clients)


def _duals(
    config: Config,
    base: Base,
    known: Costs,
    limits: list[dict[str, float]],
    clients: int,
) -> Controller:
    """CAFL-L's and CAFL's equations; whose usage moves whose duals is the config's."""
    control = config.control
    per = control.per or ("client" if len(limits) > 1 else "cohort")
    if per == "cohort" and len(limits) > 1:
        raise UserError(
            "control.per = 'cohort': device classes have limits of their own; take class"
        )
    controller = partial(
        dual_controller,
        base,
        known.layout.depth,
        policy=_policy(control.controller, base),
        rule=_rule(config),
        accounting=known.accounting,
        preserve_tokens=control.preserve_tokens,
        ema=control.ema,
        sparsify=control.sparsify,
    )
    if per == "client":
        own = {c: of_client(limits, c) for c in range(clients)} if len(limits) > 1 else None
        return controller(limits[0], per="client", per_client=own)
    return (
        by_class([controller(own) for own in limits]) if len(limits) > 1 else controller(limits[0])
    )


def _policy(name: str, base: Base) -> Policy:
    """With the papers' floors, unless a config begins below them."""
    if name == "clamped":
        return partial(cafl, s_min=base.s * 8 // 10, b_min=min(FLOOR_B, base.b))
    policy = cafl_l if name == "cafl-l" else cafl
    return partial(policy, s_min=min(FLOOR_S, base.s), b_min=min(FLOOR_B, base.b))


def out_of_reach(
    config: Config, knobs: Knobs, kinds: Sequence[Costs], limits: Sequence[Mapping[str, float]]
) -> str:
    """Which budget a policy of the papers cannot meet with all of its knobs; its dual would never rest.

    The authors' code turns all knobs at once, whichever budget is broken.
    """
    control = config.control
    if control.controller not in DUAL or not limits:
        return ""
    base = Base(knobs.layers - 1, knobs.steps, knobs.batch)
    clamped = control.controller == "clamped"
    for i, budgets in enumerate(limits):
        known = kinds[i % len(kinds)]
        every = reachable(
            _policy(control.controller, base),
            PRICED if clamped else budgets,
            base,
            known.layout.depth,
            preserve_tokens=clamped or control.preserve_tokens,
            sparsify=control.sparsify,
        )
        usages = [known.expected(knobs) for knobs in every]
        for resource, budget in budgets.items():
            least = min(usage[resource] for usage in usages)
            if resource in PRICED and least > budget * (1 + 1e-9):
                at = [x for x, u in zip(every, usages, strict=True) if u[resource] == least][:1]
                why = why_not(known.expected, at, {resource: budget}, known.written)
                return f"{control.controller}: {why}"
    return ""


def deaf(config: Config) -> str:
    """A warning where a policy of the papers has no knob for a budget; "" where it has."""
    control = config.control
    if control.controller not in DUAL:
        return ""
    asked = dict.fromkeys(r for table in config.budget.classes for r in table)
    odd = [resource for resource in asked if resource not in PRICED]
    if not odd:
        return ""
    return (
        f"{control.controller} has no knob for {', '.join(odd)}: its equations know "
        f"{', '.join(PRICED)} only, so such a budget is reported and not kept"
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
