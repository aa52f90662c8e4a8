"""How fast this machine is, and how near to it training, codecs and rounds come. Under a minute.

`make bench` in the repository holds the same against other frameworks; it takes parts from here.
"""

import os
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from rich.table import Table
from torch import Tensor, nn

import fedbudget
from fedbudget import codecs, seeds
from fedbudget.algorithms.fedavg import fedavg
from fedbudget.codecs import frame
from fedbudget.control.controller import fixed
from fedbudget.data.examples import Texts
from fedbudget.downlink import Broadcast
from fedbudget.engines.embedded import InProcess
from fedbudget.models.gpt import GPT
from fedbudget.plan import Plan
from fedbudget.resources.counted import measure
from fedbudget.rounds import first_state, one_round
from fedbudget.task import classify
from fedbudget.threads import one_thread
from fedbudget.types import Job, Knobs

SIDE = 1024
"""of the square matrices whose product is the yardstick"""
COPY_BYTES = 1 << 27
CONTEXT, VOCABULARY, BATCH, COHORT = 128, 65, 16, 6
CODECS = ("int8", "eden2")
NEVER = 10**6


class Spread(NamedTuple):
    """The median and the quartiles of repeated measurements."""

    median: float
    low: float
    high: float


def spread(values: Sequence[float]) -> Spread:
    """Quartiles by linear interpolation; one value is all three.

    >>> spread([1.0, 2.0, 3.0, 4.0, 5.0])
    Spread(median=3.0, low=2.0, high=4.0)
    """
    if len(values) == 1:
        return Spread(values[0], values[0], values[0])
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return Spread(middle, low, high)


class Quantity(NamedTuple):
    """A line of the table: what was measured, its repetitions, and the unit."""

    what: str
    values: Sequence[float]
    unit: str


def seconds(work: Callable[[], object]) -> float:
    """CPU time: what else the machine does meanwhile counts less."""
    started = time.process_time()
    work()
    return time.process_time() - started


def gemm_flops() -> float:
    """FLOP/s of a float32 matrix product on the threads torch has now; best of three."""
    a, b = torch.rand(2, SIDE, SIDE).unbind()
    out = torch.empty_like(a)
    torch.mm(a, b, out=out)
    took = min(seconds(partial(torch.mm, a, b, out=out)) for _ in range(3))
    return float(2 * SIDE**3 / took)


