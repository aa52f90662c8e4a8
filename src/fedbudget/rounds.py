"""The loop: a generator of rounds. Everything that lasts is in the State it yields."""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import torch
from torch import Tensor

from fedbudget import seeds
from fedbudget.algorithms.algorithm import Mean, ServerState, counted
from fedbudget.codecs import frame
from fedbudget.control.controller import ControlState
from fedbudget.downlink import Broadcast, Changed, changed_groups
from fedbudget.engines.engine import Engine
from fedbudget.errors import UserError
from fedbudget.models.flat import Layout
from fedbudget.plan import Plan
from fedbudget.types import Ack, Job, Knobs, Reply, RoundRecord
from fedbudget.uplink import kept_back

HOPELESS = 3
"""rounds in a row without a single usable reply before a run gives up"""
DROPPED_OUT = "it dropped out"


@dataclass(frozen=True)
class State:
    """What a run knows after a round; a checkpoint holds it."""

    round: int
    server: ServerState
    control: ControlState
    acks: Mapping[int, Ack] = field(default_factory=dict)
    """by client: its last reply that was used"""
    changed: Changed = ()
    """by layer group: the last round that changed it"""

    @property
    def weights(self) -> Tensor:
        return self.server["weights"]


def first_state(plan: Plan) -> State:
    model = plan.build_model()
    server = plan.algorithm.init(model.weights.clone())
    return State(0, server, plan.controller.init(), changed=(0,) * model.layout.depth)


def run(
    plan: Plan,
    engine: Engine,
    layout: Layout,
    state: State,
    on_reply: Callable[[Reply], None] | None = None,
) -> Iterator[tuple[RoundRecord, State]]:
    """Rounds after `state` until the plan's last one; `on_reply` hears of each reply as it comes."""
    hopeless = 0
    for number in range(state.round + 1, plan.rounds + 1):
        record, state = one_round(plan, engine, layout, state, number, on_reply)
        yield record, state
        failed = {c: why for c, why in record.dropped.items() if why != DROPPED_OUT}
        if len(record.dropped) < len(record.cohort):
            hopeless = 0
        elif failed:
            hopeless += 1
        if hopeless == HOPELESS:
            client, reason = next(iter(failed.items()))
            raise UserError(
                f"no client could be used in {HOPELESS} rounds in a row; "
                f"client {client} in round {number}: {reason}"
            )


def one_round(
    plan: Plan,
    engine: Engine,
    layout: Layout,
    state: State,
    number: int,
    on_reply: Callable[[Reply], None] | None = None,
) -> tuple[RoundRecord, State]:
    started = time.perf_counter()
    late = engine.late
    cohort = sample(plan, number, engine.available(number))
    knobs = {c: plan.controller.knobs(state.control, c) for c in cohort}
    sent = plan.algorithm.send(state.server)
    codec = plan.down_codec or layout.raw
    down = Broadcast(sent, layout, plan.run, plan.seed, number, codec)
    lr = plan.lr_at(number)
    gone = dropouts(plan, number, cohort)
    jobs = [_job(plan, state, number, c, knobs[c], lr, down) for c in cohort if c not in gone]
    total = Accumulator(layout)
    accepted: list[Reply] = []
    skipped: list[int] = []
    dropped = dict.fromkeys(map(str, gone), DROPPED_OUT)
    up_bytes = 0
    replies = Timed(engine.run(jobs), on_reply)
    acks = dict(state.acks)
    for job, reply in in_job_order(jobs, replies):
        if reply.lost:
            acks.pop(job.client, None)
        up_bytes += len(reply.payload) if reply.payload is not None else 0
        try:
            vectors = checked(job, reply, layout, plan.algorithm.vectors)
            weight = reply.examples if plan.weighting == "examples" else 1.0
            knobs[job.client] = reply.knobs or job.knobs
            total.add(vectors, layout.depth - knobs[job.client].layers, weight)
        except frame.FrameError as error:
            dropped[str(job.client)] = str(error)
            continue
        if reply.payload is not None and kept_back(reply.payload):
            skipped.append(reply.client)
        accepted.append(replace(reply, payload=None))  # one update in memory, not a cohort's
    server = state.server
    if accepted:
        mean = Mean(
            total.mean(),
            len(accepted),
            len(plan.clients),
            counted(total.counts, layout),
            layout.statistic_slices,
        )
        server = plan.algorithm.aggregate(server, mean)
    aggregated = time.perf_counter()
    due = number % plan.evaluate_every == 0 or number == plan.rounds
    ack = Ack(number, tuple(total.counts))
    acks |= {reply.client: ack for reply in accepted}
    validation = engine.evaluate(server["weights"]) if due else None
    if due and plan.constraints is not None:
        validation = {**(validation or {}), **engine.assess(plan.algorithm.send(server), acks)}
    evaluated = time.perf_counter()
    losses = [r.loss for r in accepted if r.loss is not None]
    record = RoundRecord(
        round=number,
        cohort=tuple(cohort),
        knobs=shared(knobs),
        duals=shared({c: plan.controller.duals(state.control, c) for c in cohort}),
        train_loss=sum(losses) / len(losses) if losses else None,
        validation=validation,
        up_bytes=up_bytes,
        down_bytes=sum(len(job.payload) for job in jobs),
        usage=by_accounting(accepted),
        dropped=dropped,
        skipped=tuple(skipped),
        late=engine.late - late,
        train_s=replies.seconds,
        evaluate_s=evaluated - aggregated,
        wall_s=time.perf_counter() - started,
    )
    changed = state.changed
    if plan.changed_only:
        now = plan.algorithm.send(server)
        changed = changed_groups(changed, sent, now, number, layout)
    return record, State(
        number,
        server,
        plan.controller.update(state.control, accepted),
        acks,
        changed,
    )


