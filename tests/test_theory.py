"""CAFL's theorems 1 and 2 and lemma 1: what the page docs/results/theory.md says, as numbers."""

import math
import random
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from fedbudget.control import paper, policies
from fedbudget.control.deadzones import one_sided, two_sided
from fedbudget.control.duals import ascent
from fedbudget.control.policies import Base
from fedbudget.reproduce import theory
from fedbudget.resources import proxies

DOCS = Path(__file__).parents[1] / "docs" / "results"


@pytest.fixture(scope="module")
def of():
    return theory.table1()


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """The folder and the lines of `fedbudget reproduce theory`."""
    out = tmp_path_factory.mktemp("theory")
    return out, theory.run(out)


@pytest.fixture(scope="module")
def tables(written):
    """section -> rows -> column -> cell"""
    found = {}
    for line in written[1]:
        if line.startswith("## "):
            rows = found[line[3:]] = []
        elif line.startswith("| ") and "---" not in line:
            rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return {
        name: [dict(zip(head, row, strict=True)) for row in rows]
        for name, (head, *rows) in found.items()
    }


def row(tables, section, **cells):
    (found,) = [r for r in tables[section] if all(r[k] == v for k, v in cells.items())]
    return found


def alone(of, resource):
    return {resource: of.budgets[resource]}


# the two plants


def test_the_continuous_policy_rounds_to_the_published_one(of):
    draw = random.Random(1)
    base = Base(8, 180, 64)
    for _ in range(500):
        now = {r: draw.random() ** 3 for r in of.budgets}
        k, s, b = theory.smooth_knobs(now, base)
        published = policies.cafl(now, base)
        # but for the rounding of floats
        k, s, b = (math.floor(x + 1e-9) for x in (k, s, b))
        rounded = (max(1, k), max(10, s), max(8, b))
        assert published == rounded


@pytest.mark.parametrize("knobs", [Base(3, 180, 8), Base(2, 150, 8), Base(1, 144, 4)])
@pytest.mark.parametrize("q", [0, 1, 2])
def test_the_continuous_usage_is_the_papers_at_whole_knobs(of, knobs, q):
    high = dict.fromkeys(of.budgets, 1e9)  # at this pressure every knob is at its floor
    usage = theory.smooth(of, q, knobs)(high)
    assert usage == pytest.approx(proxies.cafl(of.sizes, *knobs, q))


# theorems 1 and 2, continuous knobs


def test_the_optimum_is_the_closed_form_and_there_is_one(of):
    energy, communication = (
        theory.optimum(theory.smooth(of, 0), alone(of, r)) for r in ("energy", "communication")
    )
    at_zero = theory.smooth(of, 0)({})
    excess = at_zero["energy"] / of.budgets["energy"]  # usage is linear in s = s0 (1 - 1.44 lambda)
    assert np.concatenate(energy) == pytest.approx([(1 - 1 / excess) / 1.44])
    k = (600_000 / 4 - 33_280) / 198_272  # 4 bytes each of the parameters outside blocks, and of k
    assert np.concatenate(communication) == pytest.approx([(1 - k / 3) / 1.44])
    for q in (0, 2):
        (star,) = theory.optimum(theory.smooth(of, q), of.budgets)
        ratios = theory.ratios_at(theory.smooth(of, q), of.budgets, star)
        assert ratios.max() == pytest.approx(1)
        assert np.abs(star * (ratios - 1)).max() < 1e-9


@pytest.mark.parametrize("resource", theory.RESOURCES)
@pytest.mark.parametrize(
    ("zone", "level"), [("one-sided", 1.05), ("two-sided", 1.05), ("no zone", 1)]
)
def test_one_budget_alone_converges_to_the_edge_of_the_zone(of, resource, zone, level):
    plant, budgets = theory.smooth(of, 0), alone(of, resource)
    path = theory.course(plant, ascent(theory.ETA, theory.zones()[zone]), budgets, 3000)
    (edge,) = theory.optimum(plant, budgets, level)
    assert path.duals[-1] == pytest.approx(edge, rel=1e-4)
    assert path.ratios[-1] == pytest.approx([level], abs=1e-4)


def test_theorem_2_holds_for_continuous_knobs(of):
    for q in (0, 2):
        for zone in theory.zones().values():
            path = theory.course(theory.smooth(of, q), ascent(0.01, zone), of.budgets, 3000)
            assert path.ratios[-1].max() < 1.05 + 1e-4


def test_50_rounds_at_the_papers_step_are_too_few(tables):
    for line in tables["convergence"]:
        assert float(line["worst at round 50"]) > 1.06
        assert 50 < int(line["all <= 1.06 from round"]) < 150
        assert 75 < int(line["lambda within 1% from round"]) < 400
    memory = row(tables, "convergence", budgets="memory alone", zone="one-sided")
    assert memory["lambda within 1% from round"] == "289"


