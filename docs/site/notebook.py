"""A marimo notebook as Markdown: its words as words, its cells as code."""

import ast
import textwrap
from pathlib import Path


def as_markdown(path: Path) -> str:
    source = path.read_text()
    parts = []
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef) and any(
            "app.cell" in ast.unparse(d) for d in node.decorator_list
        ):
            words = _words(node)
            parts.append(words if words is not None else _code(node, source))
    return "\n\n".join(part for part in parts if part)


def _words(cell: ast.FunctionDef) -> str | None:
    """The text of a cell that is nothing but `mo.md("...")`."""
    for node in cell.body:
        match node:
            case ast.Expr(ast.Call(ast.Attribute(attr="md"), [ast.Constant(str() as text)])):
                return textwrap.dedent(text).strip()
    return None


def _code(cell: ast.FunctionDef, source: str) -> str:
    lines = source.splitlines()
    kept = [n for n in cell.body if not isinstance(n, ast.Return)]
    if not kept:
        return ""
    text = "\n".join(lines[kept[0].lineno - 1 : kept[-1].end_lineno])
    return f"```{{.python}}\n{textwrap.dedent(text)}\n```"
