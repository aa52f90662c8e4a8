"""Texts numbered in other ways than by character: as bytes, or by a model's own tokenizer."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from fedbudget.data.sources import Text
from fedbudget.errors import UserError

FILE = "tokenizer.json"
"""what a Hugging Face folder calls its tokenizer"""


def by_bytes(text: Text) -> Text:
    """The text's UTF-8 bytes: 256 numbers that all devices and all texts agree on.

    >>> from fedbudget.data.sources import encode_text
    >>> by_bytes(encode_text(["aß"], "x")).tokens.tolist()
    [97, 195, 159]
    """
    numbers = [np.frombuffer(d.encode(), np.uint8) for d in _documents(text)]
    return _numbered(text, numbers, "".join(map(chr, range(256))))


def here(folder: str) -> bool:
    """Whether a folder has a tokenizer."""
    return (Path(folder).expanduser() / FILE).is_file()


def by_tokenizer(text: Text, folder: str) -> Text:
    """The text in the tokens of a folder's `tokenizer.json`; no document gets marks at its ends."""
    path = Path(folder).expanduser() / FILE
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise UserError(f"{path} needs the extra: pip install 'fedbudget[hf]'") from None
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises no class of its own
        raise UserError(f"{path} cannot be read: {error}") from None
    tokenizer.no_truncation()
    tokenizer.no_padding()
    found = tokenizer.encode_batch(_documents(text), add_special_tokens=False)
    numbers = [np.array(document.ids, np.int32) for document in found]
    names = [tokenizer.id_to_token(i) or "" for i in range(tokenizer.get_vocab_size())]
    return _numbered(text, numbers, names)


def _documents(text: Text) -> list[str]:
    """What the text was before its characters were numbered."""
    letters = np.array([ord(letter) for letter in text.vocabulary], dtype="<u4")
    codes = letters[text.tokens.numpy()]
    return [codes[a:b].tobytes().decode("utf-32-le") for a, b in text.documents]


def _numbered(text: Text, numbers: Sequence[np.ndarray], vocabulary: Sequence[str]) -> Text:
    ends = np.cumsum([len(n) for n in numbers]).tolist()
    return replace(
        text,
        tokens=torch.from_numpy(np.concatenate(numbers)),
        vocabulary=vocabulary,
        documents=tuple(zip([0, *ends], ends, strict=False)),
    )
