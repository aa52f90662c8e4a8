"""Units, budgets, counted usage and the planner."""

import json
import math
import pickle
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import fedbudget as fb
from conftest import blobs, text_plan
from fedbudget import rounds
from fedbudget.build import build
from fedbudget.choices import why
from fedbudget.client import Recipe
from fedbudget.codecs import frame
from fedbudget.config import find_config, load
from fedbudget.control.frontier import Grid, Progress, affordable
from fedbudget.control.planner import Search, planner
from fedbudget.data.examples import Windows
from fedbudget.engines.embedded import InProcess
from fedbudget.errors import UserError
from fedbudget.models.flat import FlatModel
from fedbudget.models.gpt import GPT
from fedbudget.resources.budget import read, resolve
from fedbudget.resources.costs import Costs, costs, fidelity, frame_bytes
from fedbudget.resources.counted import measure, usage
from fedbudget.resources.devices import DEVICES, RASPBERRY_PI_5
from fedbudget.task import classify
from fedbudget.types import Knobs, Reply
from fedbudget.units import parse, show


@pytest.mark.parametrize(
    ("text", "resource", "value", "kind"),
    [
        ("600 kB", "communication", 6e5, "si"),
        ("256MiB", "memory", 256 * 2**20, "si"),
        ("1.2 kJ", "energy", 1200, "si"),
        ("2 Wh", "energy", 7200, "si"),
        ("41 C", "temperature", 41, "celsius"),
        ("16 K", "temperature", 16, "si"),
        ("2 min", "time", 120, "si"),
        ("27%", "energy", 0.27, "share"),
        (5, "money", 5, "plain"),
        ("1e3", "money", 1000, "plain"),
    ],
)
def test_amounts_are_read(text, resource, value, kind):
    assert parse(text, resource) == (pytest.approx(value), kind)


@pytest.mark.parametrize(
    "text", [0, -1, math.nan, math.inf, "0 J", "-3%", "", "many", "3 kW", True, 10**400]
)
def test_amounts_that_make_no_sense_are_refused(text):
    with pytest.raises(UserError, match=r"^budget\.energy = "):
        parse(text, "energy")


@given(st.floats(1e-3, 1e12), st.sampled_from(["energy", "communication", "time"]))
def test_what_is_shown_can_be_read_again(value, resource):
    assert parse(show(value, resource), resource).value == pytest.approx(value, rel=5e-3)


def test_shares_and_degrees_become_numbers():
    reference = {"energy": 200.0, "temperature": 3.0}
    amounts = read({"energy": "27%", "temperature": "41 C"})
    assert resolve(amounts, reference, 25.0) == {"energy": 54.0, "temperature": 16.0}
    with pytest.raises(UserError, match="not above the device's ambient 25 C"):
        resolve(read({"temperature": "20 C"}), reference, 25.0)
    with pytest.raises(UserError, match=r"budget\.money: nothing counts it"):
        resolve(read({"money": 3}), reference, 25.0)
    with pytest.raises(UserError, match="name at least one resource"):
        read({})
    with pytest.raises(UserError, match=r"budget\.energy = 27% of FedAvg's: FedAvg takes none"):
        resolve(read({"energy": "27%"}), {"energy": 0.0}, 25.0)


@pytest.fixture(scope="module")
def gpt() -> Costs:
    windows = Windows(torch.zeros(1000, dtype=torch.uint8), 32, ((0, 1000),))
    model = FlatModel(GPT(65, context=32, layers=2, width=64, heads=2))
    return costs(model, classify(), windows, "adamw", RASPBERRY_PI_5, gpt=True)


def test_counted_flops_equal_the_textbook_for_a_gpt(gpt):
    T, C, V = 32, 64, 65
    block = 2 * T * 12 * C * C  # the four linear layers
    attention = 4 * T * T * C
    head = 2 * T * C * V
    forward = 2 * (block + attention) + head
    # backward: linear layers cost twice their forward, attention two and a half times
    everything = forward + 2 * (2 * block + 2.5 * attention) + 2 * head
    assert gpt.shape.flops[3] == pytest.approx(everything)
    top = forward + (2 * block + 2.5 * attention) + 2 * head
    assert gpt.shape.flops[1] == pytest.approx(top)
    assert gpt.shape.flops[0] == pytest.approx(forward + 2 * head)


