"""fedbudget.train, as the README and the examples use it."""

import math
import runpy
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn

import fedbudget as fb
from conftest import blobs, data_folder
from fedbudget.algorithms.fedavg import fedavg
from fedbudget.algorithms.pc_fedavg import pc_fedavg
from fedbudget.algorithms.server import adam, momentum, nesterov, yogi
from fedbudget.algorithms.terms import growing
from fedbudget.client import Recipe
from fedbudget.constraints import box, l1_ball
from fedbudget.control.controller import fixed
from fedbudget.types import Knobs

EXAMPLES = Path(__file__).parents[1] / "examples"


def make_model() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))


def squared(model, x, y):
    return ((model(x) - nn.functional.one_hot(y, 3)) ** 2).mean()


def parts():
    data = blobs()
    return [(data.x[i::4], data.y[i::4]) for i in range(4)], (blobs(60, 1).x, blobs(60, 1).y)


def asking(knobs):
    """What makes a controller that always gives the same."""
    return lambda *about: fixed(Knobs(1, 1, 1))._replace(knobs=lambda state, client: knobs)


def test_train_learns_and_returns_the_model():
    clients, validation = parts()
    run = fb.train(
        make_model, clients, validation, rounds=15, steps=8, batch=10, lr=0.03, quiet=True
    )
    assert run.summary["validation"]["accuracy"] > 0.9
    assert run.losses[-1] < 0.8 * run.losses[0]
    predicted = run.model(validation[0]).argmax(-1)
    assert (predicted == validation[1]).float().mean() > 0.9
    assert not run.model.training


def test_a_module_is_as_good_as_a_function_and_is_left_alone():
    clients, validation = parts()
    torch.manual_seed(0)
    model = make_model()
    before = [p.detach().clone() for p in model.parameters()]
    settings = {"rounds": 2, "steps": 2, "quiet": True}
    one = fb.train(model, clients, validation, **settings)
    two = fb.train(model, clients, validation, **settings, workers=2)
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    for a, b in zip(one.model.parameters(), two.model.parameters(), strict=True):
        assert torch.equal(a, b)


def test_layers_groups_loss_and_callback_are_honoured(tmp_path):
    clients, validation = parts()
    heard = []
    run = fb.train(
        make_model,
        clients,
        validation,
        rounds=2,
        steps=2,
        layers=1,
        groups=["0", "2"],
        loss=squared,
        seed=5,
        on_round=heard.append,
        quiet=True,
    )
    assert heard == list(run.records)
    with fb_seeded(5):
        start = make_model()
    assert torch.equal(run.model[0].weight, start[0].weight)
    assert not torch.equal(run.model[2].weight, start[2].weight)
    assert "accuracy" not in run.records[0].validation
    run.save(tmp_path / "m.safetensors")
    run.report(tmp_path / "r.html")
    run.report(f"{tmp_path}/all/")
    run.table()
    assert (tmp_path / "r.html").exists()
    assert {"report.html", "loss.png"} <= {file.name for file in (tmp_path / "all").iterdir()}


def test_a_budget_is_kept_from_the_first_round_and_reported():
    clients, validation = parts()
    run = fb.train(
        make_model,
        clients,
        validation,
        rounds=3,
        steps=40,
        batch=16,
        budget={"energy": "40%", "communication": "150 B"},
        controller=fb.planner(batches=(2, 4)),
        quiet=True,
    )
    used = run.summary["usage"]["counted"]
    assert used["energy"]["rounds_over"] == used["communication"]["rounds_over"] == 0
    assert 0.9 < used["energy"]["ratio"] <= 1
    assert used["communication"]["worst"] == run.records[0].up_bytes / 4 <= 150
    assert run.records[0].knobs["*"].codec != "raw32"
    with pytest.raises(fb.UserError, match="no setting meets communication <= 50 B"):
        fb.train(
            make_model,
            clients,
            budget={"communication": 50},
            controller=fb.planner(),
            quiet=True,
        )
    for amount in (5, "27%"):
        with pytest.raises(fb.UserError, match=r"budget is .*; name resources"):
            fb.train(make_model, clients, budget=amount, quiet=True)
    with pytest.raises(fb.UserError, match="codec = 'nothing' would send no update"):
        fb.train(make_model, clients, codec="nothing", quiet=True)
    with pytest.raises(fb.UserError, match="needs a budget"):
        fb.train(make_model, clients, controller=fb.planner(), quiet=True)


