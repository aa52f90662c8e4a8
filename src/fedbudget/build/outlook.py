"""What can be said of a config's budgets before training: what nothing could meet, and what the
papers' controllers will do with them."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from fedbudget.build.controllers import (
    DUAL,
    base_of,
    compression_of,
    controller,
    policy_of,
    search,
    whose_duals,
)
from fedbudget.config import Config
from fedbudget.control.frontier import SLACK, affordable, why_not, within
from fedbudget.control.paper import Simulated, simulate
from fedbudget.control.policies import PRICED, reachable
from fedbudget.errors import UserError, about
from fedbudget.resources.budget import named_class
from fedbudget.resources.costs import Costs
from fedbudget.resources.proxies import LEVELS, level
from fedbudget.summary import LAST
from fedbudget.types import Knobs

FORESEEN = 1000
"""rounds at most that are run ahead"""
Limits = Sequence[Mapping[str, float]]


class Course(NamedTuple):
    """A controller run ahead on the forecast, for one device class."""

    whose: str
    """the class; "" where there is but one"""
    turn: str
    """what the path counts: a round, or a client's turn where each learns for itself"""
    path: Sequence[Simulated]
    budgets: Mapping[str, float]
    known: Costs

    def over(self, resource: str) -> list[bool]:
        """Turn by turn."""
        limit = self.budgets[resource] * (1 + SLACK)
        return [step.usage[resource] > limit for step in self.path]


def outlook(
    config: Config,
    knobs: Knobs,
    kinds: Sequence[Costs],
    limits: Limits,
    clients: int,
    begun: bool = False,
) -> tuple[str, ...]:
    """Warnings; UserError where nothing could meet a budget, unless the run has begun already."""
    if limits and (why := unpriced(config, knobs)):
        if begun:
            return (why,)
        raise UserError(why)
    why = out_of_reach(config, knobs, kinds, limits) or unmet(config, knobs, kinds, limits)
    if why and config.control.controller == "clamped":  # the papers' own table 1 is such a case
        why += "; it trains all the same, as the authors' code does"
    elif why and not begun:
        raise UserError(f"{why}; loosen that in [budget], or take it out")
    if not why and config.budget.accounting != "measured":  # that is not known ahead
        name = config.control.controller
        ahead = courses(config, knobs, kinds, limits, clients)
        why = "; ".join(filter(None, map(partial(broken, name), ahead)))
    return tuple(filter(None, (deaf(config), why)))


def deaf(config: Config) -> str:
    """A warning where a policy has no knob for a budget; "" where it has."""
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


def out_of_reach(config: Config, knobs: Knobs, kinds: Sequence[Costs], limits: Limits) -> str:
    """Which budgets no duals could meet; these would never rest. The authors' code turns every knob."""
    name, control = config.control.controller, config.control
    if name not in DUAL or not limits:
        return ""
    base = base_of(name, knobs)
    clamped = name == "clamped"
    for i, budgets in enumerate(limits):
        known = kinds[i % len(kinds)]
        thresholds, codecs = compression_of(control, known)
        priced = {r: b for r, b in budgets.items() if r in PRICED}
        reach = partial(
            reachable,
            *(policy_of(name, base), PRICED if clamped else priced, base, known.layout.depth),
            thresholds=thresholds,
            codecs=codecs,
            sparsify=control.sparsify,
        )

        def met(
            every: Sequence[Knobs], known: Costs = known, priced: dict[str, float] = priced
        ) -> bool:
            return any(within(known.expected(knobs), priced) for knobs in every)

        every = reach(preserve_tokens=control.preserve_tokens)
        if not met(every):
            why = f"{name}: {why_not(known.expected, every, priced, known.written)}"
            if control.preserve_tokens and met(reach(preserve_tokens=False)):
                why += (
                    ", which keeps the tokens of a round (control.preserve_tokens = false need not)"
                )
            whose = named_class(i, len(limits))
            return f"{whose}: {why}" if whose else why
    return ""


def unpriced(config: Config, knobs: Knobs) -> str:
    """A fixed code that the papers' proxies do not know: a budget would be about nothing."""
    paper = config.budget.accounting == "paper" and config.control.controller == "fixed"
    if not paper or level(knobs.codec) is not None:
        return ""
    return (
        f"codec.name = {knobs.codec!r}: the papers' proxies, which the budgets are in, know "
        f"{', '.join(LEVELS)}; take one of them, or another budget.accounting"
    )


def unmet(config: Config, knobs: Knobs, kinds: Sequence[Costs], limits: Limits) -> str:
    """Which budgets fixed knobs break and no others could keep, were they turned; "" for none.

    Other controllers find out for themselves.
    """
    accounting = config.budget.accounting
    if config.control.controller != "fixed" or accounting == "measured":
        return ""
    codecs = tuple(LEVELS) if accounting == "paper" else tuple(config.control.codecs)
    for i, budgets in enumerate(limits):
        known = kinds[i % len(kinds)]
        if within(known.expected(knobs), budgets):
            continue
        grid, progress = search(config, known)
        widest = replace(grid, least=1, batches=(1, *grid.batches), codecs=codecs)
        try:
            with about(named_class(i, len(limits))):
                affordable(known.expected, widest, progress, budgets)
        except UserError as error:
            return str(error)
    return ""


def courses(
    config: Config, knobs: Knobs, kinds: Sequence[Costs], limits: Limits, clients: int
) -> list[Course]:
    """Of each device class; none but for the papers' controllers."""
    control = config.control
    if control.controller not in DUAL:
        return []
    rounds, turn = config.rounds, "round"
    if whose_duals(control, limits) == "client":
        rounds, turn = max(1, rounds * config.train.cohort // clients), "client turn"
    found = []
    for i, budgets in enumerate(limits):
        known = kinds[i % len(kinds)]
        alone = controller(config, knobs, known, [dict(budgets)], known.layout.depth, 1)
        path = simulate(alone, known.expected, min(rounds, FORESEEN), known.accounting)
        found.append(Course(named_class(i, len(limits)), turn, path, budgets, known))
    return found


def first_rounds(
    config: Config, knobs: Knobs, kinds: Sequence[Costs], limits: Limits
) -> list[Course]:
    """Of a controller that has no duals: what each device class begins with, alone."""
    found = []
    for i, budgets in enumerate(limits):
        known = kinds[i % len(kinds)]
        whose = named_class(i, len(limits))
        with about(whose):
            alone = controller(config, knobs, known, [dict(budgets)], known.layout.depth, 1)
        path = simulate(alone, known.expected, 1, known.accounting)
        found.append(Course(whose, "round", path, budgets, known))
    return found


def broken(name: str, course: Course) -> str:
    """Which budgets it still breaks in its last turns; "" where it comes within all."""
    path, budgets = course.path, course.budgets
    end = min(LAST, max(1, len(path) // 2))  # every course begins above its budgets
    late = [r for r in budgets if any(course.over(r)[-end:])]
    if not late:
        return ""
    told = ", ".join(
        f"{r} (in {sum(course.over(r))}, ends at {path[-1].usage[r] / budgets[r]:.0%})"
        for r in late
    )
    whose = f"{course.whose}: " if course.whose else ""
    when = f"in the last {end} of {len(path)} {course.turn}s too"
    return f"{whose}{name}: by forecast over budget {when}: {told}"
