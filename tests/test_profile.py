"""Profiles: shipped, from files, measured; what is fitted to them and what the planner makes of it."""

import math
import sys
from dataclasses import replace
from itertools import product

import pytest

from conftest import text_plan
from fedbudget import cli
from fedbudget.config import validate
from fedbudget.control.frontier import Frontier
from fedbudget.control.planner import Search
from fedbudget.errors import UserError
from fedbudget.predictions import figure, off, pairs, table
from fedbudget.profile import Profile, measure, save
from fedbudget.resources.costs import costs
from fedbudget.resources.counted import usage
from fedbudget.resources.devices import DEVICES, FIGURES, RASPBERRY_PI_5, load, named
from fedbudget.resources.fitted import Fitted, Trial, fit
from fedbudget.types import Knobs

RUN, POWER = 0.004, 0.9
STEP, BATCH, EXAMPLE = (0.001, 0.002), (0.003, 0.005), (0.002, 0.004)
BASE, SLOPE, MEMORY_POWER = (2e6, 3e6), (1e5, 4e5), 1.1


def seconds(knobs: Knobs) -> float:
    k = knobs.layers - 1
    batch = BATCH[k] + EXAMPLE[k] * knobs.batch**POWER
    return RUN + knobs.steps * (STEP[k] + knobs.accumulate * batch)


def held(knobs: Knobs) -> float:
    k = knobs.layers - 1
    return BASE[k] + SLOPE[k] * knobs.batch**MEMORY_POWER


def trial(knobs: Knobs) -> Trial:
    return Trial(knobs, seconds(knobs), held(knobs), 0.0)


GRID = [Knobs(*x) for x in product((1, 2), (1, 3), (2, 4, 8, 16), (1, 3))]


def fitted(trials=None, depth=2) -> Fitted:
    numbers = tuple(range(100, 100 * depth + 1, 100))
    trials = trials or [trial(k) for k in GRID]
    return fit(trials, numbers, tuple(1e3 * n for n in numbers), "sgd", {"raw32": 0, "int8": 2e-6})


# fitting


def test_the_law_that_made_the_trials_is_found():
    found = fitted()
    assert found.time_power == pytest.approx(POWER)
    assert found.memory_power == pytest.approx(MEMORY_POWER)
    for knobs in (Knobs(1, 100, 6), Knobs(2, 50, 32), Knobs(2, 7, 3, accumulate=5)):
        assert found.seconds(knobs, 0) == pytest.approx(seconds(knobs), rel=1e-6)
        assert found.bytes(knobs) == pytest.approx(held(knobs), rel=1e-6)


def test_a_codec_takes_time_for_each_number_and_an_unknown_one_as_long_as_the_slowest():
    plain = fitted().seconds(Knobs(1, 1, 2), 1000)
    for codec in ("int8", "eden2"):
        coded = fitted().seconds(Knobs(1, 1, 2, codec=codec), 1000)
        assert coded - plain == pytest.approx(1000 * 2e-6)


def test_nothing_is_fitted_below_zero():
    """Times that do not grow with the batch would want a negative coefficient."""
    odd = [
        t._replace(seconds=1 / t.knobs.batch, bytes=1e6 / t.knobs.batch) for t in map(trial, GRID)
    ]
    found = fitted(odd)
    rows = (found.step_s, found.batch_s, found.example_s, found.base_bytes, found.example_bytes)
    assert min(map(min, rows)) >= 0
    assert found.run_s >= 0
    assert found.seconds(Knobs(1, 10, 4), 0) >= found.seconds(Knobs(1, 5, 4), 0) > 0


def test_layer_groups_that_were_not_tried_are_between_those_that_were():
    ends = [
        t._replace(knobs=replace(t.knobs, layers=1 + 2 * (t.knobs.layers - 1)))
        for t in map(trial, GRID)
    ]
    found = fitted(ends, depth=3)
    low, middle, high = (found.seconds(Knobs(k, 10, 8), 0) for k in (1, 2, 3))
    assert middle == pytest.approx((low + high) / 2)


