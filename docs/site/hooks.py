"""MkDocs events: repository files become pages, markers become text, formulas become MathML."""

import re
from pathlib import Path
from typing import Any

import formulas
import notebook
import reference
import repository
from mkdocs.structure.files import File

ROOT = Path(__file__).parents[2]

MARKERS = {
    "commands": lambda argument: reference.commands(),
    "config": lambda argument: reference.config(),
    "presets": lambda argument: reference.presets(),
    "notebook": lambda argument: notebook.as_markdown(ROOT / argument),
}
"""`<!-- name argument -->` in a page -> the text that takes its place; GitHub shows nothing there"""


def on_files(files: Any, config: Any) -> Any:
    pages = [Path("docs") / file.src_uri for file in files if file.src_uri.endswith(".md")]
    for path in repository.reached(ROOT, [Path("README.md"), *pages]):
        made = File.generated(
            config, repository.uri(path), content=repository.as_markdown(ROOT, path)
        )
        files.append(made)
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    markdown = re.sub(r"<!-- (\w+) ?(\S*) -->", _filled, markdown)
    return repository.rewritten(markdown, repository.path_of(page.file.src_uri), ROOT)


def on_page_content(html: str, page: Any, config: Any, files: Any) -> str:
    return formulas.as_mathml(html)


def _filled(marker: re.Match[str]) -> str:
    return MARKERS[marker[1]](marker[2]) if marker[1] in MARKERS else marker[0]