def test_theorem_1_is_false_for_its_own_zone_however_small_eps_and_eta_are(of):
    """The limit of the one-sided zone keeps the price of a budget that has long had slack."""
    plant = theory.smooth(of, 0)
    (star,) = theory.optimum(plant, of.budgets)
    assert star[0] == 0  # energy does not bind
    eta = 2e-4
    assert eta < theory.bound(of, of.budgets, Base(1, 1, 1))
    path = theory.course(plant, ascent(eta, partial(one_sided, eps=0.0)), of.budgets, 30_000)
    assert path.duals[-1][0] > 0.2
    assert path.ratios[-1][0] < 0.6  # 40% of the energy budget unused, for ever
    free = theory.course(plant, ascent(0.01, partial(two_sided, eps=0.0)), of.budgets, 3000)
    assert free.duals[-1] == pytest.approx(star, abs=1e-4)


def test_the_distance_shrinks_with_eps_only_for_the_two_sided_zone(tables):
    by_eps = {line["eps"]: line for line in tables["tolerance"]}
    for bits, least in (("32 bit", 0.2), ("2 bit", 0.06)):
        assert all(float(line[f"one-sided, {bits}"]) > least for line in by_eps.values())
        assert float(by_eps["0"][f"two-sided, {bits}"]) < 1e-3
        ratio = float(by_eps["0.02"][f"two-sided, {bits}"]) / float(
            by_eps["0.01"][f"two-sided, {bits}"]
        )
        assert 1.8 < ratio < 2.2


def test_the_step_at_which_it_swings_is_two_over_the_slope(tables):
    for what in (
        "energy, no zone: swings",
        "all, no zone: swings",
        "energy, one-sided: overshoots",
    ):
        line = row(tables, "step_size", what=what)
        assert float(line["eta"]) == pytest.approx(float(line["predicted"]), rel=0.02)


def test_the_papers_step_breaks_its_condition_in_its_own_units(of):
    energy = alone(of, "energy")
    assert theory.bound(of, energy, Base(1, 1, 1)) == pytest.approx(
        1 / (2 * 259.2 * 3.7686), rel=1e-3
    )
    assert theory.bound(of, of.budgets, Base(1, 1, 1)) < theory.ETA / 30
    assert theory.ETA < theory.bound(of, of.budgets, of.base) < 1.4 * theory.ETA


def test_a_one_sided_zone_never_swings_and_a_large_step_strands_it(of):
    for eta in (0.25, 0.4, 4.0):
        path = theory.course(theory.smooth(of), ascent(eta), alone(of, "energy"), 500)
        assert not path.swings()
        assert path.ratios[-1] == pytest.approx([0.1 * path.ratios[0, 0]])  # 0.377


def test_a_two_sided_zone_settles_or_swings_by_chance_at_large_steps(of):
    swings = {
        eta: theory.course(
            theory.smooth(of), ascent(eta, two_sided), alone(of, "energy"), 1500
        ).swings()
        for eta in (0.39, 0.41, 0.6, 0.9, 1.5, 2.0, 3.0)
    }
    assert list(swings.values()) == [False, True, False, False, True, True, True]


def test_without_a_zone_a_large_step_swings_but_stays_bounded(of):
    none = theory.zones()["no zone"]
    tail = theory.course(theory.smooth(of), ascent(2.0, none), alone(of, "energy"), 800).ratios[
        -30:
    ]
    assert (tail.min(), tail.max()) == pytest.approx((0.377, 3.769), abs=1e-3)


# whole knobs, floors, infeasible budgets


def test_whole_knobs_never_settle_unless_the_zone_is_one_sided(of, tables):
    memory = {k: proxies.cafl_l(of.sizes, k, 100, 8, 2)["memory"] / 0.26 for k in (1, 2)}
    assert memory[1] < 0.95 < 1.05 < memory[2]  # no k is within the zone
    for rule, eps in (("two-sided", 0.05), ("no zone", 0.0)):
        up, down = two_sided(memory[2], eps), -two_sided(memory[1], eps)
        line = row(tables, "cycles", rule=rule)
        share = float(line["rounds over 1.05"].rstrip("%")) / 100
        assert share == pytest.approx(down / (up + down), abs=0.01)
        assert float(line["rounds per swing of k"]) == pytest.approx(1 / share, rel=0.01)
        low, high = map(float, line["energy"].split(" to "))
        assert low < 0.75 < 1.3 < high
    for rule in ("nuPI", "augmented Lagrangian", "log-barrier"):
        assert row(tables, "cycles", rule=rule)["all <= 1.05 from round"] == "never"


