"""The grid engine: nodes that lie, sleep, leave and come back; and what they keep to themselves."""

import json
from functools import partial

import pytest
import torch

pytest.importorskip("flwr")

from flwr.app import ConfigRecord
from local import LocalGrid

from conftest import softmax_plan, text_plan
from fedbudget import rounds
from fedbudget.client import Recipe
from fedbudget.codecs import frame
from fedbudget.config import validate
from fedbudget.engines.embedded import InProcess
from fedbudget.engines.engine import Host
from fedbudget.errors import UserError
from fedbudget.flower import apps
from fedbudget.flower.fleet import Fleet
from fedbudget.flower.grid import GridEngine, Patience
from fedbudget.flower.node import Device, client_app
from fedbudget.flower.store import Shelf
from fedbudget.runner import Stop, execute
from fedbudget.runs import RunFolder
from fedbudget.uplink import Uplink

pytestmark = pytest.mark.flower


def fleet_of(plan, disk=None, clients=None):
    """A grid with one node for each client; ids that are no client numbers."""
    grid, host = LocalGrid(), Host(plan)

    def device(context):
        shelf = Shelf(disk) if disk else None
        return Device(host, int(context.node_config["partition-id"]), shelf=shelf)

    for client in clients or range(len(plan.clients)):
        grid.add(1000 + 7 * client, client_app(device), client)
    return grid


def engine_of(plan, grid, **patience):
    fleet = Fleet(len(plan.clients), rest_after=2, rest=2)
    return GridEngine(grid, plan, Patience(**{"poll": 0.001, "wait": 5.0, **patience}), fleet)


def go(plan, engine, on_round=lambda record: None):
    layout = plan.build_model().layout
    records, state = [], (first := rounds.first_state(plan))
    with engine:
        for record, state in rounds.run(plan, engine, layout, first):
            records.append(record)
            on_round(record)
    return records, state


def test_the_bits_of_the_embedded_engine():
    plan = text_plan(recipe=Recipe(uplink=Uplink("error")))
    _, alone = go(plan, InProcess(plan))
    _, state = go(plan, engine_of(plan, fleet_of(plan)))
    assert torch.equal(alone.weights, state.weights)


def spoiled(reply, change):
    """A reply whose frame went through `change`, its checksum made to fit again."""
    packed = frame.from_bytes(reply.content["up"]["frame"])
    reply.content["up"] = ConfigRecord({"frame": bytes(change(packed))})
    return reply


def with_body(packed, vector):
    body = vector.numpy().tobytes()
    header = packed.header._replace(size=len(vector))
    return frame.to_bytes(frame.Packed(header, (body,)))


def telling(reply, **fields):
    told = json.loads(reply.content["reply"]["json"]) | fields
    reply.content["reply"] = ConfigRecord({"json": json.dumps(told)})
    return reply


LIES = {
    "not finite": lambda r: spoiled(r, lambda p: with_body(p, torch.full((15,), torch.nan))),
    "numbers that are not finite": lambda r: spoiled(
        r, lambda p: with_body(p, torch.full((15,), torch.inf))
    ),
    "elements for layer groups": lambda r: spoiled(r, lambda p: with_body(p, torch.zeros(5))),
    "the header says": lambda r: spoiled(r, lambda p: frame.to_bytes(p)[:-7]),
    "not a frame": lambda r: spoiled(r, lambda p: b"a friendly text"),
    "a counted energy of -1": lambda r: telling(r, usage={"counted": {"energy": -1.0}}),
    "a counted energy of nan": lambda r: telling(r, usage={"counted": {"energy": float("nan")}}),
    "claims 0 examples": lambda r: telling(r, examples=0),
    "answers another job": lambda r: spoiled(
        r,
        lambda p: frame.to_bytes(frame.Packed(p.header._replace(round=7), p.bodies)),
    ),
    "claims 9 layer groups": lambda r: telling(
        r, knobs={"layers": 9, "steps": 1, "batch": 1, "accumulate": 1, "codec": "raw32"}
    ),
    "cannot be read": lambda r: telling(r, usage=[1, 2]),
    "has no reply header": lambda r: telling(r) and r.content.pop("reply") and r,
    "checksum": lambda r: spoiled(
        r, lambda p: (lambda b: b[:-1] + bytes([b[-1] ^ 1]))(bytes(frame.to_bytes(p)))
    ),
}


