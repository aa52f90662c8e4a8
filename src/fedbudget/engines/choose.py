"""Which engine runs a plan. The plan alone decides, so that every machine gives the same numbers."""

import warnings
from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor
from torch.nn.modules.conv import _ConvNd
from torch.nn.modules.dropout import _DropoutNd

from fedbudget.codecs import frame
from fedbudget.data.examples import Arrays, Examples, Part, Parts
from fedbudget.downlink import Broadcast
from fedbudget.engines.batched import Batched
from fedbudget.engines.chunk import train_chunk
from fedbudget.engines.embedded import embedded
from fedbudget.engines.engine import Engine
from fedbudget.engines.gradients import SoftmaxGradients, gradients
from fedbudget.plan import Plan
from fedbudget.privacy import Privacy
from fedbudget.threads import one_thread
from fedbudget.types import Job

FEWEST = 8
"""clients a round from which on they are trained together"""
LARGEST = 32_768
"""weights of a model up to which `vmap` gains more than a second process"""
AGREE = 1e-4
"""relative difference of two updates that are the same but for rounding"""


def choose(plan: Plan, workers: int = 1, deadline_s: float = 0.0) -> Engine:
    """Agents together where that is faster and gives the loop's numbers; else one by one.

    A deadline for each client needs worker processes, so then never together.
    """
    if deadline_s == 0 and suits(plan):
        return Batched(plan)
    return embedded(plan, workers, deadline_s)


def suits(plan: Plan) -> bool:
    """Whether the batched engine can run a plan and is the faster one."""
    return (
        plan.cohort >= FEWEST
        and plan.accelerator == "cpu"
        and plan.recipe.precision == "float32"
        and plan.seconds_of(0) is None  # a client that must watch its clock trains alone
        and _links_forget(plan)
        and _in_arrays(plan.clients)
        and _gains(plan)
        and _agrees(plan)
    )


def _links_forget(plan: Plan) -> bool:
    """No link's memory: feedback, a skipped upload or a partial downlink."""
    links = plan.recipe.uplink
    remembers = plan.recipe.keeps_model or plan.changed_only or links.skip > 0
    return links.feedback == "none" and not remembers


def _in_arrays(clients: Sequence[Examples]) -> bool:
    """Tensors of one shape and type."""
    parts = [clients.base] if isinstance(clients, Parts) else clients
    arrays = [part.base if isinstance(part, Part) else part for part in parts]
    kinds = {(a.x.shape[1:], a.x.dtype, a.y.shape[1:]) for a in arrays if isinstance(a, Arrays)}
    return len(kinds) == 1 and all(isinstance(a, Arrays) for a in arrays)


def _gains(plan: Plan) -> bool:
    """Softmax regression always; else a small module without what `vmap` is slow or unable at."""
    model = plan.build_model()
    if isinstance(gradients(model, plan.task), SoftmaxGradients):
        return True
    # convolutions whose weights differ by agent are slower together than apart
    unfit = any(isinstance(m, _ConvNd | _DropoutNd) for m in model.module.modules())
    return model.layout.size <= LARGEST and not model.layout.statistics and not unfit


def _agrees(plan: Plan) -> bool:
    """Try it: two clients' first steps, together and one by one, without noise on either."""
    plan = replace(plan, recipe=replace(plan.recipe, privacy=Privacy()))
    engine = Batched(plan)
    layout = engine.layout
    sent = plan.algorithm.send(plan.algorithm.init(engine.host.model.weights.clone()))
    down = Broadcast(sent, layout, plan.run, plan.seed, 1, plan.down_codec or layout.raw)
    knobs = plan.controller.knobs(plan.controller.init(), 0)
    few = replace(knobs, steps=min(knobs.steps, 2), codec=layout.raw)
    jobs = [
        Job(plan.run, 1, client, plan.seed, few, plan.lr_at(1), down.whole)
        for client in (0, len(plan.clients) - 1)
    ]
    try:
        with one_thread(), warnings.catch_warnings():
            warnings.simplefilter("error")  # vmap warns where it is slow
            together = train_chunk(
                jobs, plan, layout, engine.gradients, {}, engine.host.sensors
            ).replies
            alone = [engine.host.train(job, {})[0] for job in jobs]
    except Exception:  # whatever vmap makes of a user's model: the loop can run it
        return False
    for a, b in zip(together, alone, strict=True):
        if a.payload is None or b.payload is None:
            return False
        vectors = zip(frame.unpack(a.payload, layout), frame.unpack(b.payload, layout), strict=True)
        if any(not _close(mine, other) for mine, other in vectors):
            return False
    return True


def _close(a: Tensor, b: Tensor) -> bool:
    return bool((a - b).norm() <= AGREE * b.norm())
