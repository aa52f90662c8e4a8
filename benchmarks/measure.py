"""Repeated measurements by turns, and what they come to."""

from collections.abc import Callable, Mapping, Sequence

from fedbudget.bench import Spread, spread


def turns(names: Sequence[str], repetition: int) -> list[str]:
    """Who goes when: a different one begins each time, so nobody always follows the same."""
    first = repetition % max(1, len(names))
    return [*names[first:], *names[:first]]


def in_turn(work: Mapping[str, Callable[[], float]], repeat: int) -> dict[str, list[float]]:
    """Everybody once a repetition; what each returned."""
    found: dict[str, list[float]] = {name: [] for name in work}
    for i in range(repeat):
        for name in turns(list(work), i):
            found[name].append(work[name]())
    return found


def ratio(above: Sequence[float], below: Sequence[float]) -> Spread:
    """Of measurements of the same repetition, so that a slow minute falls on both."""
    return spread([a / b for a, b in zip(above, below, strict=True)])


def show(found: Spread, digits: str = ".2f") -> str:
    """Median and quartiles, as the tables have them."""
    return f"{found.median:{digits}} ({found.low:{digits}} to {found.high:{digits}})"


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> list[str]:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return [f"| {' | '.join(map(str, line))} |" for line in lines]
