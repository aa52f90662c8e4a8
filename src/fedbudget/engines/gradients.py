"""Gradients of many agents at once: each its own weights and its own batch.

Softmax regression is written out, as two batched matrix products; any other module goes through
`torch.func.vmap`.
"""

from collections.abc import Mapping
from itertools import pairwise
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap

from fedbudget.data.together import Batch
from fedbudget.models.flat import FlatModel, Layout
from fedbudget.models.softmax import Softmax
from fedbudget.task import Task


class Gradients(Protocol):
    """Adds `share` times each agent's gradient to `grads`; returns the losses (agents,)."""

    shares: bool
    """whether the examples of a batch may count for different shares of it"""

    def __call__(
        self,
        weights: Tensor,
        grads: Tensor,
        part: slice,
        whole: Tensor,
        batch: Batch,
        share: float,
    ) -> Tensor:
        """weights and grads are (agents, n), the model's `part`; the rest is as in `whole`."""
        ...


def gradients(model: FlatModel, task: Task) -> Gradients:
    """The fastest for a model."""
    smoothing = task.label_smoothing
    if type(model.module) is Softmax and smoothing is not None:
        return SoftmaxGradients(model.layout, smoothing)
    return VmapGradients(model, task)


class SoftmaxGradients:
    """Cross-entropy of logits x W' + b: the gradient is (p - t)' x / batch, t the smoothed target."""

    shares = True

    def __init__(self, layout: Layout, smoothing: float) -> None:
        self.smoothing = smoothing
        self.classes, self.features = layout.shapes[layout.names.index("linear.weight")]

    def __call__(
        self,
        weights: Tensor,
        grads: Tensor,
        part: slice,
        whole: Tensor,
        batch: Batch,
        share: float,
    ) -> Tensor:
        x, y = batch.x.flatten(2), batch.y.long().unsqueeze(1)
        cut = self.classes * self.features
        shape = (len(weights), self.classes, self.features)
        # classes before examples: the products then read x along its rows, which is twice as fast
        logits = torch.bmm(weights[:, :cut].view(shape), x.mT).add_(weights[:, cut:, None])
        log_p = logits.log_softmax(1)  # (agents, classes, examples)
        losses = -log_p.gather(1, y).squeeze(1)
        apart = log_p.exp()
        if self.smoothing:
            losses = (1 - self.smoothing) * losses - self.smoothing * log_p.mean(1)
            apart -= self.smoothing / self.classes
        apart.scatter_add_(1, y, apart.new_full(y.shape, self.smoothing - 1))
        if batch.share is None:
            losses, scale = losses.mean(-1), share / x.shape[1]
        else:
            losses, scale = (losses * batch.share).sum(-1), share
            apart *= batch.share.unsqueeze(1)
        grads[:, :cut].view(shape).add_(torch.bmm(apart, x), alpha=scale)
        grads[:, cut:].add_(apart.sum(-1), alpha=scale)
        return losses


class _Loss(nn.Module):
    """The task's loss as a module, so that `functional_call` can put weights into the model."""

    def __init__(self, module: nn.Module, task: Task) -> None:
        super().__init__()
        self.module, self.task = module, task

    def forward(self, x: Any, y: Tensor) -> Tensor:
        return self.task.loss(self.module, x, y)


class VmapGradients:
    """Any module whose loss `torch.func.vmap` can follow."""

    shares = False

    def __init__(self, model: FlatModel, task: Task) -> None:
        self.layout = model.layout
        model.module.train()
        self._loss = _Loss(model.module, task)
        self._both = vmap(grad_and_value(self._value), in_dims=(0, None, 0, 0))

    def _value(
        self, trained: Mapping[str, Tensor], frozen: Mapping[str, Tensor], x: Tensor, y: Tensor
    ) -> Tensor:
        value: Tensor = functional_call(self._loss, {**trained, **frozen}, (x, y))
        return value

    def __call__(
        self,
        weights: Tensor,
        grads: Tensor,
        part: slice,
        whole: Tensor,
        batch: Batch,
        share: float,
    ) -> Tensor:
        trained, frozen = {}, {}
        places: dict[str, slice] = {}
        layout = self.layout
        spans = pairwise(layout.offsets)
        for name, shape, (a, b) in zip(layout.names, layout.shapes, spans, strict=True):
            if not part.start <= a < part.stop:
                frozen[f"module.{name}"] = whole[a:b].view(shape)
            else:
                places[f"module.{name}"] = here = slice(a - part.start, b - part.start)
                trained[f"module.{name}"] = weights[:, here].view(-1, *shape)
        found, losses = self._both(trained, frozen, batch.x, batch.y)
        for name, here in places.items():
            grads[:, here].add_(found[name].reshape(len(grads), -1), alpha=share)
        result: Tensor = losses
        return result
