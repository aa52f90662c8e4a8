"""A Hugging Face model: a randomly initialised GPT-2, all but its embeddings trained and sent.

Needs the extra: pip install 'fedbudget[hf]'

    python examples/hf_gpt2.py [rounds]
"""

import sys

import torch
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel

import fedbudget as fb
from fedbudget.data import partition, sources
from fedbudget.data.examples import Texts, Windows

CONTEXT = 64


def make_model() -> nn.Module:
    config = GPT2Config(
        vocab_size=256,
        n_positions=CONTEXT,
        n_embd=64,
        n_layer=3,
        n_head=4,
        bos_token_id=0,
        eos_token_id=0,
        use_cache=False,
    )
    return GPT2LMHeadModel(config)


def main(rounds: int = 5) -> fb.Run:
    text = sources.python_topics()  # any text does: sources.text_files("my-folder")
    kept = int(0.9 * len(text.tokens))
    clients = Texts(text.tokens, CONTEXT, partition.contiguous(kept, 8, overlap=CONTEXT))
    validation = Windows(text.tokens, CONTEXT, ((kept, len(text.tokens)),), stride=CONTEXT * 8)
    run = fb.train(
        make_model,
        clients,
        validation,
        rounds=rounds,
        cohort=4,
        steps=10,
        batch=8,
        lr=3e-3,
        layers=4,
    )
    run.table()
    return run


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
