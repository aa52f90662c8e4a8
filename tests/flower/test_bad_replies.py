"""Whatever a node sends: its reply is dropped with the reason, and the round goes on."""

import logging
import math

import numpy as np
import pytest
import torch

pytest.importorskip("flwr")

from fake_nodes import FakeGrid, budgeted, change, from_node, net, start, truncated, with_report
from flwr.app import Array, ArrayRecord, Error, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAvg

import fedbudget as fb
from fedbudget.codecs import frame
from fedbudget.control.controller import Controller
from fedbudget.flower import budget_mod
from fedbudget.flower.mod import RECORD
from fedbudget.types import Knobs

pytestmark = pytest.mark.flower


def with_examples(value):
    def tamper(reply):
        rest = {"train_loss": 0.5} | ({} if value is None else {"num-examples": value})
        reply.content = RecordDict({**reply.content, "metrics": MetricRecord(rest)})
        return reply

    return tamper


def with_frame(alter):
    """A tamperer that writes another frame: `alter` gets vector and header, and changes them."""

    def tamper(reply):
        packed = frame.from_bytes(bytearray(reply.content[RECORD]["frame"]))
        vector = torch.frombuffer(bytearray(packed.bodies[0]), dtype=torch.float32).clone()
        vector, header = alter(vector, packed.header)
        header = header._replace(size=len(vector))
        body = frame.to_bytes(frame.Packed(header, (vector.numpy().tobytes(),)))
        return with_report(frame=bytes(body))(reply)

    return tamper


def no_mod(reply):
    content = {"arrays": ArrayRecord(net().state_dict()), "metrics": reply.content["metrics"]}
    reply.content = RecordDict(content)
    return reply


def arrays_too(reply):
    reply.content = RecordDict({**reply.content, "more": ArrayRecord(net().state_dict())})
    return reply


def other_metrics(reply):
    metrics = MetricRecord({**reply.content["metrics"], "more": 1.0})
    reply.content = RecordDict({**reply.content, "metrics": metrics})
    return reply


def misnamed(reply):
    content = {RECORD: reply.content[RECORD], "arrays": reply.content["metrics"]}
    reply.content = RecordDict(content)
    return reply


