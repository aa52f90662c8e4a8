"""Clipped and noised updates, what they guarantee, and that nothing else leaves a client."""

import json
import math
import subprocess
import sys
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from safetensors import safe_open
from torch import nn

import fedbudget as fb
from conftest import blobs, softmax_plan, text_plan
from fedbudget import cli, epsilon, rounds, seeds
from fedbudget.aggregation import Screening
from fedbudget.algorithms import terms
from fedbudget.algorithms.fedavg import fedavg
from fedbudget.algorithms.pc_fedavg import pc_fedavg
from fedbudget.algorithms.scaffold import scaffold
from fedbudget.build import build
from fedbudget.client import Agent, Recipe, train_client
from fedbudget.codecs import frame
from fedbudget.config import validate
from fedbudget.constraints import l1_ball
from fedbudget.control.controller import Controller, fixed
from fedbudget.data.examples import Parts
from fedbudget.engines import choose
from fedbudget.engines.batched import Batched
from fedbudget.engines.embedded import InProcess, embedded
from fedbudget.errors import UserError
from fedbudget.privacy import Privacy, private
from fedbudget.runs import RunFolder
from fedbudget.training import misfit, train
from fedbudget.types import Job, Knobs
from fedbudget.uplink import Uplink
from test_pc_fedavg import blocks
from test_runs import go, weights

AGENTS = 8
ON = Privacy(clip=0.5, noise=0.8, delta=1e-5)


def job(round=2, client=7, seed=11, knobs=None, down=None) -> Job:
    return Job(1, round, client, seed, knobs or Knobs(1, 2, 4), 0.05, down)


def agents(how=ON, recipe=None, **changes):
    """Eight small clients, softmax regression."""
    parts = Parts(blobs(160), [np.arange(i * 20, (i + 1) * 20) for i in range(AGENTS)])
    settings = {
        "clients": parts,
        "cohort": AGENTS,
        "rounds": 4,
        "recipe": replace(recipe or Recipe("sgd"), privacy=how),
        "controller": fixed(Knobs(1, 3, 10)),
        "screening": Screening("off"),
    }
    return softmax_plan(**(settings | changes))


def run(plan, engine=None):
    """(records, last state) of a run."""
    engine = engine or InProcess(plan)
    layout = plan.build_model().layout
    with engine:
        all_of_it = list(rounds.run(plan, engine, layout, rounds.first_state(plan)))
    return [record for record, _ in all_of_it], all_of_it[-1][1]


# what is done to an update


