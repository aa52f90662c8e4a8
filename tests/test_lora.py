"""Language models of Hugging Face, whole or with LoRA: groups, costs, wire, folders, configs."""

import json
import runpy
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import fedbudget as fb
from fedbudget import config
from fedbudget.build import build
from fedbudget.data import tokens
from fedbudget.data.examples import Arrays, Texts, Windows
from fedbudget.data.sources import encode_text, python_topics
from fedbudget.engines.embedded import Workers, embedded
from fedbudget.models import hf
from fedbudget.models.flat import FlatModel
from fedbudget.models.layers import layer_groups
from fedbudget.resources import counted
from fedbudget.resources.costs import frame_bytes
from fedbudget.rounds import first_state, run
from fedbudget.task import classify
from fedbudget.threads import one_thread
from fedbudget.training import train
from fedbudget.types import Knobs

transformers = pytest.importorskip("transformers")
peft = pytest.importorskip("peft")

EXAMPLES = Path(__file__).parents[1] / "examples"
SHAPE = (256, 16, 3, 32, 2)
"""tokens, context, layers, width, heads"""
TEXT = tokens.by_bytes(encode_text(["To be, or not to be, that is the question. "] * 120, "hamlet"))


def llama(lora: hf.Lora | None) -> nn.Module:
    shape = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 16}
    ends = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}
    made = transformers.LlamaConfig(vocab_size=256, use_cache=False, **shape, **heads, **ends)
    return hf.adapted(transformers.LlamaForCausalLM(made), lora)


def gpt2(lora: hf.Lora | None) -> nn.Module:
    return hf.shaped(*SHAPE, lora=lora)


@pytest.fixture(autouse=True)
def _one_thread():
    with one_thread():
        yield


def sent(usage) -> list[float]:
    """Bytes up of each client."""
    return [used["communication"] for used in usage["counted"].values()]


def frozen(module: nn.Module) -> dict[str, torch.Tensor]:
    return {n: p.detach().clone() for n, p in module.named_parameters() if not p.requires_grad}


def settings(tmp_path: Path, text: Path, *more: str) -> config.Config:
    """A small run with LoRA on a text of one's own."""
    path = tmp_path / "small.toml"
    path.write_text(
        f"""
rounds = 2
workers = 1
[data]
source = "text"
path = "{text}"
tokenizer = "bytes"
clients = 3
overlap = 16
[model]
kind = "hf"
size = "2x16"
heads = 2
context = 16
lora_rank = 2
[train]
cohort = 2
steps = 4
batch = 4
lr = 1e-2
[budget]
communication = "2 kB"
[control]
controller = "planner"
least_steps = 1
most_steps = 4
"""
    )
    return config.load(path, more)


@pytest.fixture
def text(tmp_path) -> Path:
    path = tmp_path / "hamlet.txt"
    path.write_text("To be, or not to be, that is the question. " * 60)
    return path


@pytest.mark.parametrize(
    ("make", "targets"),
    [(gpt2, ()), (llama, ()), (gpt2, ("c_attn",)), (llama, ("q_proj", "v_proj"))],
)
def test_each_block_of_an_adapted_model_is_a_group_and_only_adapters_are_in_it(make, targets):
    model = make(hf.Lora(4, targets=targets))
    groups = layer_groups(model)
    assert len(groups) == 3
    for i, names in enumerate(groups):
        assert all(f".{i}." in name and ".lora_" in name for name in names)
    trains = [name for name, p in model.named_parameters() if p.requires_grad]
    assert sorted(trains) == sorted(name for names in groups for name in names)


def test_what_trains_whole_beside_adapters_stands_above_or_below_the_blocks():
    groups = layer_groups(gpt2(hf.Lora(4, also=("wpe", "ln_f", "lm_head"))))
    assert [len(names) for names in groups] == [1, 8, 8, 8, 3]
    assert "wpe" in groups[0][0]
    assert {name.split(".modules_to_save")[0].split(".")[-1] for name in groups[-1]} == {
        "ln_f",
        "lm_head",
    }


def test_the_number_of_adapter_weights_is_what_the_paper_says():
    # rank x (inputs + outputs) of each adapted matrix: attention in and out, up, down
    width, rank = 32, 4
    block = rank * ((width + 3 * width) + 2 * width + 2 * (width + 4 * width))
    assert FlatModel(gpt2(hf.Lora(rank))).layout.size == 3 * block


