"""What tells the runs' configurations apart."""

import json
from collections.abc import Sequence
from typing import Any

from fedbudget.report.load import Loaded, agree, by_name
from fedbudget.report.sheets import Sheet

OWN = ("name", "seed")
"""keys that differ as they should"""
NONE = "–"


def differences(runs: Sequence[Loaded]) -> Sheet | None:
    """Keys whose values differ, a column a run; None where they do not or nothing is known.

    Seeds of one name share a column where they agree.
    """
    columns: dict[str, dict[str, Any]] = {}
    unknown = []
    for name, same in by_name(runs).items():
        unknown += [str(run.path) for run in same if not run.settings]
        told = [run for run in same if run.settings]
        alike = all(agree(run, told[0]) for run in told)
        for run in told[:1] if alike else told:
            columns[name if alike else f"{name} ({run.path})"] = run.settings
    keys = dict.fromkeys(key for settings in columns.values() for key in settings)
    rows = []
    for key in keys:
        known = [_written(s[key]) for s in columns.values() if key in s]
        some = key.startswith("budget.") and len(known) < len(columns)
        if key not in OWN and (len(set(known)) > 1 or some):
            rows.append([key, *(_written(s[key]) if key in s else NONE for s in columns.values())])
    if not rows:
        return None
    text = (
        "Keys of config.toml whose values differ, but for name and seed; "
        f"{NONE}: not set, or not known to the version that made the run."
    )
    if unknown:
        text += f" No configuration: {', '.join(unknown)}."
    return Sheet(("key", *columns), rows, text, "configuration differences")


def _written(value: Any) -> str:
    return value if isinstance(value, str) and value else json.dumps(value, ensure_ascii=False)
