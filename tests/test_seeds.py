import numpy as np
import torch

from fedbudget import seeds


def test_streams_are_the_same_in_any_order_and_apart_from_each_other():
    names = [(s, r, c, p) for s in (0, 7) for r in (1, 2) for c in (-1, 0, 5) for p in ("a", "b")]
    forth = {n: seeds.rng(*n).random(4) for n in names}
    back = {n: seeds.rng(*n).random(4) for n in reversed(names)}
    assert all(np.array_equal(forth[n], back[n]) for n in names)
    assert len({tuple(v) for v in forth.values()}) == len(names)


def test_torch_seeded_leaves_the_global_generator_as_it_was():
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    with seeds.torch_seeded(0, 1, 2, "dropout"):
        first = torch.rand(3)
    assert torch.equal(torch.rand(3), expected)
    with seeds.torch_seeded(0, 1, 2, "dropout"):
        assert torch.equal(torch.rand(3), first)
