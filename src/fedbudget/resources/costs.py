"""Costs: what a round will cost a client, before it is run, and what it did cost, after it."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache

import torch

from fedbudget import seeds
from fedbudget.codecs import frame, named
from fedbudget.codecs.codec import Fidelity
from fedbudget.data.examples import Examples
from fedbudget.models.flat import FlatModel, Layout
from fedbudget.resources import counted, meters, proxies
from fedbudget.resources.counted import Shape
from fedbudget.resources.devices import Device
from fedbudget.resources.own import Resource, added
from fedbudget.task import Task
from fedbudget.threads import one_thread
from fedbudget.types import Accounting, Knobs
from fedbudget.units import show


@dataclass(frozen=True)
class Costs:
    """One model on one kind of device."""

    shape: Shape
    device: Device
    layout: Layout
    sizes: tuple[int, ...] | None
    """parameters of each layer group of a GPT, where the papers' proxies apply"""
    vectors: int = 1
    """how many an algorithm sends, each way"""
    down_codec: str = ""
    """how the model travels down; "" as it is"""
    accounting: Accounting = "counted"
    """what budgets are about, and so which of the reported usage a controller learns from"""
    own: tuple[Resource, ...] = ()
    """the user's"""

    def forecast(self, knobs: Knobs) -> dict[str, float]:
        """Counted usage to expect: the bytes are the most that such a frame has, all layers down."""
        up = frame_bytes(self.layout, knobs, self.vectors)
        found = counted.usage(self.shape, self.device, knobs, up, self._whole_bytes)
        return added(self.own, knobs, found)

    def expected(self, knobs: Knobs) -> dict[str, float]:
        """What a client will report of these knobs, in the budgets' accounting.

        Meters on a device do not see the network: measured time ends with the encoded update.
        """
        if self.accounting == "paper":
            return self.paper(knobs)
        found = self.forecast(knobs)
        if self.accounting == "measured":
            found["time"] -= counted.transfer_s(
                self.device, found["communication"], found["downlink"]
            )
        return found

    @cached_property
    def _whole_bytes(self) -> int:
        """Of a frame with all layers, down."""
        whole = Knobs(self.layout.depth, 0, 0, codec=self.down_codec or self.layout.raw)
        return frame_bytes(self.layout, whole, self.vectors)

    def paper(self, knobs: Knobs) -> dict[str, float]:
        assert self.sizes is not None
        return proxies.of_knobs(knobs, self.sizes)

    def __post_init__(self) -> None:
        if self.device.fitted is not None:
            shape = self.shape
            self.device.fitted.check(shape.parameters, shape.flops, shape.optimizer)

    def meter(
        self,
        knobs: Knobs,
        up_bytes: int,
        down_bytes: int,
        read: Mapping[str, float] | None = None,
    ) -> Mapping[str, dict[str, float]]:
        """What a client reports: each accounting on its own. `read` is what its meters say."""
        used = counted.usage(self.shape, self.device, knobs, up_bytes, down_bytes)
        found = {"counted": added(self.own, knobs, used)}
        if read is not None:
            found["estimated"] = meters.estimated(read, self.device)
            found["measured"] = meters.measured(read, up_bytes, down_bytes, self.device.ambient_c)
        top = knobs.above == 0  # the papers freeze from the bottom only
        if self.sizes is not None and top and proxies.level(knobs.codec) is not None:
            found["paper"] = self.paper(knobs)
        return found

    def written(self, value: float, resource: str) -> str:
        """An amount for people; the papers' proxies have no unit."""
        if self.accounting == "paper":
            return f"{value:.4g}"
        return show(value, resource, self.units.get(resource, ""))

    @property
    def units(self) -> dict[str, str]:
        """Of the user's own resources that have one."""
        return {own.name: own.unit for own in self.own if own.unit}


def costs(
    model: FlatModel,
    task: Task,
    examples: Examples,
    optimizer: str,
    device: Device,
    gpt: bool,
    vectors: int = 1,
    down_codec: str = "",
    accounting: Accounting = "counted",
    own: tuple[Resource, ...] = (),
    parts: bool = True,
    momentum: bool = True,
) -> Costs:
    """Count a model's work, with groups in the middle alone (`parts`) or from the top down only.

    `gpt` says that the papers' proxies apply to it; `momentum`, that SGD has it or may have it.
    """
    with one_thread(), seeds.torch_seeded(0, 0, seeds.SERVER, "costs"):
        shape = counted.measure(model, task, examples, optimizer, parts, momentum)
    sizes = proxies.group_sizes(model.layout) if gpt else None
    return Costs(shape, device, model.layout, sizes, vectors, down_codec, accounting, own)


def frame_bytes(layout: Layout, knobs: Knobs, vectors: int = 1) -> int:
    """Length of a frame, or the most it can have where that depends on the update."""
    return _frame_bytes(layout, knobs.groups(layout.depth), knobs.codec, vectors)


@lru_cache(maxsize=1024)
def _frame_bytes(layout: Layout, groups: tuple[int, int], codec: str, vectors: int) -> int:
    part = layout.span(*groups)
    count = part.stop - part.start
    return frame.length([named(codec).size(count)] * vectors)


@lru_cache(maxsize=64)
def fidelity(codec: str) -> Fidelity:
    """Of a codec, tried on Gaussian numbers."""
    vector = _gaussian(2**14)
    with one_thread():  # threads that wait for each other would take longer than the work
        body = named(codec).encode(vector, 1)
        decoded = named(codec).decode(memoryview(body), len(vector), 1)
        # rounding to random sides is unbiased, and a little more than 1 in half of all cases
        kept = min(1.0, float((decoded @ vector) / (vector @ vector)))
        across = decoded - kept * vector
        return Fidelity(kept, float((across @ across) / (vector @ vector)) / kept**2)


def _gaussian(size: int) -> torch.Tensor:
    numbers = seeds.rng(0, 0, seeds.SERVER, "gaussian").standard_normal(size, dtype="float32")
    return torch.from_numpy(numbers)
