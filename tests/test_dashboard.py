"""The dashboard: what it shows of any folder, whom it answers, and what its buttons do."""

import fcntl
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import warnings
from contextlib import ExitStack
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedbudget.dashboard import course, documents, folders, rows, shelf
from fedbudget.dashboard.course import Course
from fedbudget.dashboard.gate import known_host
from fedbudget.dashboard.locks import Holder, Locks
from fedbudget.dashboard.processes import Processes, interrupt
from fedbudget.dashboard.server import serve
from fedbudget.dashboard.shelf import Shelf
from fedbudget.errors import UserError
from fedbudget.summary import summarise
from served import (
    BUDGETS,
    TINY,
    TOKEN,
    ask,
    gate,
    record,
    row,
    running,
    served,
    start,
    until,
    write_run,
)

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # Starlette's use of an older anyio
    from starlette.testclient import TestClient


def client(root: Path, **options) -> TestClient:
    """A browser that has loaded the page, on loopback."""
    found = TestClient(gate(root, **options), base_url="http://127.0.0.1:80")
    found.cookies.set("fedbudget_80", TOKEN)
    return found


def listed(root: Path) -> dict[str, rows.Row]:
    return dict(Shelf(root, control=True).scan())


# ---- the list ---------------------------------------------------------------------------------


def test_list_shows_each_run_with_its_state_and_figures(tmp_path):
    write_run(tmp_path / "a", done=5)
    write_run(tmp_path / "deep/er/seed-7", done=2, name="planner", seed=7, energy=12.0)
    write_run(tmp_path / "killed", done=4, ended=False)
    (tmp_path / "notes").mkdir()
    found = listed(tmp_path)
    assert list(found) == ["a", "deep/er/seed-7", "killed"]
    a, planner, killed = found.values()
    assert (a.state, a.round, a.rounds, a.loss) == ("finished", 5, 5, 0.6)
    assert (a.budgets, a.kept, a.worst, a.worst_of) == (2, 2, 0.9, "communication")
    assert (a.can_stop, a.can_resume, a.wall_s) == (False, False, 5.0)
    assert (planner.name, planner.seed, planner.state) == ("planner", 7, "stopped")
    assert (planner.kept, planner.worst, planner.worst_of) == (1, 1.2, "energy")
    assert planner.can_resume
    assert (killed.state, killed.kept, killed.worst, killed.wall_s) == ("stopped", 2, 0.9, 4.0)
    assert killed.points == ((1, 3.0), (2, 1.5), (3, 1.0), (4, 0.75))


