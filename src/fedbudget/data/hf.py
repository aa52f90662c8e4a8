"""Hugging Face `datasets` (extra `[hf]`): a folder saved with `save_to_disk`, or a name on the hub."""

from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedbudget.data.examples import Arrays
from fedbudget.data.sources import Labelled, Text, encode_text
from fedbudget.errors import UserError


def load(
    name: str, columns: tuple[str, ...], key: str | None, validation: float
) -> Text | Labelled:
    """`columns` names the text column, or the input and the label column."""
    try:
        import datasets
    except ImportError:
        raise UserError("hf: needs the extra: pip install 'fedbudget[hf]'") from None
    try:
        found: Any = (
            datasets.load_from_disk(name) if Path(name).is_dir() else datasets.load_dataset(name)
        )
    except Exception as error:
        raise UserError(f"hf:{name} cannot be loaded: {error}") from None
    return from_dataset(found, columns, key, validation, f"hf:{name}")


def from_dataset(
    found: Any, columns: tuple[str, ...], key: str | None, validation: float, name: str
) -> Text | Labelled:
    """A `Dataset` or `DatasetDict` that is already loaded."""
    if len(columns) not in (1, 2):
        raise UserError("data.columns: name the text column, or the input and the label column")
    train = found["train"] if hasattr(found, "keys") else found
    for column in (*columns, *([key] if key else [])):
        if column not in train.column_names:
            raise UserError(
                f"{name} has no column {column!r}; it has {', '.join(train.column_names)}"
            )
    if len(columns) == 1:
        rows = [row or "" for row in train[columns[0]]]
        if key is not None:
            merged: dict[str, list[str]] = {}
            for k, text in zip(train[key], rows, strict=True):
                merged.setdefault(str(k), []).append(text)
            return encode_text(["\n".join(t) + "\n" for t in merged.values()], name)
        return encode_text([text + "\n" for text in rows], name)
    test_name = next(
        (s for s in ("test", "validation") if hasattr(found, "keys") and s in found), None
    )
    if test_name is not None:
        test = found[test_name]
    else:
        split = train.train_test_split(test_size=validation, shuffle=False)
        train, test = split["train"], split["test"]
    a, b = _arrays(train, *columns), _arrays(test, *columns)
    if min(a.y.min(), b.y.min()) < 0:
        raise UserError(f"{name}: the column {columns[1]!r} has labels below 0")
    keys = [str(k) for k in train[key]] if key else None
    return Labelled(a, b, int(max(a.y.max(), b.y.max())) + 1, name, keys)


def _arrays(rows: Any, x: str, y: str) -> Arrays:
    inputs = np.stack([np.asarray(v) for v in rows[x]])
    if inputs.dtype == np.uint8 and inputs.ndim in (3, 4):  # images: channels first
        inputs = inputs[:, None] if inputs.ndim == 3 else inputs.transpose(0, 3, 1, 2)
    elif inputs.dtype == np.float64:
        inputs = inputs.astype(np.float32)
    return Arrays(
        torch.from_numpy(np.ascontiguousarray(inputs)),
        torch.as_tensor(np.asarray(rows[y]), dtype=torch.long),
    )
