"""Policies by hand, and the papers' controllers run from lambda = 0 against their table 1."""

import json
import math
import pickle
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedbudget.control.controller import fixed
from fedbudget.control.deadzones import one_sided, two_sided
from fedbudget.control.duals import ascent, augmented_lagrangian, log_barrier, nupi
from fedbudget.control.paper import clamped, dual_controller, duals_of, simulate
from fedbudget.control.policies import (
    CODECS,
    Base,
    Threshold,
    accumulation,
    cafl,
    cafl_l,
    compression,
    lr_divisor,
    to_knobs,
    token_ratio,
)
from fedbudget.errors import UserError
from fedbudget.resources.proxies import of_knobs
from fedbudget.types import Knobs, Reply

SIZES = (24704, *[198272] * 8, 8576)
DEPTH = len(SIZES)
START = Base(k=3, s=180, b=8)
BUDGETS = {"energy": 1.20e6, "communication": 0.60e6, "temperature": 1.00, "memory": 0.26}
proxy = partial(of_knobs, sizes=SIZES)

any_dual = st.floats(0, 1e12) | st.floats(0, 1)
any_duals = st.dictionaries(st.sampled_from([*BUDGETS, "carbon"]), any_dual)
any_base = st.builds(Base, st.integers(1, 20), st.integers(1, 500), st.integers(1, 64))


def last(history, rounds=5):
    """Mean usage over the last rounds."""
    ended = history[-rounds:]
    return {r: sum(h.usage[r] for h in ended) / len(ended) for r in BUDGETS}


def reply(client, accounting="paper", **usage):
    return Reply(run=0, round=1, client=client, usage={accounting: usage})


def test_cafl_l_equations_by_hand():
    duals = {"communication": 0.1, "memory": 0.2, "temperature": 0.2, "energy": 0.05}
    weights = {"a_k": 24.0, "b_s": 2.0, "g_b": 3.0}
    # 12 - floor(24 x .4), 100 (1 - 2 x .25), floor(32 / 2.2)
    assert cafl_l(duals, Base(12, 100, 32), **weights) == Base(12 - 9, 50, 14)


def test_cafl_equations_by_hand():
    duals = {"communication": 0.1, "memory": 0.1, "temperature": 0.1, "energy": 0.1}
    got = cafl(duals, Base(4, 100, 32))
    # 4 - ceil(4 x 1.8 x .2), floor(100 (1 - 1.6 x .2)), floor(32 / 2.4)
    assert got == Base(2, 68, 13)


@pytest.mark.parametrize(("steps", "tenth"), [(180, 18), (505, 50), (600, 60), (1000, 100)])
def test_cafl_never_takes_more_than_nine_tenths_of_the_steps(steps, tenth):
    assert cafl({"energy": 99.0}, Base(3, steps, 8)).s == tenth


@given(tenths=st.integers(1, 4), steps=st.integers(1, 200).map(lambda n: 10 * n))
def test_whole_products_are_not_rounded_down(tenths, steps):
    """Whatever a float makes of 1 - 1.6 x 0.25 and the like."""
    assert (
        cafl_l({"energy": tenths / 16}, Base(3, steps, 8), s_min=1).s
        == steps - tenths * steps // 10
    )


@pytest.mark.parametrize("policy", [cafl, cafl_l])
def test_without_duals_the_base_is_kept(policy):
    assert policy({}, START) == policy(dict.fromkeys(BUDGETS, 0.0), START) == START


@pytest.mark.parametrize("policy", [cafl, cafl_l])
@given(duals=any_duals, base=any_base, depth=st.integers(2, 12))
def test_knobs_stay_within_floors_and_bounds_for_any_duals(policy, duals, base, depth):
    setting = policy(duals, base, s_min=10, b_min=8)
    knobs = to_knobs(setting, compression(duals), base, depth)
    assert 2 <= knobs.layers <= min(base.k + 1, depth)
    assert 10 <= knobs.steps <= max(10, base.s)
    assert 8 <= knobs.batch <= max(8, base.b)
    assert knobs.codec in CODECS.values()
    # Lemma 1, as far as it is true: never fewer tokens, and less than one more micro-batch a step
    assert base.s * base.b <= knobs.steps * knobs.batch * knobs.accumulate
    assert knobs.steps * knobs.batch * (knobs.accumulate - 1) < base.s * base.b


