"""Config -> Plan: the only place where a name becomes an object."""

import importlib
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from torch import nn

from fedbudget import seeds
from fedbudget.algorithms import server
from fedbudget.algorithms.fedavg import fedavg
from fedbudget.algorithms.server import ServerOptimizer
from fedbudget.client import Recipe
from fedbudget.codecs import named
from fedbudget.config import Config, Data, Model
from fedbudget.control.controller import Controller, fixed
from fedbudget.control.deadzones import one_sided, two_sided
from fedbudget.control.duals import Rule, ascent, augmented_lagrangian, log_barrier, nupi
from fedbudget.control.paper import clamped, dual_controller
from fedbudget.control.planner import Grid, Progress, Search, planner
from fedbudget.control.policies import Base, cafl, cafl_l
from fedbudget.data import partition, sources
from fedbudget.data.examples import Examples, Parts, Texts, Windows, as_examples
from fedbudget.data.sources import Labelled, Text
from fedbudget.errors import UserError
from fedbudget.models.cnn import cnn
from fedbudget.models.flat import FlatModel, Layout
from fedbudget.models.gpt import GPT
from fedbudget.models.size import parse_size
from fedbudget.models.softmax import Softmax
from fedbudget.plan import Plan
from fedbudget.resources import devices
from fedbudget.resources.budget import of_client, read, resolve
from fedbudget.resources.costs import Costs, costs
from fedbudget.task import Task, classify
from fedbudget.types import Knobs


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
    limits: list[dict[str, float]]


def prepare(config: Config) -> Prepared:
    """Read the data and check that everything fits together."""
    clients, validation, make_model = _data_and_model(config)
    train = config.train
    if train.cohort > len(clients):
        raise UserError(f"train.cohort = {train.cohort}, but there are {len(clients)} clients")
    with seeds.torch_seeded(config.seed, 0, seeds.SERVER, "init"):
        model = FlatModel(make_model(), tuple(config.model.layers) or None)
    depth = model.layout.depth
    if train.layers > depth:
        raise UserError(f"train.layers = {train.layers}, but the model has {depth} layer groups")
    named(config.codec.name)
    codec = model.layout.raw if config.codec.name == "raw32" else config.codec.name
    base = Knobs(train.layers or depth, train.steps, train.batch, train.accumulate, codec)
    task = classify(train.label_smoothing)
    known: Costs | None = None
    limits: list[dict[str, float]] = []
    if config.budget.classes or ":" not in config.model.kind:
        device = devices.named(config.budget.device)
        gpt = config.model.kind == "gpt"
        known = costs(model, task, clients[0], train.optimizer, device, gpt)
        limits = budgets(config, known, base)
    return Prepared(clients, validation, make_model, model.layout, base, task, known, limits)


def build(config: Config) -> Plan:
    """Name every part of a run."""
    ready = prepare(config)
    train = config.train
    return Plan(
        name=config.name,
        seed=config.seed,
        rounds=config.rounds,
        cohort=train.cohort,
        model=ready.make_model,
        clients=ready.clients,
        validation=ready.validation,
        algorithm=fedavg(_server(config)),
        controller=_controller(config, ready),
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
            config.codec.feedback,
        ),
        meter=ready.known.meter if ready.known else None,
        budgets={config.budget.accounting: ready.limits} if ready.limits else {},
        round_schedule=train.round_schedule,
        weighting=train.weighting,
        drop=train.drop,
        layers=tuple(config.model.layers) or None,
        evaluate_every=train.evaluate_every,
    )


def build_search(config: Config) -> tuple[Costs, Grid, Progress, list[dict[str, float]]]:
    """What the planner chooses from, for `fedbudget plan`."""
    ready = prepare(config)
    if not ready.limits or ready.known is None:
        raise UserError("plan: the config names no budget; add some to [budget]")
    return ready.known, *search(config, ready.known), ready.limits


