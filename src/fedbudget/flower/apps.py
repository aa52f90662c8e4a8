"""The two halves of a Flower app: `fedbudget.flower.apps:server` and `fedbudget.flower.apps:client`.

A Flower run's config has `config`, a preset's name or a file that server and nodes have; `out`, the
server's run folder; any key of a fedbudget config as an override: rounds = 3, train.lr = 2e-3; and
`set`, more overrides in one word: "train.clip=1; codec.down=int8", because Flower takes only keys
that the app has. A run folder that is there already is gone on with.

A node's config has `partition-id`, the number of its client, and may have `config`, a TOML file on
the node with its own [data], [budget] and [constraints], and `state`, a folder to keep state in.
Neither file nor figures in it are sent anywhere.
"""

import json
import logging
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import platformdirs
import torch
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedbudget.build import build
from fedbudget.config import Config, find_config, load, read_toml, validate
from fedbudget.engines.engine import Host
from fedbudget.errors import UserError
from fedbudget.flower.fleet import Fleet
from fedbudget.flower.grid import GridEngine, Patience
from fedbudget.flower.node import Device, client_app
from fedbudget.flower.store import Shelf
from fedbudget.plan import Plan
from fedbudget.training import MakeEngine, train_all

log = logging.getLogger("flwr.fedbudget")
OURS = ("config", "out", "set")
"""keys of a Flower run's config that are not overrides"""
OWN = ("data", "budget", "constraints", "control", "privacy")
"""tables of a node's own file; [privacy] has `secret` alone, the seed of the node's own noise"""
Values = Mapping[str, Any]


def settings_of(run: Values) -> Config:
    """The fedbudget config that a Flower run's config means."""
    if "config" not in run:
        raise UserError("the run's config has no config: name a preset or a TOML file")
    changes = [f"{key}={_toml(value)}" for key, value in run.items() if key not in OURS]
    changes += [change for change in str(run.get("set", "")).split(";") if change.strip()]
    return load(find_config(str(run["config"])), changes)


def own_settings(settings: Config, file: Path) -> tuple[Config, set[str]]:
    """A run's config as one node sees it, and which tables are the node's own."""
    own = read_toml(file)
    own.pop("privacy", None)
    if unknown := sorted(set(own) - set(OWN)):
        raise UserError(f"{file}: unknown {unknown[0]}; a node's own tables are {', '.join(OWN)}")
    tables = settings.model_dump(mode="python")
    tables["budget"] |= settings.budget.model_extra or {}
    if "budget" in own:  # limits are the node's or the run's, never a mixture
        common = {"device": settings.budget.device, "resources": settings.budget.resources}
        tables["budget"] = {**common, **own.pop("budget")}
        own["budget"] = {}
    for name, table in own.items():
        tables[name] = {**tables[name], **table}
    if "data" in own:
        tables["data"]["clients"] = tables["train"]["cohort"] = 1
    return validate(tables, str(file)), set(own)


def _toml(value: Any) -> str:
    """Flower's config knows numbers, words and yes or no; a word in brackets is a list."""
    if isinstance(value, str) and value.startswith("["):
        return value
    return json.dumps(value)


server = ServerApp()


@server.main()
def main(grid: Grid, context: Context) -> None:
    torch.set_num_threads(1)
    settings = settings_of(context.run_config)
    out = Path(str(context.run_config.get("out") or f"runs/{settings.folder}"))
    train_all({out: settings}, partial(_on, grid))


def _on(grid: Grid, plan: Plan, settings: Config) -> MakeEngine:
    table = settings.fleet
    patience = Patience(table.least or plan.cohort, table.wait, table.deadline, poll=0.2)
    fleet = Fleet(len(plan.clients), table.rest_after, table.rest)
    return partial(GridEngine, grid, plan, patience, fleet)


def _device(context: Context) -> Device:
    if "partition-id" not in context.node_config:
        raise UserError('the node\'s config has no partition-id: --node-config "partition-id=0"')
    try:
        return _made(json.dumps(dict(context.run_config)), json.dumps(dict(context.node_config)))
    except UserError as error:  # it may quote the node's own file
        log.error("%s", error)
        raise UserError("the node cannot take part; its log says why") from None


@lru_cache(maxsize=1024)
def _made(run: str, node: str) -> Device:
    about: Values = json.loads(node)
    client = int(about["partition-id"])
    settings = settings_of(json.loads(run))
    file = str(about["config"]) if "config" in about else ""
    host, own_budget = _host(run, file)
    disk = Path(str(about.get("state") or platformdirs.user_state_path("fedbudget")))
    shelf = Shelf(disk.expanduser() / f"{settings.folder}-{host.plan.run:016x}")
    controller = host.plan.controller if own_budget else None
    return Device(host, client, controller, shelf, private=True)


@lru_cache(maxsize=1)
def _host(run: str, file: str) -> tuple[Host, bool]:
    """A process's model and data, made once, and whether its budget is the node's own."""
    torch.set_num_threads(1)
    settings = settings_of(json.loads(run))
    if not file:
        return Host(build(settings, begun=True)), False  # what may not begin the server refuses
    own, tables = own_settings(settings, Path(file).expanduser())
    plan = build(own, settings.data.clients if "data" in tables else 0, "budget" not in tables)
    recipe = plan.recipe
    private = replace(recipe.privacy, cohort=settings.train.cohort)
    recipe = replace(recipe, privacy=private, privacy_seed=_secret(Path(file).expanduser()))
    return Host(replace(plan, recipe=recipe)), "budget" in tables and bool(plan.budgets)


def _secret(file: Path) -> int | None:
    table = read_toml(file).get("privacy", {})
    if not isinstance(table, dict) or set(table) - {"secret"}:
        raise UserError(f"{file}: [privacy] of a node has `secret` alone; the rest is the run's")
    secret = table.get("secret")
    if secret is not None and (not isinstance(secret, int) or not 0 <= secret < 2**63):
        raise UserError(f"{file}: privacy.secret must be a whole number from 0 to below 2^63")
    return secret


client = client_app(_device)