@pytest.mark.parametrize("length", [0.0, 0.3, 1.9999, 2.0, 2.0001, 1e30])
def test_an_update_is_clipped_to_exactly_the_norm_and_a_short_one_is_left_alone(length):
    direction = torch.randn(2, 50, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    update = direction * (length / direction.norm())
    sent = torch.stack(private(tuple(update), Privacy(clip=2.0), job()))
    assert sent.norm() <= 2.0 * (1 + 1e-15)
    torch.testing.assert_close(
        sent, update * min(1, 2 / length if length else 1), rtol=1e-14, atol=0
    )
    if length <= 2:
        assert torch.equal(sent, update)


def test_the_vectors_of_an_update_are_clipped_as_one():
    short, long = torch.full((4,), 0.1), torch.full((4,), 10.0)
    a, b = private((short, long), Privacy(clip=1.0), job())
    assert torch.cat([a, b]).norm() == pytest.approx(1.0)
    torch.testing.assert_close(a / b, short / long)


@pytest.mark.parametrize(("model", "std"), [("local", 0.6 * 2), ("sum", 0.6 * 2 / math.sqrt(9))])
def test_noise_has_its_standard_deviation_and_no_bias(model, std):
    how = Privacy(2.0, 0.6, model, cohort=9)
    assert how.std == pytest.approx(std)
    update = torch.full((40_000,), 2.0 / 200)  # of norm 2
    drawn = torch.stack([private((update,), how, job(round=r))[0] - update for r in range(5)])
    n = drawn.numel()
    assert abs(drawn.mean()) < 4 * std / math.sqrt(n)
    assert drawn.std() == pytest.approx(std, rel=4 / math.sqrt(2 * n))
    apart = torch.corrcoef(drawn) - torch.eye(5)  # streams of different rounds
    assert apart.abs().max() < 4.5 / math.sqrt(40_000)
    beyond = (drawn.abs() > 2 * std).double().mean()
    assert beyond == pytest.approx(0.0455, abs=0.003)  # it is Gaussian


def test_the_sum_over_a_full_cohort_has_the_noise_that_a_local_client_has_alone():
    n = 20_000
    nothing = (torch.zeros(n),)
    how = Privacy(1.5, 2.0, "sum", cohort=16)
    total = sum(private(nothing, how, job(client=c))[0] for c in range(16))
    assert total.std() == pytest.approx(3.0, rel=0.02)
    alone = private(nothing, replace(how, model="local"), job())[0]
    assert alone.std() == pytest.approx(3.0, rel=0.02)


def test_noise_follows_from_seed_round_and_client_alone():
    update = (torch.zeros(30),)
    first = private(update, ON, job())[0]
    assert torch.equal(first, private(update, ON, job())[0])
    expected = seeds.rng(11, 2, 7, "privacy").standard_normal(30) * 0.4
    torch.testing.assert_close(first, torch.tensor(expected, dtype=torch.float32))
    for other in (job(round=3), job(client=8), job(seed=12)):
        assert not torch.equal(first, private(update, ON, other)[0])


def test_a_nodes_own_seed_gives_noise_that_the_run_cannot_tell_and_never_twice():
    """The server chooses round and model: asking twice must not let it subtract the noise."""
    a, b = torch.zeros(30), torch.full((30,), 0.01)
    noise = private((a,), ON, job(), secret=99)[0]
    assert torch.equal(noise, private((a,), ON, job(), secret=99)[0])  # a resume has the same bits
    assert not torch.equal(noise, private((a,), ON, job(seed=99))[0])
    assert torch.equal(noise, private((a,), ON, job(seed=5), secret=99)[0])
    difference = private((b,), ON, job(), secret=99)[0] - noise
    assert difference.std() == pytest.approx(0.4 * math.sqrt(2), rel=0.5)
    assert "987654" not in repr(Recipe(privacy_seed=987654))


def test_an_update_without_numbers_is_not_sent():
    with pytest.raises(UserError, match="not finite"):
        private((torch.tensor([1.0, math.nan]),), ON, job())


def test_only_what_is_sent_is_clipped_and_noised():
    plan = text_plan(recipe=Recipe(privacy=ON))
    flat = plan.build_model()
    down = frame.pack(
        [flat.weights.clone()], flat.layout, run=1, round=2, client=-1, seed=0, codec="raw32"
    )
    asked = job(knobs=Knobs(1, 2, 4), down=down)
    bare = Agent(flat, plan.clients[0], plan.task, Recipe())
    (update,) = frame.unpack(train_client(asked, bare, fedavg(), {}).reply.payload, flat.layout)
    assert len(update) < flat.layout.size
    reply, _ = train_client(asked, replace(bare, recipe=plan.recipe), fedavg(), {})
    (sent,) = frame.unpack(reply.payload, flat.layout)
    assert torch.equal(sent, private((update,), ON, asked)[0])
    assert (reply.loss, reply.examples) == (None, 1)  # they would say more than the noise allows


@pytest.mark.parametrize("feedback", ["error", "momentum"])
def test_what_a_client_keeps_back_is_of_the_noised_update(feedback):
    """Residual and frame together are the noised update: a later round adds nothing without noise."""
    plan = agents()
    flat = plan.build_model()
    down = frame.pack(
        [flat.weights.clone()], flat.layout, run=1, round=2, client=-1, seed=0, codec="raw32"
    )
    asked = job(knobs=Knobs(1, 3, 10), down=down)
    agent = Agent(flat, plan.clients[0], plan.task, plan.recipe)
    (noised,) = frame.unpack(train_client(asked, agent, fedavg(), {}).reply.payload, flat.layout)
    lossy = replace(asked, knobs=Knobs(1, 3, 10, codec="topk10%"))
    keeps = replace(agent, recipe=replace(plan.recipe, uplink=Uplink(feedback)))
    reply, kept = train_client(lossy, keeps, fedavg(), {})
    (sent,) = frame.unpack(reply.payload, flat.layout)
    torch.testing.assert_close(sent + kept["residual0"], noised)


# whole runs


def test_scaffold_keeps_c_the_mean_of_the_noised_controls():
    plan = agents(algorithm=scaffold(), cohort=5, rounds=6)
    engine = InProcess(plan)
    _, state = run(plan, engine)
    own = [
        engine.states[c][state.acks[c].round]["control"] if c in state.acks else 0.0
        for c in range(AGENTS)
    ]
    torch.testing.assert_close(state.server["control"], sum(own) / AGENTS)
    assert state.server["control"].norm() > 0.1


def test_pc_fedavgs_mean_model_stays_the_mean_of_the_noised_blocks():
    sets = [l1_ball(1.0 + i) for i in range(AGENTS)]
    algorithm = pc_fedavg(AGENTS, terms.constant(1.0), sigma=0.1)
    plan = agents(algorithm=algorithm, constraints=sets, cohort=5, rounds=6, drop=0.2)
    engine = InProcess(plan)
    records, state = run(plan, engine)
    found = blocks(plan, plan.build_model().layout, engine, state)
    torch.testing.assert_close(found.mean(0), state.weights, rtol=1e-5, atol=1e-5)
    assert all("objective" not in r.validation for r in records)  # figures without noise


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "pc-fedavg"])
def test_the_batched_engine_has_the_loops_noise(name):
    algorithm, sets = {
        "fedavg": (fedavg(), None),
        "scaffold": (scaffold(), None),
        "pc-fedavg": (
            pc_fedavg(AGENTS, terms.constant(1.0)),
            [l1_ball(1.0 + i) for i in range(AGENTS)],
        ),
    }[name]
    plan = agents(algorithm=algorithm, constraints=sets)
    assert choose.suits(plan)
    (records, one), (mine, other) = run(plan), run(plan, Batched(plan))
    for key, vector in one.server.items():
        assert (vector - other.server[key]).norm() <= 1e-5 * vector.norm()
    assert {r.train_loss for r in [*records, *mine]} == {None}
    silent = replace(plan, recipe=Recipe("sgd"))
    assert not torch.allclose(run(silent)[1].weights, one.weights, atol=1e-2)


