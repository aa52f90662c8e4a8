"""What a model is trained for: a loss, and how a batch is scored."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Score(NamedTuple):
    """Sums over a batch, so that batches add up."""

    loss: float
    correct: float
    size: int


class Task(NamedTuple):
    """Functions, not closures, so that a worker process can be given one."""

    loss: Callable[[nn.Module, Any, Tensor], Tensor]
    """(model, inputs, targets) -> scalar to minimise"""
    score: Callable[[nn.Module, Any, Tensor], Score]
    accuracy: bool
    """whether `correct` means anything"""
    losses: Callable[[nn.Module, Any, Tensor], Tensor] | None = None
    """(model, inputs, targets (examples, ...)) -> the score's losses, (examples, ...); None where a
    loss is only known of a whole batch"""

    @property
    def label_smoothing(self) -> float | None:
        """Of the cross-entropy; None where the loss is another."""
        if not isinstance(self.loss, partial) or self.loss.func is not _cross_entropy:
            return None
        return float(self.loss.keywords["label_smoothing"])


def classify(label_smoothing: float = 0.0) -> Task:
    """Cross-entropy of logits (..., classes) against integer targets (...): images, next tokens.

    Hugging Face outputs are understood. Scores are without smoothing.
    """
    loss = partial(_cross_entropy, label_smoothing=label_smoothing)
    return Task(loss, _score_classes, True, _losses)


def custom(loss: Callable[[nn.Module, Any, Tensor], Tensor]) -> Task:
    """A user's own loss, which is also the score."""
    return Task(loss, partial(_score_loss, loss=loss), False)


def _logits(model: nn.Module, x: Any) -> Tensor:
    out = model(x)
    logits: Tensor = getattr(out, "logits", out)
    return logits


def _cross_entropy(model: nn.Module, x: Any, y: Tensor, *, label_smoothing: float) -> Tensor:
    logits = _logits(model, x)
    return F.cross_entropy(
        logits.reshape(-1, logits.shape[-1]), y.reshape(-1), label_smoothing=label_smoothing
    )


def _score_classes(model: nn.Module, x: Any, y: Tensor) -> Score:
    logits = _logits(model, x)
    logits, y = logits.reshape(-1, logits.shape[-1]), y.reshape(-1)
    loss = F.cross_entropy(logits, y, reduction="sum")
    return Score(loss.item(), (logits.argmax(-1) == y).sum().item(), len(y))


def _losses(model: nn.Module, x: Any, y: Tensor) -> Tensor:
    logits = _logits(model, x)
    flat = F.cross_entropy(logits.reshape(-1, logits.shape[-1]), y.reshape(-1), reduction="none")
    return flat.view(y.shape)


def _score_loss(model: nn.Module, x: Any, y: Tensor, *, loss: Any) -> Score:
    return Score(loss(model, x, y).item() * len(y), 0.0, len(y))


def evaluate_batch(task: Task, model: nn.Module, x: Any, y: Tensor) -> Score:
    with torch.no_grad():
        return task.score(model, x, y)
