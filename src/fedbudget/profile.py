"""This machine's profile: one model's time and memory for some knobs, and what was fitted to them.

Every trial is a local run as clients do it (`Host.train`), on one thread, read by its own meters.
Time is CPU time: a single thread takes as long when nothing else runs, and a busy machine does not
spoil the profile. On an accelerator it is wall time.
"""

import json
import math
import statistics
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedbudget import codecs, seeds
from fedbudget.bench import copy_bytes, processor, seconds
from fedbudget.build import build
from fedbudget.config import Config
from fedbudget.downlink import Broadcast
from fedbudget.engines.engine import Host
from fedbudget.errors import UserError
from fedbudget.files import write
from fedbudget.resources import counted
from fedbudget.resources.counted import Shape
from fedbudget.resources.devices import FIGURES, LAPTOP, Device
from fedbudget.resources.fitted import Fitted, Trial, fit
from fedbudget.tables import Budget, Control, WorldTable
from fedbudget.threads import one_thread
from fedbudget.types import Job, Knobs

SECONDS = 40.0
"""for all trials; a machine that is busy with other work takes longer for the first round of them"""
REPEATS = 7
"""of each trial, where there is time"""
MOST_ROWS = 6
"""numbers of layer groups that are tried; those between are interpolated"""
SHORT, LONG = 1, 3
"""steps of a trial: the difference is what a step takes"""
GROUPED = 3
"""micro-batches of a step, in the trials that tell them from steps"""
NUMBERS = 1 << 20
"""that a codec is timed with, at most"""


@dataclass(frozen=True)
class Profile:
    device: Device
    shape: Shape
    trials: Sequence[Trial]
    """what was fitted: the median of each setting's repetitions"""
    checks: Sequence[Trial]
    """settings between those, which the fit has not seen"""
    share: float
    """CPU time over wall time"""

    @property
    def fitted(self) -> Fitted:
        assert self.device.fitted is not None
        return self.device.fitted

    def predicted(self, knobs: Knobs) -> dict[str, float]:
        return counted.usage(self.shape, self.device, knobs, 0, 0)


class Bench:
    """A client of the config's on this machine, and trials with it."""

    def __init__(self, config: Config) -> None:
        # a budget is not kept here, and its profile may be the one that is to be written
        free = {"budget": Budget(), "control": Control(), "world": WorldTable()}
        plan = build(config.model_copy(update=free))
        about = plan.build_model(), plan.task, plan.clients[0], plan.recipe.optimizer
        self.shape = counted.measure(*about, momentum=plan.recipe.momentum > 0)
        self.host = Host(plan)
        self.clock = "cpu_time" if plan.accelerator == "cpu" else "time"
        layout = self.host.model.layout
        sent = plan.algorithm.send(plan.algorithm.init(self.host.model.weights.clone()))
        codec = plan.down_codec or layout.raw
        self.down = Broadcast(sent, layout, plan.run, plan.seed, 1, codec).whole
        self.cpu_s = self.wall_s = self.joules = 0.0

    def trial(self, knobs: Knobs) -> Trial:
        plan = self.host.plan
        job = Job(plan.run, 1, 0, plan.seed, knobs, plan.lr_at(1), self.down)
        reply, _ = self.host.train(job, {})
        if reply.error is not None:
            raise UserError(f"profile: a trial with {knobs} failed: {reply.error}")
        used = reply.usage["measured"]
        self.cpu_s += used["cpu_time"]
        self.wall_s += used["time"]
        self.joules += used.get("energy", 0.0)
        # the first step's peak is before the optimiser has its state
        memory = used.get("memory", 0.0) if knobs.steps > 1 else 0.0
        return Trial(knobs, used[self.clock], memory, used.get("energy", 0.0))


def measure(config: Config, name: str, limit_s: float = SECONDS) -> Profile:
    """Try knobs until the time is up, all of them once in any case but for very large batches."""
    started = time.perf_counter()
    with one_thread():
        bench = Bench(config)
        shape, layout = bench.shape, bench.host.model.layout
        depth = layout.depth
        rows = sorted({round(k) for k in np.linspace(1, depth, min(depth, MOST_ROWS))})
        batches = sorted({*config.control.batches, config.train.batch})
        raw = partial(Knobs, codec=layout.raw)
        # first, because what loads with a codec's first use is there in every real round
        speeds = codec_speeds([layout.raw, *config.control.codecs], layout.size)
        bench.trial(raw(depth, SHORT, batches[0]))
        found: dict[Knobs, list[Trial]] = {}
        unseen: dict[Knobs, list[Trial]] = {}
        again = 0
        while again == 0 or (again < REPEATS and time.perf_counter() - started < limit_s):
            for i, batch in enumerate(batches):
                late = time.perf_counter() - started > limit_s / (2 if again == 0 else 1)
                if late and (again > 0 or i >= 2):
                    break
                settings = [raw(k, s, batch) for k, s in product(rows, (SHORT, LONG))]
                if batch == batches[0]:
                    settings += [raw(k, SHORT, batch, GROUPED) for k in rows]
                for knobs in settings:
                    found.setdefault(knobs, []).append(bench.trial(knobs))
            # among the trials, because a process that has worked for long holds more
            for knobs in between(rows, sorted({k.batch for k in found}), raw):
                unseen.setdefault(knobs, []).append(bench.trial(knobs))
            again += 1
        trials, checks = ([_median(same) for same in x.values()] for x in (found, unseen))
        fitted = fit(trials, shape.parameters, shape.flops, shape.optimizer, speeds)
    device = described(name, config, bench, trials, fitted)
    return Profile(device, shape, trials, checks, bench.cpu_s / bench.wall_s)


