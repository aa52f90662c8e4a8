"""Fine-tune a language model on phones with 600 kB a round: with LoRA, and all of its weights.

The base is a small GPT-2 that is first trained here on Python's help texts, which stands in for
weights that you would download. The phones hold Python source code, one module each.

Needs the extra: pip install 'fedbudget[hf]'

    python examples/hf_lora.py [rounds] [folder of a Hugging Face model that knows bytes]
"""

import sys
import tempfile
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import nn

import fedbudget as fb
from fedbudget.data import sources, tokens
from fedbudget.data.examples import Texts, Windows
from fedbudget.data.sources import Text
from fedbudget.models import hf

CONTEXT = 32
PHONES = ("argparse", "ast", "decimal", "doctest", "inspect", "pydoc", "tarfile", "typing")
BUDGET = fb.Budget(communication="600 kB", energy="0.08 J", memory="32 MB")


def make_base(folder: str, steps: int = 60) -> None:
    """Train a model in one place and save it as transformers does."""
    text = tokens.by_bytes(sources.python_topics())
    everything = Windows(text.tokens, CONTEXT, ((0, len(text.tokens)),))
    model = partial(hf.shaped, 256, CONTEXT, 4, 128, 4)
    run = fb.train(model, [everything], rounds=1, steps=steps, batch=16, lr=3e-3, quiet=True)
    run.model.save_pretrained(folder)


def read_phones() -> Text:
    found = [find_spec(name) for name in PHONES]
    code = [Path(spec.origin).read_text() for spec in found if spec and spec.origin]
    return tokens.by_bytes(sources.encode_text(code, "code"))


def fine_tune(name: str, model: Callable[[], nn.Module], text: Text, rounds: int) -> fb.Run:
    """The last tenth of each module is held out."""
    cuts = [(a, a + (b - a) * 9 // 10, b) for a, b in text.documents]
    run = fb.train(
        model,
        Texts(text.tokens, CONTEXT, [[(a, cut)] for a, cut, _ in cuts]),
        Windows(text.tokens, CONTEXT, tuple((cut, b) for _, cut, b in cuts), stride=16 * CONTEXT),
        rounds=rounds,
        cohort=4,
        lr=3e-3 if name == "lora" else 1e-3,  # few numbers take larger steps
        budget=BUDGET,
        controller=fb.planner(batches=(4, 8)),
        device="phone",
        name=name,
        quiet=True,
    )
    chosen = ", ".join(f"{knob} {value}" for knob, value in run.summary["knobs"].items())
    print(f"{name}: {chosen}")
    for record in run.records:
        sent = max(used["communication"] for used in record.usage["counted"].values())
        loss = record.validation["loss"] if record.validation else float("nan")
        print(f"  round {record.round}: loss {loss:.3f}, at most {sent / 1e3:.1f} kB from a phone")
    return run


def main(rounds: int = 10, folder: str = "") -> dict[str, fb.Run]:
    text = read_phones()
    with tempfile.TemporaryDirectory() as place:
        if not folder:
            make_base(place)
        base = folder or place
        runs = {
            "lora": fine_tune("lora", partial(hf.loaded, base, hf.Lora(rank=8)), text, rounds),
            "full": fine_tune("full", partial(hf.loaded, base), text, rounds),
        }
        adapter = Path(place, "adapter")
        runs["lora"].model.save_pretrained(adapter)  # peft's own format
        kept = (adapter / "adapter_model.safetensors").stat().st_size
        print(f"adapter: {kept / 1e3:.0f} kB")
    return runs


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 10, *sys.argv[2:3])
