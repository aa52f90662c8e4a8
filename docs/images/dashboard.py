"""Takes dashboard-desktop.png, -dark.png, -phone.png and -phone-dark.png in Chromium.

python docs/images/dashboard.py fedavg=RUN cafl-l=RUN planner=RUN ... --running planner

Each NAME=RUN is copied under that name, seed by seed. Of the name given by --running, the last
copy is cut back to 60% of its rounds and its lock is held while the pictures are taken.
"""

import argparse
import json
import shutil
import tempfile
import threading
from contextlib import ExitStack
from io import BytesIO
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser, sync_playwright

from fedbudget.dashboard.app import build
from fedbudget.dashboard.gate import Gate, new_token
from fedbudget.dashboard.server import Server, listen
from fedbudget.runs import RunFolder

HERE = Path(__file__).parent
LARGEST = 300_000
"""bytes of a picture"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", nargs="+", metavar="NAME=RUN")
    parser.add_argument("--running", default="")
    parser.add_argument("--chromium", default="/usr/bin/chromium")
    parser.add_argument("--out", type=Path, default=HERE)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, ExitStack() as held:
        root = Path(folder) / "runs"
        copies = [copy(root, *text.split("=", 1)) for text in given.runs]
        under_way = [c for c in copies if c.parent.name == given.running][-1:]
        for run in under_way:
            cut_back(run)
            held.enter_context(RunFolder(run).held())
        ticked = ",".join(f"{c.parent.name}/{c.name}" for c in copies)
        listening = listen("127.0.0.1", 0)
        app = build(root, "runs", control=True)
        port = listening.getsockname()[1]
        server = Server(
            Gate(app, new_token(), f"fedbudget_{port}", "127.0.0.1", False), app.state.watch
        )
        thread = threading.Thread(target=server.run, args=([listening],))
        thread.start()
        try:
            with sync_playwright() as p:
                browser = p.chromium.launch(
                    executable_path=given.chromium, args=["--no-sandbox", "--hide-scrollbars"]
                )
                url = f"http://127.0.0.1:{port}/"
                take(browser, f"{url}#{ticked}", given.out / "dashboard-desktop.png", 1280, 1500)
                take(
                    browser, f"{url}#{ticked}", given.out / "dashboard-dark.png", 1280, 1500, "dark"
                )
                take(browser, url, given.out / "dashboard-phone.png", 390, 844)
                take(browser, url, given.out / "dashboard-phone-dark.png", 390, 844, "dark")
                browser.close()
        finally:
            server.handle_exit(2, None)
            thread.join()


def copy(root: Path, name: str, run: str) -> Path:
    """Under its name and seed; what the name of the config was is not shown."""
    summary = json.loads((Path(run) / "summary.json").read_text())
    to = root / name / f"seed-{summary['seed']}"
    to.mkdir(parents=True)
    for file in ("config.toml", "rounds.jsonl", "checkpoint"):
        source = Path(run) / file
        if source.exists():  # records that are kept have no checkpoint
            (shutil.copytree if source.is_dir() else shutil.copy2)(source, to / file)
    (to / "summary.json").write_text(json.dumps({**summary, "name": name}))
    shutil.copystat(Path(run) / "summary.json", to / "summary.json")
    return to


def cut_back(run: Path) -> None:
    """As it was in the middle of its training."""
    summary = json.loads((run / "summary.json").read_text())
    lines = (run / "rounds.jsonl").read_text().splitlines(keepends=True)
    (run / "rounds.jsonl").write_text("".join(lines[: len(lines) * 3 // 5]))
    budgets = {
        accounting: [{r: u["budget"] for r, u in usage.items() if "budget" in u}]
        for accounting, usage in summary["usage"].items()
    }
    keys = ("name", "algorithm", "controller", "seed", "clients", "cohort", "engine", "rounds")
    facts = {key: summary[key] for key in keys} | {"budgets": budgets, "layers": [], "command": ""}
    (run / "facts.json").write_text(json.dumps(facts))
    (run / "summary.json").unlink()


def take(
    browser: Browser, url: str, out: Path, width: int, height: int, scheme: str = "light"
) -> None:
    page = browser.new_page(
        viewport={"width": width, "height": height},
        color_scheme="dark" if scheme == "dark" else "light",
        device_scale_factor=2 if width < 500 else 1,
    )
    page.goto(url)
    page.wait_for_selector("#rows tr")
    if "#" in url:
        page.wait_for_selector("#report .js-plotly-plot .scatterlayer .trace")
    page.wait_for_timeout(1500)
    picture = Image.open(BytesIO(page.screenshot())).convert("RGB")
    page.close()
    picture.save(out, optimize=True)
    if out.stat().st_size > LARGEST:
        picture.quantize(256, method=Image.Quantize.FASTOCTREE).save(out, optimize=True)
    assert out.stat().st_size < LARGEST, f"{out}: {out.stat().st_size} bytes"
    print(f"{out}: {out.stat().st_size} bytes")


if __name__ == "__main__":
    main()
