"""Make terminal.svg: `fedbudget demo` as it really ran, recorded through a pseudo-terminal, sped up.

    python docs/images/terminal.py --cast demo.cast     # records into demo.cast, then draws
    python docs/images/terminal.py --cast demo.cast     # again: draws what is recorded there

Needs pyte 0.8 (in the `dev` extra) and a system with pseudo-terminals. The recording is asciicast v2.
"""

import argparse
import fcntl
import json
import os
import pty
import select
import struct
import sys
import tempfile
import termios
import time
from collections.abc import Iterator
from html import escape
from itertools import groupby
from pathlib import Path

import pyte

HERE = Path(__file__).resolve().parent
COLUMNS, ROWS = 96, 26
LENGTH_S, HOLD_S, FRAMES_A_S = 20.0, 5.0, 5
"""of the animation: at most that long, then the last frame, at so many pictures a second"""
CELL, LINE, PAD, BASE = 8.0, 17.0, 14.0, 12.5
BACK, INK, FAINT = "#12161c", "#d7dde5", "#8b96a3"
COLOURS = {
    "default": INK,
    "green": "#4cc38a",
    "red": "#ff6369",
    "cyan": "#52b9e9",
    "brown": "#e8b44a",  # what pyte calls yellow
    "magenta": "#c08bf0",
    "blue": "#6ea8fe",
    "black": FAINT,
    "white": INK,
}
SPARKS = "▁▂▃▄▅▆▇█"
Cast = list[tuple[float, str]]
Line = tuple[tuple[str, str, bool], ...]
"""(text, colour, bold) from left to right"""


def record(command: list[str]) -> Cast:
    """Run a command on a terminal of its own; what it writes, and when."""
    child, terminal = pty.fork()
    if child == 0:
        os.environ |= {"TERM": "xterm-256color", "COLORTERM": "", "PYTHONUNBUFFERED": "1"}
        for name in ("NO_COLOR", "COLUMNS", "LINES"):
            os.environ.pop(name, None)
        time.sleep(0.2)  # until the size is set
        os.execvp(command[0], command)
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    started, events, rest = time.monotonic(), [], b""
    while True:
        select.select([terminal], [], [])
        try:
            body = os.read(terminal, 65536)
        except OSError:  # Linux says so when the other end is closed
            body = b""
        if not body:
            break
        text, rest = _whole(rest + body)
        events.append((time.monotonic() - started, text))
    _, status = os.waitpid(child, 0)
    if status:
        sys.exit(f"{command[0]} ended with {os.waitstatus_to_exitcode(status)}")
    return events


def _whole(body: bytes) -> tuple[str, bytes]:
    """Text, and the bytes of a character that is not complete yet."""
    for cut in range(4):
        try:
            return body[: len(body) - cut].decode(), body[len(body) - cut :]
        except UnicodeDecodeError:
            continue
    return body.decode(errors="replace"), b""


def frames(cast: Cast, typed: str) -> Iterator[tuple[float, tuple[Line, ...]]]:
    """(second of the animation, the screen) wherever it changes."""
    screen = pyte.Screen(COLUMNS, ROWS)
    stream = pyte.Stream(screen)
    stream.feed(f"$ {typed}\r\n")
    length = cast[-1][0]
    speed = max(1.0, length / LENGTH_S)
    yield 0.0, picture(screen)
    last, waiting = picture(screen), list(cast)
    for number in range(1, int(LENGTH_S * FRAMES_A_S) + 2):
        now = number / FRAMES_A_S
        while waiting and waiting[0][0] <= now * speed:
            stream.feed(waiting.pop(0)[1])
        if (shown := picture(screen)) != last:
            yield now, shown
            last = shown


def picture(screen: pyte.Screen) -> tuple[Line, ...]:
    lines = []
    for row in range(ROWS):
        cells = [screen.buffer[row][column] for column in range(COLUMNS)]
        runs = [
            ("".join(cell.data for cell in some), *style)
            for style, some in groupby(cells, key=lambda cell: (cell.fg, cell.bold))
        ]
        text = "".join(run[0] for run in runs)
        lines.append(tuple(runs) if text.strip() else ())
    return tuple(lines)