def copy_bytes() -> float:
    """Bytes/s of a copy, read and written; best of three."""
    source = torch.zeros(COPY_BYTES // 4)
    target = torch.empty_like(source)
    target.copy_(source)
    return 2 * COPY_BYTES / min(seconds(partial(target.copy_, source)) for _ in range(3))


def processor() -> str:
    """Its name, where the system tells."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def machine() -> dict[str, Any]:
    """Facts that a figure means nothing without."""
    with one_thread():
        gemm, copied = gemm_flops(), copy_bytes()
    return {
        "cpu": processor(),
        "cores": os.cpu_count(),
        "simd": torch.backends.cpu.get_cpu_capability(),
        "gemm_gflops": gemm / 1e9,
        "copy_gbytes": copied / 1e9,
        "load": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "fedbudget": fedbudget.__version__,
    }


def gpt_plan(layers: int, width: int, steps: int, cohort: int = COHORT) -> Plan:
    """A GPT on a text of random letters, every client alike, without evaluation."""
    rng = seeds.rng(0, 0, seeds.SERVER, "bench")
    tokens = torch.from_numpy(rng.integers(VOCABULARY, size=20_000)).to(torch.uint8)
    return Plan(
        name="bench",
        seed=0,
        rounds=NEVER,
        cohort=cohort,
        model=partial(GPT, VOCABULARY, CONTEXT, layers, width, width // 32),
        clients=Texts(tokens, CONTEXT, [[(0, len(tokens))]] * cohort),
        validation=None,
        algorithm=fedavg(),
        controller=fixed(Knobs(layers + 2, steps, BATCH)),
        task=classify(),
        lr=1e-3,
    )


class Pace(NamedTuple):
    """Seconds of a step, its FLOPs, and the core's GEMM rate right before and after it."""

    step_s: float
    flops: float
    peak: float

    @property
    def share(self) -> float:
        return self.flops / self.step_s / self.peak


class Step:
    """Local steps of one client as `train_client` takes them, and the FLOPs of one."""

    def __init__(self, layers: int, width: int) -> None:
        self.plan = gpt_plan(layers, width, steps=1, cohort=1)
        self.engine = InProcess(self.plan)
        model = self.engine.host.model
        layout = self.layout = model.layout
        shape = measure(model, self.plan.task, self.plan.clients[0], "adamw")
        self.knobs = Knobs(layout.depth, 1, BATCH)
        self.flops = shape.flops[-1] * BATCH  # of the products: that is what GEMM is compared with
        sent = (first_state(self.plan).weights,)
        self.payload = Broadcast(sent, layout, self.plan.run, 0, 1, layout.raw).whole

    def run(self, steps: int) -> Tensor:
        """The update after some steps."""
        knobs = Knobs(self.knobs.layers, steps, BATCH, codec=self.layout.raw)
        job = Job(self.plan.run, 1, 0, 0, knobs, self.plan.lr, self.payload)
        (reply,) = self.engine.run([job])
        assert reply.payload is not None, reply.error
        return frame.unpack(reply.payload, self.layout)[0]

    def pace(self, steps: int) -> Pace:
        with one_thread():
            before = gemm_flops()
            took = seconds(partial(self.run, steps))
            return Pace(took / steps, self.flops, (before + gemm_flops()) / 2)


def plain_round(weights: dict[str, Tensor], model: nn.Module, clients: int) -> dict[str, Tensor]:
    """What anyone would write, without the training: copy the weights in, add them up, divide."""
    sums = {name: torch.zeros_like(value) for name, value in weights.items()}
    with torch.no_grad():
        for _ in range(clients):
            for name, parameter in model.named_parameters():
                parameter.copy_(weights[name])
            for name, parameter in model.named_parameters():
                sums[name] += parameter
    return {name: total / clients for name, total in sums.items()}


def overhead(repeat: int) -> list[float]:
    """A round of six W1 clients that train nothing, over the plain one, by turns."""
    plan = gpt_plan(2, 128, steps=0)
    engine, state = InProcess(plan), first_state(plan)
    layout = engine.host.model.layout
    model = plan.model()
    weights = {name: p.detach().clone() for name, p in model.named_parameters()}
    found = []
    with one_thread():
        for i in range(repeat + 2):
            ours = seconds(lambda: one_round(plan, engine, layout, state, 1))
            plain = seconds(lambda: plain_round(weights, model, COHORT))
            if i >= 2:
                found.append(ours / plain)
    return found


def rates(update: Tensor, name: str, repeat: int) -> tuple[list[float], list[float]]:
    """GB/s of encoding and of decoding, in float32 bytes of the update."""
    codec = codecs.named(name)
    size = 4e-9 * len(update)
    there, back = [], []
    with one_thread():
        for i in range(repeat + 1):
            took = seconds(partial(codec.encode, update, i))
            body = memoryview(bytearray(codec.encode(update, i)))
            again = seconds(partial(codec.decode, body, len(update), i))
            if i:
                there.append(size / took)
                back.append(size / again)
    return there, back


def quantities(repeat: int = 7) -> list[Quantity]:
    """All of it."""
    small = Step(2, 128)
    small.run(2)
    large = Step(6, 256)
    large.run(1)
    found = [
        Quantity("GPT 2x128 step, share of the matrix product", _each(small, repeat, 6), "%"),
        Quantity("GPT 6x256 step, share of the matrix product", _each(large, 3, 2), "%"),
    ]
    update = large.run(1)
    for name in CODECS:
        there, back = rates(update, name, repeat)
        found.append(Quantity(f"{name} encode", there, "GB/s"))
        found.append(Quantity(f"{name} decode", back, "GB/s"))
    found.append(Quantity("round without training, over a plain loop", overhead(10 * repeat), "x"))
    return found


def _each(step: Step, repeat: int, steps: int) -> list[float]:
    return [100 * step.pace(steps).share for _ in range(repeat)]


def table(facts: dict[str, Any], found: Sequence[Quantity]) -> Table:
    caption = (
        f"{facts['cpu']}, {facts['cores']} cores, {facts['simd']}; one core: matrix product "
        f"{facts['gemm_gflops']:.0f} GFLOP/s, copy {facts['copy_gbytes']:.1f} GB/s; "
        f"torch {facts['torch']}, load {facts['load'] or 0:.1f}"
    )
    shown = Table(caption=caption, caption_justify="left")
    shown.add_column("one thread, float32")
    shown.add_column("median", justify="right")
    shown.add_column("quartiles", justify="right")
    for quantity in found:
        middle, low, high = spread(quantity.values)
        digits = ".0f" if quantity.unit == "%" else ".2f"
        span = f"{low:{digits}} to {high:{digits}}"
        shown.add_row(quantity.what, f"{middle:{digits}} {quantity.unit}", span)
    return shown
