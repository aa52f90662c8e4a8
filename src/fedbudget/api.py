"""The Python API: `train` any module on any data."""

import copy
import math
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from numbers import Real
from typing import Any, Literal

from rich.console import Console
from torch import Tensor, nn

from fedbudget import arguments, epsilon, privacy, seeds
from fedbudget import rounds as loop
from fedbudget.aggregation import Screening
from fedbudget.algorithms.algorithm import Algorithm
from fedbudget.algorithms.fedavg import fedavg
from fedbudget.callbacks import Callback, closing, guarded
from fedbudget.client import Recipe
from fedbudget.codecs import chosen
from fedbudget.constraints import ConstraintSet
from fedbudget.control import planner as control
from fedbudget.control.classes import by_class
from fedbudget.control.controller import Controller, fixed
from fedbudget.control.planner import Search
from fedbudget.data.examples import Arrays, Lazy, as_examples
from fedbudget.data.partition import check_sizes
from fedbudget.engines.choose import choose
from fedbudget.errors import UserError
from fedbudget.hardware import check_precision, place
from fedbudget.models.flat import FlatModel
from fedbudget.plan import Plan
from fedbudget.progress import Live, watched
from fedbudget.records import plain
from fedbudget.resources import devices
from fedbudget.resources.budget import each_class, read_classes, resolve
from fedbudget.resources.costs import Costs, costs
from fedbudget.resources.meters import check_budgets, sensors
from fedbudget.resources.own import Resource, check
from fedbudget.result import Run, facts
from fedbudget.summary import cautions
from fedbudget.task import classify, custom
from fedbudget.types import Knobs, RoundRecord

Limit = str | float | list[str | float]


class Budget(dict[str, Limit]):
    """Limits per client and round; a list has one for each device class.

    >>> Budget(energy="1.2 kJ", communication=["600 kB", "2 MB"])
    {'energy': '1.2 kJ', 'communication': ['600 kB', '2 MB']}
    """

    def __init__(self, **limits: Limit) -> None:
        super().__init__(limits)


MakeController = Callable[[Costs, Mapping[str, float], Knobs, int], Controller]
"""(costs, budgets, base knobs, cohort) -> controller; called for each device class"""


def planner(
    batches: Sequence[int] = Search.batches,
    codecs: Sequence[str] = Search.codecs,
    noise_scale: float = Search.noise_scale,
    thrift: float = Search.thrift,
    least_steps: int = Search.least_steps,
    most_steps: int = Search.most_steps,
) -> MakeController:
    """The planner, for `train`: budgets kept from the first round on, most expected progress.

    thrift: share of that progress it gives away for a code that sends less.
    """
    for key, given in (("batches", batches), ("codecs", codecs)):
        if isinstance(given, str | int):
            raise UserError(f"{key} = {given!r}: give a list of them")
    arguments.counts(least_steps=least_steps, most_steps=most_steps)
    steps = least_steps, most_steps
    search = Search(tuple(batches), tuple(codecs), *steps, noise_scale, thrift)
    return partial(_planner, search)


def _planner(
    search: Search, known: Costs, limits: Mapping[str, float], base: Knobs, cohort: int
) -> Controller:
    grid, progress = search.over(known, base.layers, cohort)
    return control.planner(known.expected, grid, progress, [limits], known.accounting)


