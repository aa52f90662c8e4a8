"""A local step's share of what the core can do: its FLOPs over its time over the rate of a product."""

from typing import Any

from measure import in_turn, show, table

from fedbudget.bench import Pace, Step, spread

SIZES = {"W1, GPT 2x128": (2, 128, 10), "W2, GPT 6x256": (6, 256, 2)}
"""layers, width, steps of a repetition"""


def run(repeat: int, quick: bool = False) -> dict[str, Any]:
    paces: dict[str, list[Pace]] = {name: [] for name in SIZES}
    steps = {name: Step(layers, width) for name, (layers, width, _) in SIZES.items()}

    def once(name: str) -> float:
        paces[name].append(steps[name].pace(SIZES[name][2]))
        return paces[name][-1].share

    for step in steps.values():
        step.run(1)
    shares = in_turn({name: lambda name=name: once(name) for name in SIZES}, repeat)
    return {
        name: {
            "share": shares[name],
            "step_s": [pace.step_s for pace in found],
            "gflop": found[0].flops / 1e9,
            "gemm_gflops": [pace.peak / 1e9 for pace in found],
        }
        for name, found in paces.items()
    }


def section(found: dict[str, Any]) -> list[str]:
    rows = [
        [
            name,
            f"{1e3 * spread(one['step_s']).median:.1f}",
            f"{one['gflop']:.1f}",
            f"{spread(one['gemm_gflops']).median:.0f}",
            show(spread([100 * s for s in one["share"]]), ".0f"),
        ]
        for name, one in found.items()
    ]
    text = (
        "A local step of batch 16 as `train_client` takes it, one thread: the FLOPs of its products "
        "(`fedbudget.resources.counted`) over its time, over the rate of a 1,024 x 1,024 float32 product "
        "measured right before and right after."
    )
    return [text, "", *table(["", "ms a step", "GFLOP", "product GFLOP/s", "share, %"], rows)]
