"""What a run's noise guarantees: (epsilon, delta) from its records, by Opacus's RDP accountant.

A client's own rounds are composed as Gaussian mechanisms without any amplification: that figure is
guaranteed, and it is the worst client's. Two data sets are neighbours where the client's update is
there or is zero; `epsilon_replaced` is for any other data in its place, which is twice the distance.

`epsilon_poisson` counts every round, amplified as if each client were drawn by itself with the
cohort's share. Cohorts have a fixed size and are drawn without replacement, so it is an
approximation, and only for someone who does not know the cohorts. The server of "local" does.
"""

import math
import warnings
from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from typing import Any

from fedbudget.errors import UserError
from fedbudget.plan import Plan
from fedbudget.privacy import Privacy
from fedbudget.types import DROPPED_OUT

Records = Iterable[Mapping[str, Any]]
HIGH_ORDERS = (64, 80, 96, 128, 192, 256, 384, 512, 1000)
"""Renyi orders beyond Opacus's own, for much noise"""


def ready(how: Privacy) -> None:
    """Before a run: is there something that can account for it?"""
    if how.on and find_spec("opacus") is None:
        raise UserError(
            "privacy needs Opacus to account for the noise: pip install 'fedbudget[privacy]'"
        )


def facts(plan: Plan, records: Records) -> dict[str, Any]:
    """What a summary says of privacy; nothing where it is off."""
    how = plan.recipe.privacy
    if not how.on:
        return {}
    seen = [multipliers(record, how) for record in records]
    own: dict[int, list[float]] = {}
    for round in seen:
        for client, noise in round.items():
            own.setdefault(client, []).append(noise)
    worst = max(own, key=lambda client: (_spent(own[client]), len(own[client])), default=None)
    noises = own[worst] if worst is not None else []
    poisson = None
    if how.model == "sum":
        least = [min(round.values()) for round in seen if round]
        poisson = epsilon(least, how.delta, plan.cohort / len(plan.clients))
    found = {
        "model": how.model,
        "clip": how.clip,
        "noise": how.noise,
        "delta": how.delta,
        "epsilon": epsilon(noises, how.delta),
        "epsilon_replaced": epsilon([noise / 2 for noise in noises], how.delta),
        "epsilon_poisson": poisson,
        "client": worst,
        "rounds": len(noises),
        "least_noise": min((min(n) for n in own.values()), default=None),
    }
    return {"privacy": found}


def multipliers(record: Mapping[str, Any], how: Privacy) -> dict[int, float]:
    """Client -> noise over C in what was seen of it in a round.

    "local": whoever was asked may have sent, used or not. "sum": those in the sum; the noise is
    that of the replies which are there, in the layer group that the fewest of them trained.
    """
    dropped = record["dropped"]
    if how.model == "local":
        asked = [c for c in record["cohort"] if dropped.get(str(c)) != DROPPED_OUT]
        return dict.fromkeys(asked, how.noise)
    used = [c for c in record["cohort"] if str(c) not in dropped]
    knobs = record["knobs"]
    layers = {c: knobs["*" if "*" in knobs else str(c)]["layers"] for c in used}
    beside = {c: sum(other >= own for other in layers.values()) for c, own in layers.items()}
    return {c: how.noise * math.sqrt(beside[c] / how.cohort) for c in used}


def epsilon(noises: Iterable[float], delta: float, rate: float = 1.0) -> float:
    """Of Gaussian mechanisms with these noise multipliers, one after another."""
    ordered = sorted(noises)
    if not ordered:
        return 0.0
    if ordered[0] == 0:
        return math.inf
    from opacus.accountants import RDPAccountant

    accountant = RDPAccountant()
    for noise in ordered:  # equal ones together: Opacus computes them once
        accountant.step(noise_multiplier=noise, sample_rate=rate)
    orders = [*RDPAccountant.DEFAULT_ALPHAS, *HIGH_ORDERS]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the best order may be the last: a bound all the same
        return max(0.0, float(accountant.get_epsilon(delta=delta, alphas=orders)))


def sentence(summary: Mapping[str, Any]) -> str:
    """For people; "" where privacy is off."""
    found = summary.get("privacy")
    if found is None:
        return ""
    text = (
        f"privacy ({found['model']}): epsilon {found['epsilon']:.3g} at delta {found['delta']:g} "
        f"after {found['rounds']} rounds of client {found['client']}, without amplification"
    )
    if found["epsilon_poisson"] is not None:
        text += f"; about {found['epsilon_poisson']:.3g} if cohorts are secret"
    return text


def _spent(noises: Iterable[float]) -> float:
    """What the Renyi divergence of every order grows with."""
    return math.fsum(1 / noise**2 if noise > 0 else math.inf for noise in noises)