def train(
    model: nn.Module | Callable[[], nn.Module],
    clients: Sequence[Any],
    validation: Any = None,
    *,
    rounds: int = 50,
    cohort: int | None = None,
    steps: int = 60,
    batch: int = 16,
    lr: float = 1e-3,
    optimizer: Literal["adamw", "sgd"] = "adamw",
    layers: int | None = None,
    groups: Sequence[str] | None = None,
    loss: Callable[[nn.Module, Any, Tensor], Tensor] | None = None,
    recipe: Recipe | None = None,
    algorithm: Algorithm | None = None,
    constraints: Sequence[ConstraintSet] | None = None,
    final_projection: bool = False,
    weighting: Literal["uniform", "examples"] = "uniform",
    normalise: Literal["none", "work"] = "none",
    round_schedule: Literal["constant", "cosine", "cooldown", "sqrt-cooldown"] = "constant",
    cooldown: float = 0.3,
    seed: int = 0,
    budget: Mapping[str, Limit] | None = None,
    resources: Sequence[Resource] = (),
    accounting: Literal["counted", "measured"] = "counted",
    controller: MakeController | None = None,
    codec: str | None = None,
    device: str = "raspberry-pi-5",
    workers: int = 1,
    accelerator: Literal["cpu", "cuda", "mps", "xpu"] = "cpu",
    name: str = "run",
    on_round: Callable[[RoundRecord], None] | None = None,
    callbacks: Sequence[Callback] = (),
    quiet: bool = False,
) -> Run:
    """Train a model across clients.

    model: a module, or a function that makes one.
    clients: one data set per client: a torch Dataset of (input, target) pairs, a Hugging Face
        Dataset of two columns, or an (x, y) pair of tensors (bytes are read as pixels: 0..1); or
        `fedbudget.data.ondemand.OnDemand`, which loads them when they train.
    validation: a data set of the same kind, evaluated after every round.
    cohort: clients per round; None takes all.
    layers: how many layer groups train, from the top; None trains all.
    groups: name prefixes of the layer groups, bottom first, where the ones found do not suit.
    loss: (model, inputs, targets) -> scalar; cross-entropy where it is not given.
    recipe: more about the local optimiser and privacy; `optimizer` is ignored then.
    constraints: one private set per client (`fedbudget.constraints`); they stay with the clients.
        For `pc_fedavg`, and for `fedavg` or `scaffold` with a `penalty` term.
    final_projection: put each client's own model into its set when the run ends.
    normalise: "work" averages updates per unit of local work (FedNova), for clients that do not all
        take as many steps.
    round_schedule: of the step size over the rounds; cooldowns fall to nothing at their end.
    cooldown: share of the rounds that those take.
    budget: limits per client and round, Budget(communication="600 kB", energy="27%") or a dict; a
        percentage is of what the settings above would use. A list has a limit for each device class:
        client i is of class i modulo their number.
    resources: of your own, which the budget may name: Resource("money", function, "EUR").
    accounting: what the budget is about: work that is counted, or what clocks, kernel and sensors
        of the machine that trains say, such as Budget(time="20 s", memory="80 MB").
    controller: what turns the knobs to keep the budget: `planner()`, or a function of (costs,
        budgets, base knobs, cohort) that returns a Controller. Without one, usage is reported only.
    codec: how updates travel where no controller decides; None sends them as they are.
    device: the profile that turns counted work into joules and degrees.
    workers: processes; with more than one, model, data, loss and resources must be picklable and the
        script needs `if __name__ == "__main__":`.
    accelerator: where clients compute; several workers share the accelerators of a kind evenly.
    on_round: hears of each round; what it raises ends the run.
    callbacks: hear of start, rounds and end, such as `fedbudget.tracking.tensorboard.tensorboard`
        or a `fedbudget.callbacks.Callback` of your own; one that fails is warned of and left out.
    """
    parts = clients if isinstance(clients, Lazy) else [as_examples(c) for c in clients]
    if not parts:
        raise UserError("clients is empty: give one data set per client")
    check_sizes([len(p) for p in parts])
    shapes = [tuple(p.x.shape[1:]) for p in parts if isinstance(p, Arrays)]
    if odd := [i for i, shape in enumerate(shapes) if shape != shapes[0]]:
        raise UserError(
            f"clients[{odd[0]}] has inputs of shape {shapes[odd[0]]}, clients[0] of {shapes[0]}; "
            "all must have one shape"
        )
    size = len(parts) if cohort is None else cohort
    local = recipe or Recipe(optimizer=optimizer)
    arguments.whole(cohort=cohort, layers=layers, seed=seed)
    arguments.counts(rounds=rounds, steps=steps, batch=batch, workers=workers)
    if not isinstance(lr, Real) or not (lr > 0 and math.isfinite(lr)):
        raise UserError(f"lr = {lr!r}: it must be above 0, and finite")
    arguments.choice("optimizer", local.optimizer, ("adamw", "sgd"))
    arguments.choice("weighting", weighting, ("uniform", "examples"))
    arguments.choice("normalise", normalise, ("none", "work"))
    arguments.choice(
        "round_schedule", round_schedule, ("constant", "cosine", "cooldown", "sqrt-cooldown")
    )
    if not isinstance(cooldown, Real) or not 0 < cooldown <= 1:
        raise UserError(f"cooldown = {cooldown}: it must be above 0 and at most 1")
    arguments.choice("accounting", accounting, ("counted", "measured"))
    place(accelerator)
    check_precision(local.precision, accelerator)
    if not 1 <= size <= len(parts):
        raise UserError(
            f"cohort = {size}: it must be from 1 to {len(parts)}, the number of clients"
        )
    own = check(resources)
    asked = read_classes(budget, own)
    if own and not asked:
        raise UserError("resources: they are counted where there is a budget; give budget={...}")
    if controller is not None and not asked:
        raise UserError("controller: it needs a budget to keep; give budget={...}")
    held_out = as_examples(validation) if validation is not None else None
    if held_out is not None and not len(held_out):
        raise UserError("validation is empty: give some examples, or None to evaluate nothing")
    how = algorithm if algorithm is not None else fedavg()
    arguments.kinds(model, how, codec)
    arguments.sets(how, constraints, len(parts))
    make = partial(copy.deepcopy, model) if isinstance(model, nn.Module) else model
    prefixes = tuple(groups) if groups is not None else None
    with seeds.torch_seeded(seed, 0, seeds.SERVER, "init"):
        made_model = make()
        if not isinstance(made_model, nn.Module):
            raise UserError(f"model: it made {made_model!r}, which is no module")
        flat = FlatModel(copy.deepcopy(made_model), prefixes)
    depth = flat.layout.depth
    if layers is not None and not 1 <= layers <= depth:
        raise UserError(
            f"layers = {layers}: it must be from 1 to {depth}, the model's layer groups"
        )
    task = custom(loss) if loss is not None else classify()
    chosen(codec or flat.layout.raw, "codec")
    base = Knobs(layers or depth, steps, batch, codec=codec or flat.layout.raw)
    local = replace(local, privacy=replace(local.privacy, cohort=size))
    privacy.check(
        local.privacy,
        flat.layout,
        weighting=weighting,
        codecs=() if controller else (base.codec,),
        remembers=local.uplink.feedback != "none",
        compares=False,
    )
    epsilon.ready(local.privacy)
    alone = local.privacy.on and local.privacy.model == "sum"  # no update is seen by itself
    known: Costs | None = None
    limits: list[dict[str, float]] = []
    if asked:
        if accounting == "measured":
            check_budgets(
                dict.fromkeys(r for one in asked for r in one), sensors(accelerator == "cpu")
            )
        known = costs(
            *(flat, task, parts[0], local.optimizer, devices.named(device)),
            gpt=False,
            vectors=how.vectors,
            accounting=accounting,
            own=own,
            momentum=local.momentum > 0,
        )
        plain = known.expected(replace(base, codec=flat.layout.raw))
        ambient = known.device.ambient_c
        limits = each_class(asked, lambda one: resolve(one, plain, ambient))
    decide = fixed(base)
    if controller is not None and known is not None:
        made = each_class(limits, partial(_made, controller, known, base, size))
        decide = by_class(made) if len(made) > 1 else made[0]
    plan = Plan(
        name=name,
        seed=seed,
        rounds=rounds,
        cohort=size,
        model=make,
        clients=parts,
        validation=held_out,
        algorithm=how,
        controller=decide,
        task=task,
        lr=lr,
        recipe=local,
        meters=(known.meter,) if known else (),
        budgets={accounting: limits} if limits else {},
        units=known.units if known else {},
        weighting=weighting,
        normalise=normalise,
        round_schedule=round_schedule,
        cooldown=cooldown,
        screening=Screening("off") if alone else Screening(),
        layers=prefixes,
        constraints=constraints,
        final_projection=final_projection,
        accelerator=accelerator,
    )
    config = {
        "rounds": rounds,
        "cohort": size,
        "steps": steps,
        "batch": batch,
        "lr": lr,
        "optimizer": local.optimizer,
        "layers": base.layers,
        "codec": base.codec,
        "weighting": weighting,
        "normalise": normalise,
        "round_schedule": round_schedule,
        "cooldown": cooldown,
        "seed": seed,
        "device": device,
        "budget": dict(budget or {}),
        "accounting": accounting,
    }
    if odd := [i for i, c in enumerate(callbacks) if not isinstance(c, Callback)]:
        raise UserError(
            f"callbacks[{odd[0]}] is a {type(callbacks[odd[0]]).__name__}; it must be a Callback, "
            "such as fedbudget.callbacks.Callback(round=print)"
        )
    listeners = [on_round] if on_round else []
    return _run(plan, min(workers, size), listeners, callbacks, config, quiet)


