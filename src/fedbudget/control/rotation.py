"""Rotation (FedPart, Wang et al. 2024): all layers for some rounds, then one group after another.

Groups take their turns from the bottom up; then it begins again. Each turn has a controller of its
own, so a planner can use all of a budget for the one group that trains.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from fedbudget.control.controller import Controller, ControlState
from fedbudget.types import Knobs, Reply


@dataclass(frozen=True)
class Cycle:
    """How long each part of a model trains."""

    whole: int = 5
    """rounds with all layers, before each cycle"""
    each: int = 2
    """rounds of each layer group"""

    def turn(self, round: int, groups: int) -> int:
        """Whose turn it is in a round, counting from 0: 0 for all layers, i for the ith group.

        >>> [Cycle(2, 1).turn(round, 3) for round in range(7)]
        [0, 0, 1, 2, 3, 0, 0]
        """
        at = round % (self.whole + self.each * groups)
        return 0 if at < self.whole else 1 + (at - self.whole) // self.each


def rotation(whole: Controller, groups: Sequence[Controller], cycle: Cycle) -> Controller:
    """`groups` has a controller for each layer group alone, bottom up."""
    turns = (whole, *groups)
    return Controller(
        partial(_init, turns), partial(_knobs, turns, cycle), partial(_update, turns, cycle)
    )


def _init(turns: Sequence[Controller]) -> ControlState:
    return {"round": 0, "turns": [turn.init() for turn in turns]}


def _knobs(turns: Sequence[Controller], cycle: Cycle, state: ControlState, client: int) -> Knobs:
    now = cycle.turn(state["round"], len(turns) - 1)
    return turns[now].knobs(state["turns"][now], client)


def _update(
    turns: Sequence[Controller], cycle: Cycle, state: ControlState, replies: Sequence[Reply]
) -> ControlState:
    now = cycle.turn(state["round"], len(turns) - 1)
    states = list(state["turns"])
    states[now] = turns[now].update(states[now], replies)
    return {"round": state["round"] + 1, "turns": states}
