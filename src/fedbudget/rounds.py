"""The loop: a generator of rounds. Everything that lasts is in the State it yields."""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

from torch import Tensor

from fedbudget import seeds, selection
from fedbudget.aggregation import Accumulator, Aggregate, Robust, Screen, Update, Work, local_work
from fedbudget.algorithms.algorithm import Mean, ServerState, counted
from fedbudget.client import Meter, factor
from fedbudget.codecs import NOTHING, frame
from fedbudget.control.controller import ControlState, possible
from fedbudget.downlink import Broadcast, Changed, changed_groups
from fedbudget.engines.engine import Engine
from fedbudget.errors import UserError
from fedbudget.models.flat import Layout
from fedbudget.plan import Plan
from fedbudget.selection import Candidate, SelectionState
from fedbudget.types import DROPPED_OUT, Ack, Job, Knobs, Reply, RoundRecord
from fedbudget.uplink import kept_back
from fedbudget.world import WorldState

HOPELESS = 3
"""rounds in a row without a single usable reply before a run gives up"""
MOST_EXAMPLES = 2**53
"""that a client may claim: beyond it a sum would no longer be exact"""
MOST_STEPS = 10**6
"""that a client may claim to have taken"""
OVERSIZE = 2
"""times the size of a frame as is that a frame may have"""
IMPLAUSIBLE = 10.0
"""times our own count, more or less, from which on a reported usage is flagged"""


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
    selection: SelectionState = field(default_factory=selection.init)
    world: WorldState = field(default_factory=dict)
    """of a simulated fleet"""

    @property
    def weights(self) -> Tensor:
        return self.server["weights"]


def first_state(plan: Plan) -> State:
    model = plan.build_model()
    server = plan.algorithm.init(model.weights.clone())
    world = plan.world.init() if plan.world else {}
    unchanged = (0,) * model.layout.depth
    return State(0, server, plan.controller.init(), changed=unchanged, world=world)


