"""The node's side: a ClientApp that trains one client with its own data, budget and set."""

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from safetensors.torch import save
from torch import Tensor

from fedbudget.algorithms.algorithm import ClientState, Sent
from fedbudget.codecs import frame
from fedbudget.control.controller import Controller, ControlState
from fedbudget.engines import assess
from fedbudget.engines.engine import Host, Versions
from fedbudget.files import write
from fedbudget.flower.records import header, read_frame, read_header, read_job, reply_content
from fedbudget.flower.store import Shelf, keep, recall
from fedbudget.models.flat import FlatModel
from fedbudget.plan import Plan
from fedbudget.threads import one_thread
from fedbudget.types import Ack, Job, Reply

log = logging.getLogger("flwr.fedbudget")
CONTROL = "control"
"""where a node's own controller keeps its state, among the client's other state"""
Question = tuple[Plan, FlatModel, Sent, Mapping[int, Ack], ClientState]


@dataclass(frozen=True)
class Device:
    """One client on one node."""

    host: Host
    client: int
    controller: Controller | None = None
    """what keeps the node's own budget; None leaves the knobs to the server"""
    shelf: Shelf | None = None
    """the node's disk"""
    private: bool = False
    """whether what an error says stays on the node: it may quote data or the node's own file"""

    @property
    def plan(self) -> Plan:
        return self.host.plan

    def train(self, job: Job, floor: int, context: Context) -> Reply:
        if job.client != self.client:
            return Reply.failure(job, f"the node is client {self.client}, not {job.client}")
        valid = job.ack.round if job.ack else 0
        versions = recall(context, self.shelf, self.client, valid)
        with one_thread():
            if self.controller is None:
                reply, kept = self.host.train(job, versions)
            else:
                reply, kept = self._within_budget(job, valid, versions, self.controller)
        if reply.error is None:
            older = {r: state for r, state in versions.items() if floor <= r < job.round}
            keep(context, self.shelf, self.client, {**older, **kept})
        elif self.private and not reply.lost:
            log.error("round %d: %s", job.round, reply.error)
            return replace(
                reply, error=f"{reply.error.partition(':')[0]}; the node's log says more"
            )
        return reply

    def _within_budget(
        self, job: Job, valid: int, versions: Versions, controller: Controller
    ) -> tuple[Reply, Versions]:
        """Train with knobs of the node's own choice; its controller learns from what it used."""
        before = _control(versions.get(valid, {}).get(CONTROL), controller)
        knobs = controller.knobs(before, self.client)
        rule = self.plan.step_rule
        factor = rule(knobs) / rule(job.knobs) if rule else 1.0
        others = {r: _without_control(state) for r, state in versions.items()}
        own = replace(
            job, knobs=knobs, lr=job.lr * factor, seconds=self.plan.seconds_of(self.client)
        )
        reply, kept = self.host.train(own, others)
        if reply.error is not None:
            return reply, versions
        reply = replace(reply, knobs=reply.knobs or knobs)
        controls = {job.round: controller.update(before, [reply])}
        if valid:
            controls[valid] = before
        return reply, {r: {**kept.get(r, {}), CONTROL: _tensor(c)} for r, c in controls.items()}

    def assess(self, content: RecordDict, context: Context) -> dict[str, float]:
        """The mean model's loss on the node's data, and how far its own model is from its set."""
        one, model, sent, acks, kept = self._asked(content, context)
        with one_thread():
            return assess.assess(one, model, sent, acks, lambda _: kept)

    def final(self, content: RecordDict, context: Context) -> dict[str, float]:
        """Write the node's own model to its disk; only a figure leaves it."""
        one, model, sent, acks, kept = self._asked(content, context)
        with one_thread():
            (own,) = assess.personal_models(one, model.layout, sent, acks, lambda _: kept)
        chosen = own.inside[0] if self.plan.final_projection else own.models[0]
        if self.shelf is not None:
            named = {n: t.clone() for n, t in model.layout.named(chosen).items()}
            self.shelf.folder.mkdir(parents=True, exist_ok=True)
            write(self.shelf.folder / f"personal-{self.client}.model", save(named))
        return {"projected_sparsity": float((own.inside == 0).double().mean())}

    def _asked(self, content: RecordDict, context: Context) -> Question:
        """A plan with this client alone, what the server sent, and the state it means."""
        payload = read_frame(content, "down")
        if payload is None:
            raise ValueError("the question has no frame")
        given = read_header(content, "ask")["ack"]
        ack = Ack(int(given[0]), tuple(map(int, given[1:]))) if given else None
        versions = recall(context, self.shelf, self.client, ack.round if ack else 0)
        kept = _without_control(versions.get(ack.round, {})) if ack else {}
        sets = self.plan.constraints
        one = replace(
            self.plan,
            clients=[self.plan.clients[self.client]],
            constraints=[sets[self.client]] if sets is not None else None,
        )
        model = self.host.model
        return one, model, frame.unpack(payload, model.layout), {0: ack} if ack else {}, kept


def client_app(device: Callable[[Context], Device]) -> ClientApp:
    """A ClientApp that answers our engine's questions; `device` finds out whose it is."""
    app = ClientApp()

    @app.query()
    def who(message: Message, context: Context) -> Message:
        fields = {"client": device(context).client}
        return Message(RecordDict({"who": header(fields)}), reply_to=message)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        job, floor = read_job(message.content)
        reply = device(context).train(job, floor, context)
        return Message(reply_content(reply), reply_to=message)

    @app.evaluate()
    def look(message: Message, context: Context) -> Message:
        found = device(context).assess(message.content, context)
        return Message(RecordDict({"found": header(found)}), reply_to=message)

    @app.evaluate("final")
    def final(message: Message, context: Context) -> Message:
        found = device(context).final(message.content, context)
        return Message(RecordDict({"found": header(found)}), reply_to=message)

    return app


def _without_control(state: ClientState) -> ClientState:
    return {name: tensor for name, tensor in state.items() if name != CONTROL}


def _control(kept: Tensor | None, controller: Controller) -> ControlState:
    if kept is None:
        return controller.init()
    state: ControlState = json.loads(bytes(kept.tolist()))
    return state


def _tensor(control: ControlState) -> Tensor:
    return torch.tensor(list(json.dumps(control).encode()), dtype=torch.uint8)