def test_a_measured_budget_is_about_what_clients_measure():
    """Forecasts are of a Raspberry Pi; only reports can tell what this machine takes."""
    clients, _ = parts()
    run = fb.train(
        make_model,
        clients,
        rounds=2,
        steps=200,
        batch=16,
        budget=fb.Budget(time="20 ms", communication="1 kB"),
        accounting="measured",
        controller=fb.planner(batches=(4, 16)),
        quiet=True,
    )
    assert set(run.plan.budgets) == {"measured"}
    used = run.summary["usage"]
    assert used["measured"]["time"]["budget"] == 0.02
    assert "budget" not in used["counted"]["time"]
    assert used["measured"]["communication"]["rounds_over"] == 0
    planned = run.plan.controller.knobs(run.plan.controller.init(), 0).steps
    for record in run.records:  # in the first round devices stop in time; then the planner knows
        for knobs in record.knobs.values():
            assert knobs.steps < planned / 2, "a Pi's peak rate was believed over what was measured"
    with pytest.raises(fb.UserError, match=r"budget\.latency: nothing counts it"):
        fb.train(make_model, clients, budget={"latency": 3}, accounting="measured", quiet=True)


def test_device_classes_have_budgets_and_knobs_of_their_own():
    clients, validation = parts()
    about = {"rounds": 3, "steps": 40, "quiet": True, "controller": fb.planner(batches=(2, 4))}
    shares = {"energy": ["20%", "60%"], "communication": "2 kB"}
    run = fb.train(make_model, clients, validation, budget=fb.Budget(**shares), **about)
    energy = run.summary["usage"]["counted"]["energy"]
    assert energy["budget"][1] == pytest.approx(3 * energy["budget"][0])
    assert energy["rounds_over"] == 0
    assert 0.9 < energy["worst_ratio"] <= 1
    knobs = run.records[0].knobs
    assert knobs["0"] == knobs["2"] != knobs["1"] == knobs["3"]
    with pytest.raises(fb.UserError, match=r"^device class 1: no setting meets communication"):
        fb.train(make_model, clients, budget={"communication": ["2 kB", "9 B"]}, **about)
    with pytest.raises(fb.UserError, match="equally long; they have 2, 3"):
        fb.train(make_model, clients, budget={"energy": [1, 2], "memory": [1, 2, 3]}, **about)
    with pytest.raises(fb.UserError, match="a list is empty"):
        fb.train(make_model, clients, budget={"energy": []}, **about)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ("planner", "controller = 'planner': give planner"),
        (fb.planner, "controller = planner: give planner"),
        (lambda *about: None, "controller: it returned a NoneType; give planner"),
        (asking(None), "the controller gives a NoneType; it must give Knobs"),
        (asking(Knobs(9, 1, 1)), "the model has 2 layer groups"),
        (asking(Knobs(1, 1, 0)), "batch and accumulate are whole numbers from 1 on"),
        (asking(Knobs(1, 1.5, 2)), "batch and accumulate are whole numbers from 1 on"),
        (asking(Knobs(1, 1, 1, codec="zip")), "codec 'zip' is unknown"),
    ],
)
def test_a_controller_that_is_none_or_asks_the_impossible_is_explained(given, sentence):
    clients, _ = parts()
    with pytest.raises(fb.UserError, match=sentence):
        fb.train(make_model, clients, budget={"energy": "50%"}, controller=given, quiet=True)


def test_replies_that_are_of_no_use_are_told_of_though_all_is_quiet():
    clients, validation = parts()
    wide = [(torch.zeros(9, 5), torch.zeros(9, dtype=torch.long))]
    with pytest.raises(
        fb.UserError, match="no client could be used in any round; client 0 in round 2: "
    ):
        fb.train(make_model, wide, validation, rounds=2, quiet=True)
    broken = (torch.full_like(clients[0][0], math.inf), clients[0][1])
    with pytest.warns(
        RuntimeWarning, match="2 of 8 replies were not used, the first by client 0 in"
    ):
        fb.train(make_model, [broken, *clients[1:]], validation, rounds=2, quiet=True)


