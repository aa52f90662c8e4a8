"""Every codec on a client's update: size, error, and time beside a copy and beside the training.

The update is that of one local run of the `fedavg` preset: GPT 2x128, 60 steps of batch 16. One
thread. Each repetition makes a copy, trains 6 steps (a tenth of a local run) and then encodes and
decodes with every codec, so that other work on the machine falls on all alike. GB/s counts the
float32 bytes of the vector.
    python benchmarks/bench.py codecs    # the times, into docs/benchmarks.md
    python benchmarks/coding.py          # errors and bias, for docs/wire-format.md
The bias is the squared error of the mean of 200 decodings over 1/200 of one's.
"""

import statistics
import time
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import torch
from measure import show, table
from torch import Tensor

from fedbudget import codecs, seeds
from fedbudget.bench import spread
from fedbudget.build import build
from fedbudget.codecs import frame
from fedbudget.config import find_config, load
from fedbudget.engines.embedded import InProcess
from fedbudget.models.flat import Layout
from fedbudget.rounds import first_state
from fedbudget.types import Job, Knobs

T = TypeVar("T")
NAMES = [name for name in codecs.CODECS if name != "nothing"]
NAMES += ["topk60%", "topk60%+int8", "topk60%+eden2", "topk10%+eden2", "topk1%+sign"]
STEPS, TENTH = 60, 6
BAR = 0.03  # of a local run's time
LARGE = 4_805_120
"""numbers of GPT 6x256"""
ERROR_COUNT = 2**17
DECODINGS = 200


def timed(work: Callable[..., T], *arguments: object) -> tuple[float, T]:
    """CPU time: what else the machine does meanwhile counts less."""
    started = time.process_time()
    result = work(*arguments)
    return time.process_time() - started, result


def decoded(name: str, x: Tensor, seed: int = 0) -> Tensor:
    codec = codecs.named(name)
    return codec.decode(memoryview(codec.encode(x, seed)), len(x), seed).double()


def nmse(y: Tensor, x: Tensor) -> float:
    return float((y - x).square().sum() / x.double().square().sum())


def bias_ratio(name: str, x: Tensor) -> float:
    """1 for an unbiased codec, up to DECODINGS for one that errs the same way every time."""
    total, one = torch.zeros(len(x), dtype=torch.float64), 0.0
    for seed in range(DECODINGS):
        y = decoded(name, x, seed)
        total += y
        one += nmse(y, x) / DECODINGS
    return DECODINGS * nmse(total / DECODINGS, x) / one


class Client:
    """Client 0 of the `fedavg` preset, ready to train from the initial weights."""

    def __init__(self) -> None:
        self.plan = build(load(find_config("fedavg")))
        self.engine = InProcess(self.plan)
        self.layout = self.engine.host.model.layout
        about = {"run": self.plan.run, "round": 1, "client": seeds.SERVER, "seed": 0}
        weights = first_state(self.plan).weights
        self.payload = frame.pack([weights], self.layout, **about, codec=self.layout.raw)

    def update(self, steps: int) -> Tensor:
        knobs = Knobs(self.layout.depth, steps, batch=16, codec=self.layout.raw)
        job = Job(self.plan.run, 1, 0, 0, knobs, self.plan.lr, self.payload)
        (reply,) = self.engine.run([job])
        assert reply.payload is not None, reply.error
        return frame.unpack(reply.payload, self.layout)[0]


def times(client: Client, x: Tensor, repeat: int) -> dict[str, list[float]]:
    """Seconds of each repetition, of "copy", "train", "encode NAME" and "decode NAME"."""
    found: dict[str, list[float]] = {}
    target = torch.empty_like(x)
    for i in range(repeat + 2):
        row = {"copy": timed(target.copy_, x)[0], "train": timed(client.update, TENTH)[0]}
        for name in NAMES:
            codec = codecs.named(name)
            row[f"encode {name}"], body = timed(codec.encode, x, i)
            view = memoryview(bytearray(body))
            row[f"decode {name}"], _ = timed(codec.decode, view, len(x), i)
        if i >= 2:  # the first ones fill caches and tables
            for key, seconds in row.items():
                found.setdefault(key, []).append(seconds)
    return found


def large_times(repeat: int) -> dict[str, list[float]]:
    """Seconds of "encode NAME" and "decode NAME" for a long vector, by turns."""
    rng = seeds.rng(0, 0, 0, "benchmark")
    x = torch.from_numpy(rng.standard_normal(LARGE, dtype=np.float32))
    found: dict[str, list[float]] = {}
    for i in range(repeat):
        for name in NAMES:
            codec = codecs.named(name)
            there, body = timed(codec.encode, x, i)
            back, _ = timed(codec.decode, memoryview(bytearray(body)), len(x), i)
            found.setdefault(f"encode {name}", []).append(there)
            found.setdefault(f"decode {name}", []).append(back)
    return found


