"""What `compare` trains: each config with several seeds and, for robustness, in harder conditions."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from fedbudget.build import prepare
from fedbudget.config import Config, load, unseeded
from fedbudget.errors import UserError
from fedbudget.resources.proxies import TABLE1

Protocol = Literal["quality", "target", "robustness"]
DROP = 0.3
"""chance that a client of a cohort drops out of its round"""
IDLE = {"memory": 0.2 * TABLE1.a_m, "temperature": 0.35 * TABLE1.a_t}
"""what the papers' proxies charge a client that does nothing"""


def plan_runs(
    paths: Sequence[Path], overrides: Sequence[str], seeds: int, out: Path, protocol: Protocol
) -> dict[Path, Config]:
    """Folder -> config of every run; seeds of one config and condition side by side."""
    unseeded("compare", overrides)
    conditions = {
        path: robust(path, overrides, paths) if protocol == "robustness" else {"": [*overrides]}
        for path in paths
    }
    every: dict[Path, Config] = {}
    for path, changes in conditions.items():
        for suffix, changed in changes.items():
            for seed in range(seeds):
                settings = load(path, [*changed, f"seed={seed}"])
                if suffix:
                    named = f"name={json.dumps(settings.name + suffix)}"
                    settings = load(path, [*changed, f"seed={seed}", named])
                every[out / settings.folder / f"seed-{seed}"] = settings
    if len(every) < sum(map(len, conditions.values())) * seeds or len(conditions) < len(paths):
        raise UserError("compare: two configs have the same name; give them different ones")
    return every


def robust(path: Path, overrides: Sequence[str], paths: Sequence[Path]) -> dict[str, list[str]]:
    """Name's ending -> overrides: as it is, 30% dropping out, half the fleet at half the budget.

    A config without budgets trains as it does and is held against those of the first that has some.
    """
    own = load(path, overrides).budget
    others = (load(other, overrides).budget for other in paths)
    written = own if own.classes else next((budget for budget in others if budget.classes), None)
    if written is None:
        raise UserError("compare --protocol robustness: none of the configs names a budget")
    base = list(overrides)
    if not own.classes:
        base += _as_overrides(written.__pydantic_extra__ or {})
        base += [f"budget.accounting={written.accounting}"]
        base += _as_overrides({"device": written.device, "resources": written.resources})
    settings = load(path, base)
    limits = prepare(settings).limits
    fleet = [*limits, *(halved(mine, settings.budget.accounting) for mine in limits)]
    lists: dict[str, object] = {r: [mine[r] for mine in fleet] for r in limits[0]}
    if len(settings.budget.devices) > 1:
        lists["device"] = settings.budget.devices * 2
    world = settings.world.model_dump() if settings.world.on else {}
    twice = [f"world.{key}={json.dumps(v * 2)}" for key, v in world.items() if isinstance(v, list)]
    shared = len(limits) == 1 and not settings.control.per
    if settings.control.controller in ("cafl-l", "cafl") and shared:
        twice += ["control.per=class"]  # as it is, a cohort shares its duals: here, each half does
    return {
        "": base,
        f"+drop{DROP:.0%}": [*base, f"train.drop={DROP}"],
        "+half": [*base, *_as_overrides(lists), *twice],
    }


def halved(limits: Mapping[str, float], accounting: str) -> dict[str, float]:
    """Half of each budget; of the papers' memory and temperature, half of what is above idling.

    Counted temperature is a rise above ambient, so half of it is half the rise. The proxies'
    constant parts cannot be saved by any knob: half of the whole would be a budget nobody meets.
    """
    idle = IDLE if accounting == "paper" else {}
    rest = {r: idle.get(r, 0.0) if idle.get(r, 0.0) < b else 0.0 for r, b in limits.items()}
    return {r: rest[r] + (b - rest[r]) / 2 for r, b in limits.items()}


def _as_overrides(budgets: Mapping[str, object]) -> list[str]:
    return [f"budget.{resource}={json.dumps(limit)}" for resource, limit in budgets.items()]