def test_updates_per_unit_of_work_and_a_cooldown_from_python():
    clients, validation = parts()
    kinds = {}
    for normalise in ("none", "work"):
        run = fb.train(
            *(make_model, clients, validation),
            rounds=4,
            steps=6,
            normalise=normalise,
            round_schedule="cooldown",
            quiet=True,
        )
        assert run.plan.lr_at(4) < run.plan.lr_at(1) == 1e-3
        kinds[normalise] = run.losses
    # all do the same work, so that it makes no difference but for rounding
    assert kinds["none"] == pytest.approx(kinds["work"], rel=1e-4)
    with pytest.raises(fb.UserError, match="normalise = 'works': it must be 'none' or 'work'"):
        fb.train(make_model, clients, normalise="works", quiet=True)
    with pytest.raises(fb.UserError, match="cooldown = 0: it must be above 0 and at most 1"):
        fb.train(make_model, clients, cooldown=0, quiet=True)


def fb_seeded(seed):
    from fedbudget import seeds

    return seeds.torch_seeded(seed, 0, seeds.SERVER, "init")


def with_norm(momentum=0.1):
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8, momentum=momentum), nn.Linear(8, 3))


@pytest.mark.parametrize("server", [momentum(0.9), nesterov(0.9), adam(0.1), yogi(0.1)])
def test_server_optimisers_leave_running_statistics_to_the_mean(server):
    clients, validation = parts()
    settings = {"rounds": 15, "steps": 4, "lr": 0.02, "quiet": True}
    run = fb.train(with_norm, clients, validation, algorithm=fedavg(server), **settings)
    assert run.model[1].running_var.min() > 0
    assert all(loss == loss for loss in run.losses)


def test_norms_that_count_their_batches_give_the_same_bits_in_worker_processes():
    clients, validation = parts()
    settings = {"rounds": 3, "steps": 3, "quiet": True}
    make = partial(with_norm, None)
    runs = [fb.train(make, clients, validation, workers=w, **settings) for w in (1, 2)]
    for a, b in zip(*(r.model.parameters() for r in runs), strict=True):
        assert torch.equal(a, b)


def test_a_factory_may_return_one_module_again_and_again():
    clients, validation = parts()
    net = make_model()
    run = fb.train(lambda: net, clients, validation, rounds=3, steps=5, lr=0.02, quiet=True)
    assert run.losses[2] < run.losses[0]


def test_float64_models_lose_nothing_on_the_way():
    clients, validation = parts()
    double = [(x.double(), y) for x, y in clients]
    run = fb.train(
        lambda: make_model().double(),
        double,
        (validation[0].double(), validation[1]),
        rounds=2,
        steps=2,
        quiet=True,
    )
    numbers = sum(p.numel() for p in run.model.parameters())
    assert run.records[0].up_bytes / 4 - 8 * numbers < 128
    assert run.model[0].weight.dtype == torch.float64


def test_hugging_face_data_sets_of_two_columns_are_data_sets():
    datasets = pytest.importorskip("datasets")
    clients, _ = parts()
    tables = [datasets.Dataset.from_dict({"x": x.tolist(), "y": y.tolist()}) for x, y in clients]
    settings = {"rounds": 2, "steps": 3, "quiet": True}
    run = fb.train(make_model, tables, tables[0], **settings)
    same = fb.train(make_model, clients, clients[0], **settings)
    assert run.losses == pytest.approx(same.losses)


def test_the_global_random_numbers_are_left_alone():
    clients, validation = parts()
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    fb.train(make_model, clients, validation, rounds=1, steps=1, quiet=True)
    assert torch.equal(torch.rand(2), expected)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"lr": -1.0}, "lr = -1.0: it must be above 0"),
        ({"optimizer": "lion"}, "optimizer = 'lion': it must be"),
        ({"weighting": "exmples"}, "weighting = 'exmples': it must be"),
        ({"codec": "zip"}, "codec 'zip' is unknown"),
        ({"clients": [(torch.zeros(3, 4), torch.zeros(2))]}, "3 inputs and 2 targets"),
        ({"clients": [iter([])]}, "is no data set here"),
        ({"clients": []}, "clients is empty"),
        ({"cohort": 9}, "cohort = 9: it must be from 1 to 4"),
        ({"steps": 0}, "steps = 0: it must be at least 1"),
        ({"rounds": "3"}, "rounds = '3': it must be a whole number"),
        ({"steps": 2.5}, "steps = 2.5: it must be a whole number"),
        ({"cohort": True}, "cohort = True: it must be a whole number"),
        ({"seed": "a"}, "seed = 'a': it must be a whole number"),
        ({"lr": "x"}, "lr = 'x': it must be above 0"),
        ({"codec": 3}, "codec = 3: give its name, such as 'eden4'"),
        ({"algorithm": "fedavg"}, "algorithm = 'fedavg': give an Algorithm, such as that of"),
        ({"model": 3}, "model = 3: give a module, or a function"),
        ({"model": lambda: 3}, "model: it made 3, which is no module"),
        ({"validation": (torch.zeros(0, 4), torch.zeros(0))}, "validation is empty: give some"),
        ({"layers": 5}, "layers = 5: it must be from 1 to 2"),
        ({"groups": ["nope"]}, "below 'nope'"),
        ({"clients": [(torch.zeros(0, 4), torch.zeros(0))]}, "client 0 has 0 examples"),
    ],
)
def test_bad_arguments_are_explained(change, sentence):
    clients, validation = parts()
    arguments = {"model": make_model, "clients": clients, "validation": validation} | change
    with pytest.raises(fb.UserError, match=sentence):
        fb.train(**arguments, quiet=True)


