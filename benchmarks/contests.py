"""Rounds of fedbudget beside the same rounds of its peers: same model, data, optimiser and steps.

Every contestant is a process of its own (`contest/`) that has done one round before it counts. They
take turns; a ratio is of two rounds of the same repetition. After the last repetition the weights
that each has come to are compared with the plain loop's.
"""

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import plans
import torch
from contestants import FLOWER, OURS, PFL, PLAIN, Contest, Entry, not_measured
from measure import ratio, show, table
from workload import Workload, loss_of

from fedbudget.bench import spread

TOLERANCE = 1e-2
"""relative difference of two rounds' updates up to which they are the same work"""


def two(entry: Entry, name: str, option: str = "--processes") -> Entry:
    return replace(entry, name=name, arguments=(option, "2"))


BOTH_CORES = (
    two(OURS, "fedbudget, 2 workers", "--workers"),
    PLAIN,
    replace(PLAIN, name="plain loop, 2 threads", arguments=("--threads", "2"), threads=2),
    two(PLAIN, "plain loop, 2 processes"),
    two(PFL, "pfl-research, 2 processes"),
    two(FLOWER, "Flower, 2 processes"),
)
ONE_CORE = tuple(replace(e, one_core=True) for e in (OURS, PLAIN, PFL, FLOWER))
ALONE = (OURS, PLAIN, PFL, two(FLOWER, "Flower, 2 processes"))
IMAGES = (BOTH_CORES[0], BOTH_CORES[4], PFL)


@dataclass(frozen=True)
class Match:
    """One workload and who takes part."""

    settings: dict[str, Any]
    entries: tuple[Entry, ...]
    reference: str = "plain loop"
    """whose result the others' are compared with"""

    @property
    def ours(self) -> str:
        return self.entries[0].name


TRAINING = {
    "W1, GPT 2x128": Match(plans.gpt(2, 128, steps=60), BOTH_CORES),
    "W2, GPT 6x256": Match(plans.gpt(6, 256, steps=4), BOTH_CORES),
}
SMALL = {
    "W3, 60 images a client": Match(plans.softmax(own=60), ONE_CORE),
    "W3, 600 images a client": Match(plans.softmax(own=600), ONE_CORE),
}
NOTHING = {
    "W3, softmax regression": Match(plans.softmax(own=60, cohort=6, steps=0), ALONE),
    "GPT 2x128": Match(plans.gpt(2, 128, steps=0), ALONE),
    "GPT 6x256": Match(plans.gpt(6, 256, steps=0), ALONE),
}
PFL_CHECK = Match(plans.cifar(1, cohort=4, dropout=False), IMAGES, reference=IMAGES[0].name)


def play(match: Match, repeat: int) -> dict[str, Any]:
    """Seconds of every round, and how far the results are apart."""
    with TemporaryDirectory(prefix="fedbudget-bench-") as place:
        workload = Path(place)
        plans.write(match.settings, workload)
        with Contest(match.entries, workload) as contest:
            seconds = contest.run(repeat)
            same = contest.agreement(match.reference) if match.reference in seconds else {}
            versions = {name: one.facts["version"] for name, one in contest.running.items()}
    for name, why in contest.absent.items():
        print(f"{name}: {why}", flush=True)
    if wrong := {name: off for name, off in same.items() if off > TOLERANCE}:
        print(f"other results than the {match.reference}'s: {wrong}", flush=True)
    return {
        "settings": match.settings,
        "ours": match.ours,
        "seconds": seconds,
        "ratios": ratios(seconds, match.ours),
        "apart": same,
        "reference": match.reference,
        "absent": contest.absent,
        "versions": versions,
    }


def ratios(seconds: dict[str, list[float]], ours: str) -> dict[str, tuple[float, float, float]]:
    """Each one's time over ours."""
    if ours not in seconds:
        return {}
    return {name: tuple(ratio(found, seconds[ours])) for name, found in seconds.items()}


def difference(off: float | None) -> str:
    return "" if off is None else f"{off:.0e}" if off else "0"


def rows(found: dict[str, Any], unit: str = "s") -> list[str]:
    """The table of a match."""
    times, digits = (1e3, ".1f") if unit == "ms" else (1.0, ".2f")
    lines = []
    for name, seconds in found["seconds"].items():
        against = show(ratio(seconds, found["seconds"][found["ours"]]))
        off = difference(found["apart"].get(name))
        lines.append([name, f"{times * spread(seconds).median:{digits}}", against, off])
    lines += [[name, not_measured(why), "", ""] for name, why in found["absent"].items()]
    return table(["", f"{unit} a round", "time, to ours", "result, relative difference"], lines)


def several(matches: dict[str, Match], repeat: int, quick: bool = False) -> dict[str, Any]:
    """All of them; `quick` does little work, to see that everybody takes part."""
    if quick:
        matches = {title: replace(match, settings=less(match)) for title, match in matches.items()}
    found = {}
    for title, match in matches.items():
        print(f"{title}: {repeat} repetitions of {len(match.entries)} contestants", flush=True)
        found[title] = play(match, repeat)
    return found