def test_workers_and_one_process_give_the_same_bits():
    plan = text_plan(recipe=Recipe(privacy=ON), rounds=2)
    _, one = run(plan)
    _, two = run(plan, embedded(plan, 2))
    assert torch.equal(one.weights, two.weights)


@pytest.mark.parametrize("how", [ON, replace(ON, model="sum", cohort=5)], ids=["local", "sum"])
def test_a_resumed_run_has_the_same_bits_and_the_same_epsilon(how, tmp_path):
    plan = agents(how, cohort=5, rounds=6, drop=0.2)
    whole = go(plan, tmp_path / "whole")
    half = go(plan, tmp_path / "half", after=3)
    folder = RunFolder(tmp_path / "half")
    done = go(plan, None, start=folder.load_checkpoint(print), folder=folder)
    assert torch.equal(weights(tmp_path / "whole"), weights(tmp_path / "half"))
    assert done["privacy"] == whole["privacy"]
    assert half["privacy"]["epsilon"] < done["privacy"]["epsilon"]
    assert (
        json.loads((tmp_path / "half" / "summary.json").read_text())["privacy"] == whole["privacy"]
    )


def test_a_run_that_goes_on_with_other_noise_is_refused():
    plan = agents()
    state = rounds.first_state(plan)
    assert "other noise" in misfit(state, plan, {"privacy.noise": "1 -> 2"})
    assert "other noise" in misfit(state, plan, {"train.cohort": "8 -> 4"})
    assert misfit(state, plan, {"train.lr": "1 -> 2"}) is None


def test_the_python_api_clips_notes_and_accounts():
    data = blobs(160)
    result = fb.train(
        partial(nn.Linear, 4, 3),
        [(data.x[i::4], data.y[i::4]) for i in range(4)],
        (data.x, data.y),
        rounds=3,
        recipe=Recipe("sgd", privacy=replace(ON, model="sum")),
        quiet=True,
    )
    assert result.plan.recipe.privacy.cohort == 4
    assert result.plan.screening.action == "off"
    assert result.summary["privacy"]["epsilon"] == pytest.approx(epsilon.epsilon([0.8] * 3, 1e-5))
    with pytest.raises(UserError, match="clip and noise must be at least 0"):
        Privacy(clip=-1.0)


# accounting


def record(cohort, dropped=(), layers=1, why="it dropped out"):
    knobs = layers if isinstance(layers, dict) else {"*": {"layers": layers}}
    return {"cohort": cohort, "dropped": dict.fromkeys(map(str, dropped), why), "knobs": knobs}


def gaussian(noises, delta):
    """Mironov 2017 and Balle et al. 2020 by hand: the best order of Opacus's own list."""
    rho = sum(1 / noise**2 for noise in noises) / 2
    orders = [1 + x / 10 for x in range(1, 100)] + list(range(12, 64))
    return min(
        a * rho - (math.log(delta) + math.log(a)) / (a - 1) + math.log((a - 1) / a) for a in orders
    )