def test_counted_flops_of_a_linear_model_are_exact():
    model = FlatModel(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)))
    shape = measure(model, classify(), blobs(), "sgd")
    forward = 2 * (4 * 8 + 8 * 3)
    # the first layer has no input gradient to compute
    assert shape.flops == (forward + 2 * 24, forward + 2 * 24 * 2 + 2 * 32)
    assert shape.parameters == (27, 67)


@pytest.mark.parametrize(("momentum", "states"), [(0.0, 0), (0.9, 1)])
def test_memory_has_the_momentum_that_sgd_keeps_and_no_other(momentum, states):
    clients = [blobs()]
    budget = fb.Budget(memory="1 MB")
    recipe = Recipe("sgd", momentum=momentum)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    run = fb.train(
        model, clients, rounds=1, steps=1, batch=5, recipe=recipe, budget=budget, quiet=True
    )
    own = measure(FlatModel(model), classify(), blobs(), "sgd", momentum=momentum > 0)
    weights_and_gradients = 2 * 67
    held = run.records[0].to_json()["usage"]["counted"]["0"]["memory"]
    assert held == 4 * (weights_and_gradients + states * 67) + 5 * own.kept[1]
    assert own.step_traffic(Knobs(2, 1, 5)) == 4 * (2 + 3 + 2 * (states + 1)) * 67


def test_accumulated_micro_batches_and_frozen_layers_are_counted(gpt):
    one = usage(gpt.shape, RASPBERRY_PI_5, Knobs(4, 10, 8), 0, 0)
    two = usage(gpt.shape, RASPBERRY_PI_5, Knobs(4, 10, 8, accumulate=2), 0, 0)
    assert two["energy"] == pytest.approx(2 * one["energy"], rel=0.01)
    assert two["memory"] == one["memory"]
    frozen = usage(gpt.shape, RASPBERRY_PI_5, Knobs(1, 10, 8), 0, 0)
    assert 0.25 < frozen["energy"] / one["energy"] < 0.5  # forward is a third, and it is there
    assert frozen["memory"] < 0.5 * one["memory"]


def test_temperature_rises_to_its_steady_state_and_no_further(gpt):
    device = RASPBERRY_PI_5
    hot = usage(gpt.shape, device, Knobs(4, 10**7, 64), 0, 0)["temperature"]
    assert hot == pytest.approx(device.watts * device.kelvin_per_watt)
    rises = [usage(gpt.shape, device, Knobs(4, s, 8), 0, 0)["temperature"] for s in (1, 10, 100)]
    assert rises == sorted(rises)


def test_every_figure_of_a_device_has_a_source():
    for device in DEVICES.values():
        figures = {k for k, v in device.__dict__.items() if isinstance(v, float)}
        assert figures == set(device.sources)


@pytest.mark.parametrize("codec", ["raw32", "int8", "eden4", "eden2", "eden1.6", "eden1"])
@pytest.mark.parametrize(("layers", "above"), [(1, 0), (3, 0), (4, 0), (1, 2), (2, 1)])
def test_forecast_bytes_are_those_of_any_update(gpt, codec, layers, above):
    knobs = Knobs(layers, 1, 1, codec=codec, above=above)
    part = gpt.layout.top(layers, above)
    update = torch.from_numpy(
        np.random.default_rng(1).standard_t(3, part.stop - part.start)
    ).float()
    about = {"run": 1, "round": 2, "client": 3, "seed": 4, "codec": codec}
    packed = frame.pack([update], gpt.layout, **about, groups=knobs.groups(gpt.layout.depth))
    assert frame_bytes(gpt.layout, knobs) == len(packed) == len(frame.to_bytes(packed))


