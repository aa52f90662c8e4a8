"""rounds.jsonl: a line a round, as plain data."""

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from fedbudget.errors import UserError


def read_records(path: Path) -> list[dict[str, Any]]:
    records = []
    try:
        lines = path.read_text(errors="replace").splitlines()
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}; is this a run folder?") from None
    for line in lines:
        try:
            record = json.loads(line, parse_constant=_nothing)
        except ValueError:
            continue
        if isinstance(record, dict) and isinstance(record.get("round"), int):
            records.append(record)
    return records


def _nothing(constant: str) -> None:
    """NaN and Infinity, which JSON does not have: as `plain` writes them."""


def plain(value: Any) -> Any:
    """JSON has no NaN or infinity: they become null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if hasattr(value, "tolist"):  # a tensor or an array
        return plain(value.tolist())
    if isinstance(value, Iterable) and not isinstance(value, str):
        return [plain(v) for v in value]
    return value


def flat(tables: Mapping[str, Any], joint: str = ".", prefix: str = "") -> dict[str, Any]:
    """Nested tables as one.

    >>> flat({"seed": 1, "train": {"lr": 0.1}})
    {'seed': 1, 'train.lr': 0.1}
    """
    found: dict[str, Any] = {}
    for key, value in tables.items():
        if isinstance(value, Mapping) and value:
            found |= flat(value, joint, f"{prefix}{key}{joint}")
        else:
            found[f"{prefix}{key}"] = value
    return found
