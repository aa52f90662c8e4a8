"""What deciding costs a round: knobs for the cohort, and the update from its reports.

10,000 clients are registered; every report differs, so that no search is answered from a cache.
"""

import time
from collections.abc import Mapping
from typing import Any

import numpy as np
from measure import show, table

from fedbudget.bench import spread
from fedbudget.build import build
from fedbudget.config import find_config, load
from fedbudget.control.controller import Controller
from fedbudget.data.files import UnreachableError, find
from fedbudget.data.sources import SHAKESPEARE
from fedbudget.plan import Plan
from fedbudget.types import Knobs, Reply

CLIENTS, COHORT = 10_000, 100
UP, DOWN = 200_000, 1_700_000
"""bytes of a frame, about those of the preset"""
CONTROLLERS = ("planner", "cafl-l")


def made(preset: str) -> Plan:
    try:
        find(SHAKESPEARE)
        return build(load(find_config(preset), []))
    except UnreachableError:
        return build(load(find_config(preset), ["data.source=topics"]))


class Rounds:
    """Rounds of deciding alone; the clients' reports are the forecasts, off by up to a tenth."""

    def __init__(self, plan: Plan) -> None:
        self.controller: Controller = plan.controller
        self.meter = plan.meter_of(0)
        self.state = self.controller.init()
        self.rng = np.random.default_rng(0)
        self.number = 0

    def replies(self, knobs: Mapping[int, Knobs]) -> list[Reply]:
        assert self.meter is not None
        found = []
        for client, chosen in knobs.items():
            usage = {
                accounting: {r: a * self.rng.uniform(0.9, 1.1) for r, a in used.items()}
                for accounting, used in self.meter(chosen, UP, DOWN).items()
            }
            found.append(Reply(0, self.number, client, examples=1, usage=usage))
        return found

    def once(self, size: int) -> float:
        """CPU seconds of what `one_round` asks a controller for."""
        self.number += 1
        cohort = sorted(map(int, self.rng.choice(CLIENTS, size, replace=False)))
        started = time.process_time()
        knobs = {client: self.controller.knobs(self.state, client) for client in cohort}
        for client in cohort:
            self.controller.duals(self.state, client)
        asked = time.process_time() - started
        replies = self.replies(knobs)
        started = time.process_time()
        self.state = self.controller.update(self.state, replies)
        return asked + time.process_time() - started


def run(repeat: int, quick: bool = False) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for preset in CONTROLLERS:
        rounds = Rounds(made(preset))
        # everybody has reported before it counts, so that every client's search is another one
        all_of_them = [rounds.once(CLIENTS) for _ in range(4)]
        few = [rounds.once(COHORT) for _ in range(repeat)]
        found[preset] = {str(COHORT): few, str(CLIENTS): all_of_them[1:]}
    return found


def section(found: dict[str, Any]) -> list[str]:
    rows = [
        [preset, f"{int(size):,}", show(spread([1e3 * s for s in seconds]), ".1f")]
        for preset, sizes in found.items()
        for size, seconds in sizes.items()
    ]
    text = (
        f"The controller's part of a round with {CLIENTS:,} registered clients: knobs for the cohort and "
        "the update from its reports, which differ from client to client by up to a tenth."
    )
    return [text, "", *table(["controller", "cohort", "CPU ms a round (quartiles)"], rows)]
