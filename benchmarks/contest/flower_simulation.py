"""Flower's simulation as its quickstart sets it up: FedAvg, a ClientApp, run_simulation on Ray.

    python flower_simulation.py FOLDER [--processes N]
A node for each client of the cohort. Each round is a `strategy.start` of one round.
"""

import argparse
import os
import time

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("FLWR_DISABLE_UPDATE_CHECK", "1")
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")

import flwr
from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from line import Line
from node import client_app
from workload import Workload, save


def server_app(line: Line, load: Workload) -> ServerApp:
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        nodes = len(load.clients)
        strategy = FedAvg(
            fraction_train=1.0,
            fraction_evaluate=0.0,
            min_train_nodes=nodes,
            min_available_nodes=nodes,
        )
        first = ArrayRecord(load.weights)
        result = strategy.start(grid=grid, initial_arrays=first, num_rounds=1)
        assert result.train_metrics_clientapp, "no client has replied"
        line.say(ready=True, version=f"flwr {flwr.__version__}")
        for command in line.commands():
            if command["op"] == "save":
                save(command["path"], result.arrays.to_torch_state_dict())
                line.say()
                continue
            started = time.perf_counter()
            result = strategy.start(grid=grid, initial_arrays=first, num_rounds=1)
            seconds = time.perf_counter() - started
            line.say(seconds=seconds, loss=result.train_metrics_clientapp[1]["train_loss"])

    return app


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder")
    parser.add_argument("--processes", type=int, default=1)
    given = parser.parse_args()
    line = Line()
    load = Workload(given.folder)
    run_simulation(
        server_app(line, load),
        client_app(given.folder),
        num_supernodes=len(load.clients),
        backend_config={
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
            "init_args": {"num_cpus": given.processes, "log_to_driver": False},
        },
    )


if __name__ == "__main__":
    main()
