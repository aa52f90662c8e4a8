"""Your own model, your own data: a CNN on MNIST, 20 clients with an uneven label split.

python examples/cnn_on_images.py [rounds]
"""

import sys

import torch
from torch import nn

import fedbudget as fb
from fedbudget import seeds
from fedbudget.data import partition, sources


def make_model() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 5, stride=2),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32 * 5 * 5, 10),
    )


def main(rounds: int = 10) -> fb.Run:
    data = sources.mnist()
    x, y = data.train.x.float() / 255, data.train.y
    split = partition.dirichlet(y.numpy(), 20, 0.5, seeds.rng(0, 0, -1, "example"))
    clients = [torch.utils.data.TensorDataset(x[part], y[part]) for part in split]
    run = fb.train(
        make_model,
        clients,
        validation=data.test,
        rounds=rounds,
        cohort=5,
        steps=20,
        batch=32,
        lr=0.05,
        optimizer="sgd",
        weighting="examples",
    )
    run.table()
    return run


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 10)
