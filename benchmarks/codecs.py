"""Every codec on one vector: its size, its error, and its speed beside a plain copy.

One thread; each repetition runs the copy and then every codec, and the figures are medians, so
that other work on the machine falls on all alike. GB/s counts the float32 bytes of the vector.
    python benchmarks/codecs.py [--out FILE] [--count 429824] [--repeat 15]
A second table shows bias: the squared error of the mean of 200 decodings over 1/200 of one's.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from fedbudget import codecs, seeds
from fedbudget.codecs import frame
from fedbudget.models.flat import Layout

T = TypeVar("T")
ERROR_COUNT = 2**17
DECODINGS = 200


def timed(work: Callable[..., T], *arguments: object) -> tuple[float, T]:
    started = time.perf_counter()
    result = work(*arguments)
    return time.perf_counter() - started, result


def decoded(name: str, x: Tensor, seed: int = 0) -> Tensor:
    codec = codecs.named(name)
    return codec.decode(memoryview(codec.encode(x, seed)), len(x), seed).double()


def nmse(y: Tensor, x: Tensor) -> float:
    return float((y - x).square().sum() / x.double().square().sum())


def bias_ratio(name: str, x: Tensor) -> float:
    """1 for an unbiased codec, up to DECODINGS for one that errs the same way every time."""
    many = torch.stack([decoded(name, x, seed) for seed in range(DECODINGS)])
    one = statistics.fmean(nmse(y, x) for y in many)
    return DECODINGS * nmse(many.mean(0), x) / one


def speeds(names: list[str], x: Tensor, repeat: int) -> tuple[float, dict[str, list[float]]]:
    """Seconds of a copy; seconds to encode and to decode, by codec."""
    copies: list[float] = []
    times: dict[str, list[list[float]]] = {name: [[], []] for name in names}
    target = torch.empty_like(x)
    for i in range(repeat + 2):
        row = [timed(target.copy_, x)[0]]
        for name in names:
            codec = codecs.named(name)
            encode_s, body = timed(codec.encode, x, i)
            view = memoryview(bytearray(body))
            decode_s, _ = timed(codec.decode, view, len(x), i)
            row += [encode_s, decode_s]
        if i >= 2:  # the first ones fill caches and tables
            copies.append(row[0])
            for k, name in enumerate(names):
                times[name][0].append(row[1 + 2 * k])
                times[name][1].append(row[2 + 2 * k])
    return statistics.median(copies), {n: [*map(statistics.median, t)] for n, t in times.items()}


def table(count: int, repeat: int) -> list[str]:
    torch.set_num_threads(1)
    rng = seeds.rng(0, 0, 0, "benchmark")
    x = torch.from_numpy(rng.standard_normal(count, dtype=np.float32))
    gaussian = torch.from_numpy(rng.standard_normal(ERROR_COUNT, dtype=np.float32))
    tailed = torch.from_numpy(rng.standard_t(3, ERROR_COUNT).astype(np.float32))
    layout = Layout(("x",), ((count,),), (0,))
    names = list(codecs.CODECS)
    copy_s, times = speeds(names, x, repeat)
    rate = 4e-9 * count
    lines = [
        "| codec | bits a number | NMSE, Gaussian | NMSE, Student t (3) | encode GB/s | decode GB/s "
        "| encode and decode, copies |",
        "|---|---|---|---|---|---|---|",
    ]
    for name in names:
        size = len(frame.pack([x], layout, run=0, round=0, client=0, seed=0, codec=name))
        encode_s, decode_s = times[name]
        plain, heavy = (nmse(decoded(name, v), v) for v in (gaussian, tailed))
        lines.append(
            f"| `{name}` | {8 * size / count:.3f} | {plain:.2g} | "
            f"{heavy:.2g} | {rate / encode_s:.2f} | {rate / decode_s:.2f} | "
            f"{(encode_s + decode_s) / copy_s:.1f} |"
        )
    lines += [
        "",
        f"{count:,} numbers in a frame; NMSE over {ERROR_COUNT:,}. "
        f"A copy: {rate / copy_s:.1f} GB/s. Medians of {repeat}.",
    ]
    return lines


def bias_table() -> list[str]:
    torch.set_num_threads(1)
    rng = seeds.rng(0, 0, 0, "bias")
    spike = torch.zeros(3000)
    spike[3] = 1
    vectors = {
        "Gaussian, 16384": torch.from_numpy(rng.standard_normal(2**14, dtype=np.float32)),
        "Gaussian, 3000": torch.from_numpy(rng.standard_normal(3000, dtype=np.float32)),
        "Gaussian, 7": torch.from_numpy(rng.standard_normal(7, dtype=np.float32)),
        "t (2.5), 16384": torch.from_numpy(rng.standard_t(2.5, 2**14).astype(np.float32)),
        "t (2.5), 7": torch.from_numpy(rng.standard_t(2.5, 7).astype(np.float32)),
        "one spike, 3000": spike,
    }
    lines = ["| codec | " + " | ".join(vectors) + " |", "|---" * (1 + len(vectors)) + "|"]
    for name in ("int8", "qsgd2", "eden4", "eden2", "eden1.6", "eden1"):
        exact = {k: torch.equal(decoded(name, x), x.double()) for k, x in vectors.items()}
        cells = ("exact" if exact[k] else f"{bias_ratio(name, x):.2f}" for k, x in vectors.items())
        lines.append(f"| `{name}` | " + " | ".join(cells) + " |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--count", type=int, default=429_824)
    parser.add_argument("--repeat", type=int, default=15)
    arguments = parser.parse_args()
    text = "\n".join([*table(arguments.count, arguments.repeat), "", *bias_table()]) + "\n"
    print(text, end="")
    if arguments.out is not None:
        arguments.out.write_text(text)


if __name__ == "__main__":
    main()
