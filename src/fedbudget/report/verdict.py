"""The result in sentences: which budgets were kept, at what loss, and what to be careful about."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import NamedTuple

from fedbudget.report.facts import OPEN
from fedbudget.report.load import Loaded, by_name
from fedbudget.report.sheets import spread
from fedbudget.report.standing import OVER, accounting, budgets, limits, worst
from fedbudget.summary import LAST, cautions

ACCOUNTING = {"counted": "counted", "paper": "the papers' proxies", "measured": "measured"}


def verdict(runs: Sequence[Loaded]) -> list[str]:
    groups = by_name(runs)
    found = []
    for names in tasks(groups).values():
        own = {name: groups[name] for name in names}
        first = reference(own)
        if first:
            found.append(_reference(first, own))
        for name, same in own.items():
            against = over(same, own[first]) if first and name != first else ""
            if standing := kept(same):
                joined = ", at " if standing.startswith("kept") else "; "
                found.append(f"{name} {standing}{joined + against if against else ''}.")
            elif against:
                found.append(f"{name}{_unbudgeted(same)}: {against}.")
    return (found or ["No run has been evaluated yet."]) + _cautions(groups)


def tasks(groups: Mapping[str, Sequence[Loaded]]) -> dict[str, list[str]]:
    """Names by what they are trained on: losses on different data do not compare."""
    found: dict[str, list[str]] = {}
    for name, same in groups.items():
        source = next((s for run in same if (s := run.settings.get("data.source"))), "")
        found.setdefault(str(source), []).append(name)
    return found


def reference(groups: Mapping[str, Sequence[Loaded]]) -> str | None:
    """What the others are held against: not held to budgets, finished, and the lowest loss of those.

    One that has not ended yet stays it: else the others would be held against one of themselves.
    """
    losses = {name: own for name, same in groups.items() if (own := _finals(same))}

    def order(name: str) -> tuple[bool, bool, float]:
        same = groups[name]
        return any(map(_held, same)), not all(map(_ended, same)), fmean(losses[name])

    return min(losses, key=order, default=None)


def _reference(name: str, groups: Mapping[str, Sequence[Loaded]]) -> str:
    same = groups[name]
    losses = _finals(same)
    seeds = f" over {len(losses)} seeds" if len(losses) > 1 else ""
    ends = "ends" if all(map(_ended, same)) else "stands"
    return (
        f"{name}{_unbudgeted(same)} {ends} at a validation loss of {spread(losses, '.3f')}{seeds}."
    )


def _unbudgeted(same: Sequence[Loaded]) -> str:
    if any(map(limits, same)):
        return "" if any(map(_held, same)) else " (fixed knobs, whatever the budgets)"
    return " (budgets not known yet)" if any(OPEN in r.notes for r in same) else " (no budgets)"


def _held(run: Loaded) -> bool:
    """Whether its knobs follow its budgets: FedAvg's may be given for its report alone."""
    controller = run.summary.get("controller") or run.facts.get("controller")
    return controller != "fixed" if controller else bool(limits(run))


def _ended(run: Loaded) -> bool:
    return bool(run.summary["rounds_done"] >= run.summary["rounds"])


def _finals(same: Sequence[Loaded]) -> list[float]:
    losses = (run.summary["validation"].get("loss") for run in same)
    return [float(loss) for loss in losses if loss is not None]


class Kept(NamedTuple):
    """How one run stood to its budgets."""

    rounds: int
    """in which anyone reported"""
    over: dict[str, int]
    """resource -> rounds over"""
    any_over: int
    worst: dict[str, float]
    """resource -> the worst client and round, over its budget"""


def standing(run: Loaded) -> Kept:
    """From the records; from the summary alone where there are none."""
    if not run.records:
        uses = budgets(run.summary)
        count = {resource: int(use["rounds_over"]) for resource, use in uses.items()}
        highest = {resource: float(use["worst_ratio"]) for resource, use in uses.items()}
        return Kept(run.summary["rounds_done"], count, max(count.values(), default=0), highest)
    courses = {limit.resource: dict(worst(run, limit)) for limit in limits(run)}
    if not all(courses.values()):  # the summary knows more
        return standing(replace(run, records=[]))
    rounds = {round for course in courses.values() for round in course}
    late = {resource: {r for r, x in own.items() if x > OVER} for resource, own in courses.items()}
    return Kept(
        len(rounds),
        {resource: len(own) for resource, own in late.items()},
        len(set().union(*late.values())),
        {resource: max(own.values()) for resource, own in courses.items()},
    )


