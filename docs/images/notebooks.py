"""The last figure of each notebook, for docs/notebooks.md.

python docs/images/notebooks.py
"""

import runpy
from pathlib import Path

import matplotlib

HERE = Path(__file__).parent
NOTEBOOKS = HERE.parents[1] / "examples" / "notebooks"


def main() -> None:
    matplotlib.use("agg")
    for name, picture in (("budgets", "notebook-budgets"), ("private_sets", "notebook-sets")):
        _, found = runpy.run_path(str(NOTEBOOKS / f"{name}.py"))["app"].run()
        found["figure"].savefig(HERE / f"{picture}.png", dpi=150)


if __name__ == "__main__":
    main()
