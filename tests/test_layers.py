import pytest
import torch
from torch import nn

from fedbudget.errors import UserError
from fedbudget.models.cnn import cnn
from fedbudget.models.flat import FlatModel
from fedbudget.models.gpt import GPT
from fedbudget.models.layers import layer_groups


def tops(model: nn.Module) -> list[str]:
    """The first name of each group, for a glance at the order."""
    return [group[0] for group in layer_groups(model)]


def test_gpt_has_embeddings_at_the_bottom_and_norm_with_head_on_top():
    groups = layer_groups(GPT(65, layers=2))
    assert groups[0] == ["tokens.weight", "positions.weight"]
    assert groups[-1] == ["norm.weight", "norm.bias", "head.weight"]
    assert tops(GPT(65, layers=2))[1:3] == ["blocks.0.norm1.weight", "blocks.1.norm1.weight"]


def test_papers_models_have_the_sizes_the_papers_tables_imply():
    def count(model):
        return sum(p.numel() for p in model.parameters())

    eight = GPT(65, layers=8, width=128, heads=4)
    assert count(eight) == 1_619_456
    block = count(eight.blocks[0])
    always = count(eight) - 8 * block  # embeddings, final norm and head
    assert (always + 3 * block, always + block) == (628_096, 231_552)
    assert count(GPT(65, layers=6, width=256, heads=8)) == 4_805_120


def test_convolutions_keep_their_norm_and_nested_blocks_are_groups():
    model = nn.Sequential(
        nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU()),
        nn.Sequential(nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4)),
        nn.Flatten(),
        nn.Linear(4, 2),
    )
    groups = layer_groups(model)
    assert [g[0] for g in groups] == ["0.0.weight", "1.0.weight", "3.weight"]
    assert "0.1.running_mean" in groups[0]
    assert "0.1.num_batches_tracked" not in groups[0]
    assert len(layer_groups(cnn(3, 10))) == 4


@pytest.mark.parametrize("name", ["gpt2", "llama", "bert"])
def test_hugging_face_models_split_at_their_blocks(name):
    transformers = pytest.importorskip("transformers")
    small = {"num_hidden_layers": 3, "hidden_size": 16, "num_attention_heads": 2, "vocab_size": 20}
    config = transformers.AutoConfig.for_model(
        name, **small, bos_token_id=0, eos_token_id=0, pad_token_id=0
    )
    if name == "bert":
        model = transformers.AutoModelForSequenceClassification.from_config(config)
    else:
        model = transformers.AutoModelForCausalLM.from_config(config)
    groups = layer_groups(model)
    assert len(groups) == 5
    assert all(".0." in n for n in groups[1])
    assert sum(map(len, groups)) == len(list(model.named_parameters()))


def test_groups_can_be_given_in_a_line():
    model = GPT(65, layers=2)
    groups = layer_groups(model, ["tokens", "blocks", "norm", "head"])
    assert [g[0] for g in groups] == [
        "tokens.weight",
        "blocks.0.norm1.weight",
        "norm.weight",
        "head.weight",
    ]
    assert "positions.weight" in groups[0]  # what no prefix names joins the bottom


def test_a_prefix_that_matches_nothing_is_named():
    with pytest.raises(UserError, match="below 'body'; the model has tokens, positions"):
        layer_groups(GPT(65), ["body"])


def test_parameters_the_user_froze_are_left_out():
    model = GPT(65, layers=2)
    model.blocks[0].requires_grad_(False)
    assert not any(n.startswith("blocks.0") for g in layer_groups(model) for n in g)
    with pytest.raises(UserError, match="nothing would train"):
        layer_groups(model.requires_grad_(False))


def saved_bytes(flat: FlatModel, ids: torch.Tensor) -> int:
    """Activations that autograd keeps for the backward pass; parameters do not count."""
    own = {flat.weights.untyped_storage().data_ptr()}
    kept = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        loss = flat.module(ids).float().logsumexp(-1).mean()
    total = sum(kept.values())
    loss.backward()
    return total


def test_freezing_the_bottom_keeps_no_activations_for_it():
    flat = FlatModel(GPT(65, context=32, layers=4, width=32, heads=2))
    ids = torch.zeros(4, 32, dtype=torch.long)
    kept = {}
    for k in (6, 5, 4, 3, 2, 1):
        flat.freeze(k)
        kept[k] = saved_bytes(flat, ids)
    block = kept[3] - kept[2]
    assert kept[5] - kept[4] == kept[4] - kept[3] == block > 0
    assert kept[1] < block  # head only


def test_frozen_layers_get_no_gradient_and_do_not_change():
    flat = FlatModel(GPT(65, context=16, layers=2, width=16, heads=2))
    part = flat.freeze(2)
    flat.grads.zero_()
    flat.module(torch.zeros(2, 16, dtype=torch.long)).sum().backward()
    assert flat.grads[: part.start].abs().sum() == 0
    assert flat.grads[part].abs().sum() > 0


def test_statistics_of_frozen_norms_stand_still():
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2), nn.BatchNorm1d(2))
    flat = FlatModel(model)
    flat.freeze(1)
    flat.train()
    before = flat.weights.clone()
    model(torch.randn(8, 3))
    named, old = flat.layout.named(flat.weights), flat.layout.named(before)
    assert torch.equal(named["1.running_mean"], old["1.running_mean"])
    assert not torch.equal(named["3.running_mean"], old["3.running_mean"])
    flat.freeze(2)
    flat.train()
    model(torch.randn(8, 3))
    assert not torch.equal(named["1.running_mean"], old["1.running_mean"])


def test_a_dtype_that_is_not_float_is_refused():
    with pytest.raises(UserError, match=r"float16.*model\.float\(\)"):
        FlatModel(nn.Linear(2, 2).half())