def test_memory_that_nobody_measured_is_counted(tmp_path):
    found = fitted([t._replace(bytes=0.0) for t in map(trial, GRID)])
    assert found.bytes(Knobs(1, 1, 2)) is None
    known = counts()
    device = replace(RASPBERRY_PI_5, fitted=of_model(found, known))
    knobs = Knobs(2, 5, 4)
    assert usage(known.shape, device, knobs, 0, 0)["memory"] == known.shape.memory(knobs)


# in the planner's forecast


def counts(device=RASPBERRY_PI_5):
    plan = text_plan()
    return costs(plan.build_model(), plan.task, plan.clients[0], "adamw", device, gpt=True)


def of_model(found: Fitted, known) -> Fitted:
    """As if it had been measured with that model: two rows become three."""
    longer = {k: (*v, v[-1]) for k, v in vars(found).items() if isinstance(v, tuple) and v}
    shape = known.shape
    own = {"parameters": shape.parameters, "flops": shape.flops, "optimizer": shape.optimizer}
    return replace(found, **{**longer, **own})


def test_forecast_and_choice_follow_the_fit():
    known = counts()
    device = replace(RASPBERRY_PI_5, fitted=of_model(fitted(), known), up_bytes_per_s=math.inf)
    device = replace(device, down_bytes_per_s=math.inf)
    mine = counts(device)
    knobs = Knobs(2, 100, 8)
    assert mine.forecast(knobs)["time"] == pytest.approx(seconds(knobs))
    assert mine.forecast(knobs)["memory"] == pytest.approx(held(knobs))
    assert mine.forecast(knobs)["energy"] == pytest.approx(seconds(knobs) * device.watts)
    part = Knobs(1, 100, 8, above=1)
    assert mine.forecast(part)["time"] < mine.forecast(knobs)["time"]
    grid, progress = Search(codecs=("raw32",)).over(mine, 3, 3)
    best = Frontier(mine.forecast, grid, progress).best({"time": 2.0})
    assert 1.9 < best.usage["time"] <= 2.0
    assert mine.meter(best.knobs, 1, 1)["counted"]["time"] == pytest.approx(best.usage["time"])


def test_a_fit_is_for_the_model_it_was_measured_with():
    known = counts()
    own = of_model(fitted(), known)
    shape = known.shape
    for other in (
        replace(own, parameters=(1, 2, 3)),
        replace(own, flops=tuple(2 * f for f in shape.flops)),
        replace(own, optimizer="sgd"),
        fitted(),
    ):
        with pytest.raises(UserError, match="run fedbudget profile with this config"):
            replace(known, device=replace(RASPBERRY_PI_5, fitted=other))
    replace(known, device=replace(RASPBERRY_PI_5, fitted=own))


# files


def written(folder, known=None):
    known = known or counts()
    sources = dict.fromkeys(FIGURES, "measured: here")
    own = replace(RASPBERRY_PI_5, fitted=of_model(fitted(), known), sources=sources)
    own = replace(own, name="here", up_bytes_per_s=math.inf)
    made = Profile(own, known.shape, [trial(k) for k in GRID], [], 1.0)
    save(made, folder / "here.toml")
    return made


def test_a_profile_comes_back_from_its_file(tmp_path):
    made = written(tmp_path)
    assert named(str(tmp_path / "here.toml")) == made.device


BAD = {
    "watts is missing": lambda text: text.replace("watts =", "# watts ="),
    "watts = 'much': it must be a number": lambda text: text.replace(
        "watts = 7.0", 'watts = "much"'
    ),
    "it must be a finite number above zero": lambda text: text.replace("watts = 7.0", "watts = -1"),
    "flops_per_s = inf: it must be": lambda text: text.replace(
        "flops_per_s = 1536", "flops_per_s = inf #"
    ),
    "'volts' is no figure of a device": lambda text: f"volts = 5\n{text}",
    "sources.watts is missing": lambda text: text.replace('watts = "measured: here"', ""),
    "not valid TOML": lambda text: text + "[",
    "fitted must have": lambda text: text.replace("run_s", "walk_s"),
    "fitted.step_s must have a number for each": lambda text: text.replace(
        "step_s = [", "step_s = [1, "
    ),
    "fitted.run_s = -1": lambda text: text.replace("run_s = ", "run_s = -1 # "),
    "fitted.codec_s has seconds": lambda text: text.replace('"int8" = ', '"int8" = "a" # '),
}