def _made(
    make: Any, known: Costs, base: Knobs, cohort: int, limits: Mapping[str, float]
) -> Controller:
    """The controller of one device class."""
    right = "give planner(), or a function of (costs, budgets, base knobs, cohort) for a Controller"
    if make is planner or not callable(make):
        raise UserError(f"controller = {getattr(make, '__name__', repr(make))}: {right}")
    made = make(known, limits, base, cohort)
    if not isinstance(made, Controller):
        raise UserError(f"controller: it returned a {type(made).__name__}; {right}")
    return made


def _warn(text: str) -> None:
    warnings.warn(text, RuntimeWarning, stacklevel=2)


def _run(
    plan: Plan,
    workers: int,
    listeners: Iterable[Callable[[RoundRecord], None]],
    callbacks: Sequence[Callback],
    config: Mapping[str, Any],
    quiet: bool,
) -> Run:
    model = plan.build_model()
    records: list[RoundRecord] = []
    console = Console(stderr=True, quiet=quiet)
    own: tuple[Tensor, ...] = ()
    figures: dict[str, Any] = {}
    first = state = loop.first_state(plan)
    safe = [guarded(c, f"callbacks[{i}]", _warn) for i, c in enumerate(callbacks)]
    live = Live(
        *(console, plan.name, plan.rounds, plan.budgets), validates=plan.validation is not None
    )
    with closing(safe), live, watched(partial(choose, plan, workers), live) as engine:
        about = facts(plan, engine.kind) | {"rounds": plan.rounds, "budgets": plan.budgets}
        for callback in safe:
            callback.start(plain({**about, "layers": model.layout.titles, "done": 0}), config)
        for record, after in loop.run(plan, engine, model.layout, first, live.on_reply):
            records.append(record)
            state = after
            live.on_round(record)
            for listen in listeners:
                listen(record)
            told = plain(record.to_json()) if safe else {}
            for callback in safe:
                callback.round(told)
        if plan.constraints is not None:
            figures, models = engine.final(plan.algorithm.last(state.server), state.acks)
            own = tuple(vector.clone() for _, vector in models)
        with seeds.torch_seeded(plan.seed, 0, seeds.SERVER, "init"):
            module = copy.deepcopy(plan.model())
        module.load_state_dict(model.state_dict(state.weights))
        module.eval()
        each = figures.pop("agents", {})
        if quiet:
            for caution in cautions([record.to_json() for record in records]):
                _warn(caution)
        run = Run(module, tuple(records), plan, engine.kind, own, figures, each)
        for callback in safe:
            callback.end(plain(run.summary))
    return run
