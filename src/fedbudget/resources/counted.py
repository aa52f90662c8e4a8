"""Counted usage: what the work of a round amounts to, from the model itself and the bytes sent.

energy         FLOPs of every sample of every micro-batch, the forward pass through frozen layers
               included, and of the optimiser; times the device's joules per FLOP
communication  bytes of the uplink frame; `downlink`: bytes of the downlink frame
memory         weights, frozen ones too, + gradients + optimiser state + activations kept for one
               micro-batch
temperature    rise above ambient after the round's work, first-order: P R (1 - exp(-t / tau))
time           compute, weight and optimiser traffic of each step, and both transfers

Where a profile was measured with the model (`fitted`), time and memory are by what was measured, and
energy is the profile's watts over that time.

FLOPs are those of matrix products, convolutions and attention (full, causal or not), as torch's
flop counter has them; element-wise operations are not counted.
"""

from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry, sdpa_backward_flop_count, sdpa_flop_count

from fedbudget.data.examples import Examples
from fedbudget.models.flat import FlatModel
from fedbudget.resources.devices import Device, rise
from fedbudget.resources.fitted import Fitted
from fedbudget.task import Task
from fedbudget.types import Knobs

ADAMW_FLOPS = 14
"""operations per parameter of an AdamW step"""
SGD_FLOPS = 4
_ATTENTION = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_ATTENTION_BACK = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


@dataclass(frozen=True)
class Shape:
    """What one model costs, for each number k of trained layer groups (index k - 1)."""

    parameters: tuple[int, ...]
    """trained, and sent"""
    flops: tuple[float, ...]
    """per sample: forward through everything, backward through the trained top"""
    kept: tuple[float, ...]
    """activation bytes per sample that wait for the backward pass"""
    spared_flops: tuple[float, ...]
    """by the number of groups frozen at the top (index 0: none): what they no longer take"""
    spared_kept: tuple[float, ...]
    optimizer: str
    frozen_bytes: int = 0
    """of what is never trained nor sent, such as the model below LoRA's adapters"""
    itemsize: int = 4
    """bytes of a number that is trained"""
    momentum: bool = True
    """SGD has it, or may have it"""

    @property
    def states(self) -> int:
        """Numbers the optimiser keeps per parameter."""
        return 2 if self.optimizer == "adamw" else int(self.momentum)

    def trained(self, knobs: Knobs) -> int:
        """Parameters that train, and are sent."""
        above = self.parameters[knobs.above - 1] if knobs.above else 0
        return self.parameters[knobs.layers + knobs.above - 1] - above

    def step_flops(self, knobs: Knobs) -> float:
        """One optimiser step: all its micro-batches and the update."""
        sample = self.flops[knobs.layers + knobs.above - 1] - self.spared_flops[knobs.above]
        update = ADAMW_FLOPS if self.optimizer == "adamw" else SGD_FLOPS
        return sample * knobs.batch * knobs.accumulate + update * self.trained(knobs)

    def step_traffic(self, knobs: Knobs) -> float:
        """Bytes of weights, gradients and optimiser state that a step reads and writes."""
        weights = self.itemsize * self.parameters[-1] + self.frozen_bytes
        update = (3 + 2 * (self.states + 1)) * self.trained(knobs)
        # weights are read forward and backward
        return float(2 * weights * knobs.accumulate + self.itemsize * update)

    def memory(self, knobs: Knobs) -> float:
        trained = self.trained(knobs) * (1 + self.states)
        kept = self.kept[knobs.layers + knobs.above - 1] - self.spared_kept[knobs.above]
        numbers = self.parameters[-1] + trained
        return self.itemsize * numbers + self.frozen_bytes + kept * knobs.batch


def usage(
    shape: Shape, device: Device, knobs: Knobs, up_bytes: int, down_bytes: int
) -> dict[str, float]:
    """All counted resources of one client's round."""
    flops = knobs.steps * shape.step_flops(knobs)
    compute_s = flops / device.flops_per_s
    traffic_s = knobs.steps * shape.step_traffic(knobs) / device.memory_bytes_per_s
    busy_s, memory = compute_s + traffic_s, shape.memory(knobs)
    if device.fitted is not None:
        busy_s, memory = _fitted(shape, device.fitted, knobs)
        compute_s = busy_s
    return {
        "energy": compute_s * device.watts,
        "communication": float(up_bytes),
        "downlink": float(down_bytes),
        "memory": memory,
        "temperature": rise(device, device.watts, busy_s),
        "time": busy_s + transfer_s(device, up_bytes, down_bytes),
    }