def test_budgets_of_a_run_under_way_are_those_its_summary_will_have(tmp_path):
    budgets = {"counted": [{"energy": 10.0}, {"energy": 4.0, "memory": 2e6}]}
    run = write_run(tmp_path / "a", done=0, ended=False)
    records = [record(i, energy=e) for i, e in enumerate((3.0, 9.0, 4.0, 11.0), 1)]
    (run / "rounds.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
    now = course.read(run / "rounds.jsonl", Course(), True, budgets)
    energy = summarise(records, {}, 4, budgets)["usage"]["counted"]["energy"]
    assert now.standing["energy"] == (energy["worst_ratio"], energy["rounds_over"])


def test_budgets_that_are_not_known_are_not_called_none(tmp_path):
    write_run(tmp_path / "begun", done=0, ended=False)
    (write_run(tmp_path / "older", done=2, ended=False) / "facts.json").unlink()
    none = write_run(tmp_path / "without", done=2, ended=False)
    facts = json.loads((none / "facts.json").read_text())
    (none / "facts.json").write_text(json.dumps({**facts, "budgets": {}}))
    found = listed(tmp_path)
    assert {id: r.budgets for id, r in found.items()} == {
        "begun": None,
        "older": None,
        "without": 0,
    }


def test_only_new_lines_are_read(tmp_path):
    file = write_run(tmp_path / "a") / "rounds.jsonl"
    before = course.read(file, Course(), True, BUDGETS)
    with file.open("r+b") as f:
        f.write(b"#" * 20)  # what was read is not looked at again
        f.seek(0, os.SEEK_END)
        f.write(json.dumps(record(4)).encode()[:50])
    half = course.read(file, before, True, BUDGETS)
    assert (half.round, half.cut, half.damaged) == (3, True, 0)
    with file.open("ab") as f:
        f.write(json.dumps(record(4)).encode()[50:] + b"\n")
    after = course.read(file, half, True, BUDGETS)
    assert (after.round, after.cut, after.damaged, after.wall_s) == (4, False, 0, 4.0)


def test_a_replaced_file_is_read_anew(tmp_path):
    run = write_run(tmp_path / "a", ended=False)
    shelf = Shelf(tmp_path, control=True)
    assert shelf.scan()["a"].round == 3
    part = run / "part"
    part.write_text(json.dumps(record(1)) + "\n")
    part.replace(run / "rounds.jsonl")  # as a resume that goes back to its checkpoint does
    assert shelf.scan()["a"].points == ((1, 3.0),)


def test_a_long_file_is_sampled_and_its_end_is_exact(tmp_path):
    file = tmp_path / "rounds.jsonl"
    file.write_text("".join(json.dumps(record(i)) + "\n" for i in range(1, 2001)))
    sampled = course.read(file, Course(), False, BUDGETS)
    whole = course.read(file, Course(), True, BUDGETS)
    assert (sampled.round, sampled.points[-1], sampled.offset) == (
        2000,
        (2000, 0.0015),
        whole.offset,
    )
    numbers = [n for n, _ in sampled.points]
    assert numbers[0] == 1
    assert numbers == sorted(set(numbers))
    assert max(b - a for a, b in pairwise(numbers)) < 120
    assert sampled.damaged == 0
    assert len(whole.points) <= course.POINTS


def test_lines_longer_than_the_tail_are_read(tmp_path):
    file = tmp_path / "rounds.jsonl"
    wide = [record(i) | {"cohort": [0] * 60_000} for i in (1, 2, 3)]
    file.write_text("".join(json.dumps(r) + "\n" for r in wide))
    assert course.read(file, Course(), False, {}).round == 3


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(
    *[st.one_of(st.none(), st.binary(max_size=300), st.sampled_from([b"{}", b"[[1]]"]))] * 4,
)
def test_no_content_of_a_folder_breaks_the_list(tmp_path, rounds, summary, facts, config):
    run = tmp_path / "run"
    run.mkdir(exist_ok=True)
    for name, body in zip(folders.READ, (rounds, summary, facts, config), strict=True):
        (run / name).unlink(missing_ok=True)
        if body is not None:
            (run / name).write_bytes(body)
    found = listed(tmp_path)
    assert len(found) == any(body is not None for body in (rounds, summary, facts))
    json.dumps([asdict(r) for r in found.values()], allow_nan=False)


@pytest.mark.parametrize(
    ("file", "body", "state", "why"),
    [
        ("summary.json", b'{"comp', "damaged", "summary.json is damaged"),
        ("summary.json", b"[1, 2]", "damaged", "summary.json is damaged"),
        ("summary.json", b"[" * 100_000, "damaged", "summary.json is damaged"),
        ("rounds.jsonl", b"garbage\nmore\n", "damaged", "no round that can be read"),
        ("rounds.jsonl", None, "damaged", "rounds.jsonl: No such file"),
        ("rounds.jsonl", b"", "stopped", ""),
        ("facts.json", b"", "stopped", "facts.json is damaged"),
        ("config.toml", b"name = ", "stopped", "config.toml is damaged"),
    ],
)
def test_a_damaged_folder_says_what_is_wrong(tmp_path, file, body, state, why):
    run = write_run(tmp_path / "bad")
    write_run(tmp_path / "good", done=5)
    (run / file).unlink()
    if body is not None:
        (run / file).write_bytes(body)
    found = listed(tmp_path)
    assert (found["bad"].state, found["good"].state) == (state, "finished")
    assert why in found["bad"].why
    answer = client(tmp_path).get("/api/document?run=bad&run=good")
    assert answer.status_code == 200
    assert "good" in answer.json()["document"]["folders"]


def test_bad_lines_and_losses_that_are_no_numbers_are_told(tmp_path):
    run = write_run(tmp_path / "a", done=2, ended=False)
    lines = [
        json.dumps(record(3, loss=float("nan"))),
        "{]",
        json.dumps(record(4)),
        '{"round": 5, "v',
    ]
    with (run / "rounds.jsonl").open("a") as f:
        f.write("\n".join(lines))
    found = listed(tmp_path)["a"]
    assert (found.state, found.round, found.loss) == ("stopped", 4, 0.75)
    for words in ("1 line of rounds.jsonl", "last line of rounds.jsonl is cut", "loss of round 3"):
        assert words in found.why


@pytest.mark.skipif(os.getuid() == 0, reason="root may read everything")
def test_an_unreadable_file_is_told(tmp_path):
    run = write_run(tmp_path / "a")
    (run / "rounds.jsonl").chmod(0)
    assert "Permission denied" in listed(tmp_path)["a"].why


def test_a_pipe_or_a_folder_in_place_of_a_file_does_not_hang(tmp_path):
    for i, make in enumerate((os.mkfifo, os.mkdir)):
        run = write_run(tmp_path / str(i))
        (run / "rounds.jsonl").unlink()
        make(run / "rounds.jsonl")
    assert [r.state for r in listed(tmp_path).values()] == ["damaged", "damaged"]


HUGE = 10**400


def altered(run: Path, file: str, keys: tuple, value: object) -> None:
    """A JSON file, or the first line of one, with another value at `keys`."""
    first, _, rest = (run / file).read_text().partition("\n")
    body = json.loads(first)
    inner = body
    for key in keys[:-1]:
        inner = inner[key]
    inner[keys[-1]] = value
    (run / file).write_text(f"{json.dumps(body)}\n{rest}")


@pytest.mark.parametrize(
    ("file", "keys", "value", "state", "why"),
    [
        ("rounds.jsonl", ("wall_s",), HUGE, "stopped", ""),
        ("rounds.jsonl", ("round",), HUGE, "stopped", "1 line of rounds.jsonl"),
        ("rounds.jsonl", ("validation", "loss"), HUGE, "stopped", "loss of round 1"),
        ("rounds.jsonl", ("usage", "counted", "9" * 5000), {"energy": 1.0}, "stopped", ""),
        ("rounds.jsonl", ("usage", "counted", "0", "energy"), HUGE, "stopped", ""),
        ("facts.json", ("budgets", "counted", 0, "energy"), HUGE, "stopped", "limits"),
        ("facts.json", ("budgets", "counted", 0, "energy"), 1e-308, "stopped", ""),
        ("facts.json", ("rounds",), HUGE, "stopped", ""),
        ("facts.json", ("seed",), HUGE, "stopped", ""),
        ("summary.json", ("usage", "counted", "energy", "worst_ratio"), HUGE, "stopped", "used of"),
        ("summary.json", ("usage", "counted", "energy", "rounds_over"), HUGE, "stopped", ""),
        ("summary.json", ("time", "wall_s"), HUGE, "stopped", ""),
    ],
    ids=lambda value: "huge" if value == HUGE else None,
)
def test_numbers_that_no_run_writes_do_not_reach_the_page(tmp_path, file, keys, value, state, why):
    ended = file == "summary.json"
    run = write_run(tmp_path / "bad", energy=1e5, ended=ended)
    write_run(tmp_path / "good", done=5)
    altered(run, file, keys, value)
    held = None if ended else hold(run / ".lock", os.getpid())  # with an estimate of what is left
    answer = client(tmp_path).get("/api/runs")
    if held is not None:
        os.close(held)
        state = "running"
    bad, good = answer.json()["runs"]
    assert answer.status_code == 200
    assert (bad["state"], good["state"]) == (state, "finished")
    assert why in bad["why"]
    assert "Infinity" not in answer.text
    assert max(map(len, re.findall(r"\d+", answer.text))) < 20
    assert client(tmp_path).get("/api/document?run=bad&run=good").status_code == 200


def test_a_folder_that_breaks_its_reader_takes_nothing_with_it(tmp_path, monkeypatch):
    write_run(tmp_path / "bad")
    write_run(tmp_path / "good", done=5)
    real = {"know": shelf.know, "show": shelf.show}

    def know(place, *rest):
        if place.name == "bad":
            raise AttributeError("'list' object has no attribute 'get'")
        return real["know"](place, *rest)

    monkeypatch.setattr(shelf, "know", know)
    bad, good = listed(tmp_path).values()
    assert (bad.state, good.state) == ("damaged", "finished")
    assert "it cannot be read (AttributeError: 'list' object" in bad.why

    def show(id, label, known, *rest):
        if known.facts and label == "bad":
            raise OverflowError("int too large to convert to float")
        return real["show"](id, label, known, *rest)

    monkeypatch.setattr(shelf, "know", real["know"])
    monkeypatch.setattr(shelf, "show", show)
    bad, good = listed(tmp_path).values()
    assert (bad.state, good.state) == ("damaged", "finished")
    assert "OverflowError" in bad.why


def within(seconds: float, what):
    """Its result; a call that hangs is a failure, and must not keep the tests from ending."""
    found = []
    thread = threading.Thread(target=lambda: found.append(what()), daemon=True)
    thread.start()
    thread.join(seconds)
    assert not thread.is_alive(), "it hangs"
    return found[0]


@pytest.mark.parametrize("file", [*folders.READ, ".lock", "resume.log"])
def test_a_pipe_hangs_neither_the_list_nor_the_comparison_nor_a_resume(tmp_path, file):
    run = write_run(tmp_path / "a")
    write_run(tmp_path / "good", done=5)
    (run / file).unlink(missing_ok=True)
    os.mkfifo(run / file)
    os.utime(run / file, (time.time() - 60,) * 2)  # a new lock is not tried
    web = client(tmp_path)
    found = within(20, lambda: web.get("/api/runs").json()["runs"])
    assert [r["id"] for r in found] == ["a", "good"]
    answer = within(20, lambda: web.get("/api/document?run=a&run=good").json())
    assert "good" in answer["document"]["folders"]
    if file in folders.READ:
        assert answer["problems"] == [f"a: {file} is a pipe, and only files are read"]
    if file == "resume.log":
        own = {"host": "127.0.0.1:80", "origin": "http://127.0.0.1:80"}
        answer = within(20, lambda: web.post("/api/resume?run=a", headers=own))
        assert answer.status_code == 409
        assert answer.json()["problem"].startswith("resume.log cannot be written: ")


def test_what_is_not_a_file_is_named(tmp_path):
    run = write_run(tmp_path / "a")
    (run / "summary.json").unlink()
    (run / "facts.json").unlink()
    (run / "facts.json").mkdir()
    with socket.socket(socket.AF_UNIX) as end:
        end.bind(os.path.relpath(run / "summary.json"))  # a full path may be too long for it
    assert folders.refused(run) == [
        "summary.json is a socket, and only files are read",
        "facts.json is a folder, and only files are read",
    ]


def test_names_of_any_bytes_have_an_address(tmp_path):
    name = os.fsdecode(b"\xff,<b>&#")
    write_run(tmp_path / name)
    ((id, found),) = listed(tmp_path).items()
    assert (id, found.folder) == ("%FF%2C%3Cb%3E%26%23", "�,<b>&#")
    web = client(tmp_path)
    assert web.get("/api/runs").json()["runs"][0]["id"] == id
    assert web.get("/api/document", params={"run": id}).json()["document"]["folders"] == ["�,<b>&#"]


def test_two_hundred_runs_are_listed_in_a_second_and_then_not_read(tmp_path, monkeypatch):
    lines = "".join(json.dumps(record(i)) + "\n" for i in range(1, 201))  # 100 kB
    for i in range(200):
        run = write_run(tmp_path / f"seed-{i}", done=1, seed=i)
        (run / "rounds.jsonl").write_text(lines)
    shelf = Shelf(tmp_path, control=True)
    began = time.process_time()
    assert len(shelf.scan()) == 200
    cold = time.process_time() - began
    opened = []
    real = folders.opened
    monkeypatch.setattr(folders, "opened", lambda path: opened.append(path) or real(path))
    monkeypatch.setattr(course, "opened", folders.opened)
    began = time.process_time()
    shelf.scan()
    warm = time.process_time() - began
    print(f"200 runs: {cold:.3f} s cold, {warm:.3f} s warm")
    assert cold < 1.0
    assert warm < cold / 4
    assert not opened
    with (tmp_path / "seed-5" / "rounds.jsonl").open("a") as f:
        f.write(json.dumps(record(201)) + "\n")
    assert shelf.scan()["seed-5"].round == 201
    assert {path.parent.name for path in opened} == {"seed-5"}


# ---- who is answered --------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "", "127.0.0.1.evil.example"])
def test_a_foreign_host_header_is_refused(tmp_path, host):
    write_run(tmp_path / "a")
    for path in ("/", "/api/runs", "/static/rows.js"):
        assert client(tmp_path).get(path, headers={"host": host}).status_code == 421


def test_hosts_that_mean_this_machine():
    for header in ("127.0.0.1", "localhost:9000", "[::1]:80", "LOCALHOST"):
        assert known_host(header, "127.0.0.1")
    for header in ("192.168.0.7", "localhost.evil.example", "evil.example", "::ffff:1.2.3.4"):
        assert not known_host(header, "127.0.0.1")
    assert known_host("192.168.0.7:80", "0.0.0.0")
    assert known_host("box.lan:80", "box.lan")
    assert not known_host("evil.example", "0.0.0.0")


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": "http://127.0.0.1:81"},
        {"origin": "http://127.0.0.1:80", "sec-fetch-site": "cross-site"},
        {"origin": "http://127.0.0.1:80", "cookie": "fedbudget_80=guess"},
    ],
)
@pytest.mark.parametrize("what", ["stop", "resume"])
def test_a_post_from_elsewhere_is_refused(tmp_path, what, headers):
    write_run(tmp_path / "a")
    web = client(tmp_path)
    if "cookie" in headers:
        web.cookies.clear()
    own = {"host": "127.0.0.1:80", **headers}
    assert web.post(f"/api/{what}?run=a", headers=own).status_code == 403
    assert not (tmp_path / "a" / "resume.log").exists()