def budgets(config: Config, known: Costs, base: Knobs) -> list[dict[str, float]]:
    """Each device class's budgets as numbers; shares are of the base knobs' usage, sent as is."""
    if not config.budget.classes:
        return []
    plain = replace(base, codec=known.layout.raw)
    if config.budget.accounting == "paper":
        if known.sizes is None:
            raise UserError("budget.accounting = 'paper': the papers' proxies are for GPTs only")
        reference = known.paper(plain)
    else:
        reference = known.forecast(plain)
    ambient = known.device.ambient_c
    return [resolve(read(table), reference, ambient) for table in config.budget.classes]


def search(config: Config, known: Costs) -> tuple[Grid, Progress]:
    control = config.control
    wide = Search(
        tuple(control.batches),
        tuple(control.codecs),
        control.least_steps,
        control.most_steps,
        control.noise_scale,
    )
    return wide.over(known, config.train.layers or known.layout.depth, config.train.cohort)


def _controller(config: Config, ready: Prepared) -> Controller:
    control, knobs, known, limits = config.control, ready.base, ready.known, ready.limits
    if control.controller == "fixed" or known is None:
        return fixed(knobs)
    base = Base(knobs.layers - 1, knobs.steps, knobs.batch)
    accounting = config.budget.accounting
    match control.controller:
        case "planner":
            return planner(known.forecast, *search(config, known), limits)
        case "clamped" if len(limits) > 1:
            raise UserError("control.controller = 'clamped' knows one device class only")
        case "clamped":
            return clamped(base, ready.layout.depth, limits[0], accounting=accounting)
        case name:
            own = {c: of_client(limits, c) for c in range(len(ready.clients))}
            return dual_controller(
                base,
                ready.layout.depth,
                limits[0],
                cafl_l if name == "cafl-l" else cafl,
                _rule(config),
                accounting=accounting,
                per="client" if len(limits) > 1 else "cohort",
                per_client=own if len(limits) > 1 else None,
                preserve_tokens=control.preserve_tokens,
                ema=control.ema,
            )


def _rule(config: Config) -> Rule:
    control = config.control
    zones = {"one-sided": one_sided, "two-sided": two_sided}
    match control.rule:
        case "nupi":
            return nupi(control.eta)
        case "augmented":
            return augmented_lagrangian(control.eta)
        case "barrier":
            return log_barrier(control.eta)
        case _:
            return ascent(control.eta, partial(zones[control.zone], eps=control.epsilon))


def _server(config: Config) -> ServerOptimizer:
    train = config.train
    match train.server:
        case "momentum":
            return server.momentum(train.server_momentum, train.server_lr)
        case "adam":
            return server.adam(train.server_lr)
        case "yogi":
            return server.yogi(train.server_lr)
        case _:
            return server.plain(train.server_lr)


def cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


Made = tuple[Sequence[Examples], Examples, Callable[[], nn.Module]]


def _data_and_model(config: Config) -> Made:
    if ":" in config.data.source and not config.data.source.startswith("hf:"):
        with seeds.torch_seeded(config.seed, 0, seeds.SERVER, "data"):
            made = _call(config.data.source, "data.source", config.data)
        if not isinstance(made, tuple | list) or len(made) != 2:
            raise UserError(
                f"data.source = {config.data.source!r}: it must return (clients, validation), "
                f"not a {type(made).__name__}"
            )
        clients, validation = made
        parts = [as_examples(c) for c in clients]
        partition.check_sizes([len(p) for p in parts])
        return parts, as_examples(validation), _own_model(config, "data of your own")
    source = _source(config.data)
    if isinstance(source, Text):
        return _text(config, source)
    return _labelled(config, source)


def _source(data: Data) -> Text | Labelled:
    path = data.path or None
    match data.source:
        case "tinyshakespeare":
            return sources.tiny_shakespeare(path)
        case "mnist":
            return sources.mnist(path)
        case "cifar10":
            return sources.cifar10(path)
        case "topics":
            return sources.python_topics()
        case "text":
            return sources.text_files(data.path)
        case name if name.startswith("hf:"):
            from fedbudget.data import hf

            columns = tuple(data.columns)
            return hf.load(name[3:], columns, data.key or None, data.validation)
        case other:
            raise UserError(
                f"data.source = {other!r} is unknown; it is tinyshakespeare, mnist, cifar10, "
                "topics, text (with data.path), hf:NAME or package.module:function"
            )


