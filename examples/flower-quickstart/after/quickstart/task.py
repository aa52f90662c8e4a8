"""The model, the data and the training loop: what the app is about, with or without budgets."""

from functools import cache
from itertools import chain, islice, repeat

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from fedbudget.data import sources


class Net(nn.Module):
    """A small convolutional network for 28 x 28 images."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 6, 5)
        self.conv2 = nn.Conv2d(6, 16, 5)
        self.fc1 = nn.Linear(16 * 4 * 4, 120)
        self.fc2 = nn.Linear(120, 84)
        self.fc3 = nn.Linear(84, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)  # (B, 6, 12, 12)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)  # (B, 16, 4, 4)
        x = F.relu(self.fc1(x.flatten(1)))
        return self.fc3(F.relu(self.fc2(x)))


@cache
def _digits() -> sources.Labelled:
    return sources.mnist()


def load_train(partition: int, partitions: int) -> TensorDataset:
    """A node's own images."""
    train = _digits().train
    return TensorDataset(
        train.x[partition::partitions].float() / 255, train.y[partition::partitions]
    )


def load_test(size: int) -> TensorDataset:
    """The first images of the test set."""
    test = _digits().test
    return TensorDataset(test.x[:size].float() / 255, test.y[:size])


def train(net: nn.Module, data: TensorDataset, steps: int, batch: int, lr: float) -> float:
    """Plain SGD; returns the mean loss."""
    loader = DataLoader(data, batch_size=batch, shuffle=True, drop_last=True)
    optimizer = torch.optim.SGD((p for p in net.parameters() if p.requires_grad), lr=lr)
    total = 0.0
    for x, y in islice(chain.from_iterable(repeat(loader)), steps):
        optimizer.zero_grad()
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        total += loss.item()
    return total / steps


def test(net: nn.Module, data: TensorDataset) -> tuple[float, float]:
    """Loss and accuracy."""
    net.eval()
    x, y = data.tensors
    with torch.no_grad():
        logits = net(x)
    return F.cross_entropy(logits, y).item(), (logits.argmax(1) == y).float().mean().item()
