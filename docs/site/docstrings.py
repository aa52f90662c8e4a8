"""Docstrings as Markdown: `name: text` lines as a list of parameters, `>>>` lines as code."""

import re
from typing import Any

from griffe import Extension, Function, Object


class Plain(Extension):
    def on_instance(self, *, obj: Object, **kwargs: Any) -> None:
        if obj.docstring is not None:
            names = {p.name for p in obj.parameters} if isinstance(obj, Function) else set()
            obj.docstring.value = as_markdown(obj.docstring.value, names)


def as_markdown(text: str, parameters: set[str]) -> str:
    lines: list[str] = []
    inside = False
    listed = False
    for line in text.splitlines():
        if line.startswith(">>>") and not inside:
            inside = True
            lines += ["", "```pycon"]
        if inside and not line.strip():
            inside = False
            lines.append("```")
        named = re.match(r"(\w+): ", line)
        if not inside and named and named[1] in parameters:
            lines += [] if listed else [""]
            listed = True
            line = f"- `{named[1]}`: {line[named.end() :]}"
        lines.append(line)
    return "\n".join([*lines, "```"] if inside else lines)