def _text(config: Config, text: Text) -> Made:
    data, context = config.data, config.model.context
    kept = int(len(text.tokens) * (1 - data.validation))
    rng = seeds.rng(config.seed, 0, seeds.SERVER, "partition")
    match data.partition:
        case "contiguous":
            spans = partition.contiguous(kept, data.clients, data.overlap)
        case "iid":
            spans = partition.blocks(kept, data.clients, 8 * context, rng)
        case "key":
            spans = [[(a, min(b, kept))] for a, b in text.documents if a < kept]
        case other:
            raise UserError(
                f"data.partition = {other!r} needs labels, and {text.name} is a text; "
                "it can be contiguous, iid or key"
            )
    clients = Texts(text.tokens, context, spans)
    lengths = [sum(b - a for a, b in s) for s in spans]
    partition.check_sizes(
        [max(0, n - context) for n in lengths],
        hint=f", more text or a model.context below {context}",
    )
    validation = Windows(text.tokens, context, ((kept, len(text.tokens)),), stride=context)
    if len(validation) == 0:
        raise UserError(f"{text.name}: the held-out part is shorter than model.context = {context}")
    if config.model.kind != "gpt":
        return clients, validation, _own_model(config, "a text")
    layers, width = parse_size(config.model.size)
    heads = config.model.heads or max(1, width // 32)
    make = partial(GPT, len(text.vocabulary), context, layers, width, heads, config.model.dropout)
    return clients, validation, make


def _labelled(config: Config, source: Labelled) -> Made:
    data, train = config.data, source.train
    labels = train.y.numpy()
    rng = seeds.rng(config.seed, 0, seeds.SERVER, "partition")
    match data.partition:
        case "iid":
            parts = partition.iid(len(train), data.clients, rng)
        case "dirichlet":
            parts = partition.dirichlet(labels, data.clients, data.alpha, rng)
        case "shards":
            parts = partition.shards(labels, data.clients, data.shards_per_client, rng)
        case "key" if source.keys is not None:
            parts = partition.by_key(source.keys)
        case "key":
            raise UserError(f"data.partition = 'key': {source.name} has no keys; set data.key")
        case other:
            raise UserError(
                f"data.partition = {other!r} is for texts; {source.name} can be split by "
                "iid, dirichlet, shards or key"
            )
    hint = " or a larger data.alpha" if data.partition == "dirichlet" else ""
    partition.check_sizes([len(p) for p in parts], hint=hint)
    shape = tuple(train.x.shape[1:])
    match config.model.kind:
        case "softmax":
            make: Callable[[], nn.Module] = partial(Softmax, int(np.prod(shape)), source.classes)
        case "cnn" if len(shape) == 3:
            make = partial(cnn, shape[0], source.classes)
        case "cnn":
            raise UserError(f"model.kind = 'cnn' needs images; {source.name} has shape {shape}")
        case _:
            make = _own_model(config, "labelled data")
    return Parts(train, parts), source.test, make


def _own_model(config: Config, what: str) -> Callable[[], nn.Module]:
    kind = config.model.kind
    if ":" not in kind:
        fitting = {"a text": "gpt", "labelled data": "softmax, cnn"}.get(what, "")
        raise UserError(
            f"model.kind = {kind!r} does not fit {what}; "
            f"it can be {fitting + ' or ' if fitting else ''}package.module:function"
        )
    return partial(_module, kind, config.model)


def _module(kind: str, table: Model) -> nn.Module:
    made = _call(kind, "model.kind", table)
    if not isinstance(made, nn.Module):
        raise UserError(
            f"model.kind = {kind!r}: it must return an nn.Module, not a {type(made).__name__}"
        )
    return made


def _call(name: str, key: str, argument: Any) -> Any:
    """Import `package.module:function` and call it with its config table."""
    module, _, function = name.partition(":")
    if os.getcwd() not in sys.path:  # a user's module beside the config, as with `python -m`
        sys.path.insert(0, os.getcwd())
    try:
        made = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise UserError(f"{key} = {name!r}: {error}") from None
    return made(argument)
