"""Adaptive local steps (Wang et al. 2019): before each round the number that minimises a bound.

Their bound on the loss above its least, after T steps in runs of s (theorem 2):

    A + sqrt(A^2 + D(s) / (q s)) + D(s),   A = 1 / (2 q T)

q is the progress of a step (their eta phi), D(s) what local steps lose by drifting apart (rho h(s)).
What runs out here is rounds, so T = s times the rounds left, and budgets cap s in each of them.
Clients there report gradients at two points to estimate q and D; here there are losses:

    q     from 1 / loss, which the theorem has grow by q a step:  (1 / L_now - 1 / L_first) / steps
    D(s)  by the spread of the cohort's losses around their mean, growing with s^2, as h does at first

Without an estimate (the first rounds, or a loss that has not fallen) it takes as many steps as fit.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from statistics import fmean, pstdev

from fedbudget.control.controller import Controller, ControlState
from fedbudget.control.frontier import Forecast
from fedbudget.control.room import Limits, no_room, room
from fedbudget.resources.budget import each_class, of_client
from fedbudget.types import Knobs, Reply


@dataclass(frozen=True, eq=False)  # hashed by identity: it is the key of a cache
class Adaptive:
    forecast: Forecast
    base: Knobs
    classes: Sequence[Limits]
    rounds: int
    accounting: str = "counted"


def adaptive(forecast: Forecast, base: Knobs, classes: Sequence[Limits], rounds: int) -> Controller:
    """`classes` has the budgets of each device class; client i is of class i modulo their number."""
    plan = Adaptive(forecast, base, classes, rounds)
    each_class(classes, lambda limits: _most(plan, *limits.items()))
    return Controller(_init, partial(_knobs, plan), partial(_update, plan))


def best_steps(progress: float, drift: float, rounds: int, most: int) -> int:
    """From 1 to `most`, the steps of the least bound with that many rounds left; D(s) = drift s^2."""

    def bound(steps: int) -> float:
        a = 1 / (2 * progress * steps * rounds)
        return a + math.sqrt(a * a + drift * steps / progress) + drift * steps * steps

    return min(range(most, 0, -1), key=bound)  # more of equals


def _init() -> ControlState:
    return {"round": 0, "steps": 0.0, "first": None, "progress": 0.0, "drift": 0.0, "factors": {}}


def _knobs(plan: Adaptive, state: ControlState, client: int) -> Knobs:
    factors = state["factors"].get(str(client), {})
    limits = of_client(plan.classes, client)
    most = _most(plan, *((r, b / factors.get(r, 1.0)) for r, b in limits.items()))
    if state["progress"] <= 0:
        return most
    left = max(1, plan.rounds - state["round"])
    return replace(most, steps=best_steps(state["progress"], state["drift"], left, most.steps))


@lru_cache(maxsize=4096)
def _most(plan: Adaptive, *limits: tuple[str, float]) -> Knobs:
    found = room(plan.forecast, plan.base, dict(limits))
    if found is None:
        raise no_room("adaptive", plan.forecast, [plan.base], dict(limits))
    return found


def _update(plan: Adaptive, state: ControlState, replies: Sequence[Reply]) -> ControlState:
    losses = [r.loss for r in replies if r.loss is not None and r.loss > 0]
    after = {**state, "round": state["round"] + 1, "factors": _learnt(plan, state, replies)}
    if not losses:
        return after
    taken = fmean((r.knobs or _knobs(plan, state, r.client)).steps for r in replies)
    loss, first = fmean(losses), state["first"] or fmean(losses)
    grown = 1 / loss - 1 / first
    progress = grown / state["steps"] if state["steps"] > 0 else 0.0
    drift = pstdev(losses) / taken**2
    new = {"first": first, "steps": state["steps"] + taken, "progress": progress, "drift": drift}
    return {**after, **new}


def _learnt(
    plan: Adaptive, state: ControlState, replies: Sequence[Reply]
) -> Mapping[str, Mapping[str, float]]:
    """By client and resource: the most that was reported over what was forecast, where it is more."""
    factors = dict(state["factors"])
    for reply in replies:
        expected = plan.forecast(reply.knobs or _knobs(plan, state, reply.client))
        known = dict(factors.get(str(reply.client), {}))
        for resource, used in reply.usage.get(plan.accounting, {}).items():
            if resource in of_client(plan.classes, reply.client) and expected[resource] > 0:
                ratio = used / expected[resource]
                if ratio > known.get(resource, 1 + 1e-6):
                    known[resource] = ratio
        if known:
            factors[str(reply.client)] = known
    return factors
