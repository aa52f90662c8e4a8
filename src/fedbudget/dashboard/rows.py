"""A run as the list shows it."""

import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeGuard

from fedbudget.dashboard import course, folders
from fedbudget.dashboard.course import Budgets, Course, Standing
from fedbudget.report import sound

State = Literal["running", "stopping", "starting", "finished", "stopped", "damaged"]
SHOWN = 48
"""points of a row's small picture"""
LONGEST = 200
"""characters of a name"""


@dataclass(frozen=True)
class Known:
    """What the files of a run say; read again only when they change."""

    signature: folders.Signature
    facts: Mapping[str, Any]
    course: Course
    standing: Mapping[str, Standing] | None
    """budgets; None where they are not known, or not yet"""
    wall_s: float
    updated: float
    finished: bool
    resumable: bool
    broken: str
    """why the run cannot be read; empty where it can"""
    notes: tuple[str, ...]
    """what is wrong with it otherwise"""


@dataclass(frozen=True)
class Row:
    id: str
    folder: str
    name: str
    method: str
    seed: int | None
    state: State
    why: str
    round: int
    rounds: int | None
    loss: float | None
    points: tuple[tuple[int, float], ...]
    budgets: int | None
    kept: int
    worst: float | None
    worst_of: str
    wall_s: float
    left_s: float | None
    updated: float
    can_stop: bool
    can_resume: bool


def know(folder: Path, signature: folders.Signature, before: Known | None) -> Known:
    """Read a run's folder; whatever is in it, this says what is wrong instead of failing."""
    wrong: list[str] = []
    summary = _json(folder / "summary.json", wrong)
    damaged = bool(wrong)
    facts = _json(folder / "facts.json", wrong)
    config = _settings(folder / "config.toml", wrong)
    finished = bool(summary.get("complete"))
    locked = signature[-1] != (0, 0, 0)
    whole = locked or not isinstance(summary.get("usage"), dict)
    # the budgets of an older run are known only once it goes on
    same = before is not None and before.facts.get("budgets") == facts.get("budgets")
    was = before.course if before and same else Course()
    budgets = _budgets(facts, wrong)
    try:
        now = course.read(folder / "rounds.jsonl", was, whole, budgets)
        broken = ""
    except folders.RefusedError as error:
        now, broken = Course(), str(error)
    except OSError as error:
        now, broken = Course(), f"rounds.jsonl: {error.strerror}"
    about = {**config, **summary, **facts}
    if not broken and damaged:
        broken = wrong.pop(0)
    if not broken and not now.round and now.damaged:
        broken = "rounds.jsonl has no round that can be read"
    if now.damaged and not broken:
        wrong.append(_lines(now.damaged) + " of rounds.jsonl cannot be read")
    if now.cut and not locked:
        wrong.append("the last line of rounds.jsonl is cut off; a resume runs that round again")
    if now.lost:
        wrong.append(f"the loss of round {now.lost} is not a number")
    if finished and not broken and now.round < (_count(summary.get("rounds")) or 0):
        wrong.append(f"summary.json says finished, rounds.jsonl ends at round {now.round}")
    standing: Mapping[str, Standing] | None = None
    if not whole:
        standing = _standing(summary["usage"], wrong)
    elif now.round and isinstance(facts.get("budgets"), dict):
        standing = now.standing
    every = _count(config.get("checkpoint_every")) or 1
    saved = any((folder / "checkpoint").glob(f"round-{'[0-9]' * 8}.safetensors"))
    return Known(
        signature=signature,
        facts=about,
        course=now,
        standing=standing,
        wall_s=now.wall_s if whole else _wall(summary),
        updated=max(signature[1][1], signature[2][1]) / 1e9,
        finished=finished,
        resumable=bool(config) and not broken and (saved or now.round <= every),
        broken=broken,
        notes=tuple(wrong),
    )


def unreadable(signature: folders.Signature, error: Exception) -> Known:
    """What is known of a folder whose files are not what a run writes, in a way not thought of."""
    why = f"it cannot be read ({type(error).__name__}: {str(error)[:LONGEST]})"
    updated = max(signature[1][1], signature[2][1]) / 1e9
    return Known(signature, {}, Course(), None, 0.0, updated, False, False, why, ())


