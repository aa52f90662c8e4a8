"""What torch.compile brings on the CPU: a step compiled and not, by turns, and what compiling takes."""

import os
import time
from functools import partial
from typing import Any

import torch
from measure import in_turn, ratio, show, table
from torch.nn import functional as F

from fedbudget.bench import BATCH, CONTEXT, VOCABULARY, seconds
from fedbudget.models.gpt import GPT
from fedbudget.threads import one_thread

SIZES = {"W1, GPT 2x128": (2, 128, 8), "W2, GPT 6x256": (6, 256, 2)}


def step(model: Any, ids: torch.Tensor, times: int) -> None:
    for _ in range(times):
        logits = model(ids).flatten(0, 1)
        F.cross_entropy(logits, ids.flatten()).backward()


def run(repeat: int, quick: bool = False) -> dict[str, Any]:
    os.environ["TORCHINDUCTOR_FORCE_DISABLE_CACHES"] = "1"  # a user compiles for the first time
    found: dict[str, Any] = {}
    for name, (layers, width, times) in SIZES.items():
        if quick and found:
            break
        model = GPT(VOCABULARY, CONTEXT, layers, width, width // 32)
        ids = torch.randint(
            VOCABULARY, (BATCH, CONTEXT), generator=torch.Generator().manual_seed(0)
        )
        with one_thread():
            compiled = torch.compile(model)
            started = time.perf_counter()
            step(compiled, ids, 1)
            took = time.perf_counter() - started
            step(model, ids, 1)
            work = {
                "plain": partial(seconds, partial(step, model, ids, times)),
                "compiled": partial(seconds, partial(step, compiled, ids, times)),
            }
            rows = in_turn(work, repeat)
        found[name] = {"compile_s": took, "steps": times, **rows}
    return found


def section(found: dict[str, Any]) -> list[str]:
    rows = []
    for name, own in found.items():
        gain = ratio(own["plain"], own["compiled"])
        plain = sorted(own["plain"])[len(own["plain"]) // 2] / own["steps"]
        saved = plain * (1 - 1 / gain.median)
        earned = f"{own['compile_s'] / saved:,.0f} steps" if saved > 0 else "never"
        rows.append([name, f"{own['compile_s']:.0f}", show(gain), earned])
    return [
        "A forward and a backward pass, one thread. It is not offered as a setting where it does not "
        "gain: each number of trained layers is compiled anew, in each worker process.",
        "",
        *table(["model", "compiling s", "plain / compiled", "earned back after"], rows),
    ]
