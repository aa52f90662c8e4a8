"""Config -> Plan: the only place where a name becomes an object."""

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from torch import nn

from fedbudget import seeds
from fedbudget.aggregation import Screening
from fedbudget.build.algorithms import (
    CONSTRAINED,
    TWO_VECTORS,
    algorithm,
    lr_cap,
    step_rule,
    step_warning,
)
from fedbudget.build.controllers import DUAL, of_kinds, search, turns
from fedbudget.build.materials import data_and_model, imported
from fedbudget.build.outlook import Course, courses, first_rounds, outlook
from fedbudget.build.privacy import noise_warning, privacy
from fedbudget.build.sets import constraint_sets
from fedbudget.build.worlds import bearable, selected, working, world
from fedbudget.client import Recipe
from fedbudget.codecs import chosen
from fedbudget.config import Config
from fedbudget.control.frontier import Grid, Progress
from fedbudget.data.examples import Examples
from fedbudget.errors import UserError, about
from fedbudget.hardware import check_precision, count, place
from fedbudget.models.flat import FlatModel, Layout
from fedbudget.plan import Plan
from fedbudget.resources.budget import read, resolve
from fedbudget.resources.costs import Costs, costs, fidelity
from fedbudget.resources.meters import check_budgets, sensors
from fedbudget.resources.own import Resource, check
from fedbudget.task import Task, classify
from fedbudget.types import Knobs
from fedbudget.uplink import Uplink


class Prepared(NamedTuple):
    """Data, model and what they cost, before anything is decided."""

    clients: Sequence[Examples]
    validation: Examples
    make_model: Callable[[], nn.Module]
    layout: Layout
    base: Knobs
    task: Task
    known: Costs | None
    """None for a model of the user's own that has no budget to keep"""
    kinds: list[Costs]
    """by device class; none where nothing is known"""
    limits: list[dict[str, float]]


def prepare(config: Config, parts: bool = True) -> Prepared:
    """Read the data and check that everything fits together.

    parts: whether the cost of layer groups below frozen ones will be asked for.
    """
    clients, validation, make_model = data_and_model(config)
    train = config.train
    if train.cohort > len(clients):
        raise UserError(f"train.cohort = {train.cohort}, but there are {len(clients)} clients")
    try:
        with seeds.torch_seeded(config.seed, 0, seeds.SERVER, "init"):
            model = FlatModel(make_model(), tuple(config.model.layers) or None)
    except RuntimeError as error:
        if "allocate" not in str(error):
            raise
        raise UserError("model: there is not enough memory here for one of this size") from None
    depth = model.layout.depth
    if train.layers > depth:
        raise UserError(f"train.layers = {train.layers}, but the model has {depth} layer groups")
    for key, given in (("name", config.codec.name), ("down", config.codec.down)):
        chosen(given, f"codec.{key}")
    codec = model.layout.raw if config.codec.name == "raw32" else config.codec.name
    base = Knobs(train.layers or depth, train.steps, train.batch, train.accumulate, codec)
    task = classify(train.label_smoothing)
    known: Costs | None = None
    kinds: list[Costs] = []
    limits: list[dict[str, float]] = []
    if config.budget.classes or ":" not in config.model.kind:
        device, *others = map(partial(working, config), config.budget.devices)
        gpt = config.model.kind == "gpt"
        vectors = 2 if config.algorithm in TWO_VECTORS else 1
        down = "" if config.codec.down == "raw32" else config.codec.down
        ways = vectors, down, config.budget.accounting, own_resources(config)
        first = model, task, clients[0], train.optimizer, device, gpt, *ways
        known = costs(*first, parts=parts, momentum=train.momentum > 0)
        kinds = [known, *(replace(known, device=other) for other in others)]
        limits = budgets(config, kinds, base)
    return Prepared(clients, validation, make_model, model.layout, base, task, known, kinds, limits)


