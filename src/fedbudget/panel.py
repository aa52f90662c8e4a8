"""The live view as text: what a run is doing, its loss, and each budget as a bar."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from rich.text import Text

from fedbudget.gauges import Gauge
from fedbudget.types import Knobs

SPARKS = "▁▂▃▄▅▆▇█"
LABEL = 14
"""columns of the names at the left"""
LIMIT_AT = 0.75
"""where on a bar the limit is: what lies to the right of it is over"""
LONGEST_BAR, FEWEST_CELLS = 40, 8
AMOUNTS, TIMES = 18, 25
"""columns that are kept for amounts and times, so that bars do not move when a digit more comes"""


class Marks(NamedTuple):
    """The characters of a bar and of the list of clients."""

    full: str
    rest: str
    limit: str
    over: str
    beyond: str
    replied: str
    waiting: str
    failed: str
    between: str


BLOCKS = Marks("█", "░", "┃", "▒", "▶", "✓", "·", "✗", " · ")
ASCII = Marks("#", "-", "|", "!", ">", "+", ".", "x", ", ")


@dataclass(frozen=True)
class View:
    """All that the live view shows."""

    name: str
    rounds: int
    done: int
    """rounds that are finished"""
    asked: tuple[int, ...] = ()
    replied: Mapping[int, bool] = field(default_factory=dict)
    """client -> whether its reply is an update"""
    evaluating: bool = False
    dropped: int = 0
    """replies so far that were not used"""
    scores: Mapping[str, float] = field(default_factory=dict)
    losses: tuple[float, ...] = ()
    knobs: tuple[Knobs, ...] = ()
    gauges: tuple[Gauge, ...] = ()
    round_s: float | None = None
    left_s: float | None = None
    stopping: bool = False
    """asked to stop after this round"""


def panel(view: View, width: int, marks: Marks = BLOCKS) -> Text:
    """At most ten lines for up to six budgets; none is wider than `width`."""
    lines = [_head(view, width, marks), _clients(view, width, marks)]
    lines += [_loss(view, width, marks), _knobs(view.knobs)]
    wide = max(AMOUNTS, *(len(_amounts(g)) for g in view.gauges), 0)
    lines += [_gauge(g, width, wide, marks) for g in view.gauges]
    for line in lines:
        line.truncate(width, overflow="ellipsis" if marks is BLOCKS else "crop")
    return Text("\n", no_wrap=True, overflow="crop").join(lines)


def _label(text: str) -> Text:
    return Text().append(f"{text[: LABEL - 1]:<{LABEL}}", "dim")  # what follows is not dim


def _head(view: View, width: int, marks: Marks) -> Text:
    now = min(view.done + 1, view.rounds)
    name = printable(view.name if len(view.name) <= 24 else view.name[:23] + "…")
    line = Text.assemble((name, "bold"), f"  round {now}/{view.rounds}  ")
    times = []
    if view.round_s is not None:
        times.append(f"{seconds(view.round_s)} a round")
    if view.left_s is not None:
        times.append(f"{seconds(view.left_s)} left")
    after = marks.between.join(times) or "starting"
    if view.stopping:
        after = "stopping after this round; once more to stop now"
    room = min(LONGEST_BAR, width - len(line) - max(len(after), TIMES) - 2)
    if room >= FEWEST_CELLS:
        filled = int(room * view.done / view.rounds)
        line.append(marks.full * filled, "cyan").append(marks.rest * (room - filled), "dim")
        line.append("  ")
    return line.append(after)


def _clients(view: View, width: int, marks: Marks) -> Text:
    line = _label("clients")
    if not view.asked:
        return line.append("waiting for the first" if view.done == 0 else "next round")
    line.append(f"{len(view.replied)}/{len(view.asked)} replied")
    if view.evaluating:
        line.append(", ").append("evaluating", "bold")
    listed = Text()
    for client in view.asked:
        done = view.replied.get(client)
        mark = marks.waiting if done is None else marks.replied if done else marks.failed
        style = "dim" if done is None else "green" if done else "bold red"
        listed.append(f" {mark}{client}", style)
    after = f"  {view.dropped} dropped so far" if view.dropped else ""
    if len(line) + 1 + len(listed) + len(after) <= width:
        line.append(" ").append_text(listed)
    elif failed := sum(not done for done in view.replied.values()):
        line.append(f", {failed} failed", "bold red")
    return line.append(after)


def _loss(view: View, width: int, marks: Marks) -> Text:
    first, *others = view.scores.items() or [("loss", None)]
    line = _label(first[0])
    if first[1] is None:
        return line.append("after the first round", "dim")
    line.append(f"{first[1]:.4f}", "bold")
    for key, value in others:
        more = f"{marks.between}{key} {value:.4f}"
        if len(line) + len(more) + 2 + FEWEST_CELLS <= width:
            line.append(more)
    if marks is BLOCKS:
        room = min(LONGEST_BAR, width - len(line) - 2)
        line.append("  ").append(sparkline(view.losses, room), "cyan")
    return line


def _knobs(every: Sequence[Knobs]) -> Text:
    line = _label("knobs")
    if not every:
        return line
    parts = [
        f"{name} {_range([getattr(knobs, name) for knobs in every])}"
        for name in ("layers", "steps", "batch", "accumulate")
    ]
    codecs = list(dict.fromkeys(knobs.codec for knobs in every))
    shown = "/".join(codecs) if len(codecs) <= 2 else f"{len(codecs)} kinds"
    return line.append("  ".join([*parts, f"codec {shown}"]))


def _range(values: Sequence[int]) -> str:
    low, high = min(values), max(values)
    return str(low) if low == high else f"{low}-{high}"


def _amounts(gauge: Gauge) -> str:
    limit = gauge.told(gauge.limit)
    return f"limit {limit}" if gauge.amount is None else f"{gauge.told(gauge.amount)} of {limit}"


def _gauge(gauge: Gauge, width: int, wide: int, marks: Marks) -> Text:
    line = _label(gauge.resource)
    told = "" if gauge.amount is None else f"{_percent(gauge.share)}{' over' * gauge.over}"
    after = f"  {_amounts(gauge):<{wide}}  {told}"
    room = min(LONGEST_BAR, width - LABEL - wide - 4 - len("100.1% over"))
    if room < FEWEST_CELLS:  # a narrow terminal: the amounts go first
        after, room = f"  {told}", width - LABEL - 2 - len("100.1% over")
    if room >= 3:
        line.append_text(bar(gauge.share, room, marks))
    return line.append(after, "bold red" if gauge.over else "")


def _percent(share: float) -> str:
    """Never 100% for what is over, nor for what is not there yet.

    >>> _percent(1.0004), _percent(0.9996), _percent(12.3)
    ('100.1%', '99.9%', '12.3x')
    """
    if share >= 9.995:
        return f"{share:.3g}x"
    if 0.995 <= share < 1:
        return f"{int(share * 1000) / 10:.1f}%"
    if 1 < share < 1.005:
        return f"{max(100.1, share * 100):.1f}%"
    return f"{share * 100:.0f}%"


def bar(share: float, width: int, marks: Marks = BLOCKS) -> Text:
    """A bar with its limit marked; what is over the limit is drawn otherwise.

    >>> bar(0.5, 8).plain, bar(1.0, 8).plain, bar(1.2, 8).plain, bar(9, 8).plain
    ('███░░░┃ ', '██████┃ ', '██████┃▒', '██████┃▶')
    """
    limit = round(LIMIT_AT * width)
    within = limit if share >= 1 else min(limit, int(share * limit + 0.5))
    beyond = width - limit - 1
    over = min(beyond, max(1, round((share - 1) * limit))) if share > 1 + 1e-9 else 0
    line = Text().append(marks.full * within, "red" if over else "green")
    line.append(marks.rest * (limit - within), "dim").append(marks.limit, "bold")
    if (share - 1) * limit > beyond + 0.5:
        line.append(marks.over * (beyond - 1) + marks.beyond, "bold red")
    else:
        line.append(marks.over * over, "bold red").append(" " * (beyond - over))
    return line


def printable(text: str) -> str:
    """Without what moves a terminal's cursor: names and reasons come from others.

    >>> printable("a\\x1b[2Jb")
    'a?[2Jb'
    """
    return "".join(c if c.isprintable() else "?" for c in text)


def sparkline(values: Sequence[float], width: int = 16) -> str:
    """The course of some numbers in one line of text; more than fit are averaged.

    >>> sparkline([3.0, 2.0, 1.0])
    '█▄▁'
    >>> sparkline([4.0, 4.0, 3.0, 1.0], 2)
    '█▁'
    """
    known = [v for v in values if abs(v) < float("inf")]
    if not known or width < 1:
        return ""
    cells = min(width, len(known))
    cuts = [len(known) * i // cells for i in range(cells + 1)]
    shown = [sum(known[a:b]) / (b - a) for a, b in pairwise(cuts)]
    low, high = min(shown), max(shown)
    scale = (len(SPARKS) - 1) / (high - low) if high > low else 0.0
    return "".join(SPARKS[int((v - low) * scale)] for v in shown)


def seconds(value: float) -> str:
    """A time for people.

    >>> seconds(0.034), seconds(6.24), seconds(75), seconds(600), seconds(9000)
    ('0.03 s', '6.2 s', '75 s', '10 min', '2.5 h')
    """
    if value < 1:
        return f"{value:.2f} s"
    if value < 10:
        return f"{value:.1f} s"
    if value < 90:
        return f"{value:.0f} s"
    return f"{value / 60:.0f} min" if value < 5400 else f"{value / 3600:.1f} h"
