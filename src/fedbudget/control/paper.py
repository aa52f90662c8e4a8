"""The papers' controllers: duals follow usage, knobs follow duals.

`dual_controller` is the published equations with any policy and any rule for the duals; `clamped`
is what the authors' code does instead. Both are plain functions over a frozen setup, so that they
can be given to a worker process, and their state is plain JSON:
{"*" or client number: {"base": [k, s, b], "duals": {resource: state of its multiplier}}}.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, NamedTuple

from fedbudget.control.controller import Controller, ControlState
from fedbudget.control.deadzones import two_sided
from fedbudget.control.duals import Duals, Rule, ascend, ascent, prices, scaled
from fedbudget.control.policies import (
    CODECS,
    THRESHOLDS,
    Base,
    Policy,
    Threshold,
    cafl,
    compression,
    to_knobs,
)
from fedbudget.errors import UserError
from fedbudget.types import Accounting, Knobs, Reply

Budgets = Mapping[str, float]
Adapt = Callable[[Base, Duals], tuple[Base, Duals]]
"""(working base, duals after the ascent) -> both for the next round"""

COHORT = "*"


def _unchanged(base: Base, duals: Duals) -> tuple[Base, Duals]:
    return base, duals


@dataclass(frozen=True)
class _Setup:
    base: Base
    """whose s b is the token target"""
    depth: int
    budgets: Budgets
    policy: Policy
    rule: Rule
    accounting: Accounting = "paper"
    per: Literal["cohort", "client"] = "cohort"
    per_client: Mapping[int, Budgets] = field(default_factory=dict)
    thresholds: Sequence[Threshold] = THRESHOLDS
    codecs: Mapping[int, str] = field(default_factory=lambda: dict(CODECS))
    preserve_tokens: bool = True
    ema: float = 0.0
    sparsify: bool = False
    start: Base | None = None
    """the working base of the first round, when it is not `base`"""
    adapt: Adapt = _unchanged

    def __post_init__(self) -> None:
        for where, budgets in (("budgets", self.budgets), *self.per_client.items()):
            for resource, budget in budgets.items():
                if not (budget > 0 and math.isfinite(budget)):
                    owner = where if where == "budgets" else f"budgets of client {where}"
                    raise UserError(f"{owner}: {resource} is {budget}; it must be above 0")
        if min(self.base) < 1:
            raise UserError(f"k, s and b are {', '.join(map(str, self.base))}; each must be >= 1")
        if not 0 <= self.ema < 1:
            raise UserError(f"ema is {self.ema}; it must be at least 0 and below 1")
        if self.per_client and self.per == "cohort":
            raise UserError('budgets of single clients need per = "client"')
        levels = {0, *(t.q for t in self.thresholds)}
        if missing := levels - set(self.codecs):
            raise UserError(f"codecs: no codec for compression level {min(missing)}")

    def budgets_of(self, key: str) -> Budgets:
        if key == COHORT:
            return self.budgets
        return {**self.budgets, **self.per_client.get(int(key), {})}

    def of(self, state: ControlState, key: str) -> tuple[Base, Duals]:
        """Working base and duals; a client that was never seen has fresh ones."""
        if key in state:
            return Base(*state[key]["base"]), state[key]["duals"]
        return self.start or self.base, {r: self.rule.init() for r in self.budgets_of(key)}


def dual_controller(
    base: Base,
    depth: int,
    budgets: Budgets,
    policy: Policy,
    rule: Rule,
    *,
    accounting: Accounting = "paper",
    per: Literal["cohort", "client"] = "cohort",
    per_client: Mapping[int, Budgets] | None = None,
    thresholds: Sequence[Threshold] = THRESHOLDS,
    codecs: Mapping[int, str] = CODECS,
    preserve_tokens: bool = True,
    ema: float = 0.0,
    sparsify: bool = False,
) -> Controller:
    """CAFL-L algorithm 1: knobs = policy(duals); the duals rise with the cohort's mean usage.

    `depth` is the model's number of layer groups. With `per="client"` each client has its own
    duals, moved by its own usage only, and its own budgets where `per_client` names them.
    """
    return _controller(
        _Setup(
            base,
            depth,
            dict(budgets),
            policy,
            rule,
            accounting,
            per,
            {client: dict(own) for client, own in (per_client or {}).items()},
            tuple(thresholds),
            dict(codecs),
            preserve_tokens,
            ema,
            sparsify,
        )
    )


def clamped(
    base: Base,
    depth: int,
    budgets: Budgets,
    *,
    accounting: Accounting = "paper",
    thresholds: Sequence[Threshold] = THRESHOLDS,
    codecs: Mapping[int, str] = CODECS,
    preserve_tokens: bool = True,
    sparsify: bool = False,
) -> Controller:
    """What the authors' code does, which is in neither paper and is what gives their table 1.

    CAFL eqs 10-12 and a two-sided zone on usage smoothed with 0.5, and each round on top: above
    1.02 of any budget, base k <= 2, base s <= 30, base b = 8 and all duals x 1.2; below 0.90 of
    all, base k + 1, base s + 10 (at most 1.1 s0) and all duals x 0.85. s is never below 0.8 s0
    and the physical batch is always 8, or the base's where that is less. The learning rate is
    divided by the token ratio: `stepsize.tokens`.
    """
    b = min(8, base.b)
    return _controller(
        _Setup(
            base,
            depth,
            dict(budgets),
            policy=partial(cafl, s_min=base.s * 8 // 10, b_min=b),
            rule=ascent(zone=two_sided),
            accounting=accounting,
            thresholds=tuple(thresholds),
            codecs=dict(codecs),
            preserve_tokens=preserve_tokens,
            ema=0.5,
            sparsify=sparsify,
            start=base._replace(b=b),
            adapt=partial(_clamp, k_max=depth - 1, s_max=base.s * 11 // 10, b=b),
        )
    )


def _clamp(base: Base, duals: Duals, *, k_max: int, s_max: int, b: int) -> tuple[Base, Duals]:
    ratios = [dual["ratio"] for dual in duals.values() if "ratio" in dual]
    if any(ratio > 1.02 for ratio in ratios):
        return Base(min(base.k, 2), min(base.s, 30), b), scaled(duals, 1.2)
    if all(ratio < 0.90 for ratio in ratios):
        return Base(min(base.k + 1, k_max), min(base.s + 10, s_max), base.b), scaled(duals, 0.85)
    return base, duals


def _controller(setup: _Setup) -> Controller:
    return Controller(dict, partial(_knobs, setup), partial(_update, setup), duals_of)


def _knobs(setup: _Setup, state: ControlState, client: int) -> Knobs:
    base, duals = setup.of(state, COHORT if setup.per == "cohort" else str(client))
    now = prices(duals)
    q = compression(now, setup.thresholds)
    return to_knobs(
        setup.policy(now, base),
        q,
        setup.base,
        setup.depth,
        setup.codecs,
        setup.preserve_tokens,
        setup.sparsify,
    )


def _update(setup: _Setup, state: ControlState, replies: Sequence[Reply]) -> ControlState:
    after: dict[str, Any] = dict(state)
    if setup.per == "client":
        groups = {str(reply.client): [reply] for reply in replies}
    else:
        groups = {COHORT: list(replies)} if replies else {}
    for key, group in groups.items():
        budgets = setup.budgets_of(key)
        base, duals = setup.of(state, key)
        usage = {resource: _mean(group, setup.accounting, resource) for resource in budgets}
        base, duals = setup.adapt(base, ascend(setup.rule, duals, usage, budgets, setup.ema))
        after[key] = {"base": list(base), "duals": duals}
    return after


def _mean(replies: Sequence[Reply], accounting: str, resource: str) -> float:
    """u_j of CAFL-L algorithm 1, line 16."""
    for reply in replies:
        known = reply.usage.get(accounting, {})
        if resource not in known:
            raise UserError(
                f"there is a budget for {resource}, but client {reply.client} reports no such "
                f"resource as {accounting!r}; it reports {', '.join(known) or 'nothing'}"
            )
    return sum(reply.usage[accounting][resource] for reply in replies) / len(replies)


def duals_of(state: ControlState, client: int) -> dict[str, float]:
    """lambda_j that a client's knobs come from; empty before its first update."""
    entry = state.get(str(client), state.get(COHORT))
    return prices(entry["duals"]) if entry else {}


class Simulated(NamedTuple):
    """One round of `simulate`."""

    knobs: Knobs
    usage: Mapping[str, float]
    duals: Mapping[str, float]
    """before the round: those that gave the knobs"""


def simulate(
    controller: Controller,
    usage_of_knobs: Callable[[Knobs], Mapping[str, float]],
    rounds: int,
    accounting: Accounting = "paper",
) -> list[Simulated]:
    """A controller against a resource model alone: one client, no training, from its first state."""
    state = controller.init()
    history = []
    for number in range(1, rounds + 1):
        knobs = controller.knobs(state, 0)
        usage = usage_of_knobs(knobs)
        history.append(Simulated(knobs, usage, duals_of(state, 0)))
        if number < rounds:
            reply = Reply(run=0, round=number, client=0, usage={accounting: usage})
            state = controller.update(state, [reply])
    return history
