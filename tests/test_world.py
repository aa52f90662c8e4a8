"""A simulated fleet: heat, charge, presence, deadlines, its clock, and who is asked."""

import json
import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from typer.testing import CliRunner

from conftest import text_plan
from fedbudget import rounds, selection
from fedbudget.build import build
from fedbudget.cli import app
from fedbudget.config import load
from fedbudget.control.classes import by_class
from fedbudget.control.controller import fixed
from fedbudget.engines.embedded import InProcess, Workers
from fedbudget.errors import UserError
from fedbudget.records import plain
from fedbudget.resources.devices import RASPBERRY_PI_5
from fedbudget.runs import RunFolder
from fedbudget.selection import Candidate
from fedbudget.summary import fairness
from fedbudget.types import Knobs, Reply
from fedbudget.world import Kind, World

DEVICE = replace(
    RASPBERRY_PI_5,
    watts=10.0,
    kelvin_per_watt=4.0,
    time_constant_s=100.0,
    up_bytes_per_s=10.0,
    down_bytes_per_s=20.0,
)
"""40 K above ambient when it works for long"""
KNOBS = Knobs(3, 1, 1)


def usage(busy: float, knobs: Knobs = KNOBS) -> dict[str, float]:
    """`busy` seconds of work, five of uplink and five of downlink."""
    return {
        "energy": 10.0 * busy,
        "communication": 50.0,
        "downlink": 100.0,
        "memory": 1000.0,
        "temperature": 0.0,
        "time": busy + 10.0,
    }


def world_of(busy: float, deadline: float = math.inf, pause: float = 0.0, **kind) -> World:
    known = Kind(DEVICE, lambda knobs: usage(busy), **kind)
    return World([known], deadline, pause)


def test_a_device_heats_while_it_works_and_cools_while_it_waits():
    world = world_of(busy=100.0, pause=200.0)
    state = world.init()
    fate = world.fate(state, 0, KNOBS)
    assert fate.seconds == pytest.approx(110)
    assert fate.after.rise == pytest.approx(40 * (1 - math.exp(-1)))
    state = world.advance(state, {0: fate})
    assert state["clock"] == pytest.approx(310)
    assert world.condition(state, 0).rise == pytest.approx(fate.after.rise * math.exp(-2))
    warmer = world.fate(state, 0, KNOBS)
    assert warmer.after.rise > fate.after.rise
    assert world.condition(state, 1).rise == 0


def test_above_its_limit_it_throttles_and_stays_near_it():
    world = world_of(busy=300.0, hot=20.0, slow=0.5)
    fate = world.fate(world.init(), 0, KNOBS)
    crossed = 100 * math.log(2)  # halfway to 40 K
    assert fate.throttled
    assert fate.seconds == pytest.approx(10 + crossed + (300 - crossed) / 0.5)
    assert fate.after.rise == pytest.approx(20)  # half the power holds it there
    cold = world_of(busy=50.0, hot=20.0).fate(world.init(), 0, KNOBS)
    assert not cold.throttled
    assert cold.seconds == pytest.approx(60)
    assert not world_of(busy=1e6, hot=41.0).fate(world.init(), 0, KNOBS).throttled


def test_a_battery_pays_is_charged_and_spared():
    world = world_of(busy=30.0, battery=500.0, charging=1.0, reserve=0.5, pause=60.0)
    state = world.init()
    state = world.advance(state, {0: world.fate(state, 0, KNOBS)})
    assert world.condition(state, 0).charge == pytest.approx(500 - 300 + 40 + 60)
    state = world.advance(state, {0: world.fate(state, 0, KNOBS)})
    assert world.present(state, 1, 3, [0, 1]) == [1]  # below its reserve
    state = world.advance({**state, "clock": state["clock"] + 1e4}, {})
    assert world.condition(state, 0).charge == 500
    empty = world_of(busy=60.0, battery=500.0).fate(world.init(), 0, KNOBS)
    assert (empty.failure, empty.after.charge) == ("its battery ran empty", 0)


