"""A SuperLink and SuperNodes on loopback, with TLS and keys: kills, strangers, resume."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("flwr")

sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "flower-cafl"))

from deploy import Deployment, make_certificates, make_node_key
from leftovers import nothing_is_left_running  # noqa: F401

from fedbudget.config import find_config, load
from fedbudget.training import train

pytestmark = pytest.mark.flower

WAIT = 420


def until(what, condition, here, seconds=WAIT):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if found := condition():
            return found
        if here.processes["run"].poll():
            pytest.fail(f"{what}: the run ended early: {log(here, 'run')}")
        time.sleep(0.3)
    pytest.fail(f"{what}: not within {seconds} s")


def records(folder):
    file = folder / "rounds.jsonl"
    lines = file.read_text().splitlines() if file.exists() else []
    return [json.loads(line) for line in lines if line.endswith("}")]


def text(folder, name):
    file = folder / name / "a.txt"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"{name} has seen a grey fox, and a lazy dog that slept all day. " * 150)
    return file.parent


def settings(folder, rounds, **more):
    keys = {
        "out": str(folder / "run"),
        "rounds": rounds,
        "data.source": "text",
        "data.path": str(text(folder, "server")),
        "data.alphabet": "ascii",
        "data.clients": 3,
        "data.overlap": 0,
        "model.size": "2x16",
        "model.context": 16,
        "train.cohort": 3,
        "train.steps": 10,
        "train.batch": 4,
        **more,
    }
    # what the papers' floors leave of so small a run
    room = {"budget.energy": "100%", "budget.memory": "100%"}
    given = {**keys, "set": ";".join(f"{k}={v}" for k, v in room.items())}
    return " ".join(f"{k}={json.dumps(v)}" for k, v in given.items()), {**keys, **room}


def log(deployment, name):
    return (deployment.folder / f"{name}.log").read_text(errors="replace")


def children(pid):
    """The living processes of a session that a process leads."""
    found = subprocess.run(["ps", "-s", str(pid), "-o", "pid=,stat=,args="], stdout=subprocess.PIPE)
    lines = [line.split(None, 2) for line in found.stdout.decode().splitlines()]
    return [(int(pid), args) for pid, stat, args in lines if not stat.startswith("Z")]


def server_apps(here):
    """A ServerApp is in a session of its own: it can be told by the folder it works in."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            arguments = (entry / "cmdline").read_bytes()
            if (
                b"flwr-serverapp" in arguments
                and str(here.folder).encode() in (entry / "environ").read_bytes()
            ):
                found.append(int(entry.name))
        except OSError:
            continue
    assert found
    return found


def test_cafl_l_with_tls_and_keys_survives_a_node_that_is_killed(tmp_path):
    """Each node has data, device and budget of its own; strangers stay out."""
    patient = {"fleet.least": 2, "fleet.deadline": 30.0, "fleet.rest_after": 9}
    changes, _ = settings(tmp_path, 10, **patient)
    out = tmp_path / "run"
    with Deployment(tmp_path / "here") as here:
        for number in range(3):
            own = tmp_path / f"node-{number}.toml"
            own.write_text(
                f'[data]\npath = "{text(tmp_path, f"texts-{number}")}"\n'
                '[budget]\naccounting = "paper"\ndevice = "jetson-orin-nano"\n'
                f'energy = "{100 + 10 * number}%"\ncommunication = "{20 + 5 * number}%"\n'
            )
            here.start_node(number, f'config="{own}"')
        stranger = make_node_key(tmp_path / "stranger", "key")
        here.start_node(7, key=stranger)
        make_certificates(tmp_path / "other")
        known = here.folder / "keys" / "node-0"
        here.start_node(8, key=known, ca=tmp_path / "other" / "ca.crt")
        here.run(changes)
        until("round 1", lambda: len(records(out)) >= 1, here)
        assert set(records(out)[0]["usage"]["counted"]) == {"0", "1", "2"}
        time.sleep(1.0)  # into round 2
        here.kill("node-2")
        gone = until(
            "a round without node 2",
            lambda: [r for r in records(out) if "2" in r["dropped"] or 2 not in r["cohort"]],
            here,
        )
        assert gone[0]["usage"]["counted"].keys() >= {"0", "1"}
        here.start_node(2, f'config="{tmp_path}/node-2.toml"')

        def used_again():
            if here.processes["node-2"].poll() is not None:
                # a SuperLink refuses a node whose last session it still takes for alive
                here.stop("node-2")
                here.start_node(2, f'config="{tmp_path}/node-2.toml"')
            later = [r for r in records(out) if r["round"] > gone[0]["round"]]
            return any("2" in r["usage"].get("counted", {}) for r in later)

        until("node 2 in use again", used_again, here)
        code = here.wait(seconds=WAIT)
        assert code == 0, log(here, "run")
        told = records(out)
        assert len(told) == 10
        summary = json.loads((out / "summary.json").read_text())
        assert summary["complete"]
        assert summary["validation"]["loss"] > 0
        assert here.processes["node-7"].wait(60)
        assert "Failed to activate SuperNode" in log(here, "node-7")
        assert "No SuperNode found with the given public key" in log(here, "superlink")
        assert "certificate verify failed" in log(here, "node-8")
        quoted = log(here, "superlink") + log(here, "run") + (out / "rounds.jsonl").read_text()
        for secret in ("texts-1", "jetson"):
            assert secret not in quoted
        leaders = [p.pid for p in here.processes.values()]
    assert not [c for pid in leaders for c in children(pid)]


def test_a_server_that_was_killed_goes_on_with_the_same_bits(tmp_path):
    """kill -9 of SuperLink and ServerApp; residuals are on the nodes' own disks."""
    changes, keys = settings(tmp_path, 4, **{"codec.feedback": "error"})
    out = tmp_path / "run"
    alone = [f"{k}={json.dumps(v)}" for k, v in keys.items() if k != "out"]
    train(load(find_config("cafl-l"), [*alone, "workers=1"]), tmp_path / "alone")
    with Deployment(tmp_path / "here") as here:
        for number in range(3):
            here.start_node(number)
        here.run(changes)
        until("round 2", lambda: len(records(out)) >= 2, here)
        time.sleep(1.5)  # into round 3
        for pid in server_apps(here):
            os.kill(pid, signal.SIGKILL)
        here.kill("superlink")
        here.kill("run")
        done = len(records(out))
        assert 2 <= done < 4
        here.start_link()
        here.run(changes, name="again")
        code = here.wait("again", WAIT)
        assert code == 0, log(here, "again")
    assert len(records(out)) == 4
    whole = (tmp_path / "alone" / "model.safetensors").read_bytes()
    assert (out / "model.safetensors").read_bytes() == whole
    assert any((here.folder / f"state-{n}").rglob("*.safetensors") for n in range(3))
