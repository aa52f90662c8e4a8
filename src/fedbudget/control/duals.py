"""Duals: how the multiplier lambda_j >= 0 of each budget follows usage / budget.

A rule is a value and its state is plain JSON. A multiplier's state holds "dual", the price that
the policy reads, after a first round "ratio", the (smoothed) usage / budget last seen, and what
else its rule keeps.
The set of resources is open: it is the keys of the budgets.
"""

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

from fedbudget.control.deadzones import one_sided

Dual = dict[str, Any]
"""the state of one multiplier"""
Duals = dict[str, Dual]
"""resource -> the state of its multiplier"""

CEILING = 1e12
"""An infeasible budget's dual grows for ever, and infinity is not JSON."""


class Rule(NamedTuple):
    """How one multiplier is updated."""

    init: Callable[[], Dual]
    step: Callable[[Dual, float], Dual]
    """(state, usage / budget) -> state; its "dual" need not be >= 0 yet"""


def ascend(
    rule: Rule,
    duals: Mapping[str, Dual],
    usage: Mapping[str, float],
    budgets: Mapping[str, float],
    ema: float = 0.0,
) -> Duals:
    """All multipliers after one round.

    `ema` is the weight of the past in the smoothed usage: 0.5 in the authors' code, 0 in the
    papers' text. A resource whose usage is not a finite number keeps its multiplier.
    """
    after: Duals = {}
    for resource, budget in budgets.items():
        dual = duals.get(resource) or rule.init()
        ratio = usage[resource] / budget
        if math.isfinite(ratio):
            if "ratio" in dual:
                ratio = ema * dual["ratio"] + (1 - ema) * ratio
            step = rule.step(dual, ratio)
            dual = _priced({**step, "ratio": ratio}, step["dual"])
        after[resource] = dual
    return after


def scaled(duals: Mapping[str, Dual], factor: float) -> Duals:
    """All multipliers times a factor."""
    return {resource: _priced(dual, factor * dual["dual"]) for resource, dual in duals.items()}


def prices(duals: Mapping[str, Dual]) -> dict[str, float]:
    """lambda_j of each resource."""
    return {resource: dual["dual"] for resource, dual in duals.items()}


def _priced(dual: Dual, value: float) -> Dual:
    """The one place where lambda >= 0 is enforced."""
    return {**dual, "dual": min(max(0.0, value), CEILING)}


def ascent(eta: float = 0.01, zone: Callable[[float], float] = one_sided) -> Rule:
    """Dual ascent with a dead zone: lambda + eta dz(usage / budget), CAFL-L eq. 4, CAFL eq. 9."""
    return Rule(_zero, partial(_ascent, eta=eta, zone=zone))


def nupi(eta: float = 0.01, ki: float = 1.0, kp: float = 1.0, nu: float = 0.0) -> Rule:
    """A PI controller on e = usage / budget - 1 (Sohrabi et al., ICML 2024).

    xi_t = nu xi_{t-1} + (1 - nu) e_t, xi_{-1} = e_0, and
    lambda + eta (ki e_t + kp (xi_t - xi_{t-1})). kp = 0 is dual ascent without a dead zone;
    the defaults (kp = ki, nu = 0) are the optimistic gradient method.
    """
    return Rule(_zero, partial(_nupi, eta=eta, ki=ki, kp=kp, nu=nu))


def augmented_lagrangian(
    rho: float = 0.01, growth: float = 2.0, shrink: float = 0.5, rho_max: float = 0.16
) -> Rule:
    """The method of multipliers: lambda + rho e, also what the penalised objective charges for e.

    The penalty grows when a violation did not shrink enough, up to `rho_max`: the policies turn
    all their knobs within lambda < 1, so a larger step would only make them jump.
    """
    return Rule(
        partial(_penalty, rho=rho),
        partial(_augmented, growth=growth, shrink=shrink, rho_max=max(rho, rho_max)),
    )


def log_barrier(eta: float = 0.01, mu: float = 0.01) -> Rule:
    """Dual ascent on the problem with -mu log(slack): it comes to rest at lambda x slack = mu.

    slack = 1 - usage / budget. The step is implicit in the barrier's term, which gives a smooth
    max(0, lambda + eta e): it needs no feasible start, and it is plain ascent at mu = 0.
    """
    return Rule(_zero, partial(_barrier, eta=eta, mu=mu))


def _zero() -> Dual:
    return {"dual": 0.0}


def _ascent(dual: Dual, ratio: float, *, eta: float, zone: Callable[[float], float]) -> Dual:
    return {"dual": dual["dual"] + eta * zone(ratio)}


def _nupi(dual: Dual, ratio: float, *, eta: float, ki: float, kp: float, nu: float) -> Dual:
    error = ratio - 1
    before = dual.get("xi", error)
    xi = nu * before + (1 - nu) * error
    return {"dual": dual["dual"] + eta * (ki * error + kp * (xi - before)), "xi": xi}


def _penalty(*, rho: float) -> Dual:
    return {"dual": 0.0, "rho": rho}


def _augmented(dual: Dual, ratio: float, *, growth: float, shrink: float, rho_max: float) -> Dual:
    error, rho = ratio - 1, dual["rho"]
    violation = max(0.0, error)
    stuck = violation > shrink * dual.get("violation", math.inf)
    return {
        "dual": dual["dual"] + rho * error,
        "rho": min(rho_max, rho * growth) if stuck else rho,
        "violation": violation,
    }


def _barrier(dual: Dual, ratio: float, *, eta: float, mu: float) -> Dual:
    # the positive root of y = lambda + eta (e + mu / y)
    plain = dual["dual"] + eta * (ratio - 1)
    return {"dual": (plain + math.sqrt(plain * plain + 4 * eta * mu)) / 2}