def test_the_right_origin_is_let_through_and_a_wrong_method_is_not(tmp_path):
    write_run(tmp_path / "a", done=5)
    web = client(tmp_path)
    own = {"host": "127.0.0.1:80", "origin": "http://127.0.0.1:80"}
    answer = web.post("/api/stop?run=a", headers=own)
    assert (answer.status_code, answer.json()) == (409, {"problem": "nothing is running here"})
    answer = web.post("/api/resume?run=a", headers=own)
    assert answer.json() == {"problem": "it is finished and cannot go on"}
    assert web.get("/api/stop?run=a").status_code == 405
    assert web.put("/api/runs").status_code == 405
    assert web.options("/api/runs").status_code == 405


def test_the_token_is_asked_for_and_becomes_a_cookie(tmp_path):
    write_run(tmp_path / "a")
    web = TestClient(gate(tmp_path, "0.0.0.0", ask=True), base_url="http://192.168.0.7")
    for path in ("/", "/api/runs", "/static/rows.js", "/?token=", "/?token=wrong"):
        answer = web.get(path, follow_redirects=False)
        assert answer.status_code == 403
        assert "set-cookie" not in answer.headers
    assert web.get(f"/api/runs?token={TOKEN}").status_code == 403  # only the page takes it
    first = web.get(f"/?token={TOKEN}", follow_redirects=False)
    assert (first.status_code, first.headers["location"]) == (303, "/")
    assert "HttpOnly; SameSite=Strict" in first.headers["set-cookie"]
    assert web.get("/").status_code == 200
    assert len(web.get("/api/runs").json()["runs"]) == 1


