"""Local optimisers over whole runs of (weights, gradients), one kernel call a step.

The kernels are those of torch.optim with fused=True, called directly: the first optimiser of
torch.optim imports the compiler's front end, which takes as long as importing torch itself, in each
worker process.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

Optimizer = Callable[[float], None]
"""a step of the given size down the gradients, in place"""
Runs = Sequence[tuple[Tensor, Tensor]]


def adamw(runs: Runs, betas: tuple[float, float], weight_decay: float) -> Optimizer:
    """Loshchilov and Hutter 2019: torch.optim.AdamW with its default epsilon, bit for bit."""
    weights, grads = [w for w, _ in runs], [g for _, g in runs]
    first, second = ([torch.zeros_like(w) for w in weights] for _ in range(2))
    taken = [torch.zeros((), device=w.device) for w in weights]

    def step(lr: float) -> None:
        for count in taken:
            count += 1
        torch._fused_adamw_(
            *(weights, grads, first, second, [], taken),
            lr=lr,
            beta1=betas[0],
            beta2=betas[1],
            weight_decay=weight_decay,
            eps=1e-8,
            amsgrad=False,
            maximize=False,
        )

    return step


def sgd(runs: Runs, momentum: float, weight_decay: float) -> Optimizer:
    """torch.optim.SGD, bit for bit."""
    weights, grads = [w for w, _ in runs], [g for _, g in runs]
    moving = [torch.zeros_like(w) for w in weights] if momentum else []
    first = bool(momentum)

    def step(lr: float) -> None:
        nonlocal first
        torch._fused_sgd_(
            *(weights, grads, moving),
            weight_decay=weight_decay,
            momentum=momentum,
            lr=lr,
            dampening=0.0,
            nesterov=False,
            maximize=False,
            is_first_step=first,
        )
        first = False

    return step
