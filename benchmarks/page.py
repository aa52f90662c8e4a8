"""docs/benchmarks.md, made from the results: each part's JSON is one section."""

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

INTRODUCTION = """# Benchmarks

Made by `make bench` (about 40 minutes), or one part by `python benchmarks/bench.py NAME`, from the
results in `docs/results/benchmarks/`. Ratios hold; absolute times are of the machines named. In each
section ours and the others take turns, and a ratio is the median, with quartiles, of the ratios within
a repetition. Peers run in environments of their own (`benchmarks/peers/`), set up as their documentation
says, with torch on one thread a process unless a row says otherwise.
"""


def store(folder: Path, name: str, about: Mapping[str, Any], found: Mapping[str, Any]) -> Path:
    """One part's result as JSON, whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    part = path.with_suffix(".part")
    part.write_text(json.dumps({"name": name, **about, "found": found}, indent=1) + "\n")
    part.replace(path)
    return path


def stored(folder: Path, name: str) -> dict[str, Any] | None:
    path = folder / f"{name}.json"
    if not path.exists():
        return None
    result: dict[str, Any] = json.loads(path.read_text())
    return result


def write(
    page: Path,
    folder: Path,
    parts: Mapping[str, tuple[str, Callable[[dict[str, Any]], list[str]]]],
) -> None:
    """The whole page; parts (name -> heading, section) without a result are left out."""
    results = {name: one for name in parts if (one := stored(folder, name)) is not None}
    lines = [INTRODUCTION]
    for line in _machines({parts[name][0]: one for name, one in results.items()}):
        lines += [line, ""]
    for name, one in results.items():
        heading, section = parts[name]
        lines += [f"## {heading}", "", *section(one["found"]), "", _when(one), ""]
    page.write_text("\n".join(lines).rstrip() + "\n")


def _machines(sections: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """A line for each kind, as it was in the last of its sections; the one of most sections first."""
    kinds: dict[tuple[object, ...], list[str]] = {}
    for heading, one in sections.items():
        kind = tuple(one["machine"][key] for key in ("cpu", "cores", "simd"))
        kinds.setdefault(kind, []).append(heading)
    for i, own in enumerate(sorted(kinds.values(), key=len, reverse=True)):
        last = max(own, key=lambda heading: sections[heading]["date"])
        yield _machine(sections[last]["machine"], f" of *{', '.join(own)}*" if i else "")


def _machine(facts: Mapping[str, Any], whose: str) -> str:
    return (
        f"Machine{whose}: {facts['cpu']}, {facts['cores']} cores, {facts['simd']}; one core: "
        f"float32 product {facts['gemm_gflops']:.0f} GFLOP/s, "
        f"copy {facts['copy_gbytes']:.1f} GB/s (read and write). "
        f"{facts['system']}, Python {facts['python']}, torch {facts['torch']}, "
        f"fedbudget {facts['fedbudget']}."
    )


def _when(one: Mapping[str, Any]) -> str:
    facts = one["machine"]
    versions = sorted(set(_versions(one["found"])))
    said = f"; {', '.join(versions)}" if versions else ""
    return (
        f"_{one['date']}, {one['minutes']:.1f} minutes; load average at the start {facts['load']:.1f}, "
        f"product {facts['gemm_gflops']:.0f} GFLOP/s{said}._"
    )


def _versions(found: Any) -> list[str]:
    """Of every peer that took part, wherever a result names them."""
    if not isinstance(found, dict):
        return []
    own = [v for v in found.get("versions", {}).values() if not v.startswith("torch")]
    return own + [v for value in found.values() for v in _versions(value)]