def test_a_device_that_runs_empty_stops_there_and_then():
    """600 J over 70 s, of which 500 J are there and 70 J come while it works."""
    empty = world_of(busy=60.0, battery=500.0, charging=1.0).fate(world_of(1.0).init(), 0, KNOBS)
    share = 500 / (600 - 70)
    assert empty.failure == "its battery ran empty"
    assert empty.seconds == pytest.approx(70 * share)
    assert empty.energy == pytest.approx(600 * share) == pytest.approx(500 + empty.seconds)
    assert empty.after.rise == pytest.approx(40 * (1 - math.exp(-0.6 * share)))
    charged = world_of(busy=60.0, battery=500.0, charging=2.0).fate(world_of(1.0).init(), 0, KNOBS)
    assert (charged.failure, charged.after.charge) == (None, pytest.approx(500 + 140 - 600))


def test_who_is_too_slow_or_too_small_fails_and_the_server_does_not_wait():
    slow = world_of(busy=90.0, deadline=50.0).fate(world_of(1.0).init(), 0, KNOBS)
    assert slow.failure == "it takes 100 s of its time; the deadline is 50 s"
    assert (slow.seconds, slow.energy) == (50, pytest.approx(450))
    small = world_of(busy=1.0, memory=999.0).fate(world_of(1.0).init(), 0, KNOBS)
    assert "it needs 1 kB of memory and has 999 B" in small.failure
    assert (small.seconds, small.energy) == (0, 0)


def test_presence_is_a_chance_of_its_own_each_round():
    world = world_of(busy=1.0, present=0.3)
    counts = [len(world.present(world.init(), 5, r, range(1000))) for r in range(1, 6)]
    assert all(230 < count < 370 for count in counts)
    assert world.present(world.init(), 5, 1, range(1000)) == world.present(
        world.init(), 5, 1, range(1000)
    )


def in_a_world(world, **changes):
    return text_plan(world=world, cohort=3, rounds=4, **changes)


def trained(plan, engine):
    layout = plan.build_model().layout
    with engine:
        found = [*rounds.run(plan, engine, layout, rounds.first_state(plan))]
    return [record for record, _ in found], found[-1][1]


def tidy(knobs):
    """A count that a worker can be sent."""
    return usage(float(knobs.steps))


def test_records_have_the_clock_and_every_engine_the_same_world():
    kinds = [Kind(DEVICE, tidy), Kind(replace(DEVICE, time_constant_s=7.0), tidy, present=0.5)]
    plan = in_a_world(World(kinds, pause=5.0), selection=selection.sparing())
    here, end = trained(plan, InProcess(plan))
    there, other = trained(plan, Workers(plan, 2))
    assert [r.world for r in here] == [r.world for r in there]
    assert end.world == other.world
    clocks = [r.world["clock_s"] for r in here]
    assert clocks == [pytest.approx((10 + 4 + 5) * n) for n in (1, 2, 3, 4)]
    assert all(set(r.world["seconds"]) == set(map(str, r.cohort)) for r in here)


def test_a_straggler_is_dropped_before_it_trains_and_its_energy_is_wasted():
    kinds = [Kind(DEVICE, lambda k: usage(1.0)), Kind(DEVICE, lambda k: usage(100.0))]
    plan = in_a_world(World(kinds, deadline=50.0))
    records, _ = trained(plan, InProcess(plan))
    for record in records:
        odd = {str(c) for c in record.cohort if c % 2}
        assert set(record.dropped) == odd
        assert all("the deadline is 50 s" in why for why in record.dropped.values())
        assert record.world["wasted_j"] == pytest.approx(len(odd) * 1000 * 50 / 110)


def test_a_round_with_nobody_there_moves_the_clock_only():
    plan = in_a_world(world_of(busy=1.0, present=0.0, pause=30.0))
    plan = replace(plan, rounds=2)
    records, state = trained(plan, InProcess(plan))
    assert [r.cohort for r in records] == [(), ()]
    assert state.world["clock"] == 60
    still = replace(plan, world=world_of(busy=1.0, present=0.0))
    assert trained(still, InProcess(still))[1].world["clock"] > 0  # or nobody would ever charge


def test_who_drops_out_has_spent_in_vain():
    plan = in_a_world(world_of(busy=2.0), drop=0.99)
    records, _ = trained(plan, InProcess(plan))
    for record in records:
        assert record.world["wasted_j"] == pytest.approx(20 * len(record.dropped))
    assert sum(len(record.dropped) for record in records) > 0


