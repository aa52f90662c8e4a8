"""A round's line and checkpoint, written and synced, beside the training of the round."""

import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from measure import show, table

from fedbudget.bench import gpt_plan, spread
from fedbudget.engines.embedded import InProcess
from fedbudget.rounds import first_state, one_round
from fedbudget.runs import RunFolder
from fedbudget.threads import one_thread

SIZES = {"2x128": (2, 128), "6x256": (6, 256)}
STEPS, FEW = 60, 1
"""of a local run in the presets; and those that stand for them here"""


def one_size(layers: int, width: int, repeat: int) -> dict[str, list[float]]:
    plan = gpt_plan(layers, width, FEW)
    engine, state = InProcess(plan), first_state(plan)
    layout = engine.host.model.layout
    saving, training = [], []
    with TemporaryDirectory() as place, one_thread():
        folder = RunFolder.create(Path(place) / "run", "")
        for i in range(repeat + 1):
            record, state = one_round(plan, engine, layout, state, i + 1)
            started = time.perf_counter()
            folder.append(record)
            folder.save_checkpoint(state, engine.states)
            if i:
                saving.append(time.perf_counter() - started)
                training.append(record.train_s * STEPS / FEW)
    return {"save_s": saving, "train_s": training}


def run(repeat: int, quick: bool = False) -> dict[str, Any]:
    return {name: one_size(*size, repeat) for name, size in SIZES.items()}


def section(found: dict[str, Any]) -> list[str]:
    rows = []
    for size, one in found.items():
        pairs = zip(one["save_s"], one["train_s"], strict=True)
        share = spread([100 * a / b for a, b in pairs])
        saved, trained = (spread(one[key]).median for key in ("save_s", "train_s"))
        rows.append([size, f"{1e3 * saved:.1f}", f"{trained:.1f}", show(share, ".3f")])
    text = (
        f"A round's line and checkpoint, written and synced, beside the training of six clients x "
        f"{STEPS} steps of batch 16 on one core (extrapolated from {FEW} each)."
    )
    return [text, "", *table(["model", "checkpoint ms", "training s", "% of the round"], rows)]