def show(id: str, label: str, known: Known, state: State | None, failed: str, control: bool) -> Row:
    """`state` is what its process says of it, `failed` why the last resume did not start."""
    facts, now = known.facts, known.course
    if state is None:
        state = "damaged" if known.broken else "finished" if known.finished else "stopped"
    live = state in ("running", "stopping", "starting")
    rounds = _count(facts.get("rounds"))
    left = None
    if live and rounds and now.round and now.whole:
        left = _finite(max(0, rounds - now.round) * known.wall_s / now.round)
    limits = known.standing or {}
    worst = max(limits, key=lambda r: limits[r].worst, default="")
    controller = facts.get("controller")
    method = str(facts.get("algorithm", ""))
    if controller not in (None, "", "fixed"):
        method = f"{method} + {controller}"
    return Row(
        id=id,
        folder=label,
        name=str(facts.get("name") or label.rsplit("/", 1)[-1])[:LONGEST],
        method=method[:LONGEST],
        seed=_seed(facts.get("seed")),
        state=state,
        why="; ".join(w for w in (known.broken, failed, *known.notes) if w),
        round=now.round,
        rounds=rounds,
        loss=now.points[-1][1] if now.points else None,
        points=_few(now.points),
        budgets=None if known.standing is None else len(limits),
        kept=sum(not s.over for s in limits.values()),
        worst=_finite(limits[worst].worst) if worst else None,
        worst_of=worst[:LONGEST],
        wall_s=_finite(known.wall_s),
        left_s=left,
        updated=known.updated,
        can_stop=control and state == "running",
        can_resume=control and state == "stopped" and known.resumable,
    )


def _few(points: tuple[tuple[int, float], ...]) -> tuple[tuple[int, float], ...]:
    """Enough of them for a small picture, the first and the last among them."""
    if len(points) <= SHOWN:
        return points
    last = len(points) - 1
    return tuple(points[i * last // (SHOWN - 1)] for i in range(SHOWN))


def _json(path: Path, wrong: list[str]) -> dict[str, Any]:
    try:
        body = folders.text(path)
        value = {} if body is None else json.loads(body)
    except folders.RefusedError as error:
        wrong.append(str(error))
        return {}
    except (ValueError, RecursionError):
        wrong.append(f"{path.name} is damaged")
        return {}
    if not isinstance(value, dict):
        wrong.append(f"{path.name} is damaged")
        return {}
    return value


def _settings(path: Path, wrong: list[str]) -> dict[str, Any]:
    """The plain keys before the first table: all that the list needs, and quick to read."""
    try:
        body = folders.text(path)
        return {} if body is None else tomllib.loads(body.split("\n[", 1)[0])
    except folders.RefusedError as error:
        wrong.append(str(error))
    except (ValueError, RecursionError):
        wrong.append(f"{path.name} is damaged")
    return {}


def _budgets(facts: Mapping[str, Any], wrong: list[str]) -> Budgets:
    """Limits in facts.json that are limits."""
    found: dict[str, list[dict[str, float]]] = {}
    budgets = facts.get("budgets")
    for accounting, classes in budgets.items() if isinstance(budgets, dict) else ():
        if isinstance(classes, list) and classes and all(isinstance(c, dict) for c in classes):
            kept = [{r: float(v) for r, v in c.items() if _share(v)} for c in classes]
            found[accounting] = kept
            if sum(map(len, kept)) < sum(map(len, classes)):
                wrong.append("facts.json has limits that are no numbers; they are left out")
    return found


def _standing(usage: Mapping[str, Any], wrong: list[str]) -> dict[str, Standing]:
    """As summary.json has it."""
    found = {}
    for accounting, resources in usage.items():
        for resource, use in resources.items() if isinstance(resources, dict) else ():
            worst = use.get("worst_ratio", use.get("ratio")) if isinstance(use, dict) else None
            title = course.named(resource, accounting)
            if worst == 0 or _share(worst):
                found[title] = Standing(float(worst), _count(use.get("rounds_over")) or 0)
            elif worst is not None:
                wrong.append(f"summary.json: what was used of {title[:LONGEST]} is no number")
    return found


def _share(value: Any) -> TypeGuard[float]:
    return sound.number(value) and value > 0


def _wall(summary: Mapping[str, Any]) -> float:
    time = summary.get("time")
    wall = time.get("wall_s") if isinstance(time, dict) else None
    return float(wall) if _share(wall) else 0.0


def _count(value: Any) -> int | None:
    return value if sound.count(value) and not isinstance(value, bool) else None


def _seed(value: Any) -> int | None:
    whole = isinstance(value, int) and not isinstance(value, bool)
    return value if whole and 0 <= value < 2**63 else None


def _finite(value: float) -> float:
    """Sums and quotients of large numbers may be infinite, which JSON has no word for."""
    return min(value, sound.MOST)


def _lines(number: int) -> str:
    return f"{number} line{'s' if number > 1 else ''}"
