"""A workload as every contestant reads it: a folder with settings, first weights and batches.

Needs torch and NumPy alone, so that it can be imported in a peer's environment.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedbudget.models.gpt import GPT
from fedbudget.models.softmax import Softmax


class ChannelsFirst(nn.Module):
    """Images as pfl's CIFAR-10 benchmark has them, (B, H, W, C), -> (B, C, H, W)."""

    def forward(self, x: Tensor) -> Tensor:
        return x.permute(0, 3, 1, 2)


def small_cnn(dropout: bool) -> nn.Module:
    """The `simple_cnn` of pfl-research's benchmarks for 32 x 32 x 3 images."""
    model = nn.Sequential(
        ChannelsFirst(),
        nn.Conv2d(3, 32, 3),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Dropout(0.25 if dropout else 0.0),
        nn.Flatten(),
        nn.Linear(64 * 14 * 14, 128),
        nn.ReLU(),
        nn.Dropout(0.5 if dropout else 0.0),
        nn.Linear(128, 10),
    )
    for module in model.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            nn.init.xavier_uniform_(module.weight)
    return model


def make_model(model: dict[str, Any]) -> nn.Module:
    match model["kind"]:
        case "gpt":
            layers, width = model["layers"], model["width"]
            return GPT(model["vocabulary"], model["context"], layers, width, width // 32)
        case "softmax":
            return Softmax(784, 10)
        case "cnn":
            return small_cnn(model["dropout"])
        case other:
            raise ValueError(other)


def loss_of(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    logits = model(x)
    return F.cross_entropy(logits.reshape(-1, logits.shape[-1]), y.reshape(-1))


def optimizer(settings: dict[str, Any], parameters: Any, lr: float) -> torch.optim.Optimizer:
    """The fastest form torch has of what the workload asks for."""
    if settings["optimizer"] == "adamw":
        return torch.optim.AdamW(parameters, lr=lr, weight_decay=0.0, fused=True)
    return torch.optim.SGD(parameters, lr=lr, fused=True)


class Workload:
    """Settings, first weights by name, and each client's batches in the order they are trained on."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.settings: dict[str, Any] = json.loads((self.folder / "settings.json").read_text())
        with np.load(self.folder / "weights.npz") as stored:
            self.weights = {name: torch.from_numpy(stored[name]) for name in stored.files}
        self.steps: int = self.settings["steps"]
        self.batch: int = self.settings["batch"]
        self.lr: float = self.settings["lr"]
        self.clients: list[int] = self.settings["known"]
        """whose batches are here, in the order of x and y"""
        self.cohorts: list[list[int]] = self.settings["cohorts"]
        """clients of round 1, 2, ...; one cohort where every round is round 1 again"""
        self.goes_on = len(self.cohorts) > 1

    def data(self) -> tuple[Tensor, Tensor]:
        """(clients, steps x batch, ...), as floats or token numbers"""
        return tuple(torch.from_numpy(np.load(self.folder / f"{k}.npy")) for k in ("x", "y"))  # type: ignore[return-value]

    def validation(self) -> tuple[Tensor, Tensor] | None:
        if not (self.folder / "valid_x.npy").exists():
            return None
        load = (np.load(self.folder / f"valid_{k}.npy") for k in ("x", "y"))
        return tuple(map(torch.from_numpy, load))  # type: ignore[return-value]

    def model(self) -> nn.Module:
        """With the first weights."""
        model = make_model(self.settings["model"])
        model.load_state_dict(self.weights)
        return model

    def cohort(self, number: int) -> list[int]:
        return self.cohorts[(number - 1) % len(self.cohorts)]


def save(path: str, weights: dict[str, Tensor]) -> None:
    """What a round came to, for comparison with the others."""
    np.savez(path, **{name: value.detach().numpy() for name, value in weights.items()})
