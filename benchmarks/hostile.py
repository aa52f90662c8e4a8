"""One client in ten is hostile, or broken: what it does to the model, by kind.

Softmax regression on MNIST, 20 clients, all in every round, 40 rounds, 3 seeds. Each kind is run beside
the same run in which those two clients are silent.
    python benchmarks/hostile.py [--out docs/results/hostile.md]
"""

import argparse
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

import torch

from fedbudget import rounds
from fedbudget.build import build
from fedbudget.codecs import frame
from fedbudget.codecs.frame import Packed
from fedbudget.config import validate
from fedbudget.engines.embedded import InProcess
from fedbudget.plan import Plan
from fedbudget.types import Job, Reply

Attack = Callable[[Job, Reply, torch.Tensor, "dict[int, Packed]"], Reply]
"""(job, honest reply, its update, the client's earlier frames) -> what it sends instead"""


def _body(reply: Reply, vector: torch.Tensor) -> Reply:
    """The same frame with other numbers in it."""
    assert reply.payload is not None
    body = vector.float().contiguous().numpy().tobytes()
    return replace(reply, payload=replace(reply.payload, bodies=(body,)))


def _header(reply: Reply, **fields: object) -> Reply:
    assert reply.payload is not None
    header = reply.payload.header._replace(**fields)
    return replace(reply, payload=replace(reply.payload, header=header))


def _usage(reply: Reply, amount: float) -> Reply:
    return replace(reply, usage={"counted": {"energy": amount, "communication": amount}})


def _earlier(job: Job, reply: Reply, update: torch.Tensor, old: dict[int, Packed]) -> Reply:
    assert reply.payload is not None
    old.setdefault(job.client, reply.payload)
    return reply if job.round == 1 else replace(reply, payload=old[job.client])


ATTACKS: Mapping[str, Attack] = {
    "not a number": lambda j, r, u, o: _body(r, torch.full_like(u, torch.nan)),
    "infinite": lambda j, r, u, o: _body(r, torch.full_like(u, torch.inf)),
    "wrong shape": lambda j, r, u, o: _header(_body(r, u[:10]), size=10),
    "one number for all (broadcastable)": lambda j, r, u, o: _header(_body(r, u[:1]), size=1),
    "wrong dtype (double)": lambda j, r, u, o: replace(
        r, payload=replace(r.payload, bodies=(u.double().numpy().tobytes(),))
    ),
    "another model": lambda j, r, u, o: _header(r, digest=b"another!"),
    "no examples": lambda j, r, u, o: replace(r, examples=0),
    "-5 examples": lambda j, r, u, o: replace(r, examples=-5),
    "10^12 examples": lambda j, r, u, o: replace(_body(r, -u), examples=10**12),
    "100 times the bytes": lambda j, r, u, o: replace(
        r, payload=replace(r.payload, bodies=(bytes(400 * len(u)),))
    ),
    "declares 2^40 numbers": lambda j, r, u, o: _header(r, size=2**40),
    "text for a frame": lambda j, r, u, o: replace(
        r, payload=replace(r.payload, bodies=(b"lorem ipsum " * 9,))
    ),
    "1000 times too large": lambda j, r, u, o: _body(r, 1000 * u),
    "turned round and 1000 times too large": lambda j, r, u, o: _body(r, -1000 * u),
    "the frame of an earlier round": _earlier,
    "another client's name": lambda j, r, u, o: _header(r, client=j.client - 1),
    "a usage of -1": lambda j, r, u, o: _usage(r, -1.0),
    "a usage of 0": lambda j, r, u, o: _usage(r, 0.0),
}
TURNED: Attack = lambda j, r, u, o: _body(r, -5 * u)  # noqa: E731
"""within the norms, so only a robust mean can stand it"""