@pytest.mark.parametrize("codec", ["topk1%", "topk10%", "topk60%+eden2", "topk5%+sign"])
def test_no_update_takes_more_than_the_forecast_bytes(gpt, codec):
    """Positions in a row, or far apart, take other bytes than random ones."""
    whole = gpt.layout.top(4)
    count = whole.stop - whole.start
    for places in (slice(0, count // 9), slice(None, None, 9), slice(count - count // 9, None)):
        update = torch.randn(count, generator=torch.Generator().manual_seed(1))
        update[places] *= 50
        about = {"run": 1, "round": 2, "client": 3, "seed": 4, "codec": codec}
        packed = frame.pack([update], gpt.layout, **about, groups=(0, 4))
        assert len(packed) <= frame_bytes(gpt.layout, Knobs(4, 1, 1, codec=codec))


def test_numbers_of_eight_bytes_take_twice_the_memory_and_traffic(gpt):
    windows = Windows(torch.zeros(1000, dtype=torch.uint8), 32, ((0, 1000),))
    model = FlatModel(GPT(65, context=32, layers=2, width=64, heads=2).double())
    double = measure(model, classify(), windows, "adamw")
    knobs = Knobs(4, 10, 8)
    state = 4 * gpt.shape.parameters[-1] * 4  # weights, gradients, two moments
    assert double.memory(knobs) - double.kept[3] * 8 == 2 * state
    assert gpt.shape.memory(knobs) - gpt.shape.kept[3] * 8 == state
    assert double.step_traffic(knobs) == 2 * gpt.shape.step_traffic(knobs)


@pytest.mark.parametrize(
    ("codec", "kept", "noise"),
    [
        ("raw32", 1, 0),
        ("eden2", 1, 0.133),  # MATH: unbiased, so the noise is the NMSE
        ("eden1", 1, 0.571),
        ("sign", 2 / math.pi, math.pi / 2 - 1),  # E|x|^2 / E x^2, and what is left of it
        ("topk10%", 0.439, 1 / 0.439 - 1),  # what lies beyond 1.645 of a Gaussian's square
    ],
)
def test_what_a_codec_keeps_of_an_update_and_what_it_adds(codec, kept, noise):
    found = fidelity(codec)
    assert found.kept == pytest.approx(kept, rel=0.02)
    assert found.noise == pytest.approx(noise, rel=0.05, abs=1e-6)


def test_the_planner_takes_a_code_that_leaves_much_out_only_where_no_other_fits():
    names = ["eden1", "topk1%", "topk0.1%", "sign"]
    plans = {}
    for share in ("50%", "0.5%"):
        changes = [f"control.codecs={json.dumps(names)}", f"budget.communication={share}"]
        config = load(find_config("planner"), ["data.source=topics", "model.size=1x32", *changes])
        plans[share] = build(config)
    chosen = [p.controller.knobs(p.controller.init(), 0).codec for p in plans.values()]
    assert chosen == ["eden1", "topk1%"]
    (warning,) = plans["50%"].warnings
    assert warning.startswith("control.codecs: topk0.1% keeps 0.01")
    assert "codec.feedback = 'error'" in warning


def test_a_code_that_leaves_much_out_is_warned_of_unless_the_rest_is_sent_later():
    own = ["data.source=topics", "model.size=1x32"]
    for name, feedback, warned in (
        ("sign", "none", True),
        ("topk10%", "none", True),
        ("topk10%", "error", False),
        ("topk60%+eden2", "none", False),  # the papers' sparsity: it keeps 96%
        ("uniform2", "none", False),
    ):
        changes = [f"codec.name={name}", f"codec.feedback={feedback}"]
        warnings = build(load(find_config("fedavg"), [*own, *changes])).warnings
        assert bool(warnings) == warned
        assert all("codec.name" in warning for warning in warnings)


GRID = Grid((1, 2, 3, 4), (2, 4, 8), ("raw32", "int8", "eden2"), least=5, most=400)


def progress(known: Costs) -> Progress:
    total = known.shape.parameters[-1]
    shares = tuple(p / total for p in known.shape.parameters)
    return Progress(shares, {c: fidelity(c) for c in GRID.codecs}, 6, 16.0)


@given(st.floats(0.05, 2.0), st.floats(0.05, 1.5), st.floats(0.3, 1.5), st.floats(0.05, 2.0))
def test_every_choice_meets_every_budget_and_one_more_step_would_not(gpt, e, c, m, t):
    reference = gpt.forecast(Knobs(4, 60, 8))
    shares = {"energy": e, "communication": c, "memory": m, "temperature": t}
    budgets = {r: share * reference[r] for r, share in shares.items()}
    try:
        choices = affordable(gpt.forecast, GRID, progress(gpt), budgets)
    except UserError as error:
        assert "no setting meets" in str(error)
        return
    for choice in choices:
        assert all(choice.usage[r] <= b * (1 + 1e-9) for r, b in budgets.items())
        if choice.knobs.steps < GRID.most:
            more = gpt.forecast(replace(choice.knobs, steps=choice.knobs.steps + 1))
            assert more[choice.binding] > budgets[choice.binding]
    first, *rest = choices
    assert [x.progress for x in rest] == sorted((x.progress for x in rest), reverse=True)
    most = max(x.progress for x in choices)
    assert first.progress >= 0.98 * most
    almost = [
        x
        for x in choices
        if x.progress >= 0.98 * most
        and (x.knobs.layers, x.knobs.batch) == (first.knobs.layers, first.knobs.batch)
    ]
    assert first.usage["communication"] == min(x.usage["communication"] for x in almost)


@given(st.floats(0.05, 2.0), st.floats(0.05, 1.5), st.floats(0.3, 1.5), st.floats(0.05, 2.0))
def test_no_setting_that_fits_is_missed(gpt, e, c, m, t):
    small = Grid((1, 3, 4), (2, 8), ("raw32", "eden2"), least=4, most=40)
    reference = gpt.forecast(Knobs(4, 20, 8))
    shares = {"energy": e, "communication": c, "memory": m, "temperature": t}
    budgets = {r: share * reference[r] for r, share in shares.items()}
    tried = [
        Knobs(k, s, b, codec=q)
        for k in small.layers
        for b in small.batches
        for q in small.codecs
        for s in range(small.least, small.most + 1)
    ]
    room = {r: b * (1 + 1e-9) for r, b in budgets.items()}  # for rounding
    fit = [x for x in tried if all(gpt.forecast(x)[r] <= b for r, b in room.items())]
    if not fit:
        return
    found = affordable(gpt.forecast, small, progress(gpt), budgets)
    most = {(x.layers, x.batch, x.codec): x.steps for x in fit}  # in order of steps
    assert {(x.knobs.layers, x.knobs.batch, x.knobs.codec): x.knobs.steps for x in found} == most


def test_a_resource_in_stairs_is_not_taken_for_a_line(gpt):
    def stairs(knobs: Knobs) -> dict[str, float]:
        return {**gpt.forecast(knobs), "wakeups": float(-(-knobs.steps // 64))}

    for limit in (1.0, 2.0, 5.0):
        best = affordable(stairs, GRID, progress(gpt), {"wakeups": limit})[0]
        assert (best.knobs.steps, best.binding) == (64 * limit, "wakeups")


def test_a_resource_that_is_known_to_the_most_steps_only_will_do(gpt):
    def table(knobs):
        if knobs.steps > GRID.most:
            raise UserError("the table ends here")
        return {**gpt.forecast(knobs), "wakeups": 1.0}

    best = affordable(table, GRID, progress(gpt), {"wakeups": 2.0})[0]
    assert (best.knobs.steps, best.binding) == (GRID.most, "")


def test_a_resource_that_falls_with_steps_is_refused_with_the_reason(gpt):
    def rarer(knobs):
        return {**gpt.forecast(knobs), "wakeups": 1000 / knobs.steps}

    with pytest.raises(UserError, match="wakeups falls with the number of steps"):
        affordable(rarer, GRID, progress(gpt), {"wakeups": 100.0})
    assert affordable(rarer, GRID, progress(gpt), {"wakeups": 200.0})  # 5 steps take no more
    assert affordable(
        rarer, GRID, progress(gpt), {"energy": gpt.forecast(Knobs(4, 60, 8))["energy"]}
    )


def test_a_resource_that_stays_as_it_is_does_not_fall(gpt):
    def even(knobs):  # but for what a division rounds
        used = gpt.forecast(knobs)
        return {**used, "each": used["energy"] / knobs.steps}

    assert affordable(even, GRID, progress(gpt), {"each": 1e9})


def test_where_no_budget_forbids_more_steps_none_is_said_to_bind(gpt):
    plenty = {"energy": 1e9, "communication": 1e9}
    best, *_ = found = affordable(gpt.forecast, GRID, progress(gpt), plenty)
    assert (best.knobs.steps, best.binding) == (GRID.most, "")
    assert "no budget forbids more steps, but control.most_steps does" in why(found, plenty, 0.02)
    just = {"energy": 1.001 * best.usage["energy"]}  # one more step would take more
    again, *_ = affordable(gpt.forecast, GRID, progress(gpt), just)
    assert (again.knobs.steps, again.binding) == (GRID.most, "energy")


def test_every_budget_that_cannot_be_met_is_named(gpt):
    with pytest.raises(UserError) as refused:
        affordable(gpt.forecast, GRID, progress(gpt), {"memory": 10.0, "energy": 1e-9})
    assert "no setting meets memory <= 10 B; the least is" in str(refused.value)
    assert "; nor energy <= 0.001 µJ; the least is" in str(refused.value)


def test_thrift_gives_so_much_progress_away_for_less_uplink_and_no_more(gpt):
    budgets = {"energy": gpt.forecast(Knobs(4, 60, 8))["energy"]}
    most = affordable(gpt.forecast, replace(GRID, thrift=0.0), progress(gpt), budgets)[0]
    assert most.progress == max(
        c.progress for c in affordable(gpt.forecast, GRID, progress(gpt), budgets)
    )
    before = most
    for thrift in (0.02, 0.05, 0.1):
        best, *others = affordable(
            gpt.forecast, replace(GRID, thrift=thrift), progress(gpt), budgets
        )
        assert best.progress >= (1 - thrift) * most.progress
        assert best.usage["communication"] <= before.usage["communication"]
        for other in others:
            same = (other.knobs.layers, other.knobs.batch) == (most.knobs.layers, most.knobs.batch)
            if same and other.progress >= (1 - thrift) * most.progress:
                assert other.usage["communication"] >= best.usage["communication"]
        before = best
    assert before.usage["communication"] < most.usage["communication"]


def test_a_budget_nothing_can_meet_is_named_with_its_least_value(gpt):
    with pytest.raises(UserError, match=r"memory <= 100 kB; the least is .* at layers=1"):
        planner(gpt.forecast, GRID, progress(gpt), [{"memory": 1e5}])
    with pytest.raises(UserError, match="no setting meets communication <= 10 B"):
        planner(gpt.forecast, GRID, progress(gpt), [{"communication": 10.0}])


def reply(client: int, used: dict[str, float]) -> Reply:
    return Reply(0, 1, client, usage={"counted": used})


def test_the_planner_learns_that_a_client_uses_more_than_forecast(gpt):
    budgets = {"energy": gpt.forecast(Knobs(4, 60, 8))["energy"]}
    control = planner(gpt.forecast, GRID, progress(gpt), [budgets])
    state = control.init()
    before = control.knobs(state, 7)
    for _ in range(3):
        knobs = control.knobs(state, 7)
        state = control.update(state, [reply(7, {"energy": 1.5 * gpt.forecast(knobs)["energy"]})])
    after = control.knobs(state, 7)
    assert 1.5 * gpt.forecast(after)["energy"] <= budgets["energy"] * (1 + 1e-9)
    assert 1.5 * gpt.forecast(before)["energy"] > budgets["energy"]
    assert control.knobs(state, 8) == before  # another client keeps its own


def test_small_changes_do_not_move_the_knobs(gpt):
    budgets = {"energy": gpt.forecast(Knobs(4, 60, 8))["energy"]}
    control = planner(gpt.forecast, GRID, progress(gpt), [budgets])
    state = control.init()
    rng = np.random.default_rng(0)
    seen = set()
    for _ in range(40):
        knobs = control.knobs(state, 0)
        seen.add(knobs)
        noise = 1 - 0.02 * rng.random()
        state = control.update(state, [reply(0, {"energy": noise * gpt.forecast(knobs)["energy"]})])
    assert len(seen) == 1


def test_the_planner_goes_to_worker_processes_whatever_it_remembers(gpt):
    budgets = {"energy": gpt.forecast(Knobs(1, 100, 4, codec="eden4"))["energy"]}
    control = planner(gpt.forecast, GRID, progress(gpt), [budgets])
    first = control.knobs(control.init(), 0)
    copy = pickle.loads(pickle.dumps(control))
    assert copy.knobs(copy.init(), 0) == first


def test_device_classes_keep_within_budgets_of_their_own(gpt):
    full = gpt.forecast(Knobs(4, 60, 8))["energy"]
    classes = [{"energy": share * full} for share in (1, 0.3, 0.1)]
    control = planner(gpt.forecast, GRID, progress(gpt), classes)
    state = control.init()
    used = [gpt.forecast(control.knobs(state, c))["energy"] / full for c in (3, 4, 5)]
    assert used[0] > used[1] > used[2]
    assert all(u <= limit for u, limit in zip(used, (1, 0.3, 0.1), strict=True))


def test_a_planned_run_stays_within_its_budgets_from_the_first_round():
    plan = text_plan(rounds=4)
    known = costs(plan.build_model(), plan.task, plan.clients[0], "adamw", RASPBERRY_PI_5, gpt=True)
    reference = known.forecast(Knobs(3, 12, 8))
    budgets = {r: 0.4 * reference[r] for r in ("energy", "communication")}
    grid = Grid((1, 2, 3), (2, 4), ("raw32", "eden2", "eden1"), least=2, most=50)
    shares = tuple(p / known.shape.parameters[-1] for p in known.shape.parameters)
    model = Progress(shares, {c: fidelity(c) for c in grid.codecs}, 3, 16.0)
    control = planner(known.forecast, grid, model, [budgets])
    plan = replace(plan, controller=control, meters=(known.meter,), budgets={"counted": [budgets]})
    layout = plan.build_model().layout
    for record, _ in rounds.run(plan, InProcess(plan), layout, rounds.first_state(plan)):
        assert not record.dropped
        for used in record.usage["counted"].values():
            assert all(used[r] <= b for r, b in budgets.items())
        per_client = record.up_bytes / len(record.cohort)
        assert per_client == record.usage["counted"][str(record.cohort[0])]["communication"]


def latency(knobs: Knobs, known: Costs) -> dict[str, float]:
    """A resource of a user's own: seconds from the first step to the last byte."""
    counted = known.forecast(knobs)
    return {**counted, "latency": 0.05 + counted["time"]}


def test_a_fifth_resource_fits_in_a_function(gpt):
    forecast = partial(latency, known=gpt)
    limit = 0.05 + 0.5 * gpt.forecast(Knobs(4, 60, 8))["time"]
    best = affordable(forecast, GRID, progress(gpt), {"latency": limit})[0]
    assert best.binding == "latency"
    assert best.usage["latency"] <= limit


@pytest.mark.parametrize("thrift", [-0.1, 1.0, math.nan])
def test_a_thrift_that_is_no_share_is_refused(thrift):
    with pytest.raises(UserError, match=r"thrift = .*: it must be a share from 0 to below 1"):
        Search(thrift=thrift)


@pytest.mark.parametrize(
    ("how", "sentence"),
    [
        ({"codecs": ("eden2", "nothing")}, "'nothing' would send no update at all"),
        ({"noise_scale": math.nan}, "noise_scale = nan: it must be finite and above 0"),
        ({"noise_scale": -1.0}, "noise_scale = -1.0: it must be finite and above 0"),
    ],
)
def test_a_search_that_makes_no_sense_is_refused(how, sentence):
    with pytest.raises(UserError, match=sentence):
        Search(**how)


def test_a_share_of_the_downlink_is_of_the_model_sent_as_it_is():
    own = ["data.source=topics", "model.size=1x16", "codec.down=int8", "budget.downlink=27%"]
    plan = build(load(find_config("planner"), own))
    whole = build(load(find_config("planner"), [*own[:2], "budget.downlink=100%"]))
    limits, reference = (p.budgets["counted"][0]["downlink"] for p in (plan, whole))
    assert limits == pytest.approx(0.27 * reference)