def test_from_afar_runs_are_controlled_only_when_told(tmp_path):
    write_run(tmp_path / "a")
    assert client(tmp_path, control=False).get("/api/runs").json()["runs"][0]["can_resume"] is False
    own = {"host": "127.0.0.1:80", "origin": "http://127.0.0.1:80"}
    answer = client(tmp_path, control=False).post("/api/resume?run=a", headers=own)
    assert (answer.status_code, "--control" in answer.json()["problem"]) == (403, True)


def test_answers_forbid_what_the_page_does_not_need(tmp_path):
    for path in ("/", "/api/runs", "/static/rows.js", "/nothing"):
        headers = client(tmp_path).get(path).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "script-src 'self';" in policy
        assert "http" not in policy
        assert "unsafe-eval" not in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert "access-control-allow-origin" not in headers


@pytest.mark.parametrize(
    "id",
    ["../secret", "/etc", "a/../../secret", "..%2Fsecret", "%2e%2e/secret", "a/", "", ".", "a/x"],
)
def test_only_listed_runs_can_be_asked_for(tmp_path, id):
    write_run(tmp_path / "secret")
    root = tmp_path / "root"
    write_run(root / "a")
    web = client(root)
    assert web.get("/api/document", params={"run": id}).status_code == 404
    own = {"host": "127.0.0.1:80", "origin": "http://127.0.0.1:80"}
    for what in ("stop", "resume"):
        assert web.post(f"/api/{what}", params={"run": id}, headers=own).status_code == 404