# selection


def draws(how, candidates, size=2, times=400):
    present = [c.client for c in candidates]
    count = Counter()
    for i in range(times):
        count.update(how.choose(lambda: candidates, present, size, np.random.default_rng(i)))
    return count


def test_uniform_asks_everyone_alike():
    count = draws(selection.uniform(), [Candidate(i, 1.0) for i in range(8)])
    assert all(60 < count[i] < 140 for i in range(8))


@pytest.mark.parametrize(
    "worse",
    [{"warmth": 0.8}, {"charge": 0.25}, {"seconds": 400.0}, {"waited": 0.3}],
)
def test_sparing_spares_and_starves_nobody(worse):
    plain = Candidate(0, 1.0, seconds=100.0)
    fleet = [plain._replace(client=i) for i in range(7)] + [plain._replace(client=7, **worse)]
    count = draws(selection.sparing(), fleet)
    assert 5 < count[7] < 0.7 * min(count[i] for i in range(7))
    patient = fleet[-1]._replace(waited=10.0)
    assert draws(selection.sparing(), [*fleet[:-1], patient])[7] > max(count.values())


def test_power_of_choice_takes_the_largest_losses_of_those_drawn():
    fleet = [Candidate(i, 1.0, loss=float(i)) for i in range(4)]
    count = draws(selection.power_of_choice(), fleet)
    assert count == {2: 400, 3: 400}
    unknown = [*fleet[:3], Candidate(3, 1.0)]
    assert draws(selection.power_of_choice(), unknown)[3] == 400


def test_oort_prefers_loss_and_shuns_the_slow():
    fleet = [Candidate(i, 1.0, loss=1.0, seconds=10.0) for i in range(6)]
    count = draws(
        selection.oort(), [*fleet, Candidate(6, 1.0, 5.0, 10.0), Candidate(7, 1.0, 1.0, 60.0)]
    )
    assert count[6] > max(count[i] for i in range(6)) > min(count[i] for i in range(6)) > count[7]


def test_what_was_seen_is_remembered():
    replies = [Reply(1, 3, 5, loss=2.0), Reply(1, 3, 6)]
    state = selection.update(selection.init(), 3, [5, 6, 7], replies)
    seen = {"5": 3, "6": 3, "7": 3}
    assert state == {"seen": seen, "loss": {"5": 2.0}, "failed": {"7": 1}}
    again = selection.update(state, 4, [5, 7], [])
    assert again["failed"] == {"5": 1, "7": 2}
    assert selection.known(again, 7, 5, 2.0) == Candidate(7, 0.5, failed=2)
    assert selection.update(again, 5, [7], [Reply(1, 5, 7)])["failed"] == {"5": 1}
    assert selection.known({"seen": {}, "loss": {}}, 1, 2, 1.0) == Candidate(1, 2.0)


@pytest.mark.parametrize(
    "how", [selection.sparing(), selection.power_of_choice(), selection.oort()]
)
def test_who_never_answers_is_not_asked_more_than_the_others(how):
    """Every fifth device fails whenever it is asked; none is ever given up."""
    state, count, clients = selection.init(), Counter(), range(20)
    for number in range(1, 301):
        look = [selection.known(state, c, number, 5.0) for c in clients]
        cohort = how.choose(lambda look=look: look, clients, 4, np.random.default_rng(number))
        replies = [Reply(1, number, c, loss=1.0 + 0.01 * c) for c in cohort if c % 5]
        state = selection.update(state, number, cohort, replies)
        count.update(cohort)
    hopeless = sum(count[c] for c in clients if c % 5 == 0)
    assert hopeless < 0.5 * 0.2 * 4 * 300, "more than half of their even share"
    assert all(count[c] >= 1 for c in clients)


def test_power_of_choice_without_losses_draws_evenly():
    count = draws(selection.power_of_choice(), [Candidate(i, 1.0) for i in range(8)])
    assert all(60 < count[i] < 140 for i in range(8))


def test_fairness_is_jains():
    assert fairness([1, 1]) == 1
    assert fairness([0] * 9 + [3]) == pytest.approx(0.1)


# by class, and from a config