@pytest.mark.parametrize("reason", LIES)
def test_a_node_that_sends_nonsense_is_dropped_with_the_reason(reason):
    plan = softmax_plan(rounds=1)
    grid = fleet_of(plan)
    grid.tamper = lambda node, reply: LIES[reason](reply) if node == 1007 else reply
    (record,), state = go(plan, engine_of(plan, grid))
    assert list(record.dropped) == ["1"]
    assert reason in record.dropped["1"]
    assert state.weights.isfinite().all()
    assert not torch.equal(state.weights, rounds.first_state(plan).weights)


def test_a_late_reply_is_counted_and_not_used():
    plan = softmax_plan(rounds=3)
    grid = fleet_of(plan)
    grid.nodes[1014].slow = 0.3
    engine = engine_of(plan, grid, deadline=0.1)
    records, _ = go(plan, engine, lambda record: __import__("time").sleep(0.3))
    assert "no reply within 0.1 s" in records[0].dropped["2"]
    assert sum(r.late for r in records) >= 1
    assert all(r.dropped.keys() <= {"2"} for r in records)


def test_a_node_that_fails_again_and_again_rests_longer_each_time():
    fleet = Fleet(2, rest_after=2, rest=2)
    assert fleet.met(5, 0) is None
    assert fleet.met(6, 1) is None
    asked = []
    for round in range(1, 20):
        here = fleet.present(round)
        if 1 in here:
            asked.append(round)
            fleet.heard(1, round, False)
        fleet.heard(0, round, True)
    assert asked == [1, 2, 5, 10, 19]
    fleet.heard(1, 19, True)
    assert fleet.present(20) == [0, 1]


def test_rest_is_for_those_who_fail_and_never_empties_the_fleet():
    fleet = Fleet(1, rest_after=1, rest=5)
    fleet.met(9, 0)
    fleet.heard(0, 1, False)
    assert fleet.present(2) == [0]


def test_who_a_node_may_be():
    fleet = Fleet(2)
    assert fleet.met(1, 0) is None
    assert "so does node 1" in fleet.met(2, 0)
    assert "clients are 0 to 1" in fleet.met(3, 2)
    assert "clients are 0 to 1" in fleet.met(3, "x")
    fleet.left([2])
    assert fleet.met(2, 0) is None


def test_nodes_come_and_go():
    plan = softmax_plan(rounds=4, cohort=3)
    grid = fleet_of(plan)
    grid.nodes[1007].connected = False

    def meanwhile(record):
        if record.round == 1:
            grid.nodes[1007].connected = True
        if record.round == 2:
            grid.nodes[1000].connected = False

    records, _ = go(plan, engine_of(plan, grid), meanwhile)
    assert [r.cohort for r in records] == [(0, 2), (0, 1, 2), (1, 2), (1, 2)]


def test_too_few_nodes_end_the_run_with_a_sentence():
    plan = softmax_plan()
    grid = fleet_of(plan, clients=[0])
    with pytest.raises(UserError, match=r"1 of the 2 clients that a round needs"):
        go(plan, engine_of(plan, grid, least=2, wait=0.1))


def test_a_client_that_raises_does_not_end_the_round():
    plan = softmax_plan(rounds=1)
    grid = fleet_of(plan)

    def broken(message, context):
        if message.metadata.message_type == "train":
            raise OSError("no battery\nand a long story")
        return honest(message, context)

    honest, grid.nodes[1007].app = grid.nodes[1007].app, broken
    (record,), _ = go(plan, engine_of(plan, grid))
    assert record.dropped == {"1": "Flower: no battery"}


class Until:
    def __init__(self, stop, last):
        self.stop, self.last = stop, last

    def on_reply(self, reply):
        pass

    def on_round(self, record):
        if record.round >= self.last:
            raise KeyboardInterrupt  # as a kill would: no checkpoint after it


@pytest.mark.parametrize("every", [1, 3])
def test_state_on_the_nodes_disks_outlives_a_server_that_was_killed(tmp_path, every):
    """Each node goes back to the version that the server's last checkpoint knows."""
    plan = text_plan(rounds=6, cohort=2, recipe=Recipe(uplink=Uplink("error")))
    _, whole = go(plan, InProcess(plan))

    def run(last, start=None):
        grid = fleet_of(plan, tmp_path / "disk")  # new contexts: a new Flower run
        folder = RunFolder(tmp_path) if start else RunFolder.create(tmp_path, "rounds = 1\n")
        if start:
            folder.cut_back(start.state.round)
        stop = Stop()
        engine = partial(engine_of, plan, grid)
        execute(plan, folder, {}, engine, every, Until(stop, last), stop, start)

    with pytest.raises(KeyboardInterrupt):
        run(4)
    for newer in RunFolder(tmp_path).checkpoints():
        if int(newer.stem.removeprefix("round-")) % every:
            newer.unlink()  # written on the way out; a kill -9 leaves none
    start = RunFolder(tmp_path).load_checkpoint(print)
    assert start.state.round == (4 if every == 1 else 3)
    run(99, start)
    assert torch.equal(RunFolder(tmp_path).load_checkpoint(print).state.weights, whole.weights)


