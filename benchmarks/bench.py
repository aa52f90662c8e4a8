"""All benchmarks: fedbudget beside its peers and beside what the machine can do.

    python benchmarks/bench.py [NAME...] [--repeat N] [--resume] [--quick] [--results DIR] [--page FILE]
Each part writes DIR/NAME.json; the page is made anew from all of them. --resume leaves out parts whose
result is of today. `make bench` runs all, about 40 minutes on two idle cores.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import agents
import checkpoint
import coding
import compiling
import contests
import control
import page
import peak
import planning
import registered
import scaling
import start
import where

from fedbudget.bench import machine

DOCS = Path(__file__).resolve().parents[1] / "docs"


class Part(NamedTuple):
    heading: str
    run: Callable[[int, bool], dict[str, Any]]
    """(repetitions, whether to do little) -> result"""
    section: Callable[[dict[str, Any]], list[str]]
    repeat: int


def on_flower(repeat: int, quick: bool) -> dict[str, Any]:
    import flower  # it brings Ray

    return flower.run(repeat, quick)


def on_flower_section(found: dict[str, Any]) -> list[str]:
    import flower

    return flower.section(found)


def contest(matches: dict[str, contests.Match]) -> Callable[[int, bool], dict[str, Any]]:
    return partial(contests.several, matches)


PARTS = {
    "training": Part(
        "Training on both cores", contest(contests.TRAINING), contests.training_section, 4
    ),
    "peak": Part("Share of the core's own peak", peak.run, peak.section, 15),
    "small": Part(
        "Many small clients, one core", contest(contests.SMALL), contests.small_section, 9
    ),
    "cifar": Part(
        "pfl-research's CIFAR-10 benchmark", contests.images, contests.images_section, 20
    ),
    "nothing": Part(
        "A round without training", contest(contests.NOTHING), contests.nothing_section, 25
    ),
    "start": Part("Start to the first round", start.run, start.section, 5),
    "plan": Part("Planning", planning.run, planning.section, 9),
    "codecs": Part("Codecs", coding.run, coding.section, 40),
    "agents": Part("PC-FedAvg by the number of agents", agents.run, agents.section, 5),
    "registered": Part("Many registered clients", registered.run, registered.section, 5),
    "control": Part("Deciding", control.run, control.section, 9),
    "checkpoint": Part("A checkpoint", checkpoint.run, checkpoint.section, 5),
    "where": Part("Where the time goes", where.run, where.section, 3),
    "scaling": Part("The scaling model", scaling.run, scaling.section, 5),
    "compile": Part("torch.compile", compiling.run, compiling.section, 9),
    "flower": Part("On Flower", on_flower, on_flower_section, 30),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(PARTS))
    parser.add_argument("--repeat", type=int, help="repetitions; each part has its own default")
    parser.add_argument("--quick", action="store_true", help="little work: does everything run?")
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--results", type=Path, default=DOCS / "results/benchmarks")
    parser.add_argument("--page", type=Path, default=DOCS / "benchmarks.md")
    given = parser.parse_args()
    places = {*given.results.resolve().parents, *given.page.resolve().parents}
    if given.quick and DOCS in places:
        parser.error("--quick is no measurement: give --results and --page outside docs/")
    if wrong := [name for name in given.names if name not in PARTS]:
        parser.error(f"no part is named {wrong[0]}; there are {', '.join(PARTS)}")
    failed = []
    for name in given.names or PARTS:
        known = page.stored(given.results, name)
        if given.resume and known and known["date"] == time.strftime("%Y-%m-%d"):
            print(f"{name}: has a result of today", flush=True)
            continue
        if not one(name, given.repeat, given.quick, given.results):
            failed.append(name)
        headings = {n: (part.heading, part.section) for n, part in PARTS.items()}
        page.write(given.page, given.results, headings)
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


def one(name: str, repeat: int | None, quick: bool, results: Path) -> bool:
    """Run a part and store what it found; a part that fails does not stop the others."""
    part = PARTS[name]
    print(f"{name}: {part.heading}", flush=True)
    started = time.monotonic()
    facts = machine()
    try:
        found = part.run(repeat or (2 if quick else part.repeat), quick)
        lines = part.section(json.loads(json.dumps(found)))
    except Exception as error:
        print(f"{name}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        return False
    minutes = (time.monotonic() - started) / 60
    about = {"date": time.strftime("%Y-%m-%d"), "minutes": minutes, "machine": facts}
    page.store(results, name, about, found)
    print("\n".join([*lines, ""]), flush=True)
    return True


if __name__ == "__main__":
    main()