def draw(cast: Cast, typed: str) -> str:
    """The SVG: every different line once, the frames side by side, moved under a window."""
    shown = list(frames(cast, typed))
    ends = shown[-1][0] + HOLD_S
    names: dict[Line, str] = {}
    strips = []
    for number, (_, lines) in enumerate(shown):
        uses = [
            f'<use href="#{names.setdefault(line, f"l{len(names)}")}" y="{LINE * row:g}"/>'
            for row, line in enumerate(lines)
            if line
        ]
        strips.append(f'<g transform="translate({number * _width():g})">{"".join(uses)}</g>')
    defs = "".join(f'<g id="{name}">{_line(line)}</g>' for line, name in names.items())
    steps = "".join(
        f"{100 * when / ends:.3f}%{{transform:translateX({-number * _width():g}px)}}"
        for number, (when, _) in enumerate(shown)
    )
    width, height = _width() + 2 * PAD, ROWS * LINE + 2 * PAD
    return f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" \
width="{width:g}" height="{height:g}" role="img" aria-label="{escape(typed)}, sped up">
<style>text{{font:13px ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace;\
white-space:pre}}.b{{font-weight:700}}#film{{animation:film {ends:.2f}s step-end infinite}}\
@keyframes film{{{steps}}}</style>
<defs>{defs}</defs>
<rect width="{width:g}" height="{height:g}" rx="8" fill="{BACK}" stroke="#3a434e"/>
<svg x="{PAD:g}" y="{PAD:g}" width="{_width():g}" height="{ROWS * LINE:g}"><g id="film">
{"".join(strips)}
</g></svg>
</svg>
"""


def _width() -> float:
    return COLUMNS * CELL


def _line(line: Line) -> str:
    drawn, column = [], 0
    for text, colour, bold in line:
        fill = COLOURS.get(colour, colour if colour in COLOURS.values() else INK)
        for kind, some in groupby(text, key=lambda c: c if c in SPARKS or c in "░▒┃" else ""):
            part = "".join(some)
            if kind:
                drawn.append(_block(kind, column, len(part), fill))
            elif part.strip():
                drawn.append(_text(part, column, fill, bold))
            column += len(part)
    return "".join(drawn)


def _text(part: str, column: int, fill: str, bold: bool) -> str:
    """Each word at its own column, whatever the reader's font."""
    found, at = [], 0
    for word in part.split(" "):
        if word:
            x, length = (column + at) * CELL, len(word) * CELL
            found.append(
                f'<tspan x="{x:g}" textLength="{length:g}" lengthAdjust="spacingAndGlyphs">'
                f"{escape(word)}</tspan>"
            )
        at += len(word) + 1
    style = ' class="b"' if bold else ""
    return f'<text y="{BASE:g}" fill="{fill}"{style}>{"".join(found)}</text>'


def _block(kind: str, column: int, count: int, fill: str) -> str:
    """Bars as rectangles: fonts do not agree on them."""
    x, width, top, height, more = column * CELL, count * CELL, 3.0, 11.0, ""
    if kind == "┃":
        x, width, top, height, fill = x + 2.5, 3.0, 0.0, LINE, INK
    elif kind == "░":
        more = ' fill-opacity=".22"'
    elif kind == "▒":
        more = ' fill-opacity=".6"'
    elif kind in SPARKS[:-1]:
        height = 11.0 * (SPARKS.index(kind) + 1) / 8
        top = 14.0 - height
    return (
        f'<rect x="{x:g}" y="{top:g}" width="{width:g}" height="{height:.1f}" fill="{fill}"{more}/>'
    )


def _absolute(path: str) -> Path:
    return Path(path).resolve()


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--cast", type=_absolute, help="the recording; made if it is not there")
    arguments.add_argument("--out", type=_absolute, default=HERE / "terminal.svg")
    given = arguments.parse_args()
    if given.cast and given.cast.exists():
        _, *lines = given.cast.read_text().splitlines()
        cast = [(event[0], event[2]) for event in map(json.loads, lines)]
    else:
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)  # so that the paths it prints are as a user has them
            cast = record(["fedbudget", "demo"])
        if given.cast:
            head = {"version": 2, "width": COLUMNS, "height": ROWS}
            events = [json.dumps(head), *(json.dumps([at, "o", text]) for at, text in cast)]
            given.cast.write_text("\n".join(events) + "\n")
    given.out.write_text(draw(cast, "fedbudget demo"))
    print(f"wrote {given.out}: {given.out.stat().st_size / 1e3:.0f} kB, of {cast[-1][0]:.0f} s")


if __name__ == "__main__":
    main()
