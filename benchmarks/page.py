"""The page that the benchmarks write: each replaces its own section."""

import re
from pathlib import Path


def replace_section(file: Path, heading: str, section: str) -> None:
    """The section under a heading anew, or added at the end."""
    before, _, after = file.read_text().partition(f"{heading}\n")
    following = re.search(r"^## ", after, re.MULTILINE)
    rest = "\n" + after[following.start() :] if following else ""
    file.write_text(f"{before.rstrip()}\n\n{section}\n{rest}")