@pytest.mark.parametrize("policy", [cafl, cafl_l])
@given(duals=any_duals, resource=st.sampled_from([*BUDGETS]), more=any_dual, base=any_base)
def test_a_higher_dual_never_turns_a_knob_up(policy, duals, resource, more, base):
    higher = {**duals, resource: duals.get(resource, 0.0) + more}
    before, after = policy(duals, base), policy(higher, base)
    assert all(a <= b for a, b in zip(after, before, strict=True))
    assert compression(higher) >= compression(duals)


@pytest.mark.parametrize(
    ("communication", "memory", "q"),
    [
        (0.03, 0.04, 0),
        (0.031, 0.0, 1),
        (0.0, 0.041, 1),
        (0.08, 0.07, 1),
        (0.081, 0, 2),
        (0, 0.071, 2),
    ],
)
def test_compression_follows_the_authors_thresholds(communication, memory, q):
    assert compression({"communication": communication, "memory": memory}) == q


def test_compression_takes_any_rule():
    rule = (Threshold(2, "carbon", 1.0),)
    assert compression({"carbon": 1.5, "communication": 9.0}, rule) == 2


def test_lemma_1_is_off_by_60_percent_where_the_paper_ends():
    knobs = to_knobs(Base(1, 144, 8), 2, START, DEPTH)
    assert knobs == Knobs(layers=2, steps=144, batch=8, accumulate=2, codec="eden2")
    assert token_ratio(START, knobs) == lr_divisor(START, knobs) == 1.6


def test_token_preservation_can_be_turned_off():
    knobs = to_knobs(Base(1, 90, 8), 0, START, DEPTH, preserve_tokens=False)
    assert knobs.accumulate == 1
    assert token_ratio(START, knobs) == 0.5
    assert lr_divisor(START, knobs) == 1.0


def test_the_learning_rate_is_divided_by_at_most_5():
    assert lr_divisor(START, Knobs(layers=2, steps=180, batch=8, accumulate=9)) == 5.0


@given(any_base, st.integers(1, 500), st.integers(1, 64))
def test_accumulation_is_equation_8(base, s, b):
    assert accumulation(base, s, b) == max(1, math.ceil(base.s * base.b / (s * b)))


def test_fedavg_is_table_1s_first_row():
    usage = last(simulate(fixed(Knobs(layers=4, steps=180, batch=8)), proxy, 50))
    assert f"{usage['energy'] / 1e6:.2f}" == "4.52"
    assert f"{usage['communication'] / 1e6:.2f}" == "5.18"
    assert f"{usage['temperature']:.2f}" == "0.62"
    assert f"{usage['memory']:.2f}" == "0.31"


def test_the_authors_rule_gets_to_table_1():
    history = simulate(clamped(START, DEPTH, BUDGETS), proxy, 50)
    assert history[0].knobs == Knobs(layers=4, steps=180, batch=8)
    assert history[-1].knobs == Knobs(2, 144, 8, accumulate=2, codec="eden2")
    paper = {"energy": 1.33e6, "communication": 0.243e6, "temperature": 0.57, "memory": 0.244}
    assert last(history) == pytest.approx(paper, rel=0.03)


def test_the_authors_rule_breaks_its_energy_budget_and_lets_the_duals_run_away():
    history = simulate(clamped(START, DEPTH, BUDGETS), proxy, 5000)
    assert last(history)["energy"] / BUDGETS["energy"] == pytest.approx(1.11, abs=0.005)
    assert history[49].duals["energy"] > 100
    assert math.isfinite(history[-1].duals["energy"])
    assert history[-1].knobs == history[49].knobs


