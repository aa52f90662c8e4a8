"""What a client's work took: read from clocks, the kernel and sensors, on every engine."""

import json
import mmap
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

from conftest import blobs, softmax_plan, text_plan
from fedbudget import rounds
from fedbudget.algorithms.fedavg import fedavg
from fedbudget.build import build, prepare
from fedbudget.client import Recipe
from fedbudget.codecs.codec import Fidelity
from fedbudget.config import validate
from fedbudget.control.controller import fixed
from fedbudget.control.frontier import Grid, Progress
from fedbudget.control.planner import EXACT, planner
from fedbudget.data.examples import Parts
from fedbudget.downlink import Broadcast
from fedbudget.engines.batched import Batched
from fedbudget.engines.embedded import InProcess, Workers
from fedbudget.engines.engine import Host
from fedbudget.errors import UserError
from fedbudget.report.accountings import accountings_sheet
from fedbudget.report.load import Loaded
from fedbudget.report.sound import sound_record
from fedbudget.resources import meters
from fedbudget.resources.devices import RASPBERRY_PI_5
from fedbudget.resources.meters import STATUS, estimated, held, measured, same_memory, sensors
from fedbudget.summary import summarise
from fedbudget.types import Job, Knobs, Reply

BYTES = ("communication", "downlink")
MB = 1_000_000
linux = pytest.mark.skipif(sensors().baseline is None, reason=f"memory is read from {STATUS}")


def zone(folder: Path, name: str, what: str, energy_uj: object, range_uj: int = 10**9) -> Path:
    own = folder / "powercap" / name
    own.mkdir(parents=True)
    (own / "name").write_text(f"{what}\n")
    (own / "energy_uj").write_text(f"{energy_uj}\n")
    (own / "max_energy_range_uj").write_text(f"{range_uj}\n")
    return own / "energy_uj"


# reading


def test_a_clock_runs_while_work_waits_and_cpu_time_does_not():
    own = sensors()
    begun = own.start()
    time.sleep(0.2)
    read = own.since(begun)
    assert read["time"] >= 0.2
    assert read["cpu_time"] < read["time"]


