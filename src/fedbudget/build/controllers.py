"""The controller that a config names."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from fedbudget.build.materials import call
from fedbudget.codecs import chosen
from fedbudget.config import Config
from fedbudget.control.adaptive import adaptive
from fedbudget.control.classes import by_class
from fedbudget.control.cocofl import cocofl
from fedbudget.control.controller import Controller, fixed, possible
from fedbudget.control.deadzones import one_sided, two_sided
from fedbudget.control.duals import Rule, ascent, augmented_lagrangian, log_barrier, nupi
from fedbudget.control.fedpaq import fedpaq
from fedbudget.control.frontier import Grid, Progress
from fedbudget.control.heterofl import heterofl
from fedbudget.control.own import guarded, within
from fedbudget.control.paper import clamped, dual_controller
from fedbudget.control.planner import Search, planner
from fedbudget.control.policies import (
    FLOOR_B,
    FLOOR_S,
    Base,
    Policy,
    Threshold,
    cafl,
    cafl_l,
    read_rules,
)
from fedbudget.control.rotation import Cycle, rotation
from fedbudget.control.static import static
from fedbudget.errors import UserError, about
from fedbudget.resources.budget import each_class, of_client
from fedbudget.resources.costs import Costs
from fedbudget.tables import Control
from fedbudget.types import Knobs
from fedbudget.units import UNITS

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
        if config.control.controller in DUAL and config.control.per == "cohort":
            raise UserError("control.per = 'cohort': devices differ in what they take; take class")
        return by_class(
            each_class(
                [*zip(kinds, limits, strict=True)],
                lambda pair: controller(config, knobs, pair[0], [pair[1]], depth, clients),
            )
        )
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
        case "clamped":
            return _clamped(config, base_of("clamped", knobs), known, limits)
        case "cafl-l" | "cafl" as name:
            return _duals(config, base_of(name, knobs), known, limits, clients)
        case own:
            return _own(own, known, knobs, config.train.cohort, limits)


def _own(
    name: str, known: Costs, base: Knobs, cohort: int, limits: list[dict[str, float]]
) -> Controller:
    """A controller of the user's: `package.module:function`, as `fedbudget.train` takes it."""

    where = f"control.controller = {name!r}"

    def made(budgets: dict[str, float]) -> Controller:
        given = within(where, call, name, "control.controller", known, budgets, base, cohort)
        if not isinstance(given, Controller):
            raise UserError(f"{where}: it must return a Controller, not a {type(given).__name__}")
        own = guarded(given, where)
        first = own.knobs(own.init(), 0)
        with about(where):  # before anything is written
            possible({0: first}, known.layout.depth)
        return own

    return _by_class(each_class(limits, made))


def _by_class(own: list[Controller]) -> Controller:
    return by_class(own) if len(own) > 1 else own[0]


def compression_of(control: Control, known: Costs) -> tuple[Sequence[Threshold], Mapping[int, str]]:
    """The rule for q, and the codec of each level."""
    where = "control.thresholds"
    thresholds, codecs = read_rules(control.thresholds, where)
    counted = [*UNITS, *(own.name for own in known.own)]
    for threshold in thresholds:
        if threshold.resource not in counted:
            raise UserError(
                f"{where}: nothing counts {threshold.resource!r}; known are {', '.join(counted)}"
            )
    for codec in codecs.values():
        chosen(codec, where)
        if control.sparsify and codec.startswith("topk"):
            raise UserError(
                f"{where}: {codec} sends a top fraction already, which is what control.sparsify adds; "
                "take one of the two"
            )
    return thresholds, codecs


BUILT_IN = ("eta", "rule", "zone", "epsilon", "ema", "per")
"""settings of duals of which the authors' code has its own"""


def _clamped(
    config: Config, base: Base, known: Costs, limits: list[dict[str, float]]
) -> Controller:
    control = config.control
    for key in BUILT_IN:
        given = getattr(control, key)
        if given != type(control).model_fields[key].default:
            raise UserError(
                f"control.{key} = {given!r}: clamped has a step, a zone and a smoothing of its own, for "
                "the whole cohort; leave it out, or take controller = 'cafl'"
            )
    thresholds, codecs = compression_of(control, known)
    controller = partial(
        clamped,
        base,
        known.layout.depth,
        accounting=known.accounting,
        thresholds=thresholds,
        codecs=codecs,
        preserve_tokens=control.preserve_tokens,
        sparsify=control.sparsify,
    )
    return _by_class([controller(own) for own in limits])


