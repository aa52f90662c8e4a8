"""Files outside docs/ as pages of the site, so that a link works on GitHub and here.

A page may link to `../examples/hf_gpt2.py` or `../CONTRIBUTING.md`. The README is the home page; any
other file that is reached by a link becomes repository/PATH: a document as it is, a program as a
code block, a folder as a list.
"""

import os
import re
from collections.abc import Iterable
from pathlib import Path

_FENCE = re.compile(r"(^```.*?^```[ ]*$)", re.S | re.M)
_LINK = re.compile(r"(\]\()([^)\s#]+)((?:#[^)\s]*)?\))")
_LANGUAGE = {".py": "python", ".toml": "toml", ".sh": "bash"}
FOLDER = "repository"


def uri(path: Path) -> str:
    """Where a repository's file is in the site's sources."""
    if path == Path("README.md"):
        return "index.md"
    if path.parts[0] == "docs":
        return path.relative_to("docs").as_posix()
    if path.suffix == ".md":
        return f"{FOLDER}/{path.as_posix()}".replace("README.md", "about.md")
    return f"{FOLDER}/{path.as_posix()}.md"


def path_of(source: str) -> Path:
    """The document behind one of the site's sources; programs have no links to follow."""
    if source == "index.md":
        return Path("README.md")
    if source.startswith(f"{FOLDER}/"):
        return Path(source.removeprefix(f"{FOLDER}/").replace("about.md", "README.md"))
    return Path("docs") / source


def reached(root: Path, pages: Iterable[Path]) -> list[Path]:
    """The files outside docs/ that the pages lead to, and those that these lead to."""
    found: dict[Path, None] = {Path("README.md"): None}
    waiting = list(pages)
    while waiting:
        page = waiting.pop()
        for part in _prose(as_markdown(root, page)):
            for target in _targets(part, page, root):
                if target.parts[0] != "docs" and target not in found:
                    found[target] = None
                    waiting.append(target)
    return list(found)


def as_markdown(root: Path, path: Path) -> str:
    """A file as Markdown."""
    full = root / path
    if full.is_dir():
        inside = sorted(p for p in full.iterdir() if p.name[0] not in "_.")
        links = [f"- [{p.name}]({path.name}/{p.name})" for p in inside]
        return f"# {path}\n\n" + "\n".join(links) + "\n"
    if path.suffix == ".md":
        return full.read_text()
    return (
        f"# {path}\n\n```{_LANGUAGE.get(path.suffix, 'text')}\n{full.read_text().rstrip()}\n```\n"
    )


def rewritten(markdown: str, path: Path, root: Path) -> str:
    """Its links, as the site needs them."""
    here = Path(uri(path)).parent
    parts = _FENCE.split(markdown)
    parts[::2] = [_LINK.sub(lambda m: _moved(m, path, here, root), part) for part in parts[::2]]
    return "".join(parts)


def _moved(match: re.Match[str], path: Path, here: Path, root: Path) -> str:
    target = _resolved(match[2], path, root)
    if target is None:
        return match[0]
    return match[1] + os.path.relpath(uri(target), here) + match[3]


def _prose(markdown: str) -> list[str]:
    return _FENCE.split(markdown)[::2]


def _targets(markdown: str, page: Path, root: Path) -> list[Path]:
    links = (_resolved(link, page, root) for _, link, _ in _LINK.findall(markdown))
    return [target for target in links if target is not None]


def _resolved(link: str, page: Path, root: Path) -> Path | None:
    """A link's file, from the root of the repository; None where it is not ours to move."""
    if ":" in link:
        return None
    path = Path(os.path.normpath(page.parent / link))
    inside = path.parts[:1] != ("..",) and (root / path).exists()
    return path if inside else None
