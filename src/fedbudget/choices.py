"""What `plan` says: the table of affordable knobs and the choice, or where duals will lead."""

from collections.abc import Iterator, Mapping, Sequence

from rich.table import Table

from fedbudget.build.outlook import Course
from fedbudget.control.frontier import Choice, Grid, Progress, affordable
from fedbudget.control.planner import aims
from fedbudget.errors import about
from fedbudget.resources.budget import named_class, tell
from fedbudget.resources.costs import Costs


def explained(
    kinds: Sequence[Costs],
    turns: Mapping[str, Grid],
    progress: Progress,
    classes: Sequence[Mapping[str, float]],
    rows: int,
) -> Iterator[str | Table]:
    """For each device class its budgets, and for what trains in turn the table and the choice.

    UserError where nothing fits.
    """
    for i, limits in enumerate(classes):
        known = kinds[i % len(kinds)]
        whose = named_class(i, len(classes))
        yield asked(whose, limits, known)
        for name, grid in turns.items():
            if name:
                yield f"{name}:"
            with about(whose), about(name):
                choices = affordable(known.expected, grid, progress, aims(limits, known.accounting))
            yield table(choices[:rows], limits, known)
            yield why(choices, limits, grid.thrift)


def asked(whose: str, limits: Mapping[str, float], known: Costs) -> str:
    """The budgets of a device class, and what they are of."""
    how = f"counted on {known.device.name}"
    if known.accounting == "measured":
        how = f"measured; until a client has measured, as {how}"
    if known.accounting == "paper":
        how = "by the papers' proxies"
    return f"budgets per {whose or 'client'} and round, {how}: {tell(limits, known.written)}"


SHOWN = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
"""turns of a course that get a row, and its last one"""


def foretold(courses: Sequence[Course]) -> Iterator[str | Table]:
    """Where the duals of each device class will lead, by forecast."""
    for course in courses:
        yield asked(course.whose, course.budgets, course.known)
        last = len(course.path)
        ahead = f"of {last} {course.turn}s" if last > 1 else "what the first round begins with"
        out = Table(caption=f"by forecast; {ahead}")
        names = ("layers", "steps", "batch", "accumulate", "codec", *course.budgets)
        for name in (course.turn, *names):
            out.add_column(name, justify="right")
        for turn in sorted({last, *(turn for turn in SHOWN if turn < last)}):
            k, usage, _ = course.path[turn - 1]
            knobs = map(str, (turn, k.layers, k.steps, k.batch, k.accumulate, k.codec))
            out.add_row(*knobs, *_shares(usage, course.budgets, course.known))
        yield out


def _shares(
    usage: Mapping[str, float], budgets: Mapping[str, float], known: Costs
) -> Iterator[str]:
    """Each budget's resource and what part of the budget it takes."""
    return (f"{known.written(usage[r], r)} {usage[r] / b:.0%}" for r, b in budgets.items())


def table(choices: Sequence[Choice], budgets: Mapping[str, float], known: Costs) -> Table:
    """A row a setting, best first; each budget's predicted usage and its share."""
    out = Table(
        caption="each setting with the most steps the budgets allow; the choice, then by progress"
    )
    for name in ("layers", "steps", "batch", "codec", *budgets, "progress", "binds"):
        out.add_column(name, justify="right")
    for c in choices:
        k = c.knobs
        out.add_row(
            *(str(k.layers), str(k.steps), str(k.batch), k.codec),
            *_shares(c.usage, budgets, known),
            *(f"{c.progress:.1f}", c.binding or "-"),
        )
    return out


def why(choices: Sequence[Choice], budgets: Mapping[str, float], thrift: float) -> str:
    """The choice, and what stops it from doing more."""
    best = choices[0]
    k = best.knobs
    nearest = best.binding or max(budgets, key=lambda r: best.usage[r] / budgets[r])
    share = f"at {best.usage[nearest] / budgets[nearest]:.1%} of its budget"
    binds = f"{nearest} binds, {share}"
    if not best.binding:
        binds = f"no budget forbids more steps, but control.most_steps does; {nearest} is {share}"
    code = ""
    if any(other.progress > best.progress for other in choices[1:]):
        least = f"the least of those within {thrift:.0%} of the most progress"
        code = f"; its code sends {least}"
    return (
        f"choice: layers={k.layers} steps={k.steps} batch={k.batch} codec={k.codec}; {binds}{code}"
    )
