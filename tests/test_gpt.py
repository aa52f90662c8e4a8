"""The first weights of the GPT."""

import math

import pytest
import torch

from fedbudget.build import build
from fedbudget.config import find_config, load
from fedbudget.errors import UserError
from fedbudget.models.gpt import EMBEDDED, GPT, gpt2, scaled, waves


def test_waves_of_the_position_before_are_a_rotation_of_these():
    """So one linear layer can look one position back, wherever it is."""
    before, after = waves(128, 64)[:-1], waves(128, 64)[1:]
    rates = 128 ** -(torch.arange(32) / 32)
    sines, cosines = after[:, :32], after[:, 32:]
    turned = torch.cat(
        [
            sines * rates.cos() - cosines * rates.sin(),
            cosines * rates.cos() + sines * rates.sin(),
        ],
        1,
    )
    torch.testing.assert_close(turned, before)


def test_no_two_positions_have_the_same_waves_and_all_are_of_one_length():
    for length, width in ((128, 128), (16, 2), (7, 5)):
        table = waves(length, width)
        assert table.shape == (length, width)
        assert torch.cdist(table, table).fill_diagonal_(1).min() > 0.05
    torch.testing.assert_close(waves(128, 128).norm(dim=1), torch.full((128,), 8.0))


@pytest.mark.parametrize("width", [64, 256])
def test_scaled_weights_follow_the_inputs_and_those_that_write_are_damped(width):
    torch.manual_seed(0)
    model = GPT(65, layers=4, width=width, heads=2, init=scaled)
    block = model.blocks[1]
    for matrix, damped in (
        (block.attention.qkv.weight, False),
        (block.up.weight, False),
        (model.head.weight, False),
        (block.attention.out.weight, True),
        (block.down.weight, True),
    ):
        expected = 1 / math.sqrt(2 * matrix.shape[1]) / (math.sqrt(8) if damped else 1)
        assert matrix.std().item() == pytest.approx(expected, rel=0.05)
    assert model.tokens.weight.std().item() == pytest.approx(0.1, rel=0.05)
    assert model.positions.weight.pow(2).mean().item() == pytest.approx(0.01, rel=0.01)
    assert not block.up.bias.any()


def test_gpt2_weights_are_of_one_size():
    torch.manual_seed(0)
    model = GPT(65, layers=2, width=128, init=gpt2)
    for matrix in (model.tokens.weight, model.positions.weight, model.blocks[0].up.weight):
        assert matrix.std().item() == pytest.approx(0.02, rel=0.05)
    assert model.blocks[0].down.weight.std().item() == pytest.approx(0.01, rel=0.05)


def test_a_config_chooses_them():
    changes = ["data.source=topics", "model.context=32"]
    plan = build(load(find_config("fedavg"), [*changes, "model.init=scaled"]))
    positions = plan.build_model().module.positions.weight
    torch.testing.assert_close(positions.detach(), EMBEDDED * math.sqrt(2) * waves(32, 128))
    plan = build(load(find_config("fedavg"), [*changes, "model.init=gpt2"]))
    positions = plan.build_model().module.positions.weight
    assert positions.std().item() == pytest.approx(0.02, rel=0.05)
    with pytest.raises(UserError, match=r"model.init is for model.kind = 'gpt' only"):
        load(find_config("fedavg-mnist"), ["model.init=scaled"])
    with pytest.raises(UserError, match=r"model.init = .big.: it must be 'gpt2' or 'scaled'"):
        load(find_config("fedavg"), ["model.init=big"])
