"""Softmax regression: the convex model of the PC-FedAvg experiments."""

from torch import Tensor, nn


class Softmax(nn.Module):
    """Inputs of any shape, flattened -> class logits; starts at zero, where the loss is ln(classes)."""

    def __init__(self, features: int, classes: int) -> None:
        super().__init__()
        self.linear = nn.Linear(features, classes)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.linear(x.flatten(1))
        return logits
