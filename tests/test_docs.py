"""Documents say what is true: code runs, links lead somewhere, commands exist."""

import re
import shlex
from pathlib import Path

import pytest
from typer.main import get_command

from fedbudget.cli import app

ROOT = Path(__file__).parents[1]
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]


def blocks(language: str) -> list:
    found = []
    for page in PAGES:
        for i, code in enumerate(re.findall(rf"```{language}\n(.*?)```", page.read_text(), re.S)):
            found.append(pytest.param(code, id=f"{page.relative_to(ROOT)}-{i}"))
    return found


@pytest.mark.parametrize("code", blocks("python"))
def test_python_blocks_run(code, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "block", "exec"), {"__name__": "block"})


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_commands_and_their_options_exist(page):
    commands = get_command(app).commands
    for line in re.findall(r"^\s*(?:\$ )?(fedbudget [a-z].*)$", page.read_text(), re.M):
        words = shlex.split(line, comments=True)
        assert words[1] in commands, line
        options = {o for p in commands[words[1]].params for o in p.opts}
        assert {w for w in words if w.startswith("--")} <= options, line