@pytest.mark.parametrize("why", BAD)
def test_a_file_that_is_no_profile_is_refused_in_a_sentence(tmp_path, why):
    written(tmp_path)
    file = tmp_path / "here.toml"
    text = file.read_text()
    file.write_text(BAD[why](text))
    assert file.read_text() != text
    with pytest.raises(UserError) as said:
        load(file)
    assert why in str(said.value)
    assert "\n" not in str(said.value)


def test_a_device_that_is_not_known_is_named_with_those_that_are(tmp_path):
    with pytest.raises(UserError, match=r"'toaster' is unknown; known are smartwatch, phone"):
        named("toaster")
    with pytest.raises(UserError, match="No such file"):
        named(str(tmp_path / "none.toml"))


def test_shipped_profiles_say_what_is_assumed_and_what_is_not():
    wanted = {"smartwatch", "phone", "ar-headset", "raspberry-pi-5", "jetson-orin-nano", "laptop"}
    assert set(DEVICES) == wanted
    for device in DEVICES.values():
        assert set(device.sources) == set(FIGURES)
        assert all(source.strip() for source in device.sources.values())
        assert "peak" in device.sources["flops_per_s"]
        assert device.watts_per_core <= device.watts


# measured


def small(folder, **more):
    text = folder / "text.txt"
    text.write_text("the quick brown fox jumps over the lazy dog; " * 200)
    tables = {
        "data": {"source": "text", "path": str(text), "clients": 2},
        "model": {"size": "1x16", "context": 16},
        "train": {"cohort": 2, "batch": 4},
        "control": {"batches": [2, 8]},
    }
    return validate({**tables, **more}, "test")


def test_this_machine_is_measured_with_the_configs_model(tmp_path, monkeypatch):
    monkeypatch.setattr("fedbudget.profile.REPEATS", 1)
    config = small(tmp_path, budget={"device": "not-written-yet.toml", "time": "1 s"})
    made = measure(config, "here", limit_s=600)
    assert {t.knobs.batch for t in made.trials} == {2, 4, 8}
    assert {t.knobs.layers for t in made.trials} == {1, 2, 3}
    assert all(p.predicted > 0 for p in pairs(made, made.trials, "time"))
    assert {t.knobs.batch for t in made.checks}.isdisjoint({2, 4, 8})
    assert "median error" in off(made, "time")
    assert len(table(made).rows) == 9
    assert len(figure(made).axes) == (2 if made.fitted.base_bytes else 1)
    save(made, tmp_path / "here.toml")
    used = load(tmp_path / "here.toml")
    assert used.fitted is not None
    assert used.fitted.flops == pytest.approx(made.shape.flops)


def test_the_command_writes_a_profile_that_a_plan_can_use(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("fedbudget.profile.REPEATS", 1)
    text = tmp_path / "text.txt"
    text.write_text("the quick brown fox jumps over the lazy dog; " * 200)
    (tmp_path / "mine.toml").write_text(
        'rounds = 1\n[data]\nsource = "text"\npath = "text.txt"\nclients = 2\n'
        '[model]\nsize = "1x16"\ncontext = 16\n[train]\ncohort = 2\n'
        '[budget]\ntime = "10 min"\naccounting = "measured"\n[control]\ncontroller = "planner"\n'
    )

    def fedbudget(*words):
        monkeypatch.setattr(sys, "argv", ["fedbudget", *words])
        with pytest.raises(SystemExit) as stop:
            cli.main()
        assert not stop.value.code
        return capsys.readouterr().out

    told = fedbudget("profile", "mine.toml", "--out", "box.toml", "--plot", "box.png")
    assert "time: median error" in told
    assert (tmp_path / "box.png").stat().st_size > 0
    assert "counted on box" in fedbudget("plan", "mine.toml", "--set", "budget.device=box.toml")