def _duals(
    config: Config,
    base: Base,
    known: Costs,
    limits: list[dict[str, float]],
    clients: int,
) -> Controller:
    """CAFL-L's and CAFL's equations; whose usage moves whose duals is the config's."""
    control = config.control
    per = whose_duals(control, limits)
    if per == "cohort" and len(limits) > 1:
        raise UserError(
            "control.per = 'cohort': device classes have limits of their own; take class"
        )
    thresholds, codecs = compression_of(control, known)
    controller = partial(
        dual_controller,
        base,
        known.layout.depth,
        policy=policy_of(control.controller, base),
        rule=_rule(config),
        accounting=known.accounting,
        thresholds=thresholds,
        codecs=codecs,
        preserve_tokens=control.preserve_tokens,
        ema=control.ema,
        sparsify=control.sparsify,
    )
    if per == "client":
        own = {c: of_client(limits, c) for c in range(clients)} if len(limits) > 1 else None
        return controller(limits[0], per="client", per_client=own)
    return _by_class([controller(own) for own in limits])


def whose_duals(control: Control, limits: Sequence[Mapping[str, float]]) -> str:
    """The cohort's, a class's or a client's: as the config says, or by what it limits."""
    several = len(limits) > 1
    if control.controller == "clamped":
        return "class" if several else "cohort"
    return control.per or ("client" if several else "cohort")


def base_of(name: str, knobs: Knobs) -> Base:
    """The papers count blocks, and always train what is above them; G is theirs to choose."""
    if knobs.accumulate > 1:
        raise UserError(
            f"train.accumulate = {knobs.accumulate}: {name} chooses it itself, to keep steps x batch; "
            "set it to 1"
        )
    if knobs.layers < 2:
        raise UserError(
            f"control.controller = {name!r} freezes the blocks below a model's top layer group, so at "
            "least 2 groups must train: set train.layers to 2 or more, or take a deeper model"
        )
    return Base(knobs.layers - 1, knobs.steps, knobs.batch)


def policy_of(name: str, base: Base) -> Policy:
    """With the papers' floors, unless a config begins below them."""
    if name == "clamped":
        return partial(cafl, s_min=base.s * 8 // 10, b_min=min(FLOOR_B, base.b))
    policy = cafl_l if name == "cafl-l" else cafl
    return partial(policy, s_min=min(FLOOR_S, base.s), b_min=min(FLOOR_B, base.b))


def _rotation(
    config: Config, knobs: Knobs, known: Costs | None, limits: list[dict[str, float]]
) -> Controller:
    """All layers, then each group alone, bottom up: by the planner where there are budgets."""
    control = config.control
    cycle = Cycle(control.whole_rounds, control.group_rounds)
    top = knobs.layers  # of those that may train at all
    if known is None or not limits:
        groups = [fixed(replace(knobs, layers=1, above=above)) for above in reversed(range(top))]
        return rotation(fixed(knobs), groups, cycle)
    grid, progress = search(config, known)
    planned = []
    for name, own in turns(config, grid).items():
        with about(name):
            planned.append(planner(known.expected, own, progress, limits, known.accounting))
    if not control.whole_rounds:  # nobody asks for its knobs
        planned.insert(0, fixed(knobs))
    return rotation(planned[0], planned[1:], cycle)


def turns(config: Config, grid: Grid) -> dict[str, Grid]:
    """What trains in turn -> the knobs to choose from then; the planner has one turn, without a name."""
    control, top = config.control, grid.layers[-1]
    if control.controller != "rotation":
        return {"": grid}
    whole = {"rounds of all layers": replace(grid, layers=(top,))} if control.whole_rounds else {}
    groups = {
        f"rounds of layer group {top - above} of {top}, alone": replace(
            grid, layers=(1,), above=above
        )
        for above in reversed(range(top))
    }
    return whole | groups


def _rule(config: Config) -> Rule:
    control = config.control
    zones = {"one-sided": one_sided, "two-sided": two_sided}
    match control.rule:
        case "nupi":
            return nupi(control.eta, control.ki, control.kp, control.nu)
        case "augmented":
            return augmented_lagrangian(control.eta, rho_max=control.rho_max)
        case "barrier":
            return log_barrier(control.eta, control.mu)
        case _:
            return ascent(control.eta, partial(zones[control.zone], eps=control.epsilon))
