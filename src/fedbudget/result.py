"""Run: what `train` returns."""

import copy
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from torch import Tensor, nn

from fedbudget import epsilon
from fedbudget.files import write
from fedbudget.models.flat import FlatModel
from fedbudget.plan import Plan
from fedbudget.report.load import Loaded
from fedbudget.report.tables import terminal
from fedbudget.report.write import write_report
from fedbudget.summary import summarise
from fedbudget.types import RoundRecord


def facts(plan: Plan, engine: str) -> dict[str, Any]:
    """What a summary says of a run besides its records."""
    clients = len(plan.clients)
    units = {"units": dict(plan.units)} if plan.units else {}
    return {"name": plan.name, "seed": plan.seed, "clients": clients, "engine": engine, **units}


@dataclass(frozen=True)
class Run:
    """The result of `train`."""

    model: nn.Module
    """the trained global model"""
    records: tuple[RoundRecord, ...]
    plan: Plan
    engine: str = "loop"
    """how clients trained: one by one ("loop") or many at once ("batched")"""
    own_weights: tuple[Tensor, ...] = ()
    """each agent's own model as a vector, where there are constraint sets"""
    figures: Mapping[str, float] = field(default_factory=dict)
    """of the agents' own models, as they are and put into their sets"""
    agents: Mapping[str, Sequence[float]] = field(default_factory=dict)
    """some of these figures agent by agent"""

    @property
    def summary(self) -> dict[str, Any]:
        """The same figures as a run folder's summary.json."""
        plan = self.plan
        hidden = plan.recipe.privacy.on  # the agents' own figures have no noise on them
        about = facts(plan, self.engine)
        if self.figures and not hidden:
            about["personal"] = {**self.figures, "agents": self.agents}
        records = [r.to_json() for r in self.records]
        about |= epsilon.facts(plan, records)
        return summarise(records, about, plan.rounds, plan.budgets)

    @property
    def losses(self) -> list[float]:
        """Validation loss after each evaluated round."""
        scores = [r.validation for r in self.records if r.validation is not None]
        return [v["loss"] for v in scores if "loss" in v]

    def table(self) -> None:
        """Print the result."""
        screen = Console()
        screen.print(terminal([self._loaded()], screen.width))

    def report(self, path: str | Path) -> None:
        """Write it as .html, .md, .png, .svg or .pdf; or all of it, into "FOLDER/"."""
        write_report([self._loaded()], Path(path), folder=str(path).endswith(("/", os.sep)))

    def personal(self, agent: int) -> nn.Module:
        """An agent's own model; the global one where there are no constraint sets."""
        own = copy.deepcopy(self.model)
        if self.own_weights:
            flat = FlatModel(copy.deepcopy(self.model), self.plan.layers)
            own.load_state_dict(flat.state_dict(self.own_weights[agent]))
        return own

    def _loaded(self) -> Loaded:
        records = [r.to_json() for r in self.records]
        return Loaded(Path(self.plan.name), self.summary, records, "")

    def save(self, path: str | Path) -> None:
        """The model's weights as safetensors."""
        from safetensors.torch import save

        tensors = {k: v.detach().clone() for k, v in self.model.state_dict().items()}
        write(Path(path), save(tensors))