def kept(same: Sequence[Loaded]) -> str:
    """What became of the budgets of one name's runs; "" where there are none."""
    found = [standing(run) for run in same if limits(run)]
    if not found:
        return ""
    resources = list(dict.fromkeys(resource for own in found for resource in own.over))
    kind = ACCOUNTING.get(own := accounting(next(r for r in same if limits(r)).summary), own)
    total, bad = sum(x.rounds for x in found), sum(x.any_over for x in found)
    seeds = f" of {len(found)} seeds" if len(found) > 1 else ""
    every = "both" if len(resources) == 2 else f"all {len(resources)}"
    what = f"{every} budgets" if len(resources) > 1 else f"its {resources[0]} budget"
    if not bad:
        return f"kept {what} ({kind}) in {total} of {total} rounds{seeds}"
    broken = []
    for resource in resources:
        if times := sum(x.over.get(resource, 0) for x in found):
            highest = max(x.worst.get(resource, 0.0) for x in found)
            broken.append(f"{resource} in {times} (worst {highest:.3g}×)")
    fine = [r for r in resources if not any(x.over.get(r, 0) for x in found)]
    also = f"; it kept {', '.join(fine)}" if fine else ""
    return f"broke budgets ({kind}) in {bad} of {total} rounds{seeds}: {', '.join(broken)}{also}"


def over(same: Sequence[Loaded], reference: Sequence[Loaded]) -> str:
    """The loss against the reference's, by seed: each at its end, or where one has not come to
    it, at the last round that both have."""
    ours, theirs = ({r.seed: r for r in x if r.losses()} for x in (same, reference))
    name = reference[0].name
    shared = sorted(set(ours) & set(theirs))
    pairs = [(ours[seed], theirs[seed]) for seed in shared]
    if not pairs:
        a, b = _finals(same), _finals(reference)
        if not a or not b:
            return ""
        other = "" if set(ours) == set(theirs) else " (other seeds)"
        return f"{fmean(a) / fmean(b) - 1:+.1%} loss over {name}{other}"
    done = all(_ended(run) and _ended(base) for run, base in pairs)
    changes, early, unlike = [], set(), False
    for run, base in pairs:
        ends = run.losses()[-1][0], base.losses()[-1][0]
        at = ends if done else (min(ends), min(ends))
        a, b = _until(run, at[0]), _until(base, at[1])
        if not a or not b:
            return ""
        changes.append(fmean(a) / fmean(b) - 1)
        early |= {at[0]} if at != ends else set()
        unlike |= at[0] != at[1]
    text = f"{fmean(changes):+.1%} loss over {name}"
    if set(ours) != set(theirs):
        text += f" (seed{'s' if len(shared) > 1 else ''} {', '.join(map(str, shared))} of both)"
    if early:
        text += f" by round {min(early)}, the last that both have"
    elif unlike:
        text += ", each at its own end"
    return text


def _until(run: Loaded, round: int) -> list[float]:
    """The last evaluations up to a round."""
    return [loss for at, loss in run.losses() if at <= round][-LAST:]


def _cautions(groups: dict[str, list[Loaded]]) -> list[str]:
    """Unfinished runs, seeds that are there twice, and names with different numbers of rounds."""
    found = []
    for name, same in groups.items():
        for run in same:
            done, planned = run.summary["rounds_done"], run.summary["rounds"]
            if done < planned:
                seed = f" (seed {run.seed})" if len(same) > 1 else ""
                found.append(f"{name}{seed} has done {done} of {planned} rounds.")
        seeds = [run.seed for run in same]
        if twice := sorted({seed for seed in seeds if seeds.count(seed) > 1}):
            found.append(f"{name}: seed {', '.join(map(str, twice))} is there more than once.")
        every = [record for run in same for record in run.records]
        found += [f"{name}: {caution}." for caution in cautions(every)]
    planned = sorted({run.summary["rounds"] for same in groups.values() for run in same})
    if len(planned) > 1:
        found.append(
            f"The runs were planned for different numbers of rounds ({', '.join(map(str, planned))})."
        )
    if len(data := [source for source in tasks(groups) if source]) > 1:
        found.append(f"Losses on different data ({', '.join(data)}) do not compare.")
    return found
