"""Budgets around any Flower strategy, the way Flower's own wrappers add privacy.

    strategy = Budgeted(FedAvg(), model=net, example=(x, y), budget={"energy": "27%"})

Each node gets its own knobs with the model and answers with a frame (`budget_mod`). Frames are checked
and decoded, and the strategy inside sees plain replies with whole models, as ever. A layer that a node
did not train holds, in its reply, the mean of those who did: a weighted mean over all replies then
equals the mean over those who trained the layer; medians and trimmed means see it as one more vote.
The strategy inside must send the arrays it is given.
"""

import copy
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy
from torch import Tensor, nn

from fedbudget import seeds
from fedbudget.api import MakeController, planner
from fedbudget.codecs import chosen, frame
from fedbudget.control.controller import Controller, ControlState
from fedbudget.data.examples import as_examples
from fedbudget.errors import UserError
from fedbudget.flower.answers import (
    Answer,
    Sent,
    array_bytes,
    make_whole,
    read_answers,
    sent_bytes,
)
from fedbudget.flower.journal import Journal, Times, toml
from fedbudget.flower.mod import RECORD, Order, flat
from fedbudget.models.flat import FlatModel
from fedbudget.resources import budget as budgets
from fedbudget.resources import counted, devices
from fedbudget.resources.costs import Costs, costs, frame_bytes
from fedbudget.resources.own import Resource, added
from fedbudget.resources.own import check as check_resources
from fedbudget.runs import RunFolder
from fedbudget.task import classify, custom
from fedbudget.types import Job, Knobs, RoundRecord

LOG = logging.getLogger("flwr")


@dataclass(frozen=True)
class ArrayCosts(Costs):
    """Costs of a model that travels down as Flower's arrays."""

    array_bytes: int = 0

    def forecast(self, knobs: Knobs) -> dict[str, float]:
        up = frame_bytes(self.layout, knobs)
        used = counted.usage(self.shape, self.device, knobs, up, self.array_bytes)
        return added(self.own, knobs, used)