@pytest.mark.parametrize(
    "path", ["/static/../app.py", "/static/%2e%2e%2fapp.py", "/static/index.html"]
)
def test_only_the_pages_own_files_are_served(tmp_path, path):
    assert client(tmp_path).get(path).status_code == 404


def test_links_out_of_the_root_are_not_followed(tmp_path):
    secret = write_run(tmp_path / "secret", name="hidden-name")
    root = tmp_path / "root"
    write_run(root / "a")
    (root / "whole").symlink_to(secret, target_is_directory=True)
    for file in folders.READ:
        run = write_run(root / f"by-{file}")
        (run / file).unlink()
        (run / file).symlink_to(secret / file)
    found = listed(root)
    assert "whole" not in found
    for file in folders.READ:
        assert f"{file} is a link" in found[f"by-{file}"].why
    answer = client(root).get("/api/document", params={"run": [f"by-{f}" for f in folders.READ]})
    assert answer.json()["document"] is None
    assert len(answer.json()["problems"]) == 4
    assert "hidden-name" not in json.dumps([answer.json(), *map(str, found.values())])
    assert client(root).get("/api/document?run=whole").status_code == 404


# ---- live -------------------------------------------------------------------------------------


def events(port: int):
    """News as a browser gets it, in a list that grows."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("GET", "/api/events")
    answer = connection.getresponse()
    assert answer.headers["content-type"].startswith("text/event-stream")
    news: list[dict] = []

    def follow() -> None:
        while line := answer.readline():
            if line.startswith(b"data: "):
                news.append(json.loads(line[6:]))
        answer.close()
        connection.close()

    thread = threading.Thread(target=follow)
    thread.start()
    return news, thread


def test_the_event_stream_tells_a_new_round_a_new_run_and_one_that_is_gone(tmp_path):
    run = write_run(tmp_path / "a", ended=False)
    write_run(tmp_path / "b", done=5)
    with served(tmp_path) as port:
        news, thread = events(port)
        until(lambda: len(news) == 1)
        assert (news[0]["all"], [r["id"] for r in news[0]["runs"]]) == (True, ["a", "b"])
        with (run / "rounds.jsonl").open("a") as f:
            f.write(json.dumps(record(4)) + "\n")
        until(lambda: len(news) == 2, 10)
        assert [(r["id"], r["round"], r["loss"]) for r in news[1]["runs"]] == [("a", 4, 0.75)]
        write_run(tmp_path / "c")
        (tmp_path / "b").rename(tmp_path / ".b")
        until(lambda: "b" in [id for n in news[2:] for id in n["gone"]], 15)
        until(lambda: "c" in [r["id"] for n in news[2:] for r in n["runs"]], 15)
    thread.join(10)
    assert not thread.is_alive()  # the server ended the stream


@pytest.mark.parametrize("error", [OverflowError("too large"), AttributeError("get"), OSError(5)])
def test_a_look_that_fails_does_not_end_the_news(tmp_path, monkeypatch, error):
    run = write_run(tmp_path / "a", ended=False)
    failures = []
    real = Shelf.scan

    def scan(shelf):
        if news and len(failures) < 2:
            failures.append(1)
            raise error
        return real(shelf)

    news: list[dict] = []
    monkeypatch.setattr(Shelf, "scan", scan)
    with served(tmp_path) as port:
        news, thread = events(port)
        until(lambda: len(failures) == 2, 15)
        with (run / "rounds.jsonl").open("a") as f:
            f.write(json.dumps(record(4)) + "\n")
        until(lambda: len(news) == 2, 15)
        assert [(r["id"], r["round"]) for r in news[1]["runs"]] == [("a", 4)]
    thread.join(10)


def test_nobody_looks_while_nobody_watches(tmp_path, monkeypatch):
    looks = []
    real = Shelf.scan
    monkeypatch.setattr(Shelf, "scan", lambda shelf: looks.append(1) or real(shelf))
    with served(tmp_path) as port:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        connection.request("GET", "/api/events")
        connection.getresponse().readline()
        until(lambda: len(looks) >= 2, 10)
        connection.sock.shutdown(socket.SHUT_RDWR)
        connection.close()
        time.sleep(2.5)
        before = len(looks)
        time.sleep(2.5)
        assert len(looks) == before


@pytest.mark.parametrize("error", folders.DAMAGE)
def test_a_run_that_breaks_the_report_is_a_problem_of_its_own(tmp_path, monkeypatch, error):
    write_run(tmp_path / "bad")
    write_run(tmp_path / "good", done=5)
    real = documents.load_run

    def load(place):
        if place.name == "bad":
            raise error("broken")
        return real(place)

    monkeypatch.setattr(documents, "load_run", load)
    answer = client(tmp_path).get("/api/document?run=bad&run=good")
    assert answer.json()["document"]["folders"] == ["good"]
    assert [p.split(":")[0] for p in answer.json()["problems"]] == ["bad"]


def test_the_comparison_of_a_run_that_goes_on_is_not_that_of_its_last_stop(tmp_path):
    run = write_run(tmp_path / "a")
    web = client(tmp_path)
    before = web.get("/api/document?run=a").json()["document"]["sheets"][0]["rows"]
    with (run / "rounds.jsonl").open("a") as f:
        f.write(json.dumps(record(4)) + "\n")
    after = web.get("/api/document?run=a").json()["document"]["sheets"][0]["rows"]
    assert ("3 of 5" in before[0], "4 of 5" in after[0]) == (True, True)


# ---- processes --------------------------------------------------------------------------------


def hold(lock: Path, pid: int, age: float = 60) -> int:
    file = os.open(lock, os.O_RDWR | os.O_CREAT, 0o644)
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.write(file, f"{pid}\n".encode())
    os.utime(lock, (time.time() - age,) * 2)
    return file


def test_a_held_lock_is_a_run_under_way_and_a_left_one_is_not(tmp_path):
    run = write_run(tmp_path / "a")
    shelf = Shelf(tmp_path, control=True)
    file = hold(run / ".lock", os.getpid())
    assert shelf.scan()["a"].state == "running"
    assert shelf.scan()["a"].left_s == 2.0
    os.close(file)  # as when a process is killed: the file stays
    assert (run / ".lock").exists()
    assert shelf.scan()["a"].state == "stopped"


def test_looking_does_not_keep_a_run_from_starting(tmp_path):
    """A lock that is new is not tried, and one that is free is tried once."""
    run = write_run(tmp_path / "a")
    lock = run / ".lock"
    lock.write_text("1\n")
    locks = Locks()
    assert locks.holder(run) == Holder(1, lock)  # just made: somebody is about to take it
    os.utime(lock, (time.time() - 60,) * 2)
    assert locks.holder(run) is None
    file = os.open(lock, os.O_RDWR)
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    assert locks.holder(run) is None  # not tried again until the new process signs it
    os.ftruncate(file, 0)
    os.write(file, b"2\n")
    assert locks.holder(run) == Holder(2, lock)
    os.close(file)


def test_only_a_fedbudget_process_that_has_the_lock_is_signalled(tmp_path):
    lock = tmp_path / ".lock"
    lock.write_text("1\n")
    with pytest.raises(UserError, match="its lock is free"):
        interrupt(Holder(os.getpid(), lock))
    file = hold(lock, os.getpid())
    with pytest.raises(UserError, match="not the fedbudget command"):
        interrupt(Holder(os.getpid(), lock))  # this is pytest
    code = "import time; print(1, flush=True); time.sleep(60)"
    command = [sys.executable, "-c", code, "-m", "fedbudget.cli"]
    bystander = subprocess.Popen(command, stdout=subprocess.PIPE)
    try:
        bystander.stdout.readline()
        with pytest.raises(UserError, match="does not have the lock open"):
            interrupt(Holder(bystander.pid, lock))
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.communicate()
    with pytest.raises(UserError, match=r"is not there|No such"):
        interrupt(Holder(bystander.pid, lock))
    os.close(file)


def test_a_resume_that_fails_says_why(tmp_path):
    run = write_run(tmp_path / "a")  # its checkpoint is an empty file
    processes = Processes()
    processes.resume(run)
    with pytest.raises(UserError, match="running already"):
        processes.resume(run)
    until(lambda: not processes.alive(run))
    assert "ended with code 2: fedbudget: " in processes.failed[run]


def test_a_log_that_cannot_be_written_is_one_sentence(tmp_path):
    own = {"host": "127.0.0.1:80", "origin": "http://127.0.0.1:80"}
    secret = tmp_path / "secret"
    secret.write_text("kept")
    root = tmp_path / "root"
    (write_run(root / "link") / "resume.log").symlink_to(secret)
    (write_run(root / "folder") / "resume.log").mkdir()
    for id, words in (("link", "resume.log is a link"), ("folder", "Is a directory")):
        answer = client(root).post(f"/api/resume?run={id}", headers=own)
        assert answer.status_code == 409
        assert words in answer.json()["problem"]
    assert secret.read_text() == "kept"


@pytest.mark.skipif(os.getuid() == 0, reason="root may write everywhere")
def test_a_resume_in_a_folder_that_cannot_be_written_is_one_sentence(tmp_path):
    run = write_run(tmp_path / "a")
    run.chmod(0o500)
    try:
        with pytest.raises(UserError, match=r"resume\.log cannot be written: Permission denied"):
            Processes().resume(run)
    finally:
        run.chmod(0o700)


def test_a_lock_with_no_process_number_in_it_is_not_signalled(tmp_path):
    run = write_run(tmp_path / "a")
    file = hold(run / ".lock", 10**19)
    holder = Locks().holder(run)
    assert holder == Holder(0, run / ".lock")
    with pytest.raises(UserError, match="nothing is running here"):
        Processes().stop(run, holder)
    os.close(file)


def test_a_run_stopped_and_resumed_from_the_page_ends_with_the_same_model(tmp_path):
    settings = ["run", "fedavg", *TINY, "--set", "rounds=12", "--set", "seed=4"]
    process = start(*settings, "--out", tmp_path / "a")
    whole = start(*settings, "--out", tmp_path / "whole")
    with served(tmp_path) as port:
        until(lambda: (tmp_path / "a/rounds.jsonl").exists() and row(port, "a")["round"] >= 2)
        assert row(port, "a")["state"] == "running"
        status, answer = ask(port, "POST", "/api/stop?run=a")
        assert (status, answer["state"], answer["can_stop"]) == (200, "stopping", False)
        status, again = ask(port, "POST", "/api/stop?run=a")
        if status != 200:  # unless it has ended already
            assert status == 409
            assert "asked to stop already" in again["problem"] or "nothing" in again["problem"]
        printed, _ = process.communicate(timeout=90)
        assert process.returncode == 130, printed
        stopped = row(port, "a")
        assert (stopped["state"], stopped["can_resume"]) == ("stopped", True)
        assert 2 <= stopped["round"] < 12

        status, answer = ask(port, "POST", "/api/resume?run=a")
        assert (status, answer["state"]) == (200, "starting")
        until(lambda: row(port, "a")["state"] == "finished")
        assert row(port, "a")["round"] == 12
    assert "wrote" in (tmp_path / "a" / "resume.log").read_text()
    assert whole.wait(timeout=90) == 0
    whole.stdout.close()
    models = [(tmp_path / n / "model.safetensors").read_bytes() for n in ("a", "whole")]
    assert models[0] == models[1]


# ---- the command ------------------------------------------------------------------------------


MOMENTS = [
    "webbrowser.open",
    "asyncio.events.new_event_loop",
    "uvicorn.Server.serve",
    "uvicorn.Config.load",
    "uvicorn.Server.startup",
    "uvicorn.Server.shutdown",
]


def test_ctrl_c_ends_it_at_once_even_with_a_page_open(tmp_path):
    write_run(tmp_path / "a")
    with running("dashboard", tmp_path, "--port", 0, "--no-open") as process:
        address = process.stdout.readline()
        port = int(address.split("127.0.0.1:")[1].split("/")[0])
        news, thread = events(port)
        until(lambda: bool(news))
        process.send_signal(signal.SIGINT)
        # a server that waited for the page's stream to end would never end
        assert (process.wait(timeout=30), process.stdout.read()) == (0, "")
    thread.join(10)


@pytest.mark.parametrize("shell", [signal.default_int_handler, signal.SIG_IGN])
@pytest.mark.parametrize(("options", "wanted"), [((), False), (("--token",), True)])
def test_a_token_is_printed_for_others_and_for_nobody_else(tmp_path, options, wanted, shell):
    """And who has read the address can end it, also where a shell started it in the background."""
    with ExitStack() as held:
        before = signal.signal(signal.SIGINT, shell)  # a process inherits that it is ignored
        try:
            command = running("dashboard", tmp_path, "--port", 0, "--no-open", *options)
            process = held.enter_context(command)
        finally:
            signal.signal(signal.SIGINT, before)
        address = process.stdout.readline()
        assert ("?token=" in address) == wanted
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=30) == 0


@pytest.mark.parametrize("moment", MOMENTS)
def test_ctrl_c_ends_it_quietly_at_any_moment(tmp_path, moment):
    """From the address to the end of the process, and not only while the server runs."""
    code = f"""
