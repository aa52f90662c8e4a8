import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import softmax_plan
from fedbudget.engines.embedded import Workers
from fedbudget.engines.pages import SETTING, TUNABLES, large_pages

POLICY = Path("/sys/kernel/mm/transparent_hugepage/enabled")
LARGE_KB = """
held = [b"x" * 2**23 for _ in range(8)]
rollup = open("/proc/self/smaps_rollup").read()
print(rollup.split("AnonHugePages:")[1].split()[0])
"""


def large_kb() -> int:
    done = subprocess.run([sys.executable, "-c", LARGE_KB], capture_output=True, check=True)
    return int(done.stdout)


@pytest.mark.skipif(
    not POLICY.exists()
    or "[madvise]" not in POLICY.read_text()
    or platform.libc_ver()[0] != "glibc",
    reason="without glibc, or large pages are given to all or to none",
)
def test_a_process_started_with_them_holds_its_arrays_in_large_pages(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(SETTING, raising=False)
    before = large_kb()
    with large_pages():
        assert large_kb() > before + 32_000
    assert SETTING not in os.environ


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="Linux tells, others do not")
def test_worker_processes_are_started_with_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SETTING, raising=False)
    with Workers(softmax_plan(), 1) as engine:
        told = Path(f"/proc/{engine.workers[0].process.pid}/environ").read_bytes()
    # glibc ends each part with a zero when it has read it
    assert f"{SETTING}={TUNABLES}".encode() in told.replace(b"\0", b":")


def test_a_users_own_setting_of_glibc_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SETTING, "glibc.malloc.check=0")
    with large_pages():
        assert os.environ[SETTING] == "glibc.malloc.check=0"
    assert os.environ[SETTING] == "glibc.malloc.check=0"