def test_the_authors_rule_opens_up_when_all_budgets_are_ample():
    ample = {resource: 100 * budget for resource, budget in BUDGETS.items()}
    history = simulate(clamped(START, DEPTH, ample), proxy, 50)
    assert [h.knobs.layers for h in history[:8]] == [4, 5, 6, 7, 8, 9, 10, 10]
    assert [h.knobs.steps for h in history[:4]] == [180, 190, 198, 198]
    assert {h.knobs.codec for h in history} == {"raw32"}


def test_the_authors_rule_by_hand():
    """Usage 5, 0, 0, 0 of a budget of 1, smoothed 5, 2.5, 1.25, 0.625: three clamps, one release."""
    controller = clamped(START, DEPTH, {"energy": 1.0})
    state, bases, duals = controller.init(), [], []
    for usage in (5.0, 0.0, 0.0, 0.0):
        state = controller.update(state, [reply(0, energy=usage)])
        bases.append(state["*"]["base"])
        duals.append(duals_of(state, 0)["energy"])
    assert bases == [[2, 30, 8]] * 3 + [[3, 40, 8]]
    first = 1.2 * 0.01 * 3.95
    second = 1.2 * (first + 0.01 * 1.45)
    third = 1.2 * (second + 0.01 * 0.2)
    assert duals == pytest.approx([first, second, third, 0.85 * (third - 0.01 * 0.325)])


def test_the_authors_rule_has_a_physical_batch_of_8():
    knobs = simulate(clamped(Base(3, 180, 16), DEPTH, BUDGETS), proxy, 1)[0].knobs
    assert (knobs.batch, knobs.accumulate) == (8, 2)


PUBLISHED = [
    # floor of s, zone, communication (MB), energy (1e6): mean of rounds 46-50
    (10, one_sided, 0.243, 1.558),
    (10, two_sided, 0.534, 1.558),
    (144, one_sided, 0.243, 2.476),
    (144, two_sided, 0.534, 2.476),
]


@pytest.mark.parametrize(("s_min", "zone", "communication", "energy"), PUBLISHED)
def test_the_published_equations_stay_over_energy_and_memory(s_min, zone, communication, energy):
    """CAFL eqs 9-12 from lambda = 0 are not what gave table 1: they end at k = 2."""
    policy = partial(cafl, s_min=s_min)
    history = simulate(dual_controller(START, DEPTH, BUDGETS, policy, ascent(zone=zone)), proxy, 50)
    assert all(h.knobs.layers == 3 for h in history[1:])
    usage = last(history)
    assert usage["energy"] == pytest.approx(energy * 1e6, rel=1e-3)
    assert usage["communication"] == pytest.approx(communication * 1e6, rel=2e-3)
    assert usage["memory"] == pytest.approx(0.2768, rel=1e-3)
    assert all(h.usage["energy"] > 1.05 * BUDGETS["energy"] for h in history)
    assert all(h.usage["memory"] > 1.05 * BUDGETS["memory"] for h in history)


def test_the_published_zone_needs_hundreds_of_rounds_and_leaves_memory_over():
    history = simulate(dual_controller(START, DEPTH, BUDGETS, cafl, ascent()), proxy, 500)
    over = {r: u / BUDGETS[r] for r, u in last(history).items()}
    assert over["energy"] == pytest.approx(1.046, abs=0.002)
    assert over["memory"] == pytest.approx(1.065, abs=0.002)


def test_the_augmented_lagrangian_meets_every_budget_within_50_rounds():
    controller = dual_controller(START, DEPTH, BUDGETS, cafl, augmented_lagrangian())
    usage = last(simulate(controller, proxy, 50))
    assert all(usage[r] <= BUDGETS[r] for r in BUDGETS)


@pytest.mark.parametrize("rule", [nupi(), augmented_lagrangian(), log_barrier(), ascent()])
def test_a_controller_survives_pickling_and_its_state_json(rule):
    controller = dual_controller(
        START, DEPTH, BUDGETS, partial(cafl_l, a_k=4.0), rule, per="client", ema=0.5
    )
    copy = pickle.loads(pickle.dumps(controller))
    state, other = controller.init(), copy.init()
    for _ in range(5):
        usage = proxy(controller.knobs(state, 3))
        state = controller.update(state, [reply(3, **usage)])
        other = copy.update(json.loads(json.dumps(other, allow_nan=False)), [reply(3, **usage)])
        assert copy.knobs(other, 3) == controller.knobs(state, 3)
    assert state == other


