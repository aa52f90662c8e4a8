"""How duals move: against closed forms, KKT points and cooper-optim."""

import json
import math
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedbudget.control.deadzones import one_sided, two_sided
from fedbudget.control.duals import (
    CEILING,
    ascend,
    ascent,
    augmented_lagrangian,
    log_barrier,
    nupi,
    prices,
    scaled,
)

RULES = {
    "one-sided": ascent(),
    "two-sided": ascent(zone=two_sided),
    "nupi": nupi(nu=0.5),
    "augmented": augmented_lagrangian(),
    "barrier": log_barrier(),
}
ERRORS = [7.6, -0.5, 0.3, 0.3, -2.0, 1.1, -0.05, 0.0, 0.4]
every_rule = pytest.mark.parametrize("rule", RULES.values(), ids=RULES)


def run(rule, ratios, duals=None, ema=0.0):
    """The dual of one resource with budget 1, after each round."""
    duals, seen = duals or {}, []
    for ratio in ratios:
        duals = ascend(rule, duals, {"x": ratio}, {"x": 1.0}, ema)
        seen.append(duals["x"]["dual"])
    return seen


@given(st.floats(0, 100), st.floats(0, 0.9))
def test_zones_are_silent_inside_and_continuous_at_their_edges(ratio, eps):
    outside = max(0.0, abs(ratio - 1) - eps)
    assert abs(two_sided(ratio, eps)) == pytest.approx(outside, abs=1e-12)
    assert two_sided(ratio, eps) * (ratio - 1) >= 0
    assert one_sided(ratio, eps) == pytest.approx(max(0.0, ratio - 1 - eps), abs=1e-12)


def test_the_first_round_of_fedavg_gives_the_closed_form():
    """CAFL-L eq. 4 with usage 5.18 of a budget of 0.60 and 0.62 of 1.00."""
    usage, budgets = (
        {"communication": 5.18, "temperature": 0.62},
        {
            "communication": 0.60,
            "temperature": 1.00,
        },
    )
    after = prices(ascend(ascent(eta=0.01), {}, usage, budgets))
    assert after == pytest.approx(
        {"communication": 0.01 * (5.18 / 0.60 - 1.05), "temperature": 0.0}
    )


@given(st.lists(st.floats(0, 50), max_size=30))
def test_a_one_sided_zone_is_a_ratchet(ratios):
    seen = run(ascent(), ratios)
    assert seen == sorted(seen)


def test_a_two_sided_zone_gives_back():
    seen = run(ascent(zone=two_sided), [3.0, 0.5, 0.5])
    assert seen == pytest.approx([0.0195, 0.0150, 0.0105])


@every_rule
@given(ratios=st.lists(st.floats(0, 1e9), max_size=30), ema=st.floats(0, 0.99))
def test_a_dual_is_never_negative_and_its_state_is_json(rule, ratios, ema):
    duals = {}
    for ratio in ratios:
        duals = ascend(rule, duals, {"x": ratio}, {"x": 1.0}, ema)
        assert 0 <= duals["x"]["dual"] <= CEILING
        assert json.loads(json.dumps(duals, allow_nan=False)) == duals


@every_rule
def test_a_rule_leaves_the_state_it_was_given(rule):
    before = ascend(rule, {}, {"x": 2.0}, {"x": 1.0})
    copy = json.loads(json.dumps(before))
    ascend(rule, before, {"x": 3.0}, {"x": 1.0})
    assert before == copy


@every_rule
@pytest.mark.parametrize("nonsense", [math.nan, math.inf])
def test_usage_that_is_no_number_leaves_a_dual_as_it_was(rule, nonsense):
    before = ascend(rule, {}, {"x": 2.0}, {"x": 1.0})
    assert ascend(rule, before, {"x": nonsense}, {"x": 1.0}) == before


def test_the_resources_are_those_of_the_budgets():
    usage = {"energy": 5.0, "carbon": 5.0, "noise": 5.0}
    budgets = {"carbon": 1.0, "energy": 1.0}
    after = ascend(ascent(), {}, usage, budgets)
    assert set(after) == {"carbon", "energy"}
    later = ascend(ascent(), after, {**usage, "money": 9.0}, {**budgets, "money": 1.0})
    assert prices(later)["money"] == pytest.approx(0.01 * 7.95)


def test_smoothed_usage_is_an_average_that_starts_at_the_first_value():
    seen, duals = [], {}
    for usage in (8.0, 2.0, 2.0):
        duals = ascend(ascent(), duals, {"x": usage}, {"x": 2.0}, ema=0.5)
        seen.append(duals["x"]["ratio"])
    assert seen == [4.0, 2.5, 1.75]


def test_scaling_scales_and_stays_finite():
    duals = ascend(ascent(), {}, {"x": 3.05}, {"x": 1.0})
    assert prices(scaled(duals, 1.2)) == pytest.approx({"x": 0.024})
    for _ in range(400):
        duals = scaled(duals, 1.2)
    assert prices(duals) == {"x": CEILING}