def test_an_adapted_model_starts_as_its_base_and_alpha_scales_what_it_learns():
    torch.manual_seed(0)
    base = gpt2(None).eval()
    ids = torch.arange(16)[None]
    before = base(ids).logits
    model = hf.adapted(base, hf.Lora(4, alpha=12)).eval()
    assert torch.equal(model(ids).logits, before)
    layer = model.base_model.model.transformer.h[0].attn.c_attn
    assert layer.scaling["default"] == 3.0
    assert hf.adapted(gpt2(None), hf.Lora(4)).peft_config["default"].lora_alpha == 8


def test_weights_of_the_frozen_base_count_as_memory_and_traffic_but_not_as_bytes_sent():
    clients = Texts(TEXT.tokens, 16, [[(0, 500)]])
    whole, adapters = FlatModel(gpt2(None)), FlatModel(gpt2(hf.Lora(4)))
    full = counted.measure(whole, classify(), clients[0], "adamw")
    lora = counted.measure(adapters, classify(), clients[0], "adamw")
    base = sum(p.numel() for p in whole.module.parameters())
    assert (full.frozen_bytes, lora.frozen_bytes) == (0, 4 * base)
    knobs = Knobs(3, 1, 1)
    trained = lora.parameters[-1]
    # weights, gradients and AdamW's two moments of the adapters; weights alone of the base
    assert lora.memory(knobs) == 4 * (base + 4 * trained) + lora.kept[-1]
    assert lora.step_traffic(knobs) - 4 * 9 * trained == 8 * (base + trained)
    # forward, and the gradient of activations: the base's weight gradients are what LoRA spares
    assert 0.6 * full.flops[-1] < lora.flops[-1] < full.flops[-1]


def test_buffers_outside_the_state_count_as_weights_not_as_activations():
    class Masked(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 2)
            self.register_buffer("mask", torch.ones(8), persistent=False)

        def forward(self, x):
            return self.last(self.first(x) * self.mask)

    data = Arrays(torch.randn(4, 8), torch.zeros(4, dtype=torch.long))
    shape = counted.measure(FlatModel(Masked()), classify(), data, "sgd")
    assert shape.frozen_bytes == 8 * 4
    plain = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 2))
    # the product with the mask keeps nothing of the batch: only the linear layers do
    assert shape.kept == counted.measure(FlatModel(plain), classify(), data, "sgd").kept


def planned(**changes) -> fb.Run:
    spans = [[(i * 1000, (i + 1) * 1000)] for i in range(4)]
    given = {
        "model": partial(gpt2, hf.Lora(4)),
        "clients": Texts(TEXT.tokens, 16, spans),
        "validation": Windows(TEXT.tokens, 16, ((4200, 5160),), 16),
        "rounds": 3,
        "cohort": 2,
        "steps": 20,
        "batch": 8,
        "lr": 1e-2,
        "budget": fb.Budget(communication="4 kB", energy="60%", memory="90%"),
        "controller": fb.planner(batches=(4, 8)),
        "quiet": True,
    }
    return fb.train(**given | changes)


def test_a_run_with_adapters_learns_within_its_budgets_and_leaves_the_base_alone():
    result = planned()
    assert result.losses[-1] < result.losses[0]
    for record in result.records:
        assert max(sent(record.usage)) <= 4000
    counts = result.summary["usage"]["counted"]
    assert all(counts[r]["rounds_over"] == 0 for r in ("communication", "energy", "memory"))
    start, end = frozen(result.plan.build_model().module), frozen(result.model)
    assert len(start) > 20
    assert all(torch.equal(start[name], end[name]) for name in start)


def test_worker_processes_build_the_same_base_and_give_the_same_bits(tmp_path, text):
    plan = build(settings(tmp_path, text, "codec.changed_only=true"))
    made = plan.build_model()
    ends = []
    for workers in (1, 2):
        with embedded(plan, workers) as engine:
            assert isinstance(engine, Workers) == (workers == 2)
            *_, (_, end) = run(plan, engine, made.layout, first_state(plan))
            ends.append(end.weights)
    assert torch.equal(*ends)
    assert not torch.equal(ends[0], made.weights)


def test_an_adapter_goes_to_a_folder_and_back_in_pefts_own_format(tmp_path):
    result = planned(rounds=1)
    ids = TEXT.tokens[None, :16].long()
    wanted = result.model(ids).logits
    result.model.save_pretrained(tmp_path / "adapter")
    saved = load_file(tmp_path / "adapter" / "adapter_model.safetensors")
    assert sum(t.numel() for t in saved.values()) == FlatModel(gpt2(hf.Lora(4))).layout.size
    base = result.plan.build_model().module.unload()  # as before the run: its seed makes it again
    again = peft.PeftModel.from_pretrained(base, tmp_path / "adapter").eval()
    torch.testing.assert_close(again(ids).logits, wanted)
    again.merge_and_unload().save_pretrained(tmp_path / "merged")
    merged = hf.loaded(str(tmp_path / "merged")).eval()
    torch.testing.assert_close(merged(ids).logits, wanted, atol=1e-5, rtol=1e-4)


