"""The scaling model: seconds of a step and memory of a process from counts, held against measurements.

seconds of a local step = a FLOPs / product rate + b bytes of weights / copy rate + c layer groups
memory of a process     = d + e bytes of weights
The coefficients are fitted to some models, and the others are predicted.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
from measure import table

FITTED = ((1, 64), (2, 128), (6, 256), (4, 64))
PREDICTED = ((2, 64), (4, 128), (4, 256), (8, 128))
SIZES = (*FITTED, *PREDICTED)


def measured(layers: int, width: int, repeat: int) -> dict[str, float]:
    """In a process of its own: a step's seconds, counts, and the peak of memory."""
    from registered import memory_mb

    from fedbudget.bench import Step, copy_bytes, spread

    step = Step(layers, width)
    copied = copy_bytes()
    before = memory_mb("VmHWM")
    steps = max(2, round(1.5e10 / step.flops))
    step.run(2)
    paces = [step.pace(steps) for _ in range(repeat)]
    return {
        "step_s": spread([pace.step_s for pace in paces]).median,
        "product_s": spread([pace.flops / pace.peak for pace in paces]).median,
        "weights_s": 4 * step.layout.size / copied,
        "groups": step.layout.depth,
        "parameters": step.layout.size,
        "peak_mb": max(before, memory_mb("VmHWM")),
    }


def alone(layers: int, width: int, repeat: int) -> dict[str, float]:
    command = [sys.executable, __file__, str(layers), str(width), str(repeat)]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(ran.stdout)
    return found


def features(row: dict[str, float]) -> list[float]:
    return [row["product_s"], row["weights_s"], row["groups"]]


def fit(rows: list[dict[str, float]]) -> list[float]:
    """Least squares of the relative errors; no coefficient below 0."""
    from scipy.optimize import nnls

    inputs = np.array([[x / row["step_s"] for x in features(row)] for row in rows])
    return [float(x) for x in nnls(inputs, np.ones(len(rows)))[0]]


def fit_memory(rows: list[dict[str, float]]) -> list[float]:
    inputs = np.array([[1, 4e-6 * row["parameters"]] for row in rows])
    found, *_ = np.linalg.lstsq(inputs, np.array([row["peak_mb"] for row in rows]), rcond=None)
    return [float(x) for x in found]


def run(repeat: int, quick: bool = False) -> dict[str, Any]:
    sizes = SIZES[:3] if quick else SIZES
    rows = {f"{n}x{w}": alone(n, w, repeat) for n, w in sizes}
    known = [rows[f"{n}x{w}"] for n, w in sizes if (n, w) in FITTED]
    time, memory = fit(known), fit_memory(known)
    for row in rows.values():
        row["predicted_s"] = float(np.dot(time, features(row)))
        row["predicted_mb"] = memory[0] + memory[1] * 4e-6 * row["parameters"]
    return {"rows": rows, "time": time, "memory": memory}


def section(found: dict[str, Any]) -> list[str]:
    a, b, c = found["time"]
    fitted = {f"{n}x{w}" for n, w in FITTED}
    rows = [
        [
            name,
            "fitted" if name in fitted else "predicted",
            f"{row['parameters']:,}",
            f"{1e3 * row['step_s']:.1f}",
            f"{1e3 * row['predicted_s']:.1f} ({row['predicted_s'] / row['step_s'] - 1:+.0%})",
            f"{row['peak_mb']:.0f}",
            f"{row['predicted_mb']:.0f} ({row['predicted_mb'] / row['peak_mb'] - 1:+.0%})",
        ]
        for name, row in found["rows"].items()
    ]
    others = [row for name, row in found["rows"].items() if name not in fitted]
    worst = max((abs(r["predicted_s"] / r["step_s"] - 1) for r in others), default=0.0)
    return [
        f"A step of batch 16, context 128, on one core: {a:.2f} x its FLOPs at the rate of a product "
        f"+ {b:.1f} x its weights at the rate of a copy + {1e3 * c:.2f} ms x its layer groups; a "
        f"process: {found['memory'][0]:.0f} MB + {found['memory'][1]:.1f} x its weights. Fitted to half "
        f"of the models; the largest error of time on the others is {worst:.0%}.",
        "",
        *table(
            ["GPT", "", "parameters", "step ms", "model", "peak MB", "model"],
            rows,
        ),
    ]


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    print(json.dumps(measured(*map(int, sys.argv[1:4]))))