def transfer_s(device: Device, up_bytes: float, down_bytes: float) -> float:
    """On the device's link."""
    return up_bytes / device.up_bytes_per_s + down_bytes / device.down_bytes_per_s


def _fitted(shape: Shape, fitted: Fitted, knobs: Knobs) -> tuple[float, float]:
    """Busy seconds and bytes as they were measured; counts tell what a frozen top spares."""
    seconds, held = fitted.seconds(knobs, shape.trained(knobs)), fitted.bytes(knobs)
    if knobs.above:
        whole = replace(knobs, layers=knobs.layers + knobs.above, above=0)
        seconds *= shape.step_flops(knobs) / shape.step_flops(whole)
        held = held and held * shape.memory(knobs) / shape.memory(whole)
    return seconds, shape.memory(knobs) if held is None else held


def measure(
    model: FlatModel,
    task: Task,
    examples: Examples,
    optimizer: str,
    parts: bool = True,
    momentum: bool = True,
) -> Shape:
    """Count a model's work on real examples: for each number of trained groups, and group by group.

    Groups frozen at the top still pass gradients on, but take none for themselves. What that spares
    does not depend on the groups below, so the two passes for each group give every part of a model.
    Without `parts` only those from the top down are counted, in half the time.
    """
    size = min(2, len(examples))
    x, y = examples.batch(np.arange(size))

    def count(k: int, above: int) -> tuple[float, float]:
        model.freeze(k, above)
        model.train()
        with _Flops() as counter, _Kept(model) as saved:
            torch.autograd.backward(task.loss(model.module, x, y))
        return counter.total / size, saved.total / size

    depth = model.layout.depth
    tops = [count(k, 0) for k in range(1, depth + 1)]
    alone = [count(1, above) for above in range(1, depth if parts else 1)]
    model.grads.zero_()
    flops, kept = zip(*tops, strict=True)
    spared = [
        (0.0, 0.0),
        *((f - g, m - n) for (f, m), (g, n) in zip(tops[1:], alone, strict=False)),
    ]
    less_flops, less_kept = zip(*spared, strict=True)
    spans = (model.layout.top(k) for k in range(1, depth + 1))
    parameters = tuple(part.stop - part.start for part in spans)
    return Shape(
        *(parameters, flops, kept, less_flops, less_kept, optimizer, model.frozen_bytes),
        model.layout.dtype.itemsize,
        momentum,
    )


class _Flops(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Torch's flop formulas without its module tracker, which takes seconds to import."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.total = 0.0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # skipping it would import it, which takes another second

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        packet = func._overloadpacket
        if packet is _ATTENTION:
            self.total += sdpa_flop_count(*(a.shape for a in args[:3]))  # type: ignore[no-untyped-call]
        elif packet is _ATTENTION_BACK:
            shapes = (a.shape for a in args[:4])
            self.total += sdpa_backward_flop_count(*shapes)  # type: ignore[no-untyped-call]
        elif packet in flop_registry:
            self.total += flop_registry[packet](*args, **(kwargs or {}), out_val=out)
        return out


class _Kept:
    """Bytes that autograd keeps for the backward pass; the model's own tensors do not count."""

    def __init__(self, model: FlatModel) -> None:
        own = (*model.module.parameters(), *model.module.buffers())
        self.own = {t.untyped_storage().data_ptr() for t in own}
        self.kept: dict[int, int] = {}
        self.hooks = torch.autograd.graph.saved_tensors_hooks(self._note, lambda tensor: tensor)

    def _note(self, tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in self.own:
            self.kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    @property
    def total(self) -> int:
        return sum(self.kept.values())

    def __enter__(self) -> Self:
        self.hooks.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self.hooks.__exit__(*error)