@dataclass
class Hostile:
    """The embedded engine, with some clients that send something else, or nothing."""

    inner: InProcess
    clients: Sequence[int]
    attack: Attack | None

    def __post_init__(self) -> None:
        self.old: dict[int, Packed] = {}
        self.layout = self.inner.host.model.layout

    def run(self, jobs: Sequence[Job]) -> Iterator[Reply]:
        for job, reply in zip(jobs, self.inner.run(jobs), strict=True):
            if job.client not in self.clients:
                yield reply
            elif self.attack is None:
                yield Reply.failure(job, "silent")
            else:
                update = frame.unpack(reply.payload, self.layout)[0]
                yield self.attack(job, reply, update, self.old)

    def __getattr__(self, name: str) -> object:
        return getattr(self.inner, name)


def outcome(
    plan: Plan, clients: Sequence[int], attack: Attack | None
) -> tuple[float, Counter[str], int]:
    """Final validation loss, the reasons of drops, and how many reports were flagged."""
    engine = Hostile(InProcess(plan), clients, attack)
    layout = engine.layout
    why: Counter[str] = Counter()
    losses, flagged = [], 0
    for record, _ in rounds.run(plan, engine, layout, rounds.first_state(plan)):  # type: ignore[arg-type]
        why.update(record.dropped.values())
        flagged += len(record.flagged)
        if record.validation is not None:
            losses.append(record.validation["loss"])
    return fmean(losses[-5:]), why, flagged


def mnist(seed: int, **train: object) -> Plan:
    tables = {
        "name": "hostile",
        "rounds": 40,
        "seed": seed,
        "data": {"source": "mnist", "clients": 20, "partition": "iid"},
        "model": {"kind": "softmax"},
        "train": {
            "cohort": 20,
            "steps": 5,
            "batch": 32,
            "optimizer": "sgd",
            "lr": 0.1,
            "evaluate_every": 1,
            **train,
        },
    }
    return replace(build(validate(tables, "hostile")), evaluate_every=8)


def row(kind: str, attack: Attack, seeds: int, **train: object) -> str:
    worse, reasons, dropped, flags = [], Counter(), 0, 0
    for seed in range(seeds):
        plan = mnist(seed, **train)
        without, _, _ = outcome(plan, (3, 11), None)
        loss, why, flagged = outcome(plan, (3, 11), attack)
        worse.append(100 * (loss / without - 1))
        reasons.update(why)
        dropped += sum(why.values())
        flags += flagged
    common = reasons.most_common(1)[0][0] if reasons else ""
    cells = (
        f"{fmean(worse):+.2f}% ({min(worse):+.2f} to {max(worse):+.2f})",
        dropped,
        flags,
        common,
    )
    return f"| {kind} | " + " | ".join(map(str, cells)) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    given = parser.parse_args()
    torch.set_num_threads(1)
    head = ["| kind | loss against silence (range) | dropped | flagged | the most common reason |"]
    lines = [
        "# One client in ten is hostile",
        "",
        "    python benchmarks/hostile.py --out docs/results/hostile.md",
        "",
    ]
    lines += [
        "Softmax regression on MNIST, 20 clients, all in every round, 40 rounds, 3 seeds. Each kind is "
        "run beside the same run in which those two clients are silent. The bar is 2%.",
        "",
        *head,
        "|---" * 5 + "|",
    ]
    for kind, attack in ATTACKS.items():
        weights = {"weighting": "examples"} if "10^12" in kind else {}
        lines.append(row(kind, attack, given.seeds, **weights))
        print(lines[-1], flush=True)
    lines += [
        "",
        "An update that is turned round and five times as large stays within the norms that "
        "screening allows (ten times the median). A mean takes it; robust means do not.",
        "",
        *head,
        "|---" * 5 + "|",
    ]
    for how in ("mean", "trimmed", "median"):
        lines.append(row(f"turned round, `{how}`", TURNED, given.seeds, aggregate=how))
        print(lines[-1], flush=True)
    lines.append(
        row(
            "1000 times too large, `clip`",
            ATTACKS["1000 times too large"],
            given.seeds,
            screen="clip",
        )
    )
    lines.append(
        row(
            "1000 times too large, `off`",
            ATTACKS["1000 times too large"],
            given.seeds,
            screen="off",
        )
    )
    print("\n".join(lines[-2:]), flush=True)
    if given.out is not None:
        given.out.write_text("\n".join(lines) + "\n")
        print(f"wrote {given.out}")


if __name__ == "__main__":
    main()
