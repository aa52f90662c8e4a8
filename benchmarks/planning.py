"""`fedbudget plan`: from the start of the process to the choice, beside Python importing torch."""

import subprocess
import sys
import time
from functools import partial
from typing import Any

from measure import in_turn, ratio, show, table

from fedbudget.bench import spread

IMPORT = [sys.executable, "-c", "import torch"]
PRESETS = ("planner", "cafl-l", "table1", "cafl-l-6x256")
BAR_S = 2.0


def planned(preset: str) -> list[str]:
    module = [sys.executable, "-m", "fedbudget.cli"]
    return [*module, "plan", preset, "--set", "data.source=topics"]


def seconds(command: list[str]) -> float:
    started = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - started


def run(repeat: int, quick: bool = False) -> dict[str, Any]:
    work = {"import torch": partial(seconds, IMPORT)}
    work |= {f"fedbudget plan {name}": partial(seconds, planned(name)) for name in PRESETS}
    in_turn(work, 1)  # files that are read from disk once
    return {"seconds": in_turn(work, repeat)}


def section(found: dict[str, Any]) -> list[str]:
    every = found["seconds"]
    first = every["import torch"]
    rows = [[n, show(spread(s)), show(ratio(s, first))] for n, s in every.items()]
    text = (
        "The planner's choice for GPT 2x128, and where the papers' duals will lead at three sizes, "
        f"beside a Python that only imports torch. {len(first)} repetitions by turns, no training. Bar: "
        f"{BAR_S:g} s. A model of Hugging Face takes longer: importing transformers alone does."
    )
    return [text, "", *table(["", "s", "to the import"], rows)]