def between(rows: Sequence[int], batches: Sequence[int], raw: Any) -> list[Knobs]:
    """Settings that were not tried: batches between those that were, for each k one."""
    middle = [(a + b) // 2 for a, b in pairwise(batches) if b > a + 1]
    if not middle:
        return []
    return [raw(k, LONG + 2, middle[i % len(middle)]) for i, k in enumerate((*rows, *rows[::-1]))]


def codec_speeds(names: Iterable[str], size: int) -> dict[str, float]:
    """Seconds a number, beyond those of the first, which writes numbers as they are."""
    rng = seeds.rng(0, 0, seeds.SERVER, "profile")
    vector = torch.from_numpy(rng.standard_normal(min(size, NUMBERS), dtype="float32"))
    took = {}
    for name in dict.fromkeys(names):
        work = partial(codecs.named(name).encode, vector, 1)
        work()
        took[name] = statistics.median(seconds(work) for _ in range(3)) / len(vector)
    plain = next(iter(took.values()))
    return {name: max(0.0, each - plain) for name, each in took.items()}


def _median(same: Sequence[Trial]) -> Trial:
    """Of the repetitions of one setting."""
    middle = [statistics.median(values) for values in zip(*(t[1:] for t in same), strict=True)]
    return Trial(same[0].knobs, *middle)


def described(
    name: str, config: Config, bench: Bench, trials: Sequence[Trial], fitted: Fitted
) -> Device:
    """The profile, and where each figure is from."""
    whole = max(trials, key=lambda t: (t.knobs.layers, t.knobs.steps, t.knobs.batch))
    flops = whole.knobs.steps * bench.shape.step_flops(whole.knobs) / whole.seconds
    joules = bench.joules
    watts = joules / bench.wall_s if joules else LAPTOP.watts_per_core
    model = (
        f"{config.model.kind} {config.model.size}" if config.model.kind == "gpt" else "the model"
    )
    power = (
        "measured: RAPL, the whole processor while one core trained"
        if joules
        else "assumed: one busy core; this machine has no energy sensor that can be read"
    )
    local = "not measured: nothing is transferred here; write the link's speed in its place"
    return Device(
        name,
        flops_per_s=flops,
        watts=watts,
        watts_per_core=watts,
        memory_bytes_per_s=copy_bytes(),
        up_bytes_per_s=math.inf,
        down_bytes_per_s=math.inf,
        ambient_c=LAPTOP.ambient_c,
        kelvin_per_watt=LAPTOP.kelvin_per_watt,
        time_constant_s=LAPTOP.time_constant_s,
        sources={
            "flops_per_s": f"measured: {model}, batch {whole.knobs.batch}, one core of {processor()}",
            "watts": power,
            "watts_per_core": power,
            "memory_bytes_per_s": "measured: a copy, bytes read and written",
            "up_bytes_per_s": local,
            "down_bytes_per_s": local,
            "ambient_c": "assumed: a room",
            "kelvin_per_watt": "assumed: a laptop's",
            "time_constant_s": "assumed: a laptop's",
        },
        fitted=fitted,
    )


def save(profile: Profile, path: Path) -> None:
    """As TOML that `budget.device` can name."""
    device = profile.device
    lines = [f"name = {json.dumps(device.name)}"]
    for figure in FIGURES:
        lines.append(f"{figure} = {getattr(device, figure)!r}  # {device.sources[figure]}")
    lines += ["", "[sources]", *(f"{f} = {json.dumps(s)}" for f, s in device.sources.items())]
    table = profile.fitted.to_table()
    speeds = table.pop("codec_s")
    lines += [
        "",
        "[fitted]  # time and memory of one model: what they mean is in docs/howto/profile.md",
    ]
    lines += [f"{key} = {json.dumps(value)}" for key, value in table.items()]
    lines += ["", "[fitted.codec_s]", *(f"{json.dumps(c)} = {v!r}" for c, v in speeds.items())]
    path.parent.mkdir(parents=True, exist_ok=True)
    write(path, "\n".join([*lines, ""]).encode())