def run(repeat: int, quick: bool = False) -> dict[str, Any]:
    torch.set_num_threads(1)
    client = Client()
    x = client.update(STEPS)
    large = large_times(max(2, repeat // 4))
    return {"numbers": len(x), "seconds": times(client, x, repeat), "large": large}


def section(found: dict[str, Any]) -> list[str]:
    seconds, numbers = found["seconds"], found["numbers"]
    median = {key: statistics.median(values) for key, values in seconds.items()}
    gigabytes = 4e-9 * numbers
    large = {key: 4e-9 * LARGE / statistics.median(s) for key, s in found["large"].items()}
    rows = []
    for name in NAMES:
        pairs = zip(seconds[f"encode {name}"], seconds[f"decode {name}"], strict=True)
        both = [a + b for a, b in pairs]
        shares = [100 * s * TENTH / STEPS / t for s, t in zip(both, seconds["train"], strict=True)]
        rows.append(
            [
                f"`{name}`",
                f"{gigabytes / median[f'encode {name}']:.2f}",
                f"{gigabytes / median[f'decode {name}']:.2f}",
                f"{large[f'encode {name}']:.2f}",
                f"{large[f'decode {name}']:.2f}",
                f"{statistics.median(both) / median['copy']:.1f}",
                show(spread(shares), ".2g"),
            ]
        )
    text = (
        f"The update of one local run of the `fedavg` preset (GPT 2x128, {numbers:,} numbers, {STEPS} "
        f"steps of batch 16), encoded and decoded. Each of {len(seconds['copy'])} repetitions makes a "
        f"copy, trains {TENTH} steps, which times {STEPS // TENTH} count as a local run, and then tries "
        "every codec, one thread; rates are medians of float32 bytes, the last column is the median and "
        f"the quartiles of the ratios within a repetition. The bar is {BAR:.0%}. The long vector has "
        f"{LARGE:,} random numbers, as many as GPT 6x256."
    )
    head = ["codec", "encode GB/s", "decode GB/s", "encode, long", "decode, long"]
    head += ["both, in copies", "both, % of a local run"]
    local_s = median["train"] * STEPS / TENTH
    after = f"A copy: {gigabytes / median['copy']:.1f} GB/s. A local run: {local_s:.1f} s."
    return [text, "", *table(head, rows), "", after]


def error_table(x: Tensor) -> list[str]:
    rng = seeds.rng(0, 0, 0, "benchmark")
    gaussian = torch.from_numpy(rng.standard_normal(ERROR_COUNT, dtype=np.float32))
    tailed = torch.from_numpy(rng.standard_t(3, ERROR_COUNT).astype(np.float32))
    layout = Layout(("x",), ((len(x),),), (0,))
    lines = [
        "| codec | bits a number | NMSE, Gaussian | NMSE, Student t (3) | NMSE, update |",
        "|---|---|---|---|---|",
    ]
    for name in NAMES:
        size = len(frame.pack([x], layout, run=0, round=0, client=0, seed=0, codec=name))
        errors = (f"{nmse(decoded(name, v), v):.2g}" for v in (gaussian, tailed, x))
        lines.append(f"| `{name}` | {8 * size / len(x):.3f} | {' | '.join(errors)} |")
    return lines


def bias_table(update: Tensor) -> list[str]:
    rng = seeds.rng(0, 0, 0, "bias")
    spike = torch.zeros(3000)
    spike[3] = 1
    vectors = {
        "Gaussian, 131072": torch.from_numpy(rng.standard_normal(ERROR_COUNT, dtype=np.float32)),
        "t (3), 131072": torch.from_numpy(rng.standard_t(3, ERROR_COUNT).astype(np.float32)),
        "update, 429824": update,
        "Gaussian, 16384": torch.from_numpy(rng.standard_normal(2**14, dtype=np.float32)),
        "Gaussian, 3000": torch.from_numpy(rng.standard_normal(3000, dtype=np.float32)),
        "Gaussian, 7": torch.from_numpy(rng.standard_normal(7, dtype=np.float32)),
        "t (2.5), 16384": torch.from_numpy(rng.standard_t(2.5, 2**14).astype(np.float32)),
        "t (2.5), 7": torch.from_numpy(rng.standard_t(2.5, 7).astype(np.float32)),
        "one spike, 3000": spike,
    }
    lines = ["| codec | " + " | ".join(vectors) + " |", "|---" * (1 + len(vectors)) + "|"]
    for name in ("int8", "qsgd2", "eden4", "eden3", "eden2", "eden1.6", "eden1"):
        exact = {k: torch.equal(decoded(name, x), x.double()) for k, x in vectors.items()}
        cells = ("exact" if exact[k] else f"{bias_ratio(name, x):.2f}" for k, x in vectors.items())
        lines.append(f"| `{name}` | " + " | ".join(cells) + " |")
    return lines


def main() -> None:
    torch.set_num_threads(1)
    x = Client().update(STEPS)
    print("\n".join([*error_table(x), "", *bias_table(x)]))


if __name__ == "__main__":
    main()
