"""The quickstart with budgets, in Flower's own simulation."""

import filecmp
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from leftovers import nothing_is_left_running  # noqa: F401

from conftest import data_folder

pytest.importorskip("flwr")

EXAMPLE = Path(__file__).parents[2] / "examples" / "flower-quickstart"

pytestmark = pytest.mark.flower


def test_the_quickstart_differs_in_its_two_apps_only():
    same = ["pyproject.toml", "quickstart/__init__.py", "quickstart/task.py"]
    for name in same:
        assert filecmp.cmp(EXAMPLE / "before" / name, EXAMPLE / "after" / name, shallow=False), name


SIMULATION = """
import sys
from flwr.serverapp import ServerApp
from flwr.simulation import run_simulation
sys.path.insert(0, sys.argv[1])
from quickstart import client_app, server_app

outer = ServerApp()

@outer.main()
def main(grid, context):
    context.run_config = {
        "num-server-rounds": 2, "local-steps": 20, "batch-size": 8, "lr": 0.05, "test-images": 200
    }
    server_app.main(grid, context)

if __name__ == "__main__":
    backend = {"client_resources": {"num_cpus": 1}, "init_args": {"num_cpus": 1}}
    run_simulation(outer, client_app.app, 2, backend_config=backend)
"""


def test_the_quickstart_keeps_its_budgets_in_a_simulation(tmp_path):
    pytest.importorskip("ray")
    environment = {
        **os.environ,
        "FEDBUDGET_DATA": str(data_folder("mnist")),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_HOME": str(tmp_path / "flwr"),
        "RAY_USAGE_STATS_ENABLED": "0",
        "PYTHONPATH": str(EXAMPLE / "after"),
    }
    script = tmp_path / "simulate.py"
    script.write_text(SIMULATION)
    process = subprocess.Popen(
        [sys.executable, str(script), str(EXAMPLE / "after")],
        env=environment,
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        out, _ = process.communicate(timeout=300)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGTERM)
        raise
    assert process.returncode == 0, out[-3000:]
    assert out.count("Aggregated MetricRecord") == 2, out[-3000:]
    assert "budget-energy" in out
    assert "dropped node" not in out
    assert "was to stay frozen" not in out