def test_a_run_folder_holds_the_base_and_the_adapters(tmp_path, text):
    out = tmp_path / "run"
    train(settings(tmp_path, text), out, show="quiet")
    kept = load_file(out / "model.safetensors")
    plan = build(config.load(out / "config.toml"))
    model = plan.build_model().module
    assert any("lora_" in name for name in kept)
    start = frozen(model)
    assert all(torch.equal(kept[name], start[name]) for name in start)
    model.load_state_dict(kept)
    lines = (out / "rounds.jsonl").read_text().splitlines()
    assert all(max(sent(json.loads(line)["usage"])) <= 2000 for line in lines)
    checkpoint = max((out / "checkpoint").glob("round-*.safetensors"))
    assert checkpoint.stat().st_size < (out / "model.safetensors").stat().st_size / 2


def test_all_weights_train_under_the_same_budget_in_fewer_layers_or_bits(tmp_path, text):
    config_ = settings(tmp_path, text, "model.lora_rank=0")
    knobs = build(config_).controller
    chosen = knobs.knobs(knobs.init(), 0)
    assert chosen.layers < 4 or chosen.codec.startswith("eden")
    train(config_, tmp_path / "full", show="quiet")
    summary = json.loads((tmp_path / "full" / "summary.json").read_text())
    assert summary["usage"]["counted"]["communication"]["worst"] <= 2000


def test_a_folder_gives_its_weights_and_its_tokens(tmp_path, text):
    from tokenizers import Tokenizer, models, pre_tokenizers

    folder = tmp_path / "base"
    hf.shaped(*SHAPE).save_pretrained(folder)
    words = ["[?]", "to", "be", ",", "or", "not", "that", "is", "the", "question", ".", "To"]
    tokenizer = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="[?]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
    named = f"model.folder={json.dumps(str(folder))}"
    plan = build(settings(tmp_path, text, named, "data.tokenizer=auto"))
    x, y = plan.clients[0].batch(np.array([0]))
    assert [words[i] for i in x[0][:5]] == ["To", "be", ",", "or", "not"]
    assert torch.equal(x[0][1:], y[0][:-1])
    made, kept = plan.build_model().module, load_file(folder / "model.safetensors")
    start = frozen(made)
    assert torch.equal(
        start["base_model.model.transformer.wte.weight"], kept["transformer.wte.weight"]
    )
    assert not made.base_model.model.config.use_cache


def test_half_precision_weights_are_read_as_float32(tmp_path):
    hf.shaped(*SHAPE).to(torch.bfloat16).save_pretrained(tmp_path / "half")
    assert {p.dtype for p in hf.loaded(str(tmp_path / "half")).parameters()} == {torch.float32}


def damaged(folder: Path, how: str) -> None:
    match how:
        case "no config":
            (folder / "config.json").unlink()
        case "pickle":
            torch.save({}, folder / "pytorch_model.bin")
            (folder / "model.safetensors").unlink()
        case "index of pickles":
            (folder / "model.safetensors").unlink()
            index = {"metadata": {}, "weight_map": {"transformer.wte.weight": "a.bin"}}
            (folder / "model.safetensors.index.json").write_text(json.dumps(index))
        case "cut off":
            weights = folder / "model.safetensors"
            weights.write_bytes(weights.read_bytes()[:1000])
        case "adapter":
            (folder / "adapter_config.json").write_text("{}")
        case "lacking":
            from safetensors.torch import save_file

            weights = load_file(folder / "model.safetensors")
            del weights["transformer.h.1.attn.c_attn.weight"]
            save_file(weights, folder / "model.safetensors", {"format": "pt"})
        case "own code":
            about = json.loads((folder / "config.json").read_text())
            about |= {"model_type": "mine", "auto_map": {"AutoConfig": "mine.Config"}}
            (folder / "config.json").write_text(json.dumps(about))
            (folder / "mine.py").write_text("raise SystemExit('it was run')")