@linux
def test_memory_is_the_peak_of_this_work_and_not_of_the_work_before():
    own = sensors()
    begun = own.start()
    pieces = [torch.ones(MB // 4) for _ in range(400)]  # small enough for the allocator to keep
    del pieces
    large = own.since(begun)["memory"]
    begun = own.start()
    torch.ones(5 * MB // 4)
    small = own.since(begun)["memory"]
    assert large >= 396 * MB  # of some pages the process had before
    assert 0 <= small <= large - 370 * MB
    assert held()["HWM"] >= held()["RSS"] - MB


@linux
def test_the_pages_of_files_are_no_clients_memory(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(bytes(32 * MB))
    own = sensors()
    begun = own.start()
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        assert sum(mapped[::4096]) == 0
        read_in = own.since(begun)["memory"]
        kept = bytearray(b"1" * 32 * MB)
        held_too = own.since(begun)["memory"]
    assert read_in < 8 * MB
    assert held_too > 30 * MB
    del kept


@linux
def test_memory_is_given_back_before_other_work_and_kept_for_the_same(monkeypatch):
    given = []
    monkeypatch.setattr(meters, "give_back", lambda: given.append(own.last))
    own = meters.Sensors(baseline=0)
    for work in ("a", "a", "b", "b", None, None, "b"):
        own.start(work)
    assert given == [None, "a", "b", None, None]
    assert same_memory(Knobs(2, 5, 4, 3)) == same_memory(Knobs(2, 90, 4, 2))
    assert same_memory(Knobs(2, 5, 4)) != same_memory(Knobs(2, 5, 8))


@linux
def test_short_work_is_not_charged_for_larger_work_before_it():
    plan = text_plan(controller=fixed(Knobs(3, 3, 2)))
    host = Host(plan)
    layout = host.model.layout
    down = Broadcast((host.model.weights.clone(),), layout, plan.run, plan.seed, 1, layout.raw)

    def memory(batch):
        job = Job(plan.run, 1, 0, plan.seed, Knobs(3, 3, batch), plan.lr_at(1), down.whole)
        return host.train(job, {})[0].usage["measured"]["memory"]

    small = min(memory(2) for _ in range(3))
    large = memory(512)
    assert large > small + 8 * MB
    assert memory(2) < small + 0.5 * (large - small)


def test_what_evaluation_has_left_is_no_clients():
    host = Host(text_plan())
    host.sensors.last = "a client's work"
    host.score(host.model.weights.clone(), [0])
    assert host.sensors.last is None


def test_energy_is_what_the_counters_of_processor_and_memory_moved(tmp_path):
    package = zone(tmp_path, "intel-rapl:0", "package-0", 1_000_000)
    dram = zone(tmp_path, "intel-rapl:0:1", "dram", 999_000_000)
    core = zone(tmp_path, "intel-rapl:0:0", "core", 5)  # is in the package's
    board = zone(tmp_path, "intel-rapl:1", "psys", 5)  # has it all again
    own = sensors(system=tmp_path)
    assert "energy" in own.resources
    begun = own.start()
    package.write_text("3500000\n")
    dram.write_text("500000\n")  # began again at 10^9
    core.write_text("900000")
    board.write_text("900000")
    assert own.since(begun)["energy"] == pytest.approx(2.5 + 1.5)
    assert own.since(begun, workers=4)["energy"] == pytest.approx(1.0)


@pytest.mark.parametrize("said", ["", "nothing"])
def test_a_counter_that_cannot_be_read_is_left_out_and_no_client_fails(tmp_path, said):
    zone(tmp_path, "intel-rapl:0", "package-0", 5)
    file = zone(tmp_path, "intel-rapl:1", "package-1", 5)
    own = sensors(system=tmp_path)
    begun = own.start()
    file.write_text(said)
    assert "energy" not in own.since(begun)  # half of it would be too little
    assert "energy" not in sensors(system=tmp_path).resources


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [("thermal/thermal_zone1", "type", "temp"), ("hwmon/hwmon3", "name", "temp1_input")],
)
def test_the_processors_thermometer_is_found(tmp_path, kind, name, value):
    for place, what in (("thermal/thermal_zone0", "battery"), (kind, "cpu-thermal")):
        (tmp_path / place).mkdir(parents=True)
        (tmp_path / place / name).write_text(what)
        (tmp_path / place / value).write_text("61500" if place == kind else "20000")
    own = sensors(system=tmp_path)
    read = own.since(own.start(), workers=8)
    assert read["temperature"] == pytest.approx(61.5)  # is nobody's share
    assert measured(read, 1, 2, ambient_c=25.0)["temperature"] == pytest.approx(36.5)
    assert measured(read, 1, 2, ambient_c=70.0)["temperature"] == 0
    assert "temperature" not in measured(read, 1, 2)  # above which ambient?


def test_what_has_no_sensor_is_estimated_and_not_called_measured(tmp_path):
    own = sensors(system=tmp_path)
    assert not {"energy", "temperature"} & set(own.resources)
    read = {"time": 10.0, "cpu_time": 5.0}
    assert set(measured(read, 1, 2, 25.0)) == {"time", "cpu_time", *BYTES}
    found = estimated(read, RASPBERRY_PI_5)
    assert found["energy"] == pytest.approx(5 * RASPBERRY_PI_5.watts_per_core)
    steady = found["energy"] / 10 * RASPBERRY_PI_5.kelvin_per_watt
    assert 0 < found["temperature"] < steady


# on every engine


def engines(plan):
    return {"one process": InProcess(plan), "worker processes": Workers(plan, 2)}


def courses(plan, engine):
    layout = plan.build_model().layout
    with engine:
        return list(zip(*rounds.run(plan, engine, layout, rounds.first_state(plan)), strict=True))


def check_measured(record):
    used = record.usage["measured"]
    assert set(used) == set(map(str, record.cohort))
    for own in used.values():
        assert set(own) == {*sensors().resources, *BYTES}
        assert min(own.values()) >= 0
        assert own["time"] > 0
    assert sum(own["communication"] for own in used.values()) == record.up_bytes
    assert sum(own["downlink"] for own in used.values()) == record.down_bytes


def test_engines_measure_and_train_the_same_bits():
    plan = text_plan(rounds=2)
    found = {name: courses(plan, engine) for name, engine in engines(plan).items()}
    for name, (records, states) in found.items():
        for record in records:
            check_measured(record)
            alone = 1 if name == "one process" else 2
            spent = sum(own["time"] for own in record.usage["measured"].values())
            assert spent <= alone * record.train_s * (1 + 1e-4)  # 5 digits are kept
        assert torch.equal(states[-1].weights, found["one process"][1][-1].weights)


def test_agents_that_train_at_once_share_what_was_measured():
    plan = softmax_plan(
        clients=Parts(blobs(300), np.split(np.arange(300), 10)),
        cohort=10,
        algorithm=fedavg(),
        controller=fixed(Knobs(1, 3, 16)),
        recipe=Recipe(optimizer="sgd"),
    )
    for record in courses(plan, Batched(plan))[0]:
        check_measured(record)
        used = record.usage["measured"].values()
        assert len({own["time"] for own in used}) == 1
        assert sum(own["time"] for own in used) <= record.train_s * (1 + 1e-4)


def test_records_and_summary_have_each_accounting_on_its_own(tmp_path):
    fixed_knobs = {"control": {"controller": "fixed"}}
    plan = build(config(tmp_path, {"communication": "50%"}, **fixed_knobs))
    (record,), _ = courses(replace(plan, rounds=1), InProcess(plan))
    assert set(record.usage) == {"counted", "paper", "estimated", "measured"}
    for client, used in record.usage["measured"].items():
        count, guess = (record.usage[a][client] for a in ("counted", "estimated"))
        assert used["communication"] == count["communication"]
        watts = RASPBERRY_PI_5.watts_per_core
        assert guess["energy"] == pytest.approx(watts * used["cpu_time"], rel=1e-3)
    told = json.loads(json.dumps(record.to_json()))
    assert sound_record(told)
    summary = summarise([told], {"name": "a", "seed": 0}, 1, plan.budgets)
    assert summary["usage"]["measured"]["time"]["unit"] == "s"
    assert set(summary["usage"]["estimated"]) == {"energy", "temperature"}
    sheet = accountings_sheet([Loaded(tmp_path, summary, [told], "")])
    cells = dict(zip(sheet.columns, sheet.rows[0], strict=True))
    assert "→ ~" in cells["energy"] or "energy" in sensors().resources
    assert "→ ~" not in cells["time"]
    before, after = cells["uplink"].split(" → ")
    assert before == after


def test_nodes_with_different_sensors_are_summed_up_by_those_who_have_them():
    one = {"0": {"time": 1.0, "energy": 8.0}, "1": {"time": 3.0}}
    record = {
        **dict.fromkeys(("up_bytes", "down_bytes", "train_s", "wall_s", "evaluate_s"), 0),
        "knobs": {},
        "dropped": {},
        "round": 1,
        "cohort": [0, 1],
        "usage": {"measured": one},
    }
    assert sound_record(record)
    limits = {"measured": [{"time": 2.0, "energy": 10.0}]}
    used = summarise([record], {}, 1, limits)["usage"]["measured"]
    assert used["time"]["final"] == 2.0
    assert used["time"]["rounds_over"] == 1
    assert used["energy"]["worst_ratio"] == 0.8
    assert used["energy"]["rounds_over"] == 0


# budgets


def config(folder, budget, **more):
    text = folder / "text.txt"
    text.write_text("the quick brown fox jumps over the lazy dog; " * 200)
    tables = {
        "rounds": 3,
        "data": {"source": "text", "path": str(text), "clients": 3},
        "model": {"size": "1x16", "context": 16},
        "train": {"cohort": 3, "steps": 4, "batch": 4},
        "control": {"controller": "planner", "least_steps": 1},
        "budget": budget,
    }
    return validate({**tables, **more}, "test")


def test_a_measured_budget_is_what_records_are_held_against(tmp_path):
    few = {"controller": "planner", "least_steps": 1, "most_steps": 3}
    budget = {"accounting": "measured", "time": "1 h", "downlink": "1 MB"}
    plan = build(config(tmp_path, budget, control=few, rounds=1))
    (record,), _ = courses(plan, InProcess(plan))
    assert set(plan.budgets) == {"measured"}
    told = [json.loads(json.dumps(record.to_json()))]
    use = summarise(told, {}, 1, plan.budgets)["usage"]["measured"]["time"]
    assert use["budget"] == 3600
    assert use["rounds_over"] == 0
    assert "budget" not in summarise(told, {}, 1, plan.budgets)["usage"]["counted"]["time"]


def test_a_budget_of_measured_time_holds_from_the_first_round_though_the_forecast_is_wrong(
    tmp_path,
):
    many = {"controller": "planner", "most_steps": 10**6, "batches": [4]}
    budget = {"accounting": "measured", "time": "300 ms"}
    plan = build(config(tmp_path, budget, control=many, rounds=1))
    asked = plan.controller.knobs(plan.controller.init(), 0).steps
    assert (
        asked > 1000
    )  # a device of the profile does them in time; this machine, in Python, does not
    for engine in engines(plan).values():
        (record,), _ = courses(plan, engine)
        for client, used in record.usage["measured"].items():
            assert 1 <= record.knobs[client].steps < asked
            assert used["time"] < 0.3 + 0.2  # the rest is other work on this machine
            knobs = record.knobs[client]
            assert record.usage["counted"][client]["energy"] == pytest.approx(
                plan.meters[0](knobs, 0, 0)["counted"]["energy"]
            )


def test_a_measured_time_has_no_network_in_it_so_neither_has_what_is_expected(tmp_path):
    budget = {"accounting": "measured", "time": "50%"}
    ready = prepare(config(tmp_path, budget))
    (known,) = ready.kinds
    whole, alone = known.forecast(ready.base), known.expected(ready.base)
    device = known.device
    link_s = whole["communication"] / device.up_bytes_per_s
    link_s += whole["downlink"] / device.down_bytes_per_s
    assert alone == {**whole, "time": pytest.approx(whole["time"] - link_s)}
    assert 0 < alone["time"] < whole["time"]
    assert replace(known, accounting="counted").expected(ready.base) == whole
    assert ready.limits == [{"time": pytest.approx(alone["time"] / 2)}]


def test_a_budget_for_what_nothing_measures_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("fedbudget.build.sensors", lambda cpu: sensors(cpu, tmp_path))
    budget = {"accounting": "measured", "energy": "5 J"}
    with pytest.raises(
        UserError, match=r"budget\.energy: .*cannot measure it; it can measure time"
    ):
        build(config(tmp_path, budget))


GRID = Grid(layers=(1, 2), batches=(2, 4), codecs=("raw32",), least=5, most=500)
PROGRESS = Progress((0.5, 1.0), {"raw32": Fidelity(1.0, 0.0)}, cohort=3, noise_scale=16.0)


def forecast(knobs: Knobs) -> dict[str, float]:
    """A line in steps for time, a base for memory."""
    work = knobs.layers * knobs.batch
    return {
        "time": 0.01 + 1e-3 * knobs.steps * work,
        "memory": 1e6 + 1e5 * work,
        "communication": 1e3 * knobs.layers,
    }


@pytest.mark.parametrize("slower", [0.5, 1.0, 3.0])
def test_measured_budgets_hold_from_the_second_round_a_client_is_seen(slower):
    """Clients measure more or less than the forecast says, and never twice the same."""
    limits = {"time": 1.0, "memory": 3e6, "communication": 2e3}
    control = planner(forecast, GRID, PROGRESS, [limits], "measured")
    state = control.init()
    rng = np.random.default_rng(0)
    for number in range(20):
        for client in range(3):
            knobs = control.knobs(state, client)
            factor = slower * (1 + client / 2)
            used = {"time": forecast(knobs)["time"] * factor * rng.uniform(0.98, 1.02)}
            used["memory"] = forecast(knobs)["memory"] * rng.uniform(1.1, 1.13)
            used["communication"] = forecast(knobs)["communication"]
            if number > 0:
                assert all(used[r] <= b for r, b in limits.items())
            reply = Reply(0, number, client, usage={"measured": used})
            state = control.update(json.loads(json.dumps(state)), [reply])
    for client in range(3):
        knobs = control.knobs(state, client)
        assert forecast(knobs)["time"] * slower * (1 + client / 2) > 0.85 * limits["time"]
        assert knobs.layers * 1e3 <= limits["communication"]


def test_memory_that_does_not_shrink_with_the_knobs_is_allowed_for():
    """A process holds 1.2 MB besides the model: knobs that need half as much save less than half."""
    limits = {"memory": 2.5e6}
    control = planner(forecast, GRID, PROGRESS, [limits], "measured")
    state, seen = control.init(), []
    for number in range(10):
        knobs = control.knobs(state, 0)
        used = 1.2e6 + 1.05 * forecast(knobs)["memory"]
        seen.append(used / limits["memory"])
        reply = Reply(0, number, 0, usage={"measured": {"memory": used}})
        state = control.update(json.loads(json.dumps(state)), [reply])
    assert seen[0] > 1 >= max(seen[1:])
    assert seen[-1] > 0.9


def test_a_device_that_turns_its_own_knobs_is_learnt_of_by_those():
    control = planner(forecast, GRID, PROGRESS, [{"time": 1.0}])
    state = control.init()
    asked = control.knobs(state, 0)
    fewer = replace(asked, steps=asked.steps // 2)
    for number in range(5):
        usage = {"counted": {"time": forecast(fewer)["time"]}}
        state = control.update(state, [Reply(0, number, 0, knobs=fewer, usage=usage)])
        assert control.knobs(state, 0) == asked


def test_a_low_report_is_forgotten_when_exact_ones_follow():
    control = planner(forecast, GRID, PROGRESS, [{"memory": 2e6}])
    state = control.init()
    for number, share in enumerate((0.5, 1.0, 1.0, 1.0)):
        used = share * forecast(control.knobs(state, 0))["memory"]
        if number > 1:
            assert used <= 2e6
        state = control.update(state, [Reply(0, number, 0, usage={"counted": {"memory": used}})])
    assert state["factors"] == {}


@pytest.mark.parametrize("accounting", ["counted", "measured"])
def test_an_upload_that_was_skipped_says_nothing_of_the_next(accounting):
    control = planner(forecast, GRID, PROGRESS, [{"communication": 1.5e3}], accounting)
    state = control.init()
    for number in range(4):
        assert control.knobs(state, 0).layers == 1
        state = control.update(
            state, [Reply(0, number, 0, usage={accounting: {"communication": 90.0}})]
        )


def test_one_clients_wrong_report_does_not_end_the_run():
    control = planner(forecast, GRID, PROGRESS, [{"time": 1.0}])
    reply = Reply(0, 1, 0, usage={"counted": {"time": 1e9}})
    state = control.update(control.init(), [reply])
    assert control.knobs(state, 0) == Knobs(1, GRID.least, 2)
    assert control.knobs(state, 1) == control.knobs(control.init(), 1)


@pytest.mark.parametrize(("scatter", "changes"), [(0.05, 0), (0.1, 15)])
def test_knobs_do_not_flap_where_clocks_scatter(scatter, changes):
    control = planner(forecast, GRID, PROGRESS, [{"time": 1.0}], "measured")
    state, rng, taken, over = control.init(), np.random.default_rng(1), [], 0
    for number in range(100):
        knobs = control.knobs(state, 0)
        used = forecast(knobs)["time"] * rng.uniform(1 - scatter, 1 + scatter)
        taken.append(knobs)
        over += used > 1.0
        reply = Reply(0, number, 0, usage={"measured": {"time": used}})
        state = control.update(state, [reply])
    assert sum(a != b for a, b in pairwise(taken[3:])) <= changes
    assert over <= (0 if scatter <= 0.05 else 10)


def test_exact_budgets_are_used_up_though_others_have_room():
    limits = {"communication": 2e3, "time": 100.0}
    control = planner(forecast, GRID, PROGRESS, [limits], "measured")
    assert "communication" in EXACT
    assert control.knobs(control.init(), 0).layers == 2


def test_a_client_not_seen_yet_is_thought_as_slow_as_the_slowest():
    limits = {"time": 1.0}
    control = planner(forecast, GRID, PROGRESS, [limits], "measured")
    state = control.init()
    expected = forecast(control.knobs(state, 0))["time"]
    state = control.update(state, [Reply(0, 1, 0, usage={"measured": {"time": 4 * expected}})])
    assert forecast(control.knobs(state, 1))["time"] <= limits["time"] / 4
    counted = planner(forecast, GRID, PROGRESS, [limits])
    state = counted.update(
        counted.init(), [Reply(0, 1, 0, usage={"counted": {"time": 4 * expected}})]
    )
    assert forecast(counted.knobs(state, 1))["time"] > limits["time"] / 4


def test_a_machine_that_is_too_slow_for_any_knobs_gets_the_least_work():
    control = planner(forecast, GRID, PROGRESS, [{"time": 1.0}], "measured")
    reply = Reply(0, 1, 0, usage={"measured": {"time": 1e6}})
    state = control.update(control.init(), [reply])
    assert control.knobs(state, 0) == Knobs(1, GRID.least, 2)
