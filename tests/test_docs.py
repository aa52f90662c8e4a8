"""Documents say what is true: code runs, links lead somewhere, commands exist."""

import doctest
import importlib
import os
import re
import shlex
import sys
import tomllib
from itertools import pairwise
from pathlib import Path

import pytest
from typer.main import get_command

import fedbudget
from fedbudget import cli, config
from fedbudget.data.files import cache_folder

ROOT = Path(__file__).parents[1]
SOURCE = Path(fedbudget.__file__).parent
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
# pages whose blocks follow on one another: files are written, commands run
LESSONS = [
    ROOT / "docs" / "tutorial.md",
    ROOT / "docs" / "budgets.md",
    ROOT / "docs" / "privacy.md",
    ROOT / "docs" / "report.md",
    ROOT / "docs" / "tracking.md",
    ROOT / "docs" / "nouns" / "run-folder.md",
    *sorted((ROOT / "docs" / "howto").glob("*.md")),
]
SMALL = (
    *("rounds=2", "workers=1", "train.steps=8", "train.evaluate_every=1"),
    *("model.size=1x16", "model.context=16", "control.least_steps=1", "data.validation=0.05"),
)
REFUSED = {'fedbudget plan planner --set budget.memory="2 MB"': 2}
"""commands that a page shows for the error they end with"""
NOT_RUN = "# not run by the tests"
OVERVIEW = {
    ("README.md", "make demo"),
    ("README.md", "fedbudget presets"),
    ("README.md", "fedbudget run cafl-l --engine flower"),
}
"""blocks that show what there is and are not run here: the page, and how its block begins. That their
commands and targets exist is tested; what they do, elsewhere"""


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def fences(page: Path) -> list[tuple[str, str]]:
    """(language, code) of each fenced block."""
    return re.findall(r"^```(\w*)\n(.*?)^```", page.read_text(), re.S | re.M)


def blocks(pages: list[Path]) -> list:
    found = []
    for page in pages:
        codes = [code for language, code in fences(page) if language == "python"]
        found += [pytest.param(code, id=f"{name(page)}-{i}") for i, code in enumerate(codes)]
    return found


def execute(code: str) -> None:
    if "import transformers" in code or "from transformers" in code:
        pytest.importorskip("transformers")
    exec(compile(code, "block", "exec"), {"__name__": "block"})


@pytest.mark.parametrize("code", blocks([p for p in PAGES if p not in LESSONS]))
def test_python_blocks_run(code, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    execute(code)


def lacking(words: list[str]) -> str | None:
    """The data that a command needs and that is not here."""
    if words[1] not in ("run", "plan", "compare"):
        return None
    overrides = [w for option, w in pairwise(words) if option == "--set"]
    source = config.load(config.find_config(words[2]), overrides).data.source
    if source not in ("tinyshakespeare", "mnist", "cifar10"):
        return None
    folders = (os.environ.get("FEDBUDGET_DATA"), cache_folder())
    here = any(folder and (Path(folder) / source).is_dir() for folder in folders)
    return None if here else source


def command(line: str, monkeypatch) -> None:
    """Run it as a shell would, but small, and in this process: torch is imported already."""
    words = shlex.split(line, comments=True)
    if source := lacking(words):
        pytest.skip(f"{source} is not here (see FEDBUDGET_DATA), which is needed for: {line}")
    small = [w for s in SMALL for w in ("--set", s)] if words[1] in ("run", "compare") else []
    monkeypatch.setattr(sys, "argv", [*words, *small])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert (stop.value.code or 0) == REFUSED.get(line.strip(), 0), line


@pytest.mark.parametrize("page", LESSONS, ids=name)
def test_a_lesson_can_be_followed(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    known = set(sys.modules)
    try:
        for language, code in fences(page):
            file = re.match(r"# ([\w-]+\.(?:py|toml))", code)
            if file:
                Path(file[1]).write_text(code)
            if language == "python":
                execute(code)
            elif language == "":
                for line in code.splitlines():
                    command(line, monkeypatch)
    finally:
        own = {path.stem for path in tmp_path.glob("*.py")}
        for module in (set(sys.modules) - known) & own:
            del sys.modules[module]


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_block_is_run_or_says_that_it_is_not(page):
    for language, code in fences(page):
        assert language in ("", "python", "toml", "text", "math", "json", "bash"), code
        if language == "bash":
            assert code.startswith(NOT_RUN), code
        if language == "toml":
            tables = tomllib.loads(code)
            config.validate(tables, page.name)
        if language == "" and page in LESSONS:
            assert all(line.startswith("fedbudget ") for line in code.splitlines()), code
        elif language == "":
            assert any(name(page) == at and code.startswith(words) for at, words in OVERVIEW), code


def test_the_list_of_blocks_that_are_not_run_is_not_out_of_date():
    for at, words in OVERVIEW:
        found = [code for language, code in fences(ROOT / at) if language == ""]
        assert any(code.startswith(words) for code in found), words


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_targets_of_make_exist(page):
    known = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.M)
    text = page.read_text()
    named = re.findall(r"`make ([\w-]+)`", text)
    named += [w for _, code in fences(page) for w in re.findall(r"^make ([\w-]+)", code, re.M)]
    assert set(named) <= set(known)


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)\s#]+)(?:#[^)]*)?\)", page.read_text()):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_commands_and_their_options_exist(page):
    commands = get_command(cli.app).commands
    text = page.read_text()
    lines = re.findall(r"^\s*(?:\$ )?(fedbudget [a-z].*)$", text, re.M)
    for line in [*lines, *re.findall(r"`(fedbudget [a-z][^`]*)`", text)]:
        words = shlex.split(line, comments=True)
        assert words[1] in commands, line
        options = {o for p in commands[words[1]].params for o in (*p.opts, *p.secondary_opts)}
        assert {w for w in words if w.startswith("--")} <= options, line


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_programs_that_are_named_exist(page):
    for path in re.findall(r"\b(?:benchmarks|examples|docs)/[\w/.-]+\.py\b", page.read_text()):
        assert (ROOT / path).exists(), f"{page.name} names {path}"


def with_doctests() -> list[str]:
    found = []
    for path in sorted(SOURCE.rglob("*.py")):
        if ">>> " in path.read_text():
            parts = path.relative_to(SOURCE.parent).with_suffix("").parts
            found.append(".".join(p for p in parts if p != "__init__"))
    return found


@pytest.mark.parametrize("module", with_doctests())
def test_examples_in_docstrings_are_right(module):
    found = doctest.testmod(importlib.import_module(module))
    assert found.attempted > 0
    assert found.failed == 0
