"""A small convolutional network for images of any size and number of channels."""

from torch import nn


def cnn(channels: int, classes: int, width: int = 32) -> nn.Sequential:
    """Two convolutions, pooled to 4 x 4, then two linear layers: four layer groups."""
    return nn.Sequential(
        nn.Conv2d(channels, width, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(width, 2 * width, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveMaxPool2d(4),
        nn.Flatten(),
        nn.Linear(2 * width * 16, 128),
        nn.ReLU(),
        nn.Linear(128, classes),
    )
