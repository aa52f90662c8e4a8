"""The local optimisers are torch.optim's, without its imports."""

import subprocess
import sys

import pytest
import torch

from fedbudget.optimizers import adamw, sgd


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (lambda r: sgd(r, 0.0, 0.0), lambda p: torch.optim.SGD(p, 1.0, fused=True)),
        (
            lambda r: sgd(r, 0.9, 0.1),
            lambda p: torch.optim.SGD(p, 1.0, 0.9, weight_decay=0.1, fused=True),
        ),
        (
            lambda r: adamw(r, (0.9, 0.98), 0.1),
            lambda p: torch.optim.AdamW(p, 1.0, (0.9, 0.98), weight_decay=0.1, fused=True),
        ),
    ],
)
def test_steps_are_torchs_bit_for_bit(ours, theirs, dtype):
    torch.manual_seed(0)
    starts = [torch.randn(n, dtype=dtype) for n in (1, 1000, 4097)]
    runs = [(w.clone(), torch.zeros_like(w)) for w in starts]
    others = [torch.nn.Parameter(w.clone()) for w in starts]
    step, reference = ours(runs), theirs(others)
    for i in range(7):
        lr = 0.1 / (i + 1)
        for (_, grad), other in zip(runs, others, strict=True):
            grad.copy_(torch.randn_like(grad))
            other.grad = grad.clone()
        step(lr)
        for group in reference.param_groups:
            group["lr"] = lr
        reference.step()
        assert all(torch.equal(w, o) for (w, _), o in zip(runs, others, strict=True))


def test_a_run_does_not_import_the_compiler():
    code = (
        "import sys, torch, fedbudget as fb\n"
        "x, y = torch.randn(64, 4), torch.zeros(64).long()\n"
        "fb.train(torch.nn.Linear(4, 2), [(x, y)] * 2, rounds=1, steps=2, quiet=True)\n"
        "print('torch._dynamo' in sys.modules)"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert out.stdout.strip() == "False", out.stderr
