"""The dashboard and the report as people see them, in a real browser."""

import fcntl
import json
import os
import re
from pathlib import Path

import pytest
from chromium import chromium, drawn, no_sideways_scroll, opener
from playwright.sync_api import expect

from fedbudget.report.load import find_runs
from fedbudget.report.write import write_report
from served import TINY, record, row, served, start, until, write_run

pytestmark = pytest.mark.browser

NO_STREAMS = """window.EventSource = class {
  static CLOSED = 2;
  readyState = 2;
  constructor() { setTimeout(() => this.onerror(), 10); }
  close() {}
};"""


@pytest.fixture(scope="module")
def browser():
    with chromium() as running:
        yield running


@pytest.fixture
def opened(browser):
    with opener(browser) as open_page:
        yield open_page


@pytest.fixture
def runs(tmp_path):
    """Three finished runs, one that stopped."""
    root = tmp_path / "runs"
    write_run(root / "fedavg/seed-0", done=5)
    write_run(root / "planner/seed-0", done=5, name="planner", energy=9.0)
    write_run(root / "planner/seed-1", done=5, name="planner", seed=1, energy=11.0)
    write_run(root / "short", done=3, name="short")
    return root


def rows(page):
    return page.locator("#rows tr")


def the(page, id):
    return page.locator(f'#rows tr[data-id="{id}"]')


def test_the_list_shows_runs_filters_and_sorts(runs, opened):
    with served(runs) as port:
        page = opened(f"http://127.0.0.1:{port}/")
        expect(rows(page)).to_have_count(4)
        expect(page.locator("#link")).to_have_text("live")
        expect(the(page, "fedavg/seed-0")).to_contain_text("5 of 5")
        expect(the(page, "fedavg/seed-0")).to_contain_text("all 2 kept")
        expect(the(page, "planner/seed-1")).to_contain_text("1 of 2 kept")
        expect(the(page, "planner/seed-1")).to_contain_text("worst: 110% of energy")
        expect(the(page, "short").locator("button")).to_have_text("Resume")
        assert page.locator("#rows polyline").count() == 4
        page.keyboard.press("/")
        page.keyboard.type("planner seed-1")
        expect(rows(page)).to_have_count(1)
        expect(page.locator("#count")).to_have_text("1 of 4 runs")
        page.keyboard.press("Escape")
        expect(rows(page)).to_have_count(4)
        page.get_by_role("button", name="Budgets").click()
        expect(rows(page).last).to_contain_text("planner/seed-1")
        page.get_by_role("button", name="Budgets").click()
        expect(rows(page).first).to_contain_text("planner/seed-1")
        page.goto("about:blank")


def test_a_share_is_100_percent_only_when_it_is_exactly_used(tmp_path, opened):
    shares = {9.98: "99.8%", 9.9999: "99.9%", 10.0: "100%", 10.04: "100.4%", 10.0001: "100.1%"}
    shares |= {9.4: "94%", 10.6: "106%", 99.96: "10 times", 1234.0: "123 times"}
    for energy in shares:
        write_run(tmp_path / f"used-{energy}", done=5, energy=energy)
    with served(tmp_path) as port:
        page = opened(f"http://127.0.0.1:{port}/")
        expect(rows(page)).to_have_count(len(shares))
        for energy, shown in shares.items():
            kept = "all 2 kept" if energy <= 10 else "1 of 2 kept"
            expect(the(page, f"used-{energy}").locator(".budgets")).to_contain_text(kept)
            told = f"worst: {shown} of energy"
            expect(the(page, f"used-{energy}").locator(".budgets")).to_contain_text(told)
        page.goto("about:blank")


def test_a_new_round_and_a_new_run_appear_by_themselves(runs, opened):
    with served(runs) as port:
        page = opened(f"http://127.0.0.1:{port}/")
        expect(the(page, "short")).to_contain_text("3 of 5")
        with (runs / "short/rounds.jsonl").open("a") as f:
            f.write(json.dumps(record(4, loss=0.1234)) + "\n")
        expect(the(page, "short")).to_contain_text("4 of 5", timeout=10_000)
        expect(the(page, "short")).to_contain_text("0.123")
        write_run(runs / "new", done=1)
        expect(the(page, "new")).to_contain_text("1 of 5", timeout=10_000)
        page.goto("about:blank")


def test_without_event_streams_the_page_asks(runs, opened):
    with served(runs) as port:
        page = opened(f"http://127.0.0.1:{port}/", script=NO_STREAMS)
        expect(page.locator("#link")).to_have_text("live (asking)")
        with (runs / "short/rounds.jsonl").open("a") as f:
            f.write(json.dumps(record(4)) + "\n")
        expect(the(page, "short")).to_contain_text("4 of 5", timeout=10_000)
        page.goto("about:blank")


def test_ticked_runs_are_compared_live_and_the_address_keeps_them(runs, opened):
    with served(runs) as port:
        page = opened(f"http://127.0.0.1:{port}/")
        page.get_by_label("compare fedavg/seed-0").check()
        page.get_by_label("compare short").focus()
        page.keyboard.press("Space")
        expect(page.locator("#report table").first).to_contain_text("short", timeout=20_000)
        page.wait_for_selector("#report .js-plotly-plot .trace")
        assert page.evaluate("location.hash") == "#fedavg/seed-0,short"
        expect(page.locator("#report")).to_contain_text("3 of 5")
        with (runs / "short/rounds.jsonl").open("a") as f:
            f.write(json.dumps(record(4)) + "\n")
        expect(page.locator("#report")).to_contain_text("4 of 5", timeout=15_000)
        page.reload()
        expect(page.get_by_label("compare short")).to_be_checked()
        page.wait_for_selector("#report .js-plotly-plot .trace")
        assert drawn(page) == page.locator(".js-plotly-plot").count() > 1
        page.get_by_role("button", name="clear ticks").click()
        expect(page.locator("#compare")).to_be_hidden()
        assert page.evaluate("location.hash") == ""
        page.goto("about:blank")


