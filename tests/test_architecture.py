"""Imports go one way, and the public names are what is exported."""

import ast
from pathlib import Path

import fedbudget

SOURCE = Path(fedbudget.__file__).parent
# each layer may import itself and what stands before it
LAYERS = (
    ("errors", "types", "seeds", "units", "threads", "garbage", "callbacks", "files", "records"),
    ("interrupt", "options"),
    ("terminal", "summary", "gauges"),
    ("models", "data", "codecs", "task", "constraints", "optimizers", "hardware"),
    ("algorithms", "resources"),
    ("arguments", "control", "uplink", "downlink", "aggregation", "privacy", "selection", "world"),
    ("client",),
    ("plan",),
    ("engines",),
    ("rounds",),
    ("runs", "epsilon"),
    ("progress", "panel", "runner", "report", "result", "tables", "config"),
    ("build", "api"),
    ("choices", "flower", "protocols", "training", "tracking", "dashboard", "bench"),
    ("profile",),
    ("predictions",),
    ("reproduce", "demo"),
    ("cli", "__init__"),
)
LEVEL = {name: i for i, names in enumerate(LAYERS) for name in names}


def imports(path: Path) -> set[str]:
    found = set()
    tree = ast.parse(path.read_text())
    typing_only = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if id(node) in typing_only:
            continue
        if isinstance(node, ast.ImportFrom) and node.module:
            if node.module == "fedbudget":
                found |= {alias.name for alias in node.names}
            elif node.module.startswith("fedbudget."):
                found.add(node.module.split(".")[1])
        elif isinstance(node, ast.Import):
            found |= {a.name.split(".")[1] for a in node.names if a.name.startswith("fedbudget.")}
    return found


def test_imports_go_one_way():
    wrong = []
    for path in SOURCE.rglob("*.py"):
        name = path.relative_to(SOURCE).parts[0].removesuffix(".py")
        for other in imports(path):
            if LEVEL[other] > LEVEL[name]:
                wrong.append(f"{path.relative_to(SOURCE)} imports {other}")
    assert not wrong


def test_reports_know_run_folders_only():
    for path in (SOURCE / "report").glob("*.py"):
        known = {"errors", "report", "units", "files", "records", "summary", "terminal"}
        assert imports(path) <= known


def test_all_is_what_is_exported():
    for name in fedbudget.__all__:
        assert getattr(fedbudget, name) is not None
    assert set(fedbudget.__all__) == {"Budget", "Resource", "Run", "UserError", "planner", "train"}


def test_a_file_is_one_noun_of_reasonable_length():
    long = {p.name: len(p.read_text().splitlines()) for p in SOURCE.rglob("*.py")}
    assert {name: n for name, n in long.items() if n > 400} == {}
