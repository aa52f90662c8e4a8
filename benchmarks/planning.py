"""`fedbudget plan`: from the start of the process to the choice, beside Python importing torch."""

import subprocess
import sys
import time
from typing import Any

from measure import in_turn, ratio, show, table

from fedbudget.bench import spread

PLAN = [sys.executable, "-m", "fedbudget.cli", "plan", "planner", "--set", "data.source=topics"]
IMPORT = [sys.executable, "-c", "import torch"]
BAR_S = 2.0


def seconds(command: list[str]) -> float:
    started = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - started


def run(repeat: int, quick: bool = False) -> dict[str, Any]:
    work = {"import torch": lambda: seconds(IMPORT), "fedbudget plan": lambda: seconds(PLAN)}
    in_turn(work, 1)  # files that are read from disk once
    return {"seconds": in_turn(work, repeat)}


def section(found: dict[str, Any]) -> list[str]:
    every = found["seconds"]
    first = every["import torch"]
    rows = [[n, show(spread(s)), show(ratio(s, first))] for n, s in every.items()]
    text = (
        f"The planner's choice for GPT 2x128, no training, beside a Python that only imports torch. "
        f"{len(first)} repetitions by turns. The bar is {BAR_S:g} s."
    )
    return [text, "", *table(["", "s", "to the import"], rows)]