def test_each_class_has_a_controller_that_hears_of_its_own():
    def counting(knobs):
        return fixed(knobs)._replace(
            init=lambda: {"heard": 0},
            update=lambda s, replies: {"heard": s["heard"] + len(replies)},
        )

    control = by_class([counting(Knobs(1, 1, 1)), counting(Knobs(2, 2, 2))])
    state = control.update(control.init(), [Reply(1, 1, c) for c in (0, 2, 3)])
    assert [part["heard"] for part in state["classes"]] == [2, 1]
    assert [control.knobs(state, c).layers for c in (0, 1, 2)] == [1, 2, 1]


CONFIG = """
rounds = 3
[data]
source = "text"
path = "text.txt"
clients = 8
[model]
size = "1x16"
heads = 2
context = 16
[train]
cohort = 4
steps = 20
batch = 4
[budget]
device = ["raspberry-pi-5", "jetson-orin-nano"]
energy = ["30%", "80%"]
communication = ["20%", "50%"]
[control]
controller = "planner"
least_steps = 1
[world]
on = true
select = "sparing"
"""


@pytest.fixture
def config(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text("To be, or not to be, that is the question. " * 90)
    (tmp_path / "c.toml").write_text(CONFIG)
    return tmp_path / "c.toml"


def test_a_mixed_fleet_runs_stays_within_each_classs_budgets_and_resumes(config, tmp_path):
    def fedbudget(*arguments):
        assert CliRunner().invoke(app, [*arguments, "--quiet", "--set", "workers=1"]).exit_code == 0

    fedbudget("run", "c.toml", "--out", "a")
    summary = json.loads((tmp_path / "a/summary.json").read_text())
    energy = summary["usage"]["counted"]["energy"]
    assert len(energy["budget"]) == 2
    assert energy["rounds_over"] == summary["usage"]["counted"]["communication"]["rounds_over"] == 0
    plan = build(load(config))
    assert [m.__self__.device.name for m in plan.meters] == ["raspberry-pi-5", "jetson-orin-nano"]
    assert 0 < summary["world"]["fairness"] <= 1
    fedbudget("run", "c.toml", "--out", "b", "--set", "rounds=2")
    kept = RunFolder(tmp_path / "b").load_checkpoint(print)
    with InProcess(plan) as engine:
        (record, _) = next(rounds.run(plan, engine, engine.host.model.layout, kept.state))
    last = json.loads((tmp_path / "a/rounds.jsonl").read_text().splitlines()[-1])
    assert plain(record.world) == last["world"]
    assert list(record.cohort) == last["cohort"]


def test_the_planner_keeps_to_what_devices_can_bear(config):
    free = build(load(config))
    used = [
        free.world.kind(c).forecast(free.controller.knobs(free.controller.init(), c))
        for c in (0, 1)
    ]
    memory, deadline = 0.8 * used[0]["memory"], 0.8 * used[1]["time"]
    plan = build(load(config, [f"world.memory={[memory, 1e9]}", f"world.deadline={deadline}"]))
    assert plan.budgets == free.budgets  # what the user asked for, and is told of
    for client in (0, 1):
        knobs = plan.controller.knobs(plan.controller.init(), client)
        need = plan.world.kind(client).forecast(knobs)
        assert need["time"] <= deadline
        assert need["memory"] <= plan.world.kind(client).memory
        assert plan.world.fate(plan.world.init(), client, knobs).failure is None
    with pytest.raises(UserError, match=r"no setting meets .*time"):
        build(load(config, ["world.deadline=1e-6"]))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            "world.present=[0.5]",
            "world.present has 1 figures; budget.device names 2 device classes",
        ),
        ("world.present=1.5", "world.present = 1.5: it must be from 0 to 1"),
        ('world.battery="10%"', "a share of what"),
        ('world.hot="20 C"', "is not above the ambient"),
        ('world.memory="-3 MB"', "world.memory"),
        ("world.on=false", "set world.on = true"),
        ('engine="flower"', "a simulated fleet is for engine"),
        ('budget.device=["raspberry-pi-5", "jetson-orin-nano", "raspberry-pi-5"]', "equally long"),
    ],
)
def test_what_makes_no_sense_is_a_sentence(config, change, said):
    with pytest.raises(UserError, match=said.replace("(", r"\(")):
        build(load(config, [change]))