def test_the_one_sided_zone_comes_to_rest_after_1000_rounds_far_below_budget(tables):
    line = row(tables, "cycles", rule="one-sided")
    assert line["rounds per swing of k"] == "at rest"
    assert int(line["all <= 1.05 from round"]) == 1009
    assert float(line["mean energy"]) == pytest.approx(0.563, abs=1e-3)
    assert float(line["mean comm"]) == pytest.approx(0.405, abs=1e-3)


def test_the_floor_on_s_makes_the_energy_budget_infeasible(of, tables):
    least = 5e-3 * 231_552 * 144 * 8 / 1.2e6
    line = row(tables, "floors", floors="k >= 1, s >= 144, b >= 8, 2 bit")
    assert float(line["least usage / budget"]) == pytest.approx(least, abs=1e-3)
    slope = 0.01 * (least - 1.05)
    assert float(line["rise of lambda a round, one-sided"]) == pytest.approx(slope, rel=0.01)
    ran = row(tables, "runaway", rule="one-sided")["growth"]
    assert float(ran.split()[1]) == pytest.approx(slope, rel=0.01)


def test_the_authors_code_multiplies_an_infeasible_dual_by_1_2_each_round(tables):
    line = row(tables, "runaway", rule="the authors' code")
    assert line["growth"] == "x 1.20 a round"
    grown = float(line["at round 150"]) / float(line["lambda_E at round 50"])
    assert grown == pytest.approx(1.2**100, rel=0.02)
    assert float(line["at round 4000"]) == 1e12
    for rule in ("one-sided", "two-sided", "no zone", "nuPI", "log-barrier"):
        assert float(row(tables, "runaway", rule=rule)["at round 4000"]) < 30


def test_the_authors_code_raises_the_duals_of_budgets_that_are_met_too(of):
    controller = paper.clamped(of.base, len(of.sizes), of.budgets)
    path = paper.simulate(controller, partial(proxies.of_knobs, sizes=of.sizes), 51)
    assert path[-1].usage["communication"] < 0.41 * of.budgets["communication"]
    assert path[-1].duals["communication"] > 900


def test_after_an_overload_only_the_one_sided_zone_leaves_half_the_budget_unused(tables):
    unused = {line["rule"]: float(line["left unused"].rstrip("%")) for line in tables["overload"]}
    assert unused.pop("one-sided") == pytest.approx(53.2, abs=0.1)
    assert unused.pop("two-sided") == pytest.approx(5.0, abs=0.1)
    assert max(unused.values()) < 2
    back = {line["rule"]: line["back within 0.02 after"] for line in tables["overload"]}
    assert back["one-sided"] == "never"
    assert int(back["augmented Lagrangian"]) < 10 < 50 < int(back["nuPI"]) < 70


# lemma 1


def test_rounding_g_up_processes_up_to_twice_the_tokens(of):
    share = theory.shares(of.base)
    settings = theory.reachable(of.base)
    up = share["G rounded up"]
    assert up.max() == pytest.approx(2 * 179 / 180)
    assert settings[int(up.argmax())] == (179, 8)  # the first step that is taken away doubles it
    assert up.min() == 1
    assert up.mean() == pytest.approx(1.345, abs=1e-3)
    assert 0.66 < share["G to the nearest"].min() < 0.68
    assert share["G to the nearest"].max() == pytest.approx(4 / 3)
    assert share["G fractional"] == pytest.approx(np.ones(len(settings)))


def test_every_step_count_down_to_a_tenth_can_be_reached(of):
    assert {s for s, _ in theory.reachable(of.base)} >= set(range(18, 181))
    assert set(theory.reachable(theory.TEXT)) == {
        (s, b) for s in range(10, 61) for b in range(8, 17)
    }


def test_fifty_published_rounds_process_a_third_more_tokens(tables):
    line = row(tables, "tokens", base="50 rounds from table 1's base")
    assert float(line["mean"]) == pytest.approx(1.329, abs=1e-3)
    assert float(line["most"]) > 1.9


# the page


def test_the_page_shows_the_tables_and_figures_that_the_code_writes(written):
    out, lines = written
    page = (DOCS / "theory.md").read_text()
    assert (DOCS / "theory" / "tables.md").read_text() == "\n".join(lines)
    shown = [line for line in page.splitlines() if line.startswith("| ")]
    assert shown == [line for line in lines if line.startswith("| ")]
    figures = {path.name for path in out.glob("*.png")}
    assert figures == {path.name for path in (DOCS / "theory").glob("*.png")}
    assert all(f"(theory/{name})" in page for name in figures)
    assert page.count("](theory/") == len(figures)
    assert all((out / name).stat().st_size < 200_000 for name in figures)