def run(
    plan: Plan,
    engine: Engine,
    layout: Layout,
    state: State,
    on_reply: Callable[[Reply], None] | None = None,
) -> Iterator[tuple[RoundRecord, State]]:
    """Rounds after `state` until the plan's last one; `on_reply` hears of each reply as it comes."""
    hopeless, never, failed = 0, not state.acks, dict[str, str]()
    for number in range(state.round + 1, plan.rounds + 1):
        record, state = one_round(plan, engine, layout, state, number, on_reply)
        yield record, state
        failed = {c: why for c, why in record.dropped.items() if why != DROPPED_OUT}
        if len(record.dropped) < len(record.cohort):
            hopeless, never = 0, False
        elif failed:
            hopeless += 1
        if hopeless == HOPELESS:
            client, reason = next(iter(failed.items()))
            raise UserError(
                f"no client could be used in {HOPELESS} rounds in a row; "
                f"client {client} in round {number}: {reason}"
            )
    if never and failed:
        client, reason = next(iter(failed.items()))
        raise UserError(
            f"no client could be used in any round; client {client} in round {plan.rounds}: {reason}"
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
    cohort = sample(plan, number, engine.available(number), state)
    knobs = {c: plan.controller.knobs(state.control, c) for c in cohort}
    possible(knobs, layout.depth)
    fates = {c: plan.world.fate(state.world, c, knobs[c]) for c in cohort} if plan.world else {}
    sent = plan.algorithm.send(state.server)
    codec = plan.down_codec or layout.raw
    down = Broadcast(sent, layout, plan.run, plan.seed, number, codec)
    lr = plan.lr_at(number)
    gone = {c: fate.failure for c, fate in fates.items() if fate.failure is not None}
    for client in dropouts(plan, number, cohort):
        gone[client] = DROPPED_OUT
        if client in fates:
            fates[client] = fates[client]._replace(failure=DROPPED_OUT)
    jobs = [_job(plan, state, number, c, knobs[c], lr, down) for c in cohort if c not in gone]
    total: Aggregate = Robust(layout, plan.trim) if plan.trim is not None else Accumulator(layout)
    work = Work(layout)
    screen = Screen(plan.screening, plan.weighting == "examples")
    accepted: list[Reply] = []
    flagged: dict[str, str] = {}
    skipped: list[int] = []
    dropped = {str(client): why for client, why in gone.items()}
    up_bytes = 0

    def take(update: Update) -> None:
        job, reply = update.job, update.reply
        knobs[job.client] = reply.knobs or job.knobs
        groups = knobs[job.client].groups(layout.depth)
        total.add(update.vectors, groups, update.weight)
        work.add(groups, update.weight, update.work)
        if reply.payload is not None and kept_back(reply.payload):
            skipped.append(reply.client)
        usage, problem = credible(job, reply, plan.meter_of(job.client))
        if problem:
            flagged[str(job.client)] = problem
        # one update in memory, not a cohort's
        accepted.append(replace(reply, usage=usage, payload=None))

    replies = Timed(engine.run(jobs), on_reply)
    acks = dict(state.acks)
    for job, reply in in_job_order(jobs, replies):
        if reply.lost:
            acks.pop(job.client, None)
        up_bytes += len(reply.payload) if reply.payload is not None else 0
        try:
            vectors = checked(job, reply, layout, plan.algorithm.vectors)
        except frame.FrameError as error:
            dropped[str(job.client)] = str(error)
            continue
        weight = reply.examples if plan.weighting == "examples" else 1.0
        used = reply.knobs or job.knobs
        done = worked(plan, used) if plan.normalise == "work" else 1.0
        vectors = work.per_unit(vectors, used.groups(layout.depth), done)
        for update in screen.offer(Update(job, reply, vectors, weight, done)):
            take(update)
    for update in screen.rest():
        take(update)
    dropped |= {str(client): why for client, why in screen.refused.items()}
    accepted.sort(key=lambda reply: reply.client)
    server = state.server
    if accepted:
        mean = Mean(
            work.effective(total.mean()),
            len(accepted),
            len(plan.clients),
            counted(total.counts, layout),
            layout.statistic_slices,
            tuple(layout.span(g, g + 1) for g, count in enumerate(total.counts) if count == 0),
        )
        server = plan.algorithm.aggregate(server, mean)
    aggregated = time.perf_counter()
    due = number % plan.evaluate_every == 0 or number == plan.rounds
    ack = Ack(number, tuple(total.counts))
    acks |= {reply.client: ack for reply in accepted}
    validation = engine.evaluate(server["weights"]) if due else None
    # with privacy, agents are not asked for figures of their own data: nobody puts noise on them
    if due and plan.constraints is not None and not plan.recipe.privacy.on:
        validation = {**(validation or {}), **engine.assess(plan.algorithm.last(server), acks)}
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
        flagged=flagged,
        skipped=tuple(sorted(skipped)),
        late=engine.late - late,
        train_s=replies.seconds,
        evaluate_s=evaluated - aggregated,
        wall_s=time.perf_counter() - started,
    )
    if plan.world:
        after = plan.world.advance(state.world, fates)
        record = replace(record, world=plan.world.facts(after, fates))
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
        selection.update(state.selection, number, cohort, accepted)
        if plan.selection.learns
        else state.selection,
        after if plan.world else {},
    )


def _job(
    plan: Plan, state: State, number: int, client: int, knobs: Knobs, lr: float, down: Broadcast
) -> Job:
    ack = state.acks.get(client)
    payload = down.since(ack, state.changed) if plan.changed_only else down.whole
    factor = plan.step_rule(knobs) if plan.step_rule else 1.0
    seconds = plan.seconds_of(client)
    return Job(plan.run, number, client, plan.seed, knobs, lr * factor, payload, ack, seconds)


def worked(plan: Plan, knobs: Knobs) -> float:
    """A local run's work, in steps of the round's step size without momentum."""
    recipe = plan.recipe
    scale = plan.step_rule(knobs) if plan.step_rule else 1.0
    sizes = [scale * factor(recipe, step, knobs.steps) for step in range(knobs.steps)]
    # Adam's mean of gradients has weights that sum to 1, so a step of it is one step
    return local_work(sizes, recipe.momentum if recipe.optimizer == "sgd" else 0.0)


def sample(
    plan: Plan, number: int, present: Sequence[int] | None = None, state: State | None = None
) -> list[int]:
    """The round's cohort, from those present, in client order; a first round's without a state."""
    present = range(len(plan.clients)) if present is None else present
    state = state or first_state(plan)
    if plan.world:
        present = plan.world.present(state.world, plan.seed, number, present)
    rng = seeds.rng(plan.seed, number, seeds.SERVER, "cohort")
    return plan.selection.choose(
        partial(_look, plan, state, number, present), present, plan.cohort, rng
    )


