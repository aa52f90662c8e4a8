"""Budgets around Flower's strategies: the same models, kept limits, a report."""

import copy
import logging
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

pytest.importorskip("flwr")

import fake_nodes
from fake_nodes import (
    FakeGrid,
    always,
    budgeted,
    change,
    client,
    each,
    examples,
    from_node,
    identify,
    net,
    numbers,
    start,
    truncated,
)
from flwr.app import ArrayRecord, ConfigRecord, Context, Error, Message, RecordDict
from flwr.serverapp.strategy import FedAdam, FedAvg, FedAvgM, FedMedian, FedTrimmedAvg

import fedbudget as fb
from fedbudget.control.controller import Controller
from fedbudget.flower import budget_mod, freeze, knobs_of
from fedbudget.flower.mod import RECORD, Order
from fedbudget.report.load import find_runs
from fedbudget.types import Knobs

pytestmark = pytest.mark.flower

STRATEGIES = [FedAvg, FedAvgM, FedAdam, FedMedian, FedTrimmedAvg]


@pytest.mark.parametrize("make", STRATEGIES)
def test_lossless_and_whole_updates_give_what_the_strategy_alone_gives(make):
    alone = start(make(fraction_evaluate=0.0), FakeGrid(mods=())).arrays
    wrapped = start(budgeted(make(fraction_evaluate=0.0)), FakeGrid()).arrays
    assert list(wrapped) == list(alone)
    for name, value in numbers(wrapped).items():
        np.testing.assert_allclose(value, alone[name].numpy(), rtol=1e-4, atol=1e-5, err_msg=name)
    model = net()
    assert {n: a.dtype for n, a in wrapped.items()} == {
        n: str(t.dtype).removeprefix("torch.") for n, t in model.state_dict().items()
    }


def test_a_layer_is_averaged_over_the_nodes_that_trained_it():
    whole, top = Knobs(2, 20, 4), Knobs(1, 20, 4)
    strategy = budgeted(controller=each(top, whole, whole))
    result = numbers(start(strategy, FakeGrid(), rounds=1).arrays)
    knobs = strategy.records[0].knobs
    node_of = {number: node for node, number in strategy.clients.items()}
    for name, before in net().state_dict().items():
        if name.endswith("num_batches_tracked"):
            assert result[name] == before.numpy()
            continue
        layers = 1 if name.startswith("3.") else 2
        those = [node_of[int(c)] for c, k in knobs.items() if k.layers >= layers]
        assert len(those) == (3 if layers == 1 else 2)
        weights = [examples(n) / sum(map(examples, those)) for n in those]
        changes = [change(n, name, before.shape) for n in those]
        mean = sum(w * c for w, c in zip(weights, changes, strict=True))
        np.testing.assert_allclose(result[name], before.numpy() + mean, rtol=1e-5, atol=1e-6)


def test_a_layer_that_nobody_trained_stays():
    result = start(budgeted(controller=always(Knobs(1, 20, 4))), FakeGrid()).arrays
    for name, before in net().state_dict().items():
        same = np.allclose(result[name].numpy(), before.numpy(), rtol=0, atol=1e-7)
        assert same != name.startswith("3.")


def test_budgets_hold_from_the_first_round_with_the_planner():
    budget = fb.Budget(energy="50%", communication="60%", time="60%", downlink="100%")
    strategy = budgeted(budget=budget, controller=None)
    result = start(strategy, FakeGrid(), rounds=3)
    assert len(strategy.records) == 3
    for record in strategy.records:
        assert len(record.usage["counted"]) == 3
        for used in record.usage["counted"].values():
            for resource, limit in strategy.limits.items():
                assert used[resource] <= limit * (1 + 1e-9), resource
    for number in (1, 2, 3):
        shares = result.train_metrics_clientapp[number]
        assert shares["train_loss"] == pytest.approx(0.5)
        for resource in budget:
            assert 0 < shares[f"budget-{resource}"] <= 1 + 1e-9


def test_what_is_counted_is_what_travelled():
    strategy = budgeted(controller=each(Knobs(1, 20, 4), Knobs(2, 20, 4, codec="int8")))
    grid = FakeGrid(2)
    start(strategy, grid, rounds=1)
    record = strategy.records[0]
    arrays = ArrayRecord(net().state_dict())
    down = sum(len(a.data) for a in arrays.values())
    used = record.usage["counted"]
    assert used["0"]["communication"] != used["1"]["communication"]
    assert record.up_bytes == sum(u["communication"] for u in used.values())
    assert {u["downlink"] for u in used.values()} == {down}
    assert record.down_bytes == 2 * down
    for measured in record.usage["measured"].values():
        assert measured["time"] > 0
        assert measured["process_peak_memory"] > 2**20


def test_each_node_gets_knobs_and_records_of_its_own():
    knobs = [Knobs(1, 11, 2), Knobs(2, 12, 4, codec="int8"), Knobs(2, 13, 8)]
    strategy = budgeted(controller=each(*knobs))
    arrays = ArrayRecord(net().state_dict())
    messages = list(strategy.configure_train(1, arrays, ConfigRecord({"lr": 0.1}), FakeGrid()))
    assert sorted(strategy.clients.values()) == [0, 1, 2]
    for message in messages:
        assert knobs_of(message) == knobs[strategy.clients[message.metadata.dst_node_id]]
        assert message.content["config"]["server-round"] == 1
    first, second, _ = (m.content for m in messages)
    first["config"]["lr"] = 9.0
    assert second["config"]["lr"] == 0.1
    order = Order.of(messages[0])
    assert order is not None
    assert order.layout(arrays) == replace(strategy.layout, statistics=())
    assert order.layout(arrays).digest == strategy.layout.digest