@pytest.mark.parametrize(
    ("how", "sentence"),
    [
        ("no config", r"holds no config\.json"),
        ("pickle", r"holds no model\.safetensors; .* pytorch_model\.bin, can hold code"),
        ("index of pickles", "names files of another kind"),
        ("cut off", "cannot be read"),
        ("adapter", "holds an adapter: merge it"),
        ("lacking", r"its weights lack transformer\.h\.1\.attn\.c_attn\.weight"),
        ("own code", "cannot be read"),
    ],
)
def test_a_folder_that_is_damaged_or_could_run_code_is_refused(tmp_path, how, sentence):
    folder = tmp_path / "base"
    hf.shaped(*SHAPE).save_pretrained(folder)
    damaged(folder, how)
    with pytest.raises(fb.UserError, match=sentence):
        hf.loaded(str(folder))


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (["model.folder=nowhere"], "model.folder = 'nowhere': no such folder"),
        (["model.context=64", "model.folder={folder}"], "sees 16 tokens"),
        (["model.folder={narrow}"], "knows 20 tokens, but hamlet has number"),
        (
            ['model.lora_targets=["c_attn", "nope"]'],
            "model.lora_targets: no module is called 'nope'; .*c_attn, c_proj",
        ),
        (['model.lora_targets=["wpe", "ln_f"]'], "model.lora_targets: .*not supported"),
        (['model.lora_also=["nope"]'], "model.lora_also: no module is called 'nope'; .*lm_head"),
        (["model.kind=gpt"], "model.lora_rank is for model.kind = 'hf' only"),
        (["model.heads=3"], "model.heads = 3 does not divide the width 16"),
        (["data.source=mnist", "data.partition=iid"], "'hf' does not fit labelled data"),
    ],
)
def test_what_does_not_fit_is_said_in_a_sentence(tmp_path, text, changes, sentence):
    if any("mnist" in change for change in changes):
        from conftest import data_folder

        changes = [*changes, f'data.path="{data_folder("mnist")}"']
    hf.shaped(*SHAPE).save_pretrained(tmp_path / "base")
    hf.shaped(20, *SHAPE[1:]).save_pretrained(tmp_path / "narrow")
    places = {"folder": f'"{tmp_path / "base"}"', "narrow": f'"{tmp_path / "narrow"}"'}
    with pytest.raises(fb.UserError, match=sentence):
        build(settings(tmp_path, text, *(change.format(**places) for change in changes)))


def test_a_folder_serves_data_of_ones_own(tmp_path, monkeypatch):
    hf.shaped(*SHAPE).save_pretrained(tmp_path / "base")
    (tmp_path / "own_ids.py").write_text(
        "import torch\n"
        "def data(table):\n"
        "    ids = torch.arange(40).remainder(7).long()\n"
        "    rows = ids.unfold(0, 9, 1)\n"
        "    return [(rows[:, :-1], rows[:, 1:])] * 2, (rows[:, :-1], rows[:, 1:])\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    tables = {
        "data": {"source": "own_ids:data"},
        "model": {"kind": "hf", "folder": str(tmp_path / "base"), "lora_rank": 2},
        "train": {"cohort": 2},
    }
    plan = build(config.validate(tables, "own"))
    assert plan.build_model().layout.depth == 3
    with pytest.raises(fb.UserError, match=r"it can be hf with a model\.folder or package"):
        build(config.validate(tables | {"model": {"kind": "hf", "lora_rank": 2}}, "own"))


def test_without_the_extra_its_name_is_said(monkeypatch):
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(fb.UserError, match=r"needs the extra .*pip install 'fedbudget\[hf\]'"):
        hf.shaped(*SHAPE)


def test_bytes_give_the_text_back():
    text = python_topics()
    body = tokens.by_bytes(text).tokens.numpy().tobytes().decode()
    assert body == "".join(text.vocabulary[i] for i in text.tokens.tolist())


@pytest.mark.slow
def test_the_example_fine_tunes_within_600_kb(tmp_path):
    runs = runpy.run_path(str(EXAMPLES / "hf_lora.py"))["main"](rounds=2)
    for one in runs.values():
        assert all(max(sent(record.usage)) <= 600_000 for record in one.records)
        assert one.losses[-1] < one.losses[0]


def test_the_preset_keeps_600_kb_with_adapters_and_without(monkeypatch):
    from conftest import data_folder

    monkeypatch.setenv("FEDBUDGET_DATA", str(data_folder("tinyshakespeare")))
    path = config.find_config("phone-lora")
    for change in ([], ["model.lora_rank=0", "model.lora_also=[]"]):
        plan = build(config.load(path, change))
        assert plan.budgets["counted"][0]["communication"] == 600_000
        knobs = plan.controller.knobs(plan.controller.init(), 0)
        layout = plan.build_model().layout
        assert 0 < frame_bytes(layout, knobs) <= 600_000
        assert frame_bytes(layout, replace(knobs, layers=layout.depth, codec="raw32")) > 600_000