def _job(
    plan: Plan, state: State, number: int, client: int, knobs: Knobs, lr: float, down: Broadcast
) -> Job:
    ack = state.acks.get(client)
    payload = down.since(ack, state.changed) if plan.changed_only else down.from_group(0)
    factor = plan.step_rule(knobs) if plan.step_rule else 1.0
    return Job(plan.run, number, client, plan.seed, knobs, lr * factor, payload, ack)


def sample(plan: Plan, number: int, present: Sequence[int] | None = None) -> list[int]:
    """The round's cohort, uniformly without replacement from those present, in client order."""
    known = range(len(plan.clients)) if present is None else present
    rng = seeds.rng(plan.seed, number, seeds.SERVER, "cohort")
    chosen = rng.choice(len(known), size=min(plan.cohort, len(known)), replace=False)
    return sorted(known[int(c)] for c in chosen)


def dropouts(plan: Plan, number: int, cohort: Sequence[int]) -> list[int]:
    """Clients that are asked and do not answer: each with the plan's chance, from its own stream."""
    if plan.drop == 0:
        return []
    return [c for c in cohort if seeds.rng(plan.seed, number, c, "drop").random() < plan.drop]


def in_job_order(jobs: Sequence[Job], replies: Iterator[Reply]) -> Iterator[tuple[Job, Reply]]:
    """Pair replies with their jobs, in the jobs' order, so that a sum does not depend on arrival."""
    early: dict[int, Reply] = {}
    for job in jobs:
        while job.client not in early:
            reply = next(replies)
            early[reply.client] = reply
        yield job, early.pop(job.client)


def checked(job: Job, reply: Reply, layout: Layout, vectors: int) -> tuple[Tensor, ...]:
    """The update in a reply, or FrameError with the reason why it cannot be used."""
    if reply.error is not None or reply.payload is None:
        raise frame.FrameError(reply.error or "it has no payload")
    head = reply.payload.header
    knobs = reply.knobs or job.knobs
    if not 1 <= knobs.layers <= layout.depth:
        raise frame.FrameError(f"it claims {knobs.layers} layer groups of {layout.depth}")
    if (head.run, head.round, head.client) != (job.run, job.round, job.client):
        raise frame.FrameError("it answers another job")
    if (head.first, head.last) != (layout.depth - knobs.layers, layout.depth):
        raise frame.FrameError("it covers other layers than the job asked for")
    if len(reply.payload.bodies) != vectors:
        raise frame.FrameError(f"{len(reply.payload.bodies)} vectors where {vectors} belong")
    if reply.examples < 1:
        raise frame.FrameError(f"it claims {reply.examples} examples")
    for accounting, used in reply.usage.items():
        for resource, amount in used.items():
            if not (math.isfinite(amount) and amount >= 0):
                raise frame.FrameError(f"it reports a {accounting} {resource} of {amount:g}")
    update = frame.unpack(reply.payload, layout)
    if not all(frame.finite(vector) for vector in update):
        raise frame.FrameError("it holds numbers that are not finite")
    return update


class Timed:
    """Replies as they come, and the time spent waiting for them: that of training."""

    def __init__(self, replies: Iterator[Reply], on_reply: Callable[[Reply], None] | None) -> None:
        self.replies = replies
        self.on_reply = on_reply
        self.seconds = 0.0

    def __iter__(self) -> Iterator[Reply]:
        return self

    def __next__(self) -> Reply:
        started = time.perf_counter()
        reply = next(self.replies)
        self.seconds += time.perf_counter() - started
        if self.on_reply is not None:
            self.on_reply(reply)
        return reply


class Accumulator:
    """A weighted mean, layer by layer over those who trained the layer; one update in memory."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.sums: list[Tensor] = []
        self.weights = [0.0] * layout.depth
        self.counts = [0] * layout.depth

    def add(self, vectors: Sequence[Tensor], first: int, weight: float) -> None:
        """An update of the layer groups from `first` to the top."""
        if not self.sums:
            size, dtype = self.layout.size, self.layout.dtype
            self.sums = [torch.zeros(size, dtype=dtype) for _ in vectors]
        where = self.layout.span(first, self.layout.depth)
        for total, vector in zip(self.sums, vectors, strict=True):
            total[where].add_(vector, alpha=weight)
        for group in range(first, self.layout.depth):
            self.weights[group] += weight
            self.counts[group] += 1

    def mean(self) -> tuple[Tensor, ...]:
        first = 0
        while first < len(self.weights):
            last = first + 1
            while last < len(self.weights) and self.weights[last] == self.weights[first]:
                last += 1
            if self.weights[first] > 0:
                for total in self.sums:
                    total[self.layout.span(first, last)].div_(self.weights[first])
            first = last
        return tuple(self.sums)


def by_accounting(replies: Sequence[Reply]) -> dict[str, dict[str, Mapping[str, float]]]:
    """accounting -> client -> resource -> amount"""
    found: dict[str, dict[str, Mapping[str, float]]] = {}
    for reply in replies:
        for accounting, usage in reply.usage.items():
            found.setdefault(accounting, {})[str(reply.client)] = usage
    return found


T = TypeVar("T")


def shared(values: Mapping[int, T]) -> dict[str, T]:
    """By client; one entry "*" where all have the same; nothing where there is nothing."""
    first = next(iter(values.values()))
    if any(value != first for value in values.values()):
        return {str(c): v for c, v in values.items()}
    return {"*": first} if first else {}