class Budgeted(Strategy):
    """A strategy that keeps every node within its budgets.

    strategy: any Flower strategy; this wrapper goes outermost.
    model: the app's module; it is copied.
    example: an (x, y) batch or a data set, to count the model's work on.
    budget: limits per node and round, Budget(communication="600 kB", energy="27%") or a dict; a
        percentage is of what the base knobs use.
    resources: of your own, which the budget may name: Resource("money", function, "EUR").
    controller: what turns the knobs; the planner where none is given.
    base: the app's own settings; where none are given, all layers with `steps` of `batch`.
    device: the profile that turns counted work into joules and degrees.
    loss: (model, inputs, targets) -> scalar; cross-entropy where it is not given.
    groups: name prefixes of the layer groups, bottom first, where the ones found do not suit.
    out: a run folder that `fedbudget report` reads, written by `start`.

    `records` has a RoundRecord of each round, `dropped` the reason of each reply that was not used, by
    round and node id, `clients` the number of each node.
    """

    def __init__(
        self,
        strategy: Strategy,
        *,
        model: nn.Module,
        example: Any,
        budget: Mapping[str, str | float],
        resources: Sequence[Resource] = (),
        controller: MakeController | None = None,
        base: Knobs | None = None,
        steps: int = 60,
        batch: int = 16,
        device: str = "raspberry-pi-5",
        optimizer: Literal["sgd", "adamw"] = "sgd",
        loss: Callable[[nn.Module, Any, Tensor], Tensor] | None = None,
        groups: Sequence[str] | None = None,
        seed: int = 0,
        out: str | Path | None = None,
    ) -> None:
        module = copy.deepcopy(model).cpu()
        down_bytes = array_bytes(ArrayRecord(module.state_dict()))
        twins = _twins(module)
        whole = FlatModel(module, groups)
        self.strategy = strategy
        self.layout = whole.layout
        self.base = base or Knobs(self.layout.depth, steps, batch, codec=self.layout.raw)
        _check(self.base, self.layout.depth, optimizer)
        task = custom(loss) if loss is not None else classify()
        profile = devices.named(device)
        ready = as_examples(example)
        own = check_resources(resources)
        known = costs(whole, task, ready, optimizer, profile, gpt=False, own=own)
        self.costs = ArrayCosts(**vars(known), array_bytes=down_bytes)
        reference = self.costs.forecast(self.base)
        self.limits = budgets.resolve(budgets.read(budget, own), reference, profile.ambient_c)
        self.seed = seed
        self.clients: dict[int, int] = {}
        self.dropped: dict[int, dict[int, str]] = {}
        self._journal = Journal()
        self._twins = {name: t for name, t in twins.items() if t in self.layout.names}
        self._make = controller or planner()
        # the cohort is known when a round begins; a budget that nothing can meet is refused now
        self._controller = self._decide(1)
        self._control: ControlState | None = None
        self._sent: Sent | None = None
        self._out = Path(out) if out is not None else None
        self._about = {
            "strategy": type(strategy).__name__,
            "device": device,
            "optimizer": optimizer,
            "knobs": asdict(self.base),
            "budget": dict(budget),
        }

    @property
    def records(self) -> list[RoundRecord]:
        """What each round did."""
        return self._journal.records

    def _decide(self, cohort: int) -> Controller:
        return self._make(self.costs, self.limits, self.base, cohort)

    def summary(self) -> None:
        """Log the budgets, then what the strategy inside has to say."""
        LOG.info("\t├──> Budgets per node and round (%s):", self.costs.device.name)
        LOG.info("\t│\t└── %s", budgets.tell(self.limits, self.costs.written))
        self.strategy.summary()

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """Run all rounds, and keep a run folder where one is wanted."""

        def noted(server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
            assert evaluate_fn is not None
            metrics = evaluate_fn(server_round, arrays)
            self._journal.note(server_round, metrics)
            return metrics

        if self._out is not None:
            self._journal.folder = RunFolder.create(self._out, toml(self._about))
        try:
            result = super().start(
                *(grid, initial_arrays, num_rounds, timeout, train_config, evaluate_config),
                noted if evaluate_fn is not None else None,
            )
        finally:
            facts: dict[str, Any] = {"seed": self.seed, "clients": len(self.clients)}
            if self.costs.units:
                facts["units"] = self.costs.units
            self._journal.close(facts, num_rounds, self.limits)
        if self._journal.folder is not None and result.arrays:
            self._journal.folder.save_model(result.arrays.to_torch_state_dict())
        return result

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Ask the strategy inside, and give each node its own knobs."""
        self._journal.write()
        started = time.perf_counter()
        messages = list(self.strategy.configure_train(server_round, arrays, config, grid))
        weights = self._vector(arrays)
        if self._control is None and messages:
            self._controller = self._decide(len(messages))
            self._control = self._controller.init()
        jobs: dict[int, Job] = {}
        key = ""
        self.dropped[server_round] = {}
        for message in messages:
            if len(message.content.array_records) != 1:
                raise UserError("a train message must have one ArrayRecord to be kept to a budget")
            key = next(iter(message.content.array_records))
            node = message.metadata.dst_node_id
            try:
                jobs[node] = self._job(server_round, node, message.metadata.run_id % 2**63)
            except UserError as error:  # what it reported has left nothing that it could afford
                self._drop(server_round, node, f"it is not asked: {error}")
                continue
            message.content = self._ordered(message.content, jobs[node])
        self._sent = Sent(server_round, arrays, weights, key, jobs, started, time.perf_counter())
        return [message for message in messages if message.metadata.dst_node_id in jobs]

    def _drop(self, server_round: int, node: int, reason: str) -> None:
        self.dropped[server_round][node] = reason
        LOG.warning("Budgeted: dropped node %d in round %d: %s", node, server_round, reason)

    def _job(self, server_round: int, node: int, run: int) -> Job:
        client = self.clients.setdefault(node, len(self.clients))
        knobs = self._controller.knobs(self._state, client)
        seed = seeds.key(self.seed, server_round, client, "flower") % 2**63
        nothing = frame.Packed(
            frame.Header(
                *(run, server_round, client, seed, knobs.codec, 0, self.layout.depth),
                *(self.layout.size, self.layout.digest),
            ),
            (),
        )
        return Job(run, server_round, client, seed, knobs, 0.0, nothing)

    def _ordered(self, content: RecordDict, job: Job) -> RecordDict:
        """A RecordDict of the node's own; the strategy inside may have shared one between nodes."""
        order = Order(
            *(job.run, job.round, job.client, job.seed, job.knobs),
            *(self.layout.names, self.layout.groups),
        )
        own = {
            name: ConfigRecord(dict(record)) if isinstance(record, ConfigRecord) else record
            for name, record in content.items()
        }
        return RecordDict({**own, RECORD: order.to_record()})

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Check and decode the replies, and let the strategy inside aggregate whole models."""
        arrived = time.perf_counter()
        came = list(replies)
        sent = self._sent
        if sent is None or not sent.jobs:
            return self.strategy.aggregate_train(server_round, came)
        up_bytes = sum(map(sent_bytes, came))
        answers, why = read_answers(sent, came, self.costs, _weight_key(self.strategy))
        for node, reason in why.items():
            self._drop(server_round, node, reason)
        before = self._state
        arrays: ArrayRecord | None = None
        metrics: MetricRecord | None = None
        if answers:
            make_whole(answers, sent, self.layout, self._twins)
            messages = [answer.message for answer in answers]
            arrays, metrics = self.strategy.aggregate_train(server_round, messages)
            arrays = self._restored(sent, arrays) if arrays is not None else None
            metrics = MetricRecord({**self._ratios(answers), **(metrics or {})})
        accepted = [answer.reply for answer in answers]
        self._control = self._controller.update(before, accepted)
        jobs = sorted(sent.jobs.values(), key=lambda job: job.client)
        self._journal.add(
            server_round,
            jobs,
            accepted,
            {str(job.client): why[n] for n, job in sent.jobs.items() if n in why},
            {job.client: self._controller.duals(before, job.client) for job in jobs},
            up_bytes,
            sent.down_bytes * len(jobs),
            Times(sent.started, sent.sent, arrived),
        )
        return arrays, metrics

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """As the strategy inside does."""
        return self.strategy.configure_evaluate(server_round, arrays, config, grid)

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """As the strategy inside does."""
        metrics = self.strategy.aggregate_evaluate(server_round, replies)
        self._journal.note(server_round, metrics)
        return metrics

    @property
    def _state(self) -> ControlState:
        assert self._control is not None, "configure_train comes first"
        return self._control

    def _vector(self, arrays: ArrayRecord) -> Tensor:
        """The global model as one vector."""
        dtype = str(self.layout.dtype).removeprefix("torch.")
        try:
            vector = flat(arrays, self.layout)
        except ValueError as error:
            raise UserError(f"the arrays are not those of the model: {error}") from None
        if odd := [n for n in self.layout.names if arrays[n].dtype != dtype]:
            raise UserError(f"the array {odd[0]!r} is {arrays[odd[0]].dtype}, the model's {dtype}")
        return vector

    def _restored(self, sent: Sent, arrays: ArrayRecord) -> ArrayRecord:
        """The aggregate in the dtypes that were sent; what no node may change stays the server's.

        Means make floats of counters, and some strategies double precision of single.
        """
        own = dict(sent.arrays)
        for name in own:
            source = self._twins.get(name, name)
            if source in self.layout.names:
                own[name] = Array(arrays[source].numpy().astype(own[name].dtype, copy=False))
        return ArrayRecord(own)

    def _ratios(self, answers: Sequence[Answer]) -> dict[str, float]:
        """The worst usage of the round, as a share of each budget."""
        used = [answer.reply.usage["counted"] for answer in answers]
        return {f"budget-{r}": max(u[r] for u in used) / b for r, b in self.limits.items()}


def _check(base: Knobs, depth: int, optimizer: str) -> None:
    if not 1 <= base.layers <= depth:
        raise UserError(
            f"layers = {base.layers}: it must be from 1 to {depth}, the model's layer groups"
        )
    for key in ("steps", "batch", "accumulate"):
        if getattr(base, key) < 1:
            raise UserError(f"{key} = {getattr(base, key)}: it must be at least 1")
    if optimizer not in ("adamw", "sgd"):
        raise UserError(f"optimizer = {optimizer!r}: it must be 'adamw' or 'sgd'")
    chosen(base.codec, "base.codec")


def _twins(module: nn.Module) -> dict[str, str]:
    """Second names of tied parameters -> their first: a state_dict has both, a layout the first."""
    first: dict[int, str] = {}
    every = module.named_parameters(remove_duplicate=False)
    pairs = {name: first.setdefault(id(p), name) for name, p in every}
    return {name: one for name, one in pairs.items() if name != one}


def _weight_key(strategy: Strategy) -> str:
    """The metric that the strategy inside, or the one inside that, weights replies by."""
    inner: Any = strategy
    while not hasattr(inner, "weighted_by_key") and hasattr(inner, "strategy"):
        inner = inner.strategy
    return str(getattr(inner, "weighted_by_key", "num-examples"))