def test_bytes_on_the_wire_are_the_records_bytes_and_small_headers():
    plan = text_plan(rounds=2)
    grid = fleet_of(plan)
    records, _ = go(plan, engine_of(plan, grid))
    for messages, ours in (
        ([m for m in grid.sent if m.metadata.message_type == "train"], "down_bytes"),
        ([m for m in grid.answered if "reply" in m.content], "up_bytes"),
    ):
        flower = sum(r.count_bytes() for m in messages for r in m.content.values())
        recorded = sum(getattr(r, ours) for r in records)
        assert recorded <= flower <= 1.03 * recorded + 600 * len(messages)


def said(grid):
    """All that crossed the wire, but for frames."""
    messages = [*grid.sent, *grid.answered]
    return " ".join(m.error.reason if m.has_error() else str(m.content) for m in messages)


def node_config(tmp_path, client, **tables):
    """A node's own file: a text of its own, a budget, a set."""
    texts = tmp_path / f"texts-{client}"
    texts.mkdir()
    (texts / "a.txt").write_text(f"node {client} has seen a grey fox and a lazy dog. " * 120)
    lines = [f'[data]\nsource = "text"\npath = "{texts}"']
    for name, table in tables.items():
        lines += [f"[{name}]", *(f"{k} = {json.dumps(v)}" for k, v in table.items())]
    file = tmp_path / f"node-{client}.toml"
    file.write_text("\n".join(lines))
    return str(file)


def run_config(tmp_path, config="cafl-l", **more):
    own = tmp_path / "server.txt"
    own.write_text("the quick brown fox jumps over the lazy dog; " * 200)
    return {
        "config": config,
        "rounds": 3,
        "data.source": "text",
        "data.path": str(own),
        "data.alphabet": "ascii",
        "data.clients": 3,
        "data.overlap": 0,
        "model.size": "2x16",
        "model.context": 16,
        "train.cohort": 3,
        "train.steps": 6,
        "train.batch": 4,
        **({"budget.energy": "100%", "budget.memory": "100%"} if config == "cafl-l" else {}),
        **more,
    }


def deployed(tmp_path, run, files):
    grid = LocalGrid()
    for client, file in enumerate(files):
        state = str(tmp_path / f"state-{client}")
        grid.add(50 + client, apps.client, client, config=file, state=state)
        grid.nodes[50 + client].context.run_config = run
    settings = apps.settings_of(run)
    plan = apps.build(settings)
    return plan, grid


@pytest.mark.parametrize("controller", ["planner", "cafl-l"])
def test_a_node_keeps_its_own_budget_and_tells_nobody(tmp_path, controller):
    run = run_config(
        tmp_path, "fedavg", **{"rounds": 4, "codec.feedback": "error", "train.lr_rule": "linear"}
    )
    limits = [{"communication": "9.753135 kB"}, {"communication": "4.321987 kB"}, {}]
    files = [
        node_config(
            tmp_path,
            client,
            **({"budget": {"device": "jetson-orin-nano", **own}} if own else {}),
            control={"controller": controller if own else "fixed"},
        )
        for client, own in enumerate(limits)
    ]
    plan, grid = deployed(tmp_path, run, files)
    records, state = go(plan, engine_of(plan, grid))
    assert state.weights.isfinite().all()
    assert all(not r.dropped for r in records)
    for record in records if controller == "planner" else records[:0]:
        used = {c: u["communication"] for c, u in record.usage["counted"].items()}
        assert used["0"] <= 9753
        assert used["1"] <= 4321
        assert used["2"] > 9753
        assert record.knobs["0"] != record.knobs["1"]
    told = said(grid)
    numbers = ("9.753135", "9753.135", "4.321987", "4321.987")  # short ones are in times by chance
    for secret in (*numbers, "jetson", "texts-", "grey fox"):
        assert secret not in told
    assert (tmp_path / "state-0").is_dir()