def test_a_cohort_moves_by_its_mean_usage():
    controller = dual_controller(START, DEPTH, {"energy": 1.0}, cafl, ascent())
    state = controller.update(controller.init(), [reply(1, energy=1.0), reply(2, energy=5.0)])
    assert duals_of(state, 1) == duals_of(state, 7) == pytest.approx({"energy": 0.01 * 1.95})


def test_each_client_has_its_own_duals_and_budgets_and_an_unseen_one_keeps_them():
    controller = dual_controller(
        START,
        DEPTH,
        {"energy": 1.0},
        cafl,
        ascent(eta=0.1),
        per="client",
        per_client={2: {"energy": 10.0, "money": 1.0}},
    )
    state = controller.update(
        controller.init(), [reply(1, energy=5.0), reply(2, energy=5.0, money=2.05)]
    )
    assert duals_of(state, 1) == pytest.approx({"energy": 0.395})
    assert duals_of(state, 2) == pytest.approx({"energy": 0.0, "money": 0.1})
    later = controller.update(state, [reply(2, energy=99.0, money=9.0)])
    assert later["1"] == state["1"]
    assert controller.knobs(later, 1) == controller.knobs(state, 1)
    assert controller.knobs(later, 1).steps < controller.knobs(later, 9).steps == START.s


def test_a_round_without_replies_changes_nothing():
    controller = dual_controller(START, DEPTH, BUDGETS, cafl, ascent())
    state = controller.update(controller.init(), [reply(0, **proxy(Knobs(4, 180, 8)))])
    assert controller.update(state, []) == state


def test_only_the_chosen_accounting_is_read():
    controller = dual_controller(
        START, DEPTH, {"energy": 1.0}, cafl, ascent(), accounting="counted"
    )
    both = Reply(0, 1, 0, usage={"paper": {"energy": 99.0}, "counted": {"energy": 1.0}})
    assert duals_of(controller.update(controller.init(), [both]), 0) == {"energy": 0.0}
    with pytest.raises(UserError, match=r"budget for energy, but client 4 .*'counted'.* nothing"):
        controller.update(controller.init(), [reply(4, energy=1.0)])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"budgets": {"energy": 0.0}}, "budgets: energy is 0.0; it must be above 0"),
        ({"budgets": {"energy": math.nan}}, "energy is nan"),
        ({"base": Base(3, 0, 8)}, "3, 0, 8; each must be >= 1"),
        ({"ema": 1.0}, "ema is 1.0"),
        ({"per_client": {1: {}}}, 'need per = "client"'),
        (
            {"per_client": {1: {"energy": -1.0}}, "per": "client"},
            "budgets of client 1: energy is -1",
        ),
        ({"codecs": {0: "raw32", 2: "eden2"}}, "no codec for compression level 1"),
    ],
)
def test_a_setup_that_cannot_work_is_refused(change, message):
    setup = {"base": START, "depth": DEPTH, "budgets": BUDGETS, "policy": cafl, "rule": ascent()}
    with pytest.raises(UserError, match=message):
        dual_controller(**{**setup, **change})


def test_the_defaults_of_cafl_l_are_cafls_published_coefficients():
    """xi_k k0 = 1.8 x 3, xi_s = 1.6, xi_b = 8.0 (CAFL section 5.1)."""
    duals = {"communication": 0.1, "memory": 0.1, "energy": 0.1}
    expected = Base(3 - math.floor(1.8 * 3 * 0.2), math.floor(180 * 0.84), math.floor(64 / 1.8))
    assert cafl_l(duals, Base(3, 180, 64)) == expected == Base(2, 151, 35)


def test_the_authors_code_takes_no_larger_batch_than_the_base():
    controller = clamped(Base(3, 60, 4), DEPTH, BUDGETS)
    assert controller.knobs(controller.init(), 0).batch == 4