def less(match: Match) -> dict[str, Any]:
    known = match.settings
    return {**known, "steps": min(2, known["steps"]), "cohort": min(12, known["cohort"])}


def sections(unit: str, text: str, found: dict[str, Any]) -> list[str]:
    lines = [text]
    for title, one in found.items():
        count, steps = len(one["seconds"].get(one["ours"], ())), one["settings"]["steps"]
        lines += ["", f"{title}, {steps} steps, {count} repetitions:", "", *rows(one, unit)]
    return lines


def images(repeat: int, quick: bool = False) -> dict[str, Any]:
    """pfl's CIFAR-10 benchmark: one round compared exactly, then iterations timed."""
    rounds = max(2, repeat)
    settings = plans.cifar(rounds, cohort=4 if quick else 50)
    match = Match(settings, IMAGES, reference=IMAGES[0].name)
    checked = play(PFL_CHECK, 1)
    with TemporaryDirectory(prefix="fedbudget-bench-") as place:
        workload = Path(place)
        plans.write(match.settings, workload)
        with Contest(match.entries, workload) as contest:
            seconds = contest.run(rounds)
            ends = {n: one.weights(workload) for n, one in contest.running.items()}
            versions = {name: one.facts["version"] for name, one in contest.running.items()}
        losses = {name: test_loss(Workload(workload), weights) for name, weights in ends.items()}
    return {
        "settings": match.settings,
        "ours": match.ours,
        "seconds": seconds,
        "total": {name: sum(found) for name, found in seconds.items()},
        "ratios": ratios(seconds, match.ours),
        "apart": checked["apart"],
        "losses": losses,
        "absent": contest.absent,
        "versions": versions,
    }


def test_loss(load: Workload, weights: dict[str, np.ndarray]) -> float:
    """Of the test images, by the weights that a contestant ended with."""
    model = load.model()
    model.load_state_dict({name: torch.from_numpy(value) for name, value in weights.items()})
    model.eval()
    valid = load.validation()
    assert valid is not None
    with torch.no_grad():
        parts = zip(valid[0].split(1000), valid[1].split(1000), strict=True)
        return float(np.mean([loss_of(model, x, y).item() for x, y in parts]))


def images_section(found: dict[str, Any]) -> list[str]:
    ours = found["seconds"][found["ours"]]
    lines = []
    for name, seconds in found["seconds"].items():
        whole = found["total"][name]
        lines.append(
            [
                name,
                f"{whole:.1f}",
                f"{whole / found['total'][found['ours']]:.2f}",
                show(ratio(seconds, ours)),
                f"{found['losses'][name]:.3f}",
                difference(found["apart"].get(name)),
            ]
        )
    lines += [[name, not_measured(why), *[""] * 4] for name, why in found["absent"].items()]
    count = len(ours)
    head = [
        "",
        f"s, {count} iterations",
        "to ours",
        "an iteration, to ours",
        "test loss",
        "a round",
    ]
    return [CIFAR_TEXT, "", *table(head, lines)]


TRAINING_TEXT = (
    "A round of six of 16 clients, batch 16, sequence 128, AdamW, Tiny Shakespeare. All start from the "
    "same weights and train on the same batches; the peers have theirs ready in memory. The plain loop "
    "uses `scaled_dot_product_attention`, fused AdamW and `copy_`; Flower has a node for each of the "
    "six. W2 takes 4 steps in place of 60 so that a round takes seconds, the same for all."
)
SMALL_TEXT = (
    "W3: softmax regression 784 x 10 on MNIST, 100 of 1,000 clients, 20 local steps of batch 64, SGD. "
    "Everyone is held to one core, child processes too. The peers have their batches ready as floats; "
    "ours (the batched engine) reads bytes, encodes, checks and averages every update."
)
NOTHING_TEXT = (
    "A round of six clients that train nothing: the model goes out, comes back and is averaged. Ours "
    "frames each update, checks it for what hostile clients send, meters each client and makes a record. "
    "With the larger models it is memory that limits: a round of GPT 6x256 sends 12 x 19 MB, and a copy "
    "takes what the codecs' table says."
)
CIFAR_TEXT = (
    "pfl-research's own CIFAR-10 benchmark (IID, no noise) with the settings its repository gives: 1,000 "
    "users x 50 images, cohort 50, one epoch of batch 10, SGD 0.1, its small CNN with dropout, "
    "evaluation on 10,000 images every 10 iterations. Last column: the relative difference "
    "of one round's update, dropout off, to ours; with dropout on the test losses can be compared."
)
training_section = partial(sections, "s", TRAINING_TEXT)
small_section = partial(sections, "ms", SMALL_TEXT)
nothing_section = partial(sections, "ms", NOTHING_TEXT)