def _look(plan: Plan, state: State, number: int, present: Sequence[int]) -> list[Candidate]:
    """Those present as a selection may see them."""
    turn = len(plan.clients) / plan.cohort
    found = []
    for client in present:
        known = selection.known(state.selection, client, number, turn)
        if plan.world:
            knobs = plan.controller.knobs(state.control, client)
            known = plan.world.candidate(state.world, known, knobs)
        found.append(known)
    return found


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
            reply = next(replies, None)
            if reply is None:  # somebody has answered under another's number
                early[job.client] = Reply.failure(job, "no reply came")
                break
            early[reply.client] = reply
        yield job, early.pop(job.client)


def checked(job: Job, reply: Reply, layout: Layout, vectors: int) -> tuple[Tensor, ...]:
    """The update in a reply, or FrameError with the reason why it cannot be used."""
    if reply.error is not None or reply.payload is None:
        raise frame.FrameError(reply.error or "it has no payload")
    head = reply.payload.header
    knobs = reply.knobs or job.knobs
    if not (knobs.layers >= 1 and knobs.above >= 0 and knobs.layers + knobs.above <= layout.depth):
        below = f" below {knobs.above}" if knobs.above else ""
        raise frame.FrameError(f"it claims {knobs.layers} layer groups{below} of {layout.depth}")
    if not 0 <= knobs.steps <= MOST_STEPS:
        raise frame.FrameError(f"it claims {knobs.steps} steps")
    if (head.run, head.round, head.client) != (job.run, job.round, job.client):
        raise frame.FrameError("it answers another job")
    if (head.first, head.last) != knobs.groups(layout.depth):
        raise frame.FrameError("it covers other layers than the job asked for")
    if head.codec not in (knobs.codec, NOTHING):
        raise frame.FrameError(f"it is written by {head.codec}, not by {knobs.codec}")
    most = OVERSIZE * frame.raw_size(layout, vectors)
    if len(reply.payload) > most:
        raise frame.FrameError(f"{len(reply.payload)} bytes where {most} are more than enough")
    if len(reply.payload.bodies) != vectors:
        raise frame.FrameError(f"{len(reply.payload.bodies)} vectors where {vectors} belong")
    if not 1 <= reply.examples <= MOST_EXAMPLES:
        raise frame.FrameError(f"it claims {reply.examples} examples")
    for accounting, used in reply.usage.items():
        for resource, amount in used.items():
            if not (math.isfinite(amount) and amount >= 0):
                raise frame.FrameError(f"it reports a {accounting} {resource} of {amount:g}")
    update = frame.unpack(reply.payload, layout)
    if not all(frame.finite(vector) for vector in update):
        raise frame.FrameError("it holds numbers that are not finite")
    return update


def credible(
    job: Job, reply: Reply, meter: Meter | None
) -> tuple[Mapping[str, Mapping[str, float]], str | None]:
    """A reply's usage with what its frame proves in place of less, and what is wrong with it."""
    assert reply.payload is not None
    up, down = len(reply.payload), len(job.payload)
    known = meter(reply.knobs or job.knobs, up, down) if meter else {}
    if "counted" in known and "counted" not in reply.usage:
        return {**reply.usage, **known}, "it reports no usage; ours is taken"
    told = reply.usage.get("counted", {})
    if told.get("communication", up) < up:
        said = f"it reports {told['communication']:g} bytes up; its frame has {up}"
        return {**reply.usage, "counted": {**told, "communication": float(up)}}, said
    sound, problems = dict(told), []
    for resource, amount in known.get("counted", {}).items():
        if resource not in told:
            problems.append(f"it does not report its {resource}")
        elif not amount / IMPLAUSIBLE <= told[resource] <= amount * IMPLAUSIBLE:
            problems.append(f"it reports {resource} of {told[resource]:g}; we count {amount:g}")
        else:
            continue
        sound[resource] = amount  # or a controller would learn from it
    return {**reply.usage, "counted": sound} if problems else reply.usage, "; ".join(
        problems
    ) or None


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
    if not values:
        return {}
    first = next(iter(values.values()))
    if any(value != first for value in values.values()):
        return {str(c): v for c, v in values.items()}
    return {"*": first} if first else {}
