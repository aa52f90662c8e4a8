"""Nothing that a test starts outlives the tests."""

import os
import time
import uuid
from pathlib import Path

import pytest

MARK = "FEDBUDGET_TEST_SESSION"


def marked(value: str) -> list[str]:
    """Command lines of living processes, other than this one, that carry the session's mark."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if int(entry.name) == os.getpid():
                continue
            if f"{MARK}={value}".encode() in (entry / "environ").read_bytes():
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                if command:  # a dead one that nobody has waited for has none
                    found.append(command)
        except OSError:
            continue
    return found


@pytest.fixture(scope="module", autouse=True)
def nothing_is_left_running():
    value = os.environ[MARK] = uuid.uuid4().hex
    yield
    if not Path("/proc/self/environ").exists():
        return
    until = time.monotonic() + 60
    while (left := marked(value)) and time.monotonic() < until:
        time.sleep(0.5)
    assert not left