def test_epsilon_is_opacuss_own_for_a_schedule_by_hand():
    accountants = pytest.importorskip("opacus.accountants")
    # client 1 takes part in rounds 1, 2 and 4; nobody more often
    records = [record([0, 1]), record([1, 2], [2]), record([0, 2]), record([1, 3])]
    plan = agents(Privacy(0.3, 1.3, "local", 1e-6))
    found = epsilon.facts(plan, records)["privacy"]
    theirs = accountants.RDPAccountant()
    for _ in range(3):
        theirs.step(noise_multiplier=1.3, sample_rate=1.0)
    assert found["epsilon"] == pytest.approx(theirs.get_epsilon(delta=1e-6), rel=1e-12)
    assert found["epsilon"] == pytest.approx(gaussian([1.3] * 3, 1e-6), rel=1e-12)
    assert found["epsilon_replaced"] == pytest.approx(gaussian([0.65] * 3, 1e-6), rel=1e-12)
    assert (found["client"], found["rounds"], found["delta"]) == (1, 3, 1e-6)
    assert found["epsilon_poisson"] is None  # the server of "local" knows whom it asked

    plan = agents(Privacy(0.3, 1.3, "sum", 1e-6, cohort=2), cohort=2)
    found = epsilon.facts(plan, records)["privacy"]
    # in round 2 client 1 was alone: half of the variance
    noises = [1.3, 1.3 / math.sqrt(2), 1.3]
    assert found["epsilon"] == pytest.approx(gaussian(noises, 1e-6), rel=1e-12)
    theirs = accountants.RDPAccountant()
    theirs.history = [(1.3 / math.sqrt(2), 0.25, 1), (1.3, 0.25, 3)]
    assert found["epsilon_poisson"] == pytest.approx(theirs.get_epsilon(delta=1e-6), rel=1e-12)
    assert found["epsilon_poisson"] < found["epsilon"]


def test_replies_that_are_missing_take_their_noise_with_them_and_the_accounting_says_so():
    pytest.importorskip("opacus")
    how = Privacy(0.5, 2.0, "sum", cohort=AGENTS)
    plan = agents(how, rounds=3)
    everyone, _ = run(plan)
    fewer, _ = run(replace(plan, drop=0.5))
    assert any(r.dropped for r in fewer)
    for r in fewer:
        there = AGENTS - len(r.dropped)
        told = epsilon.multipliers(r.to_json(), how)
        assert set(told.values()) == {2.0 * math.sqrt(there / AGENTS)}
        assert len(told) == there
        # and that is what the sum really has
        used = [c for c in r.cohort if str(c) not in r.dropped]
        zero = (torch.zeros(20_000),)
        total = sum(private(zero, how, job(round=r.round, client=c))[0] for c in used)
        assert total.std() == pytest.approx(0.5 * told[used[0]], rel=0.03)
    full, less = (
        epsilon.facts(plan, [x.to_json() for x in records])["privacy"]
        for records in (everyone, fewer)
    )
    assert full["least_noise"] == 2.0 > less["least_noise"]
    assert less["epsilon"] / less["rounds"] > full["epsilon"] / full["rounds"]


def test_a_layer_that_few_trained_has_the_noise_of_those_few():
    how = Privacy(0.5, 2.0, "sum", cohort=4)
    layers = {"0": {"layers": 3}, "1": {"layers": 1}, "2": {"layers": 1}, "3": {"layers": 2}}
    found = epsilon.multipliers(record([0, 1, 2, 3], layers=layers), how)
    assert found == pytest.approx({0: 1.0, 1: 2.0, 2: 2.0, 3: math.sqrt(2)})


def test_a_reply_that_came_but_was_not_used_counts_where_the_server_saw_it():
    refused = record([0, 1], [1], why="its update is 20 times the size of the cohort's median")
    assert set(epsilon.multipliers(refused, ON)) == {0, 1}
    assert set(epsilon.multipliers(record([0, 1], [1]), ON)) == {0}
    assert set(epsilon.multipliers(refused, replace(ON, model="sum", cohort=2))) == {0}