import asyncio, os, signal, sys, uvicorn, webbrowser
from fedbudget.cli import main
def press(*_, then={moment}, **__):
    os.kill(os.getpid(), signal.SIGINT)
    return then(*_, **__)
webbrowser.open = lambda address: True
{moment} = press
if "shutdown" in {moment!r}:  # else nothing would end it
    uvicorn.Server.on_tick = lambda self, counter: asyncio.sleep(0, True)
sys.argv[1:] = ["dashboard", {str(tmp_path)!r}, "--port", "0"]
main()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert len(done.stdout.splitlines()) == 1


def test_a_second_ctrl_c_ends_it_though_a_request_hangs(tmp_path):
    code = f"""
import sys, time
from fedbudget.cli import main
from fedbudget.dashboard.shelf import Shelf
def hang(self):  # as on a disk that does not answer
    print("asked", flush=True)
    time.sleep(300)
Shelf.scan = hang
sys.argv[1:] = ["dashboard", {str(tmp_path)!r}, "--port", "0", "--no-open"]
main()
"""
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            port = int(process.stdout.readline().split("127.0.0.1:")[1].split("/")[0])
            with socket.create_connection(("127.0.0.1", port)) as page:
                page.sendall(f"GET /api/runs HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode())
                assert process.stdout.readline() == "asked\n"
                process.send_signal(signal.SIGINT)
                with pytest.raises(subprocess.TimeoutExpired):
                    process.wait(timeout=2)
                process.send_signal(signal.SIGINT)
                assert (process.wait(timeout=60), process.stderr.read()) == (130, "")
        finally:
            process.kill()


def test_a_taken_port_is_one_sentence(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        process = start("dashboard", tmp_path, "--port", port, "--no-open")
        printed, _ = process.communicate(timeout=60)
    assert process.returncode == 2
    assert printed.startswith(f"fedbudget: port {port} is taken; choose another with --port")
    assert len(printed.splitlines()) == 1


def test_bad_places_are_one_sentence(tmp_path):
    with pytest.raises(UserError, match="no such folder"):
        serve(tmp_path / "none", "127.0.0.1", 0, False, False, False)
    with pytest.raises(UserError, match="no such address"):
        serve(tmp_path, "no.such.host.invalid", 0, False, False, False)


def test_without_the_extra_it_says_what_to_install(tmp_path):
    code = (
        "import sys; sys.modules['uvicorn'] = None; sys.argv[1:] = ['dashboard', '.'];"
        "from fedbudget.cli import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "pip install 'fedbudget[dashboard]'" in done.stderr
    assert len(done.stderr.splitlines()) == 1