def cooper_nupi(errors, init, kp, ki, nu, first_xi=None):
    """cooper-optim's own multiplier and optimiser on a sequence of errors."""
    cooper = pytest.importorskip("cooper")
    optimizers = pytest.importorskip("cooper.optim")
    multiplier = cooper.multipliers.DenseMultiplier(init=torch.zeros(1), dtype=torch.float64)
    multiplier.set_constraint_type(cooper.ConstraintType.INEQUALITY)
    gains = {k: torch.tensor(v, dtype=torch.float64) for k, v in (("Kp", kp), ("Ki", ki))}
    optimizer = optimizers.nuPI(
        multiplier.parameters(),
        lr=0.01,
        **gains,
        ema_nu=nu,
        init_type=optimizers.nuPIInitType[init],
        maximize=True,
    )
    if first_xi is not None:
        optimizer.state[multiplier.weight]["xi"] = torch.tensor([first_xi], dtype=torch.float64)
    seen = []
    for error in errors:
        multiplier.weight.grad = torch.tensor([error], dtype=torch.float64)
        optimizer.step()
        multiplier.post_step_()
        seen.append(multiplier().item())
    return seen


@pytest.mark.parametrize("kp", [0.0, 1.0, 10.0])
@pytest.mark.parametrize("nu", [0.0, 0.3, 0.9])
def test_nupi_agrees_with_cooper(kp, nu):
    """cooper 1.0.1 forgets e_0 after the first step (its issue 107), so it is told xi_{-1} = e_0."""
    theirs = cooper_nupi(ERRORS, "SGD", kp, 0.7, nu, first_xi=ERRORS[0] if kp else None)
    ours = run(nupi(ki=0.7, kp=kp, nu=nu), [1 + e for e in ERRORS])
    assert ours == pytest.approx(theirs, abs=1e-12)


@pytest.mark.parametrize("nu", [0.0, 0.3, 0.9])
def test_nupi_started_at_zero_agrees_with_cooper_untouched(nu):
    theirs = cooper_nupi(ERRORS, "ZEROS", 2.0, 0.7, nu)
    at_zero = {"x": {"dual": 0.0, "xi": 0.0}}
    ours = run(nupi(ki=0.7, kp=2.0, nu=nu), [1 + e for e in ERRORS], at_zero)
    assert ours == pytest.approx(theirs, abs=1e-12)


def test_nupi_without_proportional_gain_is_ascent_without_a_zone():
    ratios = [1 + e for e in ERRORS]
    plain = ascent(zone=partial(two_sided, eps=0.0))
    assert run(nupi(kp=0.0), ratios) == pytest.approx(run(plain, ratios))


def settle(rule, rounds=5000):
    """Play a rule against argmin_x (x - 3)^2 + lambda (x - 1), that is x = 3 - lambda / 2."""
    duals, x = {}, 3.0
    for _ in range(rounds):
        duals = ascend(rule, duals, {"x": x}, {"x": 1.0})
        x = 3 - duals["x"]["dual"] / 2
    return duals["x"]["dual"]


@pytest.mark.parametrize(
    "rule",
    [
        ascent(zone=partial(two_sided, eps=0.0)),
        ascent(zone=partial(one_sided, eps=0.0)),
        nupi(kp=5.0, nu=0.5),
        augmented_lagrangian(),
        log_barrier(mu=0.0),
    ],
    ids=["two-sided", "one-sided", "nupi", "augmented", "barrier"],
)
def test_a_convex_problem_ends_at_its_kkt_multiplier(rule):
    assert settle(rule) == pytest.approx(4.0, abs=1e-6)


@pytest.mark.parametrize("mu", [1.0, 0.1, 0.001])
def test_the_barrier_ends_on_the_central_path(mu):
    """lambda (1 - x) = mu with x = 3 - lambda / 2 has the root 2 + sqrt(4 + 2 mu)."""
    assert settle(log_barrier(mu=mu)) == pytest.approx(2 + math.sqrt(4 + 2 * mu), abs=1e-6)


def test_the_penalty_grows_only_while_a_violation_does_not_shrink():
    rule, duals, rhos = augmented_lagrangian(rho=0.01, rho_max=0.03), {}, []
    for ratio in (3.0, 1.9, 1.8, 1.8, 1.8, 0.5):
        duals = ascend(rule, duals, {"x": ratio}, {"x": 1.0})
        rhos.append(duals["x"]["rho"])
    assert rhos == [0.01, 0.01, 0.02, 0.03, 0.03, 0.03]
    expected = 0.01 * 2.0 + 0.01 * 0.9 + 0.01 * 0.8 + 0.02 * 0.8 + 0.03 * 0.8 - 0.03 * 0.5
    assert duals["x"]["dual"] == pytest.approx(expected)


def test_a_penalty_above_the_usual_most_stays_as_it_was_given():
    rule, rhos = augmented_lagrangian(rho=0.5), []
    duals = {"energy": rule.init()}
    for _ in range(4):
        duals = ascend(rule, duals, {"energy": 3.0}, {"energy": 1.0})
        rhos.append(duals["energy"]["rho"])
    assert rhos == [0.5] * 4
