"""Takes pictures of a report in Chromium: desktop and phone, light and dark.

python docs/images/report.py RUN...
"""

import argparse
import tempfile
from io import BytesIO
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser, sync_playwright

from fedbudget.report.load import find_runs
from fedbudget.report.write import write_report

HERE = Path(__file__).parent
LARGEST = 300_000
"""bytes of a picture"""
SHOTS = {
    "desktop": (1280, 1600, "light"),
    "dark": (1280, 1600, "dark"),
    "phone": (390, 1500, "light"),
    "phone-dark": (390, 1500, "dark"),
}
"""width, height, colour scheme"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--chromium", default="/usr/bin/chromium")
    parser.add_argument("--out", type=Path, default=HERE)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as p:
        page = Path(folder) / "report.html"
        write_report(find_runs(given.runs), page)
        browser = p.chromium.launch(executable_path=given.chromium, args=["--no-sandbox"])
        for name in SHOTS:
            take(browser, page, name, given.out / f"report-{name}.png")
        browser.close()


def take(browser: Browser, page: Path, name: str, to: Path) -> None:
    width, height, scheme = SHOTS[name]
    phone = width < 500
    tab = browser.new_page(
        viewport={"width": width, "height": height},
        color_scheme=scheme,
        has_touch=phone,
        is_mobile=phone,
        device_scale_factor=2 if phone else 1,
    )
    wrong: list[str] = []
    tab.on("console", lambda message: wrong.append(message.text))
    tab.on("pageerror", lambda error: wrong.append(str(error)))
    tab.on(
        "request", lambda request: wrong.append(request.url) if "file:" not in request.url else None
    )
    tab.goto(page.as_uri())
    tab.wait_for_selector(".figures figure:last-child .plot .main-svg")
    wide = tab.evaluate("document.documentElement.scrollWidth")
    if wrong or wide > width:
        raise SystemExit(f"{name}: {wide} of {width} pixels wide; {wrong}")
    write(tab.screenshot(), to)
    tab.close()


def write(png: bytes, to: Path) -> None:
    """With as many colours as the size allows."""
    picture = Image.open(BytesIO(png)).convert("RGB")
    for colours in (256, 128, 64, 32):
        buffer = BytesIO()
        picture.quantize(colours, dither=Image.Dither.NONE).save(buffer, "PNG", optimize=True)
        if buffer.tell() < LARGEST:
            break
    to.write_bytes(buffer.getvalue())
    print(f"{to}: {buffer.tell() // 1000} kB, {colours} colours")


if __name__ == "__main__":
    main()