def test_the_controller_hears_of_accepted_replies_only():
    heard = []

    def update(state, replies):
        heard.append([(r.round, r.client, r.examples, r.loss) for r in replies])
        return {"round": len(heard)}

    rule = Controller(lambda: {"round": 0}, lambda s, c: Knobs(2, 20 + s["round"], 4), update)
    cohorts = []

    def make(costs, limits, base, cohort):
        cohorts.append(cohort)
        return rule

    strategy = budgeted(controller=make)
    start(strategy, FakeGrid(tamper={3: from_node(3, truncated)}))
    number = strategy.clients
    expected = sorted((number[n], examples(n), 0.5) for n in (1, 2))
    assert heard == [[(r, *rest) for rest in expected] for r in (1, 2)]
    assert [r.knobs["*"].steps for r in strategy.records] == [20, 21]
    assert cohorts[-1] == 3


def test_other_messages_pass_through_the_mod_untouched():
    identify()
    app = client([budget_mod])
    context = Context(1, 1, {}, RecordDict(), {})
    arrays = ArrayRecord(net().state_dict())
    plain = Message(RecordDict({"arrays": arrays}), 1, "train")
    assert set(app(plain, context).content) == {"arrays", "metrics"}
    assert knobs_of(plain) is None
    assert knobs_of(plain, default=Knobs(1, 2, 3)) == Knobs(1, 2, 3)
    order = Order(1, 1, 0, 0, Knobs(1, 2, 3), ("0.weight",), (0,)).to_record()
    scored = Message(RecordDict({"arrays": arrays, RECORD: order}), 1, "evaluate")
    assert set(app(scored, context).content) == {"metrics"}
    failing = Message(RecordDict({"arrays": arrays, RECORD: order}), 1, "train")
    refused = budget_mod(failing, context, lambda m, c: Message(Error(2, "no"), reply_to=m))
    assert refused.error.reason == "no"


def test_an_app_that_trains_frozen_layers_is_told(caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
    monkeypatch.setattr(fake_nodes, "freeze", lambda model, msg: None)
    start(budgeted(controller=always(Knobs(1, 20, 4))), FakeGrid(), rounds=1)
    assert any("was to stay frozen" in r.getMessage() for r in caplog.records)


def test_freeze_leaves_only_the_top_layers_to_train():
    strategy = budgeted(controller=always(Knobs(1, 20, 4)))
    arrays = ArrayRecord(net().state_dict())
    message = next(iter(strategy.configure_train(1, arrays, ConfigRecord(), FakeGrid())))
    model = net().train()
    freeze(model, message)
    assert [n for n, p in model.named_parameters() if p.requires_grad] == ["3.weight", "3.bias"]
    assert not model[1].training
    assert model[3].training


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.below = nn.Linear(4, 4, bias=False)
        self.head = nn.Linear(4, 4, bias=False)
        self.head.weight = self.below.weight

    def forward(self, x):
        return self.head(torch.relu(self.below(x)))


def test_tied_weights_stay_tied():
    model = Tied()
    strategy = budgeted(model=model, controller=always(Knobs(1, 20, 4)))
    arrays = ArrayRecord(copy.deepcopy(model).state_dict())
    result = strategy.start(FakeGrid(), arrays, num_rounds=1).arrays
    np.testing.assert_array_equal(result["head.weight"].numpy(), result["below.weight"].numpy())
    assert not np.array_equal(result["below.weight"].numpy(), arrays["below.weight"].numpy())


def test_a_users_mistake_is_told_in_a_sentence():
    with pytest.raises(fb.UserError, match="no setting meets communication"):
        budgeted(budget={"communication": "10 B"}, controller=None)
    with pytest.raises(fb.UserError, match="layers = 9: it must be from 1 to 2"):
        budgeted(base=Knobs(9, 20, 4))
    strategy = budgeted()
    with pytest.raises(fb.UserError, match=r"'0.weight' has shape \(7, 4\)"):
        other = nn.Sequential(nn.Linear(4, 7), nn.BatchNorm1d(7), nn.ReLU(), nn.Linear(7, 3))
        strategy.configure_train(1, ArrayRecord(other.state_dict()), ConfigRecord(), FakeGrid())


def test_a_run_folder_that_reports_can_read(tmp_path):
    strategy = budgeted(FedAvg(), controller=None, out=tmp_path / "digits")
    start(strategy, FakeGrid(tamper={2: from_node(2, truncated)}))
    (run,) = find_runs([tmp_path])
    assert run.name == "digits"
    assert run.losses() == [(1, 0.25), (2, 0.25)]
    assert run.summary["complete"]
    assert run.summary["dropped"] == 2
    assert run.summary["validation"]["accuracy"] == 0.75
    assert run.summary["usage"]["counted"]["energy"]["worst_ratio"] <= 1
    assert run.summary["usage"]["measured"]["time"]["worst"] > 0
    assert 'energy = "100%"' in run.config
    assert (tmp_path / "digits" / "model.safetensors").exists()
    with pytest.raises(fb.UserError, match="already holds a run"):
        start(budgeted(out=tmp_path / "digits"), FakeGrid())
