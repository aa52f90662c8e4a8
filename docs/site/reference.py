"""The command line's and the config file's reference, from the code itself."""

import json
import re
from typing import Any

import click
from pydantic import BaseModel
from typer.main import get_command

from fedbudget import config as configs
from fedbudget.cli import app
from fedbudget.config import Config


def commands() -> str:
    """Every command: what it does, its arguments and options."""
    main = get_command(app)
    assert isinstance(main, click.Group)
    context = click.Context(main, info_name="fedbudget")
    return "\n\n".join(_command(c, context) for c in main.commands.values())


def _command(command: click.Command, above: click.Context) -> str:
    context = click.Context(command, info_name=command.name, parent=above)
    usage = " ".join(command.collect_usage_pieces(context))
    lines = [
        f"## {command.name}",
        "",
        f"```text\nfedbudget {command.name} {usage}\n```",
        "",
        _examples(command.help or ""),
        "",
        "| argument or option | default | |",
        "|---|---|---|",
    ]
    lines += [_parameter(p, context) for p in command.params if not getattr(p, "hidden", False)]
    return "\n".join(lines)


def _examples(text: str) -> str:
    """A command quoted over two lines is one line in Markdown's eyes too."""
    return re.sub(r"`[^`]+`", lambda m: " ".join(m[0].split()), text)


def _parameter(parameter: click.Parameter, context: click.Context) -> str:
    record = parameter.get_help_record(context) or ("", "")
    kind = parameter.make_metavar(context)
    if isinstance(parameter, click.Option):
        words = [f"`{name}`" for name in (*parameter.opts, *parameter.secondary_opts)]
        name = ", ".join(words) + ("" if parameter.is_flag else f" {_cell(kind)}")
    else:
        name = f"`{kind}`"
    default = parameter.default
    shown = "" if default is None or callable(default) else f"`{default}`"
    shown = {"`True`": "on", "`False`": "off"}.get(shown, shown)
    text = getattr(parameter, "help", None) or record[1]
    return f"| {name} | {shown} | {_cell(text)} |"


def config() -> str:
    """Every key of a config file, table by table."""
    plain = {n: f for n, f in Config.model_fields.items() if not _is_table(f.annotation)}
    parts = ["## Top level", "", *_keys(plain)]
    for name, field in Config.model_fields.items():
        if _is_table(field.annotation):
            table = field.annotation
            parts += ["", f"## [{name}]", ""]
            if table.__doc__ and table.__doc__ != BaseModel.__doc__:
                parts += [re.sub(r"\n\s+", "\n", table.__doc__.strip()), ""]
            parts += _keys(table.model_fields)
    return "\n".join(parts)


def _is_table(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def _keys(fields: dict[str, Any]) -> list[str]:
    rows = ["| key | default | |", "|---|---|---|"]
    for name, field in fields.items():
        default = json.dumps(field.get_default(call_default_factory=True))
        rows.append(f"| `{name}` | `{default}` | {_cell(field.description or '')} |")
    return rows


def presets() -> str:
    """Every preset, with the first line of its file."""
    rows = ["| preset | |", "|---|---|"]
    for name, path in configs.presets().items():
        rows.append(f"| `{name}` | {_cell(path.read_text().splitlines()[0].lstrip('# '))} |")
    return "\n".join(rows)


def _cell(text: str) -> str:
    """Safe between two bars."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")