def test_damaged_folders_and_hostile_names_are_text(runs, opened):
    hostile = "<img src=x onerror=document.title='broken'>"
    bad = write_run(runs / hostile.replace("/", ""), done=2, name=hostile)
    (bad / "summary.json").write_text('{"complete": tr')
    with (bad / "rounds.jsonl").open("a") as f:
        f.write('{"round": 3, "vali')
    (write_run(runs / "no-rounds", done=2) / "rounds.jsonl").unlink()
    (write_run(runs / "empty-file", done=2, ended=False) / "rounds.jsonl").write_text("")
    with served(runs) as port:
        page = opened(f"http://127.0.0.1:{port}/")
        expect(rows(page)).to_have_count(7)
        expect(page.locator("#rows tr.damaged")).to_have_count(2)
        damaged = rows(page).filter(has_text="summary.json is damaged")
        expect(damaged).to_contain_text(hostile)
        damaged.get_by_role("checkbox").check()
        page.get_by_label("compare empty-file").check()
        page.get_by_label("compare no-rounds").check()
        page.get_by_label("compare fedavg/seed-0").check()
        page.wait_for_selector("#report .js-plotly-plot .trace")
        expect(page.locator("#report")).to_contain_text(hostile)
        assert page.title() == "fedbudget dashboard"
        assert page.locator("main img").count() == 0
        page.goto(f"http://127.0.0.1:{port}/#nothing/here")
        page.reload()
        expect(page.locator("#missing")).to_contain_text("nothing/here: no such run here")
        page.goto("about:blank")


def test_the_stop_and_resume_buttons_stop_and_resume_a_real_run(tmp_path, opened):
    """With more rounds than it can do meanwhile, it is running whenever a button is clicked."""
    settings = ["run", "fedavg", *TINY, "--set", "rounds=3000"]
    process = start(*settings, "--set", "train.evaluate_every=3000", "--out", tmp_path / "real")
    try:
        with served(tmp_path) as port:
            page = opened(f"http://127.0.0.1:{port}/")
            expect(page.locator("#empty")).to_contain_text("fedbudget run fedavg --out runs/fedavg")
            stop = the(page, "real").get_by_role("button", name="Stop")
            resume = the(page, "real").get_by_role("button", name="Resume")
            state = the(page, "real").locator(".state")
            expect(the(page, "real").locator(".round")).to_contain_text(
                re.compile(r"[1-9][0-9,]* of 3,?000"), timeout=90_000
            )
            stop.click()
            printed, _ = process.communicate(timeout=90)
            assert process.returncode == 130, printed
            expect(state).to_contain_text("stopped")
            done = rounds_done(tmp_path / "real")
            resume.click()
            expect(state).to_contain_text("starting")
            expect(state).to_contain_text("running", timeout=90_000)
            until(lambda: rounds_done(tmp_path / "real") > done)
            stop.click()
            expect(state).to_contain_text("stopped", timeout=90_000)
            page.goto("about:blank")
    finally:
        process.kill()
        process.communicate()


def rounds_done(run: Path) -> int:
    return (run / "rounds.jsonl").read_bytes().count(b"\n")


def test_a_problem_with_a_button_is_shown(runs, opened):
    """A lock that this process holds, which is not the fedbudget command."""
    lock = os.open(runs / "short/.lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(lock, fcntl.LOCK_EX)
    os.write(lock, f"{os.getpid()}\n".encode())
    with served(runs) as port:
        assert row(port, "short")["state"] == "running"
        page = opened(f"http://127.0.0.1:{port}/", expected="409 (Conflict)")
        the(page, "short").get_by_role("button", name="Stop").click()
        expect(page.locator("#problem")).to_contain_text("it is not the fedbudget command")
        expect(the(page, "short").get_by_role("button", name="Stop")).to_be_enabled()
        page.goto("about:blank")
    os.close(lock)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_shows_all_of_it_without_sideways_scroll(runs, opened, scheme):
    write_run(runs / ("a-very-long-name-of-a-folder-" * 5), name="n" * 150)
    with served(runs) as port:
        page = opened(f"http://127.0.0.1:{port}/", 390, 844, scheme)
        expect(rows(page)).to_have_count(5)
        no_sideways_scroll(page)
        page.get_by_label("compare planner/seed-1").check()
        page.wait_for_selector("#report .js-plotly-plot .trace")
        no_sideways_scroll(page)
        ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (sum(map(int, ground[4:-1].split(","))) < 150) == (scheme == "dark")
        page.locator("[data-theme-toggle]").click()
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") != ground
        page.goto("about:blank")


def test_the_dashboard_that_ends_is_told_and_found_again(runs, browser):
    page = browser.new_page()
    with served(runs) as port:
        page.goto(f"http://127.0.0.1:{port}/")
        expect(page.locator("#link")).to_have_text("live")
    expect(page.locator("#link")).to_have_text("not connected; trying again", timeout=15_000)
    assert rows(page).count() == 4
    page.close()


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (1280, "dark"), (390, "light")])
def test_a_report_draws_every_figure_from_one_file(runs, tmp_path, opened, width, scheme):
    out = tmp_path / "report.html"
    write_report(find_runs([runs]), out)
    page = opened(out.as_uri(), width, 844, scheme)
    page.wait_for_selector(".js-plotly-plot .trace")
    until(lambda: drawn(page) == page.locator(".js-plotly-plot").count(), 20)
    no_sideways_scroll(page)
    assert drawn(page) >= 4
    assert page.locator("table").count() >= 1
