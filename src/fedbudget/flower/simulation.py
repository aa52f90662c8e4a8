"""A plan on Flower's simulation: every client a virtual node, in as many processes as there are cores."""

import contextlib
import logging
import os
import pickle
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import lru_cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("FLWR_DISABLE_UPDATE_CHECK", "1")
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")

import ray
from flwr.app import Context
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation

from fedbudget.engines.engine import Engine, Host
from fedbudget.flower.fleet import Fleet
from fedbudget.flower.grid import GridEngine, Patience
from fedbudget.flower.node import Device, client_app
from fedbudget.flower.store import Shelf
from fedbudget.plan import Plan
from fedbudget.tables import FleetTable

T = TypeVar("T")


def simulate(
    plan: Plan,
    disk: Path,
    workers: int,
    table: FleetTable,
    work: Callable[[Callable[[], AbstractContextManager[Engine]]], T],
    app: Callable[[Callable[[Context], Device]], ClientApp] = client_app,
) -> T:
    """Call `work` with a maker of the engine, inside a Flower simulation, and return its result.

    disk: where the nodes keep their state.
    app: what the nodes run.
    """
    patience = Patience(len(plan.clients), table.wait, table.deadline)
    fleet = Fleet(len(plan.clients), table.rest_after, table.rest)
    results: list[T] = []
    problems: list[BaseException] = []
    server = ServerApp()

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        try:
            results.append(work(partial(GridEngine, grid, plan, patience, fleet, Shelf(disk))))
        except BaseException as problem:
            problems.append(problem)

    with TemporaryDirectory(prefix="fedbudget-") as place, _quiet():
        file = Path(place) / "plan"
        file.write_bytes(
            pickle.dumps(plan.of_workers())
        )  # for our own processes: a folder of this user alone
        try:
            run_simulation(
                server,
                app(partial(_device, str(file), str(disk.absolute()))),
                num_supernodes=len(plan.clients),
                backend_config={
                    "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
                    "init_args": {"num_cpus": workers, "log_to_driver": False},
                },
            )
        finally:
            ray.shutdown()
    if problems:
        raise problems[0]
    return results[0]


def _device(plan: str, disk: str, context: Context) -> Device:
    return Device(_host(plan), int(context.node_config["partition-id"]), shelf=Shelf(Path(disk)))


@lru_cache(maxsize=1)
def _host(plan: str) -> Host:
    """One process's model and data, made once."""
    import torch

    torch.set_num_threads(1)
    return Host(pickle.loads(Path(plan).read_bytes()))


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Our own progress is enough: Flower and Ray speak up when something is wrong."""
    loggers = [logging.getLogger(name) for name in ("flwr", "ray")]
    before = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)