def test_much_noise_little_noise_and_none_have_an_epsilon():
    pytest.importorskip("opacus")
    assert epsilon.epsilon([], 1e-5) == 0
    assert epsilon.epsilon([0.0, 1.0], 1e-5) == math.inf
    assert 0 <= epsilon.epsilon([1e4], 1e-5) < 0.01
    assert epsilon.epsilon([0.01], 1e-5) > 1000
    assert epsilon.sentence({}) == ""
    never = epsilon.facts(agents(Privacy(clip=1.0)), [record([0, 1]), record([1, 2])])["privacy"]
    assert (never["epsilon"], never["client"], never["rounds"]) == (math.inf, 1, 2)


def test_an_epsilon_column_is_there_where_a_run_has_one(tmp_path):
    from fedbudget.report.load import find_runs
    from fedbudget.report.tables import markdown

    go(agents(rounds=2, name="noised"), tmp_path / "a")
    go(agents(Privacy(clip=1.0), rounds=2, name="clipped"), tmp_path / "b")
    go(agents(Privacy(), rounds=2, name="bare"), tmp_path / "c")
    lines = markdown(find_runs([tmp_path])).splitlines()
    column = [cell.strip() for cell in lines[0].split("|")].index("epsilon")
    cells = {row.split("|")[1].strip(): row.split("|")[column].strip() for row in lines[2:5]}
    assert (cells["clipped"], cells["bare"]) == ("inf", "inf")
    assert float(cells["noised"]) == pytest.approx(epsilon.epsilon([0.8] * 2, 1e-5), rel=0.01)
    assert "epsilon" not in markdown(find_runs([tmp_path / "c"]))


# what is refused


def test_opacus_is_asked_for_before_training_and_only_then(monkeypatch, tmp_path, capsys):
    monkeypatch.setitem(sys.modules, "opacus", None)
    out = tmp_path / "r"
    assert exit_code(monkeypatch, out, "privacy.clip=1") == 2
    assert "pip install 'fedbudget[privacy]'" in capsys.readouterr().err
    assert not out.exists()
    code = "import sys, fedbudget.training, fedbudget.api; print('opacus' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def exit_code(monkeypatch, out, *changes) -> int:
    tiny = ["rounds=1", "data.source=topics", "model.size=1x32", "model.context=32", "workers=1"]
    tiny += ["train.steps=1", "train.batch=2", "train.cohort=2", "data.clients=4"]
    sets = [word for change in (*tiny, *changes) for word in ("--set", change)]
    monkeypatch.setattr(sys, "argv", ["fedbudget", "run", "fedavg", *sets, "--out", str(out)])
    with pytest.raises(SystemExit) as end:
        cli.main()
    return end.value.code or 0


SUM = ("privacy.clip=1", "privacy.noise=1", "privacy.model=sum")


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (("privacy.noise=1",), "is in units of privacy.clip, which is 0"),
        (("privacy.clip=-1",), "privacy.clip = -1"),
        (("privacy.clip=1", "privacy.delta=1"), "privacy.delta = 1"),
        (("privacy.clip=1", "privacy.model=central"), "it must be 'local' or 'sum'"),
        (("privacy.clip=1", "train.weighting=examples"), "privacy needs weighting = 'uniform'"),
        ((*SUM, "train.screen=off", "codec.name=int8"), "codes of different clients do not add up"),
        (
            (*SUM, "train.screen=off", "control.controller=cafl-l", "budget.communication=50%"),
            "codes of different clients do not add up",
        ),
        ((*SUM, "train.screen=off", "codec.feedback=error"), "needs codec.feedback = 'none'"),
        (SUM, "needs train.screen = 'off' and train.aggregate = 'mean'"),
        ((*SUM, "train.screen=off", "train.aggregate=median"), "train.aggregate = 'mean'"),
    ],
)
def test_what_would_break_the_promise_is_one_sentence_and_exit_code_2(
    changes, sentence, monkeypatch, tmp_path, capsys
):
    assert exit_code(monkeypatch, tmp_path / "r", *changes) == 2
    said = capsys.readouterr().err
    assert sentence in said
    assert len(said.strip().splitlines()) == 1
    assert not (tmp_path / "r").exists()


def normed() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 3))


def test_running_statistics_do_not_get_noise():
    data = blobs(60)
    with pytest.raises(UserError, match=r"running statistics \(batch norm\)"):
        fb.train(normed, [(data.x, data.y)] * 2, recipe=Recipe(privacy=ON), quiet=True)