def build(config: Config, clients: int = 0, begun: bool = False) -> Plan:
    """Name every part of a run.

    clients: how many there are, for a device whose data is its own alone; 0: as the data has it.
    begun: the run goes on, so that what would not be begun today is a warning only.
    """
    ready = prepare(config)
    if clients:
        ready = ready._replace(clients=[ready.clients[0]] * clients)
    train, agents = config.train, len(ready.clients)
    constrained = config.algorithm in CONSTRAINED
    place(config.accelerator)
    check_precision(train.precision, config.accelerator)
    ahead = outlook(config, ready.base, ready.kinds, ready.limits, agents, begun)
    some = [ready.clients[i] for i in range(min(agents, 8))]
    warnings = (
        step_warning(config, some, agents),
        noise_warning(config),
        codec_warning(config, ready),
        *ahead,
    )
    fleet = world(config, ready.kinds)
    limits = bearable(config, fleet, ready.limits)
    return Plan(
        name=config.name,
        seed=config.seed,
        rounds=config.rounds,
        cohort=train.cohort,
        model=ready.make_model,
        clients=ready.clients,
        validation=ready.validation,
        algorithm=algorithm(config, agents),
        controller=of_kinds(config, ready.base, ready.kinds, limits, ready.layout.depth, agents),
        task=ready.task,
        lr=train.lr,
        recipe=Recipe(
            train.optimizer,
            train.weight_decay,
            train.betas,
            train.momentum,
            train.clip,
            train.warmup,
            train.schedule,
            train.precision,
            Uplink(config.codec.feedback, config.codec.momentum, config.codec.skip),
            keeps_model=config.codec.changed_only or config.codec.skip > 0,
            privacy=privacy(config, ready.layout, ready.base),
        ),
        meters=tuple(kind.meter for kind in ready.kinds),
        selection=selected(config),
        world=fleet,
        budgets={config.budget.accounting: ready.limits} if ready.limits else {},
        units=ready.known.units if ready.known else {},
        round_schedule=train.round_schedule,
        cooldown=train.cooldown,
        weighting=train.weighting,
        normalise=train.normalise,
        screening=Screening(train.screen, train.screen_factor),
        trim={"mean": None, "median": 0.5, "trimmed": train.trim}[train.aggregate],
        drop=train.drop,
        layers=tuple(config.model.layers) or None,
        down_codec="" if config.codec.down == "raw32" else config.codec.down,
        changed_only=config.codec.changed_only,
        step_rule=step_rule(train.lr_rule, ready.base),
        lr_cap=lr_cap(config, agents),
        constraints=constraint_sets(config, ready.layout, agents) if constrained else None,
        final_projection=config.constraints.final_projection,
        warnings=tuple(warning for warning in warnings if warning),
        accelerator=config.accelerator,
        evaluate_every=train.evaluate_every,
    )


FAITHFUL = 0.9
"""the share of an update that a code must keep to do without feedback"""


def codec_warning(config: Config, ready: Prepared) -> str | None:
    """Where updates may travel by a code that leaves much out, and nothing sends it later."""
    if config.codec.feedback != "none":
        return None
    key, names = "codec.name", [ready.base.codec]
    if ready.limits and config.control.controller in ("planner", "rotation"):
        key, names = "control.codecs", config.control.codecs
    worst = min(names, key=lambda name: fidelity(name).kept)
    if (kept := fidelity(worst).kept) >= FAITHFUL:
        return None
    return (
        f"{key}: {worst} keeps {kept:.2g} of an update and the rest is lost; "
        "set codec.feedback = 'error', which sends it later"
    )


def build_search(
    config: Config,
) -> tuple[list[Costs], dict[str, Grid], Progress, list[dict[str, float]], tuple[str, ...]]:
    """What the planner chooses from in each turn, for `plan`; costs and limits by device class,
    and what there is to warn of."""
    ready = prepare(config, parts=config.control.controller == "rotation")
    if not ready.limits or ready.known is None:
        raise UserError("plan: the config names no budget; add some to [budget]")
    if config.budget.accounting == "paper":
        raise UserError(
            "plan: these budgets are in the papers' proxies, and the planner counts real work; add "
            "--set budget.accounting=counted, with budgets in shares or units"
        )
    limits = bearable(config, world(config, ready.kinds), ready.limits)
    grid, progress = search(config, ready.known)
    warning = codec_warning(config, ready)
    return ready.kinds, turns(config, grid), progress, limits, (warning,) if warning else ()


def build_courses(config: Config) -> tuple[list[Course], tuple[str, ...]]:
    """What a controller of the papers will do, for `plan`, and what there is to warn of; of others,
    what they begin with."""
    papers = config.control.controller in DUAL
    ready = prepare(config, parts=not papers)
    if not ready.limits:
        raise UserError("plan: the config names no budget; add some to [budget]")
    asked = config, ready.base, ready.kinds, ready.limits
    if not papers:
        return first_rounds(*asked), ()
    warnings = outlook(*asked, len(ready.clients))
    return courses(*asked, len(ready.clients)), warnings


def budgets(config: Config, kinds: Sequence[Costs], base: Knobs) -> list[dict[str, float]]:
    """Each device class's budgets as numbers; shares are of the base knobs' usage there.

    That is with the model and its updates sent as they are, whatever the codecs.
    """
    if config.budget.accounting == "measured":
        asked = (resource for table in config.budget.classes for resource in table)
        check_budgets(asked, sensors(config.accelerator == "cpu"))
    found = []
    for i, table in enumerate(config.budget.classes):
        known = kinds[i % len(kinds)]
        plain = replace(base, codec=known.layout.raw)
        if known.accounting == "paper" and known.sizes is None:
            raise UserError("budget.accounting = 'paper': the papers' proxies are for GPTs only")
        found.append(
            resolve(
                *(read(table, known.own), replace(known, down_codec="").expected(plain)),
                *(known.device.ambient_c, known.accounting),
            )
        )
    return found


def own_resources(config: Config) -> tuple[Resource, ...]:
    """Those that the config names, imported."""
    key = "budget.resources"
    every = [imported(name, key) for name in config.budget.resources]
    with about("[budget]"):
        return check(every)


def own_workers(accelerator: str) -> int:
    """One for each core that this process may use, or for each accelerator."""
    if accelerator != "cpu":
        return count(accelerator)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
