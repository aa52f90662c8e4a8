"""The built site: whole, without network, and complete where it is made from the code."""

import os
import re
import runpy
import subprocess
import sys
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from pydantic import BaseModel
from typer.main import get_command

import fedbudget
from fedbudget import constraints
from fedbudget.cli import app
from fedbudget.config import Config, presets

ROOT = Path(__file__).parents[1]
EXTENSION_POINTS = (
    *("control.controller.Controller", "control.duals.Rule", "control.policies.Base"),
    *("codecs.codec.Codec", "algorithms.algorithm.Algorithm", "engines.engine.Engine"),
    *("resources.costs.Costs", "resources.devices.Device", "callbacks.Callback"),
)


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """`make docs` has built it; otherwise it is built here."""
    if given := os.environ.get("FEDBUDGET_SITE"):
        return (ROOT / given).resolve()
    pytest.importorskip("mkdocs")
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "-d", str(folder)],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    return folder


class Page(HTMLParser):
    """What a page links to, loads, and can be linked to."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.feed(path.read_text())

    def handle_starttag(self, tag, attrs) -> None:
        given = dict(attrs)
        self.ids |= {v for k, v in attrs if k in ("id", "name") and v}
        if tag == "a" and given.get("href"):
            self.links.append(given["href"])
        if tag in ("img", "script", "iframe", "source", "video") and given.get("src"):
            self.loads.append(given["src"])
        if tag == "link" and given.get("href"):
            self.loads.append(given["href"])


@cache
def read(path: Path) -> Page:
    return Page(path)


def pages(site: Path) -> list[Path]:
    return [p for p in sorted(site.rglob("*.html")) if p.name != "404.html"]


def target(page: Path, link: str) -> tuple[Path, str]:
    parts = urlsplit(link)
    path = (page.parent / unquote(parts.path)).resolve() if parts.path else page
    return (path / "index.html" if path.is_dir() else path), unquote(parts.fragment)


def elsewhere(link: str) -> bool:
    return bool(urlsplit(link).scheme or urlsplit(link).netloc)


def test_every_link_anchor_and_image_is_there(site):
    broken = []
    for page in pages(site):
        found = read(page)
        for link in [*found.links, *found.loads]:
            if elsewhere(link):
                continue
            path, anchor = target(page, link)
            there = path.is_file()
            if there and anchor and path.suffix == ".html":
                there = anchor in read(path).ids
            if not there:
                broken.append(f"{page.relative_to(site)}: {link}")
    assert not broken


def test_every_page_is_reached_from_the_home_page(site):
    waiting, seen = [site / "index.html"], set()
    while waiting:
        page = waiting.pop()
        if page in seen or page.suffix != ".html":
            continue
        seen.add(page)
        waiting += [target(page, link)[0] for link in read(page).links if not elsewhere(link)]
    assert set(pages(site)) <= seen


def test_nothing_is_loaded_from_elsewhere(site):
    for page in pages(site):
        assert not [u for u in read(page).loads if elsewhere(u) and not u.startswith("data:")], page
    for sheet in site.rglob("*.css"):
        assert not re.findall(r"(?:url\(|@import)\s*['\"]?https?:", sheet.read_text()), sheet


def test_formulas_are_drawn_by_the_browser(site):
    drawn = 0
    for page in pages(site):
        text = page.read_text()
        assert "arithmatex" not in text, page
        for formula in re.findall(r"<math.*?</math>", text, re.S):
            assert not re.search(r"\\|&amp;", formula), (page, formula)  # not understood
            drawn += 1
    assert drawn > 100


def words(site: Path, page: str) -> str:
    return re.sub(r"<[^>]+>", "", (site / page).read_text())


def test_every_command_and_option_is_in_the_reference(site):
    text = words(site, "reference/cli.html")
    anchors = read(site / "reference" / "cli.html").ids
    for name, command in get_command(app).commands.items():
        assert name in anchors
        for parameter in command.params:
            for option in parameter.opts if parameter.param_type_name == "option" else ():
                assert option in text, f"{name} {option}"


def test_every_config_key_and_preset_is_in_the_reference(site):
    html = (site / "reference" / "config.html").read_text()
    for name, field in Config.model_fields.items():
        table = field.annotation
        if isinstance(table, type) and issubclass(table, BaseModel):
            assert f'id="{name}"' in html
            assert all(f"<code>{key}</code>" in html for key in table.model_fields), name
        else:
            assert f"<code>{name}</code>" in html
    assert all(f"<code>{name}</code>" in html for name in presets())


def test_every_public_name_is_in_the_reference(site):
    anchors = read(site / "reference" / "api.html").ids
    names = {f"fedbudget.{n}" for n in fedbudget.__all__}
    names |= {f"fedbudget.constraints.{n}" for n in constraints.__all__}
    names |= {f"fedbudget.flower.{n}" for n in ("Budgeted", "budget_mod", "freeze", "knobs_of")}
    names |= {f"fedbudget.{n}" for n in EXTENSION_POINTS}
    assert names <= anchors


def test_docstrings_become_markdown():
    pytest.importorskip("griffe")
    as_markdown = runpy.run_path(str(ROOT / "docs" / "site" / "docstrings.py"))["as_markdown"]
    made = as_markdown("Add.\n\nx: a number\n    or two\n>>> add(1)\n2", {"x"})
    assert "\n\n- `x`: a number\n    or two\n" in made
    assert made.endswith("\n```pycon\n>>> add(1)\n2\n```")
    assert as_markdown("y: no parameter", {"x"}) == "y: no parameter"
