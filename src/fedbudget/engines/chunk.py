"""train_chunk: the local training of many small agents at once, `train_client` with one more dimension.

Weights are (agents, n), and the algorithm's functions, the optimiser and the projections are the
ones a single client uses: all are elementwise or act on rows. The batches are those that each
client would draw alone.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple

import torch

from fedbudget import downlink, seeds, uplink
from fedbudget.algorithms.algorithm import ClientState, LocalRun, Sent, averaged_over
from fedbudget.client import clip, factor, optimizer, reported
from fedbudget.codecs import frame
from fedbudget.constraints import stack
from fedbudget.data.together import draw_together
from fedbudget.engines.engine import describe
from fedbudget.engines.gradients import Gradients
from fedbudget.errors import UserError
from fedbudget.models.flat import Layout
from fedbudget.plan import Plan
from fedbudget.privacy import private
from fedbudget.resources.meters import Sensors, same_memory
from fedbudget.types import Job, Reply


class Trained(NamedTuple):
    replies: list[Reply]
    done: list[int]
    """rows of the agents that have an update"""
    state: ClientState
    """theirs, (len(done), whole model)"""


def train_chunk(
    jobs: Sequence[Job],
    plan: Plan,
    layout: Layout,
    gradients: Gradients,
    state: ClientState,
    sensors: Sensors,
) -> Trained:
    """Jobs of one round that differ in their client only; `state` has a row for each.

    What was measured of all is shared evenly.
    An agent whose loss is no number fails alone. Anything else that goes wrong is raised.
    """
    begun = sensors.start((len(jobs), same_memory(jobs[0].knobs)))
    first, algorithm = jobs[0], plan.algorithm
    received = downlink.restored(first.payload, layout, {})
    part = layout.top(first.knobs.layers, first.knobs.above)
    weights = received[0][part].repeat(len(jobs), 1)
    grads = torch.zeros_like(weights)
    sets = plan.constraints
    run = LocalRun(
        weights,
        grads,
        part,
        received,
        state,
        partial(optimizer, plan.recipe, [(weights, grads)]),
        first.round,
        averaged_over([job.ack for job in jobs], layout),
        stack([sets[job.client] for job in jobs]).project if sets else None,
    )
    algorithm.start(run)
    totals, broke = _local_steps(run, jobs, plan, gradients)
    updates, kept = algorithm.finish(run)
    done = [row for row in range(len(jobs)) if row not in broke]
    payloads = [
        _encoded(jobs[row], run, tuple(u[row] for u in updates), layout, plan) for row in done
    ]
    if len(done) < len(jobs):
        kept = {name: rows[done] for name, rows in kept.items()}
    if algorithm.sent is not None and done:
        decoded = zip(*(frame.unpack(payload, layout) for payload in payloads), strict=True)
        kept = algorithm.sent(kept, tuple(torch.stack(vectors) for vectors in decoded), part)
    read = sensors.since(begun, len(jobs))
    replies = {
        row: _reply(jobs[row], plan, payload, totals[row], read)
        for row, payload in zip(done, payloads, strict=True)
    }
    failures = {row: Reply.failure(jobs[row], describe(error)) for row, error in broke.items()}
    everyone = replies | failures
    return Trained([everyone[row] for row in range(len(jobs))], done, kept)


def _local_steps(
    run: LocalRun, jobs: Sequence[Job], plan: Plan, gradients: Gradients
) -> tuple[list[float], dict[int, UserError]]:
    """Each agent's summed loss, and which of them broke."""
    first, recipe = jobs[0], plan.recipe
    knobs = first.knobs
    count = knobs.steps * knobs.accumulate
    totals = torch.zeros(len(jobs), dtype=torch.float64)
    broke: dict[int, UserError] = {}
    if not count:
        return totals.tolist(), broke
    rngs = [seeds.rng(job.seed, job.round, job.client, "batches") for job in jobs]
    parts = [plan.clients[job.client] for job in jobs]
    batches = draw_together(parts, knobs.batch, count, rngs, gradients.shares)
    share = 1 / knobs.accumulate
    for step in range(knobs.steps):
        run.grads.zero_()
        for _ in range(knobs.accumulate):
            losses = gradients(
                run.weights, run.grads, run.part, run.received[0], next(batches), share
            )
            totals.add_(losses, alpha=share)
        finite = totals.isfinite()
        if not finite.all():
            for row in (~finite).nonzero().flatten().tolist():
                message = f"the training loss became {totals[row]} at local step {step + 1}"
                broke.setdefault(row, UserError(message))
        clip(run.grads, recipe.clip)
        lr = first.lr * factor(recipe, step, knobs.steps)
        plan.algorithm.step(run, lr)
        run.lr_sum += lr
    return totals.tolist(), broke


def _encoded(job: Job, run: LocalRun, update: Sent, layout: Layout, plan: Plan) -> frame.Packed:
    recipe = plan.recipe
    update = private(update, recipe.privacy, job, recipe.privacy_seed)
    return uplink.encode(job, run, update, layout, recipe.uplink)[0]


def _reply(
    job: Job, plan: Plan, payload: frame.Packed, total: float, read: Mapping[str, float]
) -> Reply:
    hidden = plan.recipe.privacy.on
    meter = plan.meter_of(job.client)
    return Reply(
        job.run,
        job.round,
        job.client,
        examples=1 if hidden else len(plan.clients[job.client]),
        loss=total / job.knobs.steps if job.knobs.steps and not hidden else None,
        seconds=read["time"],
        usage=reported(meter, job.knobs, len(payload), len(job.payload), read),
        payload=payload,
    )