def test_clipping_without_noise_is_said_to_protect_nothing():
    tree = {"data": {"source": "topics"}, "model": {"size": "1x32", "context": 32}}
    plan = build(validate({**tree, "privacy": {"clip": 1.0}}, "x"))
    assert any("nothing is protected" in warning for warning in plan.warnings)
    assert build(validate({**tree, "privacy": {"clip": 1.0, "noise": 1.0}}, "x")).warnings == ()


# what leaves a client


SECRETS = """
import torch

def data(table):
    y = torch.arange(120) % 3
    x = torch.randn(120, 4, generator=torch.Generator().manual_seed(0)) + 3 * torch.eye(4)[y]
    x[::7, 0] = {value}
    open("{path}").close()
    return [(x[i::6], y[i::6]) for i in range(6)], (x[:30], y[:30])

def model(table):
    return torch.nn.Linear(4, 3)
"""


@pytest.mark.parametrize("noise", [0.0, 1.0], ids=["plain", "private"])
@pytest.mark.parametrize("algorithm", ["pc-fedavg", "penalised-fedavg"])
def test_nothing_of_a_clients_data_or_set_is_in_what_a_run_writes_or_sends(
    algorithm, noise, tmp_path, monkeypatch, capsys
):
    """Of checkpoints only names and metadata: a simulation's hold the clients' state by design."""
    value, file = 5.4273901, tmp_path / "patients-of-dr-grey.csv"
    file.touch()
    (tmp_path / "secrets_for_test.py").write_text(SECRETS.format(value=value, path=file))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "secrets_for_test", raising=False)
    tree = {
        "name": "hospital",
        "rounds": 4,
        "algorithm": algorithm,
        "workers": 1,
        "data": {"source": "secrets_for_test:data", "clients": 6, "path": str(file)},
        "model": {"kind": "secrets_for_test:model"},
        "train": {"cohort": 4, "steps": 2, "batch": 8, "optimizer": "sgd", "lr": 0.1, "drop": 0.2},
        "constraints": {"set": "l1", "radius": [3.6180339, 7.3890561]},
        "privacy": {"clip": 0.5, "noise": noise} if noise else {},
    }
    settings = validate(tree, "x")
    train(settings, tmp_path / "run")
    spread = np.linspace(3.6180339, 7.3890561, 6)
    numbers = [str(value), repr(np.float32(value).item()), *(f"{radius:.5f}" for radius in spread)]
    secret = [*numbers, "dr-grey", str(tmp_path), "l1_ball", "l1 ball", "radius", "Constraint"]

    texts = {n: (tmp_path / "run" / n).read_text() for n in ("rounds.jsonl", "summary.json")}
    told = capsys.readouterr()
    # the last line names the run folder, which the user gave
    texts["terminal"] = (told.out + told.err).replace(str(tmp_path / "run"), "")
    for path in RunFolder(tmp_path / "run").checkpoints():
        with safe_open(path, framework="pt") as f:
            texts[path.name] = json.dumps([f.metadata(), list(f.keys())])
    replies = []
    plan = build(settings)
    state = rounds.first_state(plan)
    for _ in rounds.run(plan, InProcess(plan), plan.build_model().layout, state, replies.append):
        pass
    assert any(reply.payload for reply in replies)
    for reply in replies:
        body = bytes(frame.to_bytes(reply.payload))
        texts[f"frame {reply.round}-{reply.client}"] = body[:88].decode("latin-1")
        texts[f"reply {reply.round}-{reply.client}"] = json.dumps(reply.header())
    found = [(word, where) for where, text in texts.items() for word in secret if word in text]
    assert found == []
    assert not any(number in repr(plan.constraints) for number in numbers)  # its kind only
    if noise:
        lines = [json.loads(line) for line in texts["rounds.jsonl"].splitlines()]
        assert all(line["train_loss"] is None for line in lines)
        assert all("infeasibility" not in line["validation"] for line in lines)
        assert "personal" not in json.loads(texts["summary.json"])
        assert {(r.loss, r.examples) for r in replies} == {(None, 1)}


def by_parity(state, client: int) -> Knobs:
    return Knobs(1 + client % 3, 2, 4, codec=("raw32", "eden2", "int8")[client % 3])


def no_change(state, replies):
    return state


def test_local_privacy_goes_with_every_codec_and_layers_that_differ():
    plan = text_plan(
        recipe=Recipe(privacy=replace(ON, noise=0.05), uplink=Uplink("error")),
        controller=Controller(dict, by_parity, no_change),
        rounds=3,
    )
    records, state = run(plan)
    assert torch.isfinite(state.weights).all()
    assert not any(r.dropped for r in records)