def test_private_sets_stay_on_the_nodes(tmp_path):
    run = run_config(
        tmp_path,
        "pc-fedavg",
        **{
            "data.partition": "contiguous",
            "model.kind": "gpt",
            "train.optimizer": "sgd",
            "train.weight_decay": 0.0,
            "train.evaluate_every": 1,
        },
    )
    files = [
        node_config(tmp_path, client, constraints={"set": "l1", "radius": 31.4159 + client})
        for client in range(3)
    ]
    plan, grid = deployed(tmp_path, run, files)
    engine = engine_of(plan, grid)
    records, state = go(plan, engine)
    assert all(r.validation["objective"] > 0 for r in records)
    assert all(r.validation["worst_infeasibility"] >= 0 for r in records)
    figures, models = engine.final(plan.algorithm.send(state.server), state.acks)
    assert 0 <= figures["projected_sparsity"] <= 1
    assert list(models) == []
    told = said(grid)
    assert "radius" not in told
    assert ".4159" not in told
    assert list(tmp_path.glob("state-1/*/personal-1.model"))


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[train]\nlr = 1.0", "unknown train; a node's own tables are data, budget"),
        ("[budget]\nenergy = -1", "energy"),
        ("not toml", "not valid TOML"),
        ("[data]\ncolour = 1", "unknown key data.colour"),
    ],
)
def test_a_node_file_that_is_wrong_is_one_sentence(tmp_path, text, sentence):
    file = tmp_path / "node.toml"
    file.write_text(text)
    settings = apps.settings_of(run_config(tmp_path))
    with pytest.raises(UserError, match=sentence):
        apps.build(apps.own_settings(settings, file)[0])


def test_keys_of_a_run_override_those_of_the_preset(tmp_path):
    run = run_config(tmp_path, **{"train.lr": 0.5, "control.codecs": '["int8"]', "out": "x"})
    settings = apps.settings_of(run)
    assert (settings.train.lr, settings.control.codecs) == (0.5, ["int8"])
    with pytest.raises(UserError, match="unknown key"):
        apps.settings_of({**run, "train.speed": 1})
    with pytest.raises(UserError, match="has no config"):
        apps.settings_of({})


def test_what_is_wrong_with_a_nodes_own_file_stays_in_its_log(tmp_path, caplog):
    file = node_config(tmp_path, 0, budget={"device": "secret-toaster", "energy": 1.0})
    plan, grid = deployed(tmp_path, run_config(tmp_path), [file])
    with pytest.raises(UserError, match="0 of the 1 clients"):
        go(plan, engine_of(plan, grid, wait=0.2))
    assert "its log says why" in said(grid)
    assert "toaster" not in said(grid)
    assert "secret-toaster" in caplog.text


def test_a_node_without_a_number_is_not_used(tmp_path):
    plan, grid = deployed(tmp_path, run_config(tmp_path), [node_config(tmp_path, 0)])
    grid.nodes[50].context.node_config.pop("partition-id")
    with pytest.raises(UserError, match="0 of the 1 clients"):
        go(plan, engine_of(plan, grid, wait=0.2))


def test_validate_knows_the_fleet_table():
    assert validate({"name": "x", "fleet": {"deadline": 3.0}}, "x").fleet.deadline == 3.0


def test_one_word_can_carry_more_overrides(tmp_path):
    run = run_config(tmp_path, set="train.clip=1.5; codec.down=int8")
    settings = apps.settings_of(run)
    assert (settings.train.clip, settings.codec.down) == (1.5, "int8")


def test_a_node_has_a_secret_of_its_own_for_its_noise(tmp_path):
    run = run_config(
        tmp_path,
        "fedavg",
        **{"set": "privacy.clip=1.0; privacy.noise=0.5", "rounds": 1, "train.steps": 2},
    )
    files = [node_config(tmp_path, c, privacy={"secret": 77 + c}) for c in range(3)]
    hosts = [apps._host(json.dumps(run), file)[0] for file in files]
    assert [h.plan.recipe.privacy_seed for h in hosts] == [77, 78, 79]
    assert all(h.plan.recipe.privacy.cohort == 3 for h in hosts)
    plan, grid = deployed(tmp_path, run, files)
    (record,), state = go(plan, engine_of(plan, grid))
    assert not record.dropped
    assert state.weights.isfinite().all()
    assert '"secret"' not in said(grid)
    (tmp_path / "bad.toml").write_text("[privacy]\nnoise = 0.0\n")
    with pytest.raises(UserError, match="has `secret` alone"):
        apps._host(json.dumps(run), str(tmp_path / "bad.toml"))