NAN = torch.tensor(math.nan)
HOSTILE = {
    "NaN": (with_frame(lambda v, h: (v.index_fill(0, torch.tensor([3]), NAN), h)), "not finite"),
    "infinite": (with_frame(lambda v, h: (v + math.inf, h)), "not finite"),
    "too short": (with_frame(lambda v, h: (v[:-1], h)), "elements for layer groups"),
    "other layers": (with_frame(lambda v, h: (v, h._replace(first=1))), "other layers"),
    "no such layers": (with_frame(lambda v, h: (v, h._replace(last=9))), "other layers"),
    "other round": (with_frame(lambda v, h: (v, h._replace(round=99))), "another job"),
    "other client": (with_frame(lambda v, h: (v, h._replace(client=77))), "another job"),
    "other model": (with_frame(lambda v, h: (v, h._replace(digest=b"12345678"))), "another model"),
    "no such codec": (with_frame(lambda v, h: (v, h._replace(codec="zip"))), "zip"),
    "other codec": (with_frame(lambda v, h: (v, h._replace(codec="raw16"))), "written by raw16"),
    "overflow": (with_frame(lambda v, h: (v * 0 + 3e38, h)), "not finite"),
    "truncated": (truncated, "the header says"),
    "empty": (with_report(frame=b""), "not a frame"),
    "text": (with_report(frame="FBGT, honestly"), "type str, not bytes"),
    "no frame": (with_report(frame=None), "no frame"),
    "no mod": (no_mod, "is budget_mod among the ClientApp's mods?"),
    "arrays too": (arrays_too, "arrays besides"),
    "usage below zero": (with_report(time=-1.0), "its time is -1"),
    "usage not finite": (with_report(cpu_time=math.nan), "its cpu_time is nan"),
    "usage as text": (with_report(time="soon"), "not a number"),
    "no usage": (with_report(process_peak_memory=None), "nothing about process_peak_memory"),
    "downlink made up": (with_report(downlink=10**15), "bytes came"),
    "downlink below zero": (with_report(downlink=-1), "its downlink is -1"),
    "no examples": (with_examples(0), "claims 0 num-examples"),
    "fewer examples": (with_examples(-5), "claims -5 num-examples"),
    "examples not finite": (with_examples(math.inf), "num-examples is inf"),
    "examples without end": (with_examples(1e300), "claims 1e+300"),
    "examples as a list": (with_examples([1, 2]), "not a number"),
    "examples missing": (with_examples(None), "nothing about num-examples"),
    "metrics called arrays": (misnamed, "as the arrays are"),
    "other metrics": (other_metrics, "metrics have other names"),
    "silent": (lambda reply: None, "no reply came"),
    "error": (lambda reply: Message(Error(2, "no power"), reply_to=reply), "no power"),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_a_bad_reply_is_dropped_with_its_reason_and_the_round_goes_on(what, caplog, monkeypatch):
    tamper, reason = HOSTILE[what]
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
    strategy = budgeted()
    result = start(strategy, FakeGrid(tamper={2: from_node(2, tamper)}), rounds=1)
    assert list(strategy.dropped[1]) == [2]
    assert reason in strategy.dropped[1][2]
    warned = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert any(reason in text and "node 2" in text for text in warned)
    for name, before in net().state_dict().items():
        if before.is_floating_point():
            mean = sum(w * change(n, name, before.shape) for n, w in ((1, 0.25), (3, 0.75)))
            np.testing.assert_allclose(
                result.arrays[name].numpy(), before.numpy() + mean, rtol=1e-5, atol=1e-6
            )
    client = str(strategy.clients[2])
    assert list(strategy.records[0].dropped) == [client]
    assert client not in strategy.records[0].usage["counted"]


def test_a_node_that_nothing_suits_any_more_is_left_out():
    def knobs(state, client):
        if state["round"] == 1 and client == 0:
            raise fb.UserError("no setting meets time <= 1 s")
        return Knobs(2, 20, 4)

    rule = Controller(lambda: {"round": 0}, knobs, lambda s, replies: {"round": s["round"] + 1})
    strategy = budgeted(controller=lambda costs, limits, base, cohort: rule)
    start(strategy, FakeGrid())
    assert [r.cohort for r in strategy.records] == [(0, 1, 2), (1, 2)]
    assert strategy.dropped[1] == {}
    (reason,) = strategy.dropped[2].values()
    assert reason == "it is not asked: no setting meets time <= 1 s"


class NeverAggregates(FedAvg):
    def aggregate_train(self, server_round, replies):
        raise AssertionError("it must not be asked")


def test_without_a_usable_reply_the_model_stays():
    everybody = {n: from_node(n, truncated) for n in (1, 2, 3)}
    strategy = budgeted(NeverAggregates(fraction_evaluate=0.0))
    grid = FakeGrid(tamper=everybody)
    result = start(strategy, grid)
    assert not result.arrays
    assert not result.train_metrics_clientapp
    assert [len(d) for d in strategy.dropped.values()] == [3, 3]
    last = grid.seen[-1].content["arrays"]
    for name, before in net().state_dict().items():
        np.testing.assert_array_equal(last[name].numpy(), before.numpy())


def test_an_app_that_diverges_says_so_itself():
    def diverge(msg, context, call_next):
        reply = call_next(msg, context)
        arrays = dict(reply.content["arrays"])
        arrays["3.bias"] = Array(np.full(3, np.nan, "float32"))
        reply.content = RecordDict({**reply.content, "arrays": ArrayRecord(arrays)})
        return reply

    strategy = budgeted()
    start(strategy, FakeGrid(mods=(budget_mod, diverge)), rounds=1)
    assert all("not finite" in reason for reason in strategy.dropped[1].values())
