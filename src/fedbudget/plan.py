"""Plan: everything a run needs, as objects. Configs and the Python API both end here."""

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import nn

from fedbudget import seeds
from fedbudget.aggregation import Screening
from fedbudget.algorithms.algorithm import Algorithm
from fedbudget.client import Meter, Recipe
from fedbudget.constraints import ConstraintSet
from fedbudget.control.controller import Controller, fixed
from fedbudget.control.stepsize import StepRule
from fedbudget.data.examples import Examples
from fedbudget.models.flat import FlatModel
from fedbudget.resources.budget import of_client
from fedbudget.selection import Selection, uniform
from fedbudget.task import Task
from fedbudget.types import Knobs
from fedbudget.world import World


@dataclass(frozen=True)
class Plan:
    """A run before it starts. It can be given to a worker process: no closures inside."""

    name: str
    seed: int
    rounds: int
    cohort: int
    """clients per round"""
    model: Callable[[], nn.Module]
    clients: Sequence[Examples]
    validation: Examples | None
    algorithm: Algorithm
    controller: Controller
    task: Task
    lr: float
    recipe: Recipe = field(default_factory=Recipe)
    meters: Sequence[Meter] = ()
    """what a client reports of its usage, by device class"""
    budgets: Mapping[str, Sequence[Mapping[str, float]]] = field(default_factory=dict)
    """accounting -> the limits of each device class, per client and round"""
    round_schedule: str = "constant"
    cooldown: float = 0.3
    """share of the rounds over which a step size with a cooldown falls to nothing"""
    weighting: str = "uniform"
    normalise: str = "none"
    """"work": updates are averaged per unit of local work (FedNova)"""
    screening: Screening = field(default_factory=Screening)
    """what to do with updates that are far larger than the others"""
    trim: float | None = None
    """share of the updates left out at each end, number by number; 0.5 = median, None = plain mean"""
    drop: float = 0.0
    """chance that a client of the cohort drops out of a round"""
    selection: Selection = field(default_factory=uniform)
    """who is asked, of those that are there"""
    world: World | None = None
    """the devices' own clock, heat and charge, simulated"""
    layers: tuple[str, ...] | None = None
    """name prefixes of the layer groups, bottom first; None finds them"""
    constraints: Sequence[ConstraintSet] | None = None
    """each client's private set; stays on the device side of an engine"""
    down_codec: str = ""
    """how the model travels down; "" as it is"""
    changed_only: bool = False
    """send down only what changed since the client last saw the model"""
    step_rule: StepRule | None = None
    """a factor on the step size that follows from the knobs"""
    lr_cap: Callable[[int], float] | None = None
    """round -> largest step size"""
    final_projection: bool = False
    """whether a client's own model is put into its set when the run ends"""
    warnings: tuple[str, ...] = ()
    """what the user should hear before the run starts"""
    accelerator: str = "cpu"
    """where clients compute: cpu, cuda, mps, xpu"""
    units: Mapping[str, str] = field(default_factory=dict)
    """of resources of the user's own"""
    evaluate_every: int = 1
    eval_batch: int = 64

    @property
    def run(self) -> int:
        """A number that frames of this run carry."""
        return seeds.key(self.seed, self.rounds, len(self.clients), self.name)

    def meter_of(self, client: int) -> Meter | None:
        """Client i is of class i modulo their number."""
        return self.meters[client % len(self.meters)] if self.meters else None

    def seconds_of(self, client: int) -> float | None:
        """A client's budget of measured time, if there is one."""
        measured = self.budgets.get("measured")
        return of_client(measured, client).get("time") if measured else None

    def of_workers(self) -> "Plan":
        """What a process that only trains is sent: the controller decides here, and may be anything."""
        return replace(self, controller=fixed(Knobs(layers=1, steps=1, batch=1)))

    def build_model(self, device: torch.device | None = None) -> FlatModel:
        """The initial model: the same in every process."""
        with seeds.torch_seeded(self.seed, 0, seeds.SERVER, "init"):
            # a copy, because a factory may return one module again and again
            return FlatModel(copy.deepcopy(self.model()), self.layers, device)

    def lr_at(self, round: int) -> float:
        """Step size of a round, counting from 1: a cosine falls over the run, cooldowns at its end."""
        lr = self.lr
        if self.round_schedule == "cosine":
            lr *= 0.5 * (1 + math.cos(math.pi * (round - 1) / self.rounds))
        elif self.round_schedule in ("cooldown", "sqrt-cooldown"):
            left = min(1.0, (self.rounds + 1 - round) / (self.cooldown * self.rounds))
            # 1 - sqrt(t) is soon small: more rounds in which the noise of the cohorts dies down
            lr *= left if self.round_schedule == "cooldown" else 1 - math.sqrt(1 - left)
        return min(lr, self.lr_cap(round)) if self.lr_cap else lr