def test_the_planner_takes_as_few_steps_as_it_may():
    clients, _ = parts()
    about = {"rounds": 1, "steps": 5, "budget": {"energy": "20%"}, "quiet": True}
    with pytest.raises(fb.UserError, match=r"the least is .* steps=10"):
        fb.train(make_model, clients, **about, controller=fb.planner(batches=(16,)))
    few = fb.planner(batches=(16,), least_steps=1)
    run = fb.train(make_model, clients, **about, controller=few)
    assert run.summary["usage"]["counted"]["energy"]["worst_ratio"] <= 1
    for odd in ({"least_steps": 0}, {"least_steps": 9, "most_steps": 8}, {"codecs": "eden2"}):
        with pytest.raises(fb.UserError, match=next(iter(odd))):
            fb.planner(**odd)


def test_the_hugging_face_example_runs_and_sends_only_what_trains():
    pytest.importorskip("transformers")
    run = runpy.run_path(str(EXAMPLES / "hf_gpt2.py"))["main"](rounds=2)
    assert run.losses[-1] < run.losses[0]
    embeddings = 256 * 64 + 64 * 64
    sent = run.records[0].up_bytes / 4 / 4
    total = sum(p.numel() for p in run.model.parameters())
    assert abs(sent - (total - embeddings)) < 50


def test_the_cnn_example_learns(monkeypatch):
    monkeypatch.setenv("FEDBUDGET_DATA", str(data_folder("mnist")))
    run = runpy.run_path(str(EXAMPLES / "cnn_on_images.py"))["main"](rounds=6)
    assert run.summary["validation"]["accuracy"] > 0.5


def test_the_example_of_private_sets_keeps_sets_and_budgets(capsys):
    run = runpy.run_path(str(EXAMPLES / "private_sets.py"))["main"](rounds=12)
    assert "every agent's own model is in its own set: True" in capsys.readouterr().out
    used = run.summary["usage"]["counted"]
    assert all(used[r]["worst_ratio"] <= 1 for r in ("energy", "communication"))
    assert run.losses[-1] < 0.2
    assert run.figures["projected_accuracy"] > 0.9


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"constraints": [l1_ball(1.0)]}, "1 sets for 2 clients"),
        ({"constraints": [1.0, l1_ball(1.0)]}, r"constraints\[0\] is a float"),
        ({"constraints": None}, "needs constraints"),
        ({"algorithm": pc_fedavg(3, growing(1.0))}, "made for 3 agents, but there are 2"),
        (
            {"constraints": [box(torch.zeros(9), torch.ones(9))] * 2},
            "their last dimensions must be equal",
        ),
    ],
)
def test_bad_constraint_sets_are_explained(change, sentence):
    x, y = torch.randn(40, 6), torch.arange(40) % 2
    arguments = {
        "clients": [(x, y)] * 2,
        "algorithm": pc_fedavg(2, growing(1.0)),
        "constraints": [l1_ball(1.0)] * 2,
        "recipe": Recipe(optimizer="sgd"),
        "rounds": 3,
    }
    with pytest.raises(fb.UserError, match=sentence):
        fb.train(nn.Linear(6, 2), **(arguments | change), quiet=True)


def test_clients_with_inputs_of_different_shapes_are_explained():
    y = torch.arange(40) % 2
    with pytest.raises(fb.UserError, match=r"clients\[1\] has inputs of shape \(5,\)"):
        fb.train(nn.Linear(6, 2), [(torch.randn(40, 6), y), (torch.randn(40, 5), y)], quiet=True)
