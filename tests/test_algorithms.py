"""FedProx, SCAFFOLD and the penalised baselines, against closed forms and plain references."""

import math
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from conftest import softmax_plan
from fedbudget import rounds
from fedbudget.algorithms.algorithm import LocalRun
from fedbudget.algorithms.fedavg import fedavg
from fedbudget.algorithms.pc_fedavg import pc_fedavg
from fedbudget.algorithms.scaffold import scaffold
from fedbudget.algorithms.server import plain
from fedbudget.algorithms.terms import constant, growing, horizon, penalty, prox
from fedbudget.client import Recipe
from fedbudget.codecs import frame
from fedbudget.constraints import box, half_space, l1_ball, l2_ball, per_layer
from fedbudget.control.controller import Controller, fixed
from fedbudget.data.examples import Arrays, Parts
from fedbudget.engines.embedded import InProcess, Workers
from fedbudget.plan import Plan
from fedbudget.runs import RunFolder
from fedbudget.task import custom
from fedbudget.types import Knobs
from test_rounds import train
from test_runs import go

SGD = Recipe(optimizer="sgd")


class Point(nn.Module):
    """A model that is a point."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.at = nn.Parameter(torch.zeros(size, dtype=torch.float64))

    def forward(self, x):
        return self.at


def bowl(model, x, y):
    """1/2 sum of x (w - y)^2: x the curvatures, y the optimum."""
    return 0.5 * (x * (model(x) - y).square()).sum(-1).mean()


CURVATURES = torch.tensor([[1.0, 2.0], [4.0, 0.5], [0.2, 3.0], [2.0, 1.0]], dtype=torch.float64)
OPTIMA = torch.tensor([[3.0, -1.0], [-2.0, 0.5], [5.0, 2.0], [0.0, -4.0]], dtype=torch.float64)


def quadratics(algorithm, **changes) -> Plan:
    """Four clients whose losses differ in curvature and optimum; every gradient is exact."""
    settings = {
        "name": "quadratics",
        "seed": 2,
        "rounds": 20,
        "cohort": 4,
        "model": partial(Point, 2),
        "clients": Parts(Arrays(CURVATURES, OPTIMA), [np.array([i]) for i in range(4)]),
        "validation": None,
        "algorithm": algorithm,
        "controller": fixed(Knobs(1, 6, 1, codec="raw64")),
        "task": custom(bowl),
        "lr": 0.1,
        "recipe": SGD,
    }
    return Plan(**(settings | changes))


# equal where they must be


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_fedprox_with_mu_0_is_fedavg_bit_for_bit(optimizer):
    plan = softmax_plan(recipe=Recipe(optimizer=optimizer), rounds=4)
    _, a = train(plan)
    _, b = train(replace(plan, algorithm=fedavg(terms=[prox(0.0)])))
    _, c = train(replace(plan, algorithm=fedavg(terms=[prox(0.5)])))
    assert torch.equal(a.weights, b.weights)
    assert not torch.equal(a.weights, c.weights)


def test_the_first_round_of_scaffold_is_fedavgs_bit_for_bit():
    plan = softmax_plan(recipe=SGD, rounds=1)
    _, a = train(plan)
    _, b = train(replace(plan, algorithm=scaffold()))
    assert torch.equal(a.weights, b.weights)
    assert b.server["control"].abs().max() > 0


def no_variates(finish, run):
    (update, control), kept = finish(run)
    return (update, torch.zeros_like(control)), kept


def test_scaffold_with_variates_of_zero_is_fedavg_bit_for_bit():
    plan = softmax_plan(recipe=SGD, rounds=5, cohort=2)
    _, a = train(plan)
    algorithm = scaffold()
    still = algorithm._replace(finish=partial(no_variates, algorithm.finish))
    _, b = train(replace(plan, algorithm=still))
    _, c = train(replace(plan, algorithm=algorithm))
    assert torch.equal(a.weights, b.weights)
    assert not torch.equal(a.weights, c.weights)


# against references


def test_fedprox_adds_mu_times_the_way_from_the_global_model():
    mu, lr = 0.7, 0.1
    plan = quadratics(fedavg(terms=[prox(mu)]), lr=lr)
    _, state = train(plan)
    w = np.zeros(2)
    for _ in range(plan.rounds):
        ends = []
        for a, b in zip(CURVATURES.numpy(), OPTIMA.numpy(), strict=True):
            at = w.copy()
            for _ in range(6):
                at -= lr * (a * (at - b) + mu * (at - w))
            ends.append(at)
        w = np.mean(ends, 0)
    np.testing.assert_allclose(state.weights.numpy(), w, atol=1e-13)


def scaffold_reference(plan, server_lr):
    """Karimireddy et al. 2020, algorithm 1, option II, as it is printed; steps grow linearly."""
    w, c, ci = np.zeros(2), np.zeros(2), np.zeros((4, 2))
    steps = [plan.lr * (k + 1) / 6 for k in range(6)]
    for round in range(1, plan.rounds + 1):
        cohort = rounds.sample(plan, round)
        moves, news = [], []
        for i in cohort:
            y = w.copy()
            for lr in steps:
                g = CURVATURES[i].numpy() * (y - OPTIMA[i].numpy())
                y -= lr * (g - ci[i] + c)
            new = ci[i] - c + (w - y) / sum(steps)
            moves.append(y - w)
            news.append(new - ci[i])
            ci[i] = new
        w = w + server_lr * np.mean(moves, 0)
        c = c + len(cohort) / 4 * np.mean(news, 0)
    return w, c


@pytest.mark.parametrize("cohort", [1, 2, 4])
def test_scaffold_is_option_ii_with_a_sampled_cohort_and_steps_of_any_size(cohort):
    plan = quadratics(
        scaffold(plain(0.7)), cohort=cohort, recipe=Recipe(optimizer="sgd", warmup=1.0)
    )
    _, state = train(plan)
    w, c = scaffold_reference(plan, 0.7)
    np.testing.assert_allclose(state.weights.numpy(), w, atol=1e-12)
    np.testing.assert_allclose(state.server["control"].numpy(), c, atol=1e-12)


def variates(plan, engine, state):
    """c_i of all clients, (N, n): zero for one that was never used."""
    zero = torch.zeros_like(state.weights)
    return torch.stack(
        [
            engine.states[i][state.acks[i].round]["control"] if i in state.acks else zero
            for i in range(len(plan.clients))
        ]
    )


def by_turns(state, client):
    """Some train one layer, some two."""
    return Knobs(1 + (state["round"] + client) % 2, 3, 8, codec="int8")


TURNS = Controller(lambda: {"round": 1}, by_turns, lambda s, _: {"round": s["round"] + 1})


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"drop": 0.4},
        {"controller": fixed(Knobs(1, 3, 8, codec="eden2"))},
        {"controller": TURNS, "layers": ("linear.weight", "linear.bias"), "drop": 0.3},
    ],
    ids=["int8", "drop-outs", "eden2", "layers"],
)
def test_c_stays_the_mean_of_the_c_i(changes):
    start = {"controller": fixed(Knobs(1, 3, 8, codec="int8")), "rounds": 12, "cohort": 2}
    plan = softmax_plan(algorithm=scaffold(), recipe=SGD, **(start | changes))
    engine = InProcess(plan)
    layout = plan.build_model().layout
    dropped = 0
    for record, state in rounds.run(plan, engine, layout, rounds.first_state(plan)):
        dropped += len(record.dropped)
        mean = variates(plan, engine, state).mean(0)
        torch.testing.assert_close(state.server["control"], mean, rtol=0, atol=1e-6)
    assert (dropped > 0) == (plan.drop > 0)
    assert state.server["control"].abs().max() > 1e-2


def test_fedavg_is_biased_where_clients_differ_and_scaffold_is_not():
    """FedAvg's fixed point is the mean of b_i, weighted 1 - (1 - lr a_i)^K; the optimum's is a_i."""
    lr, steps = 0.2, 5
    knobs = fixed(Knobs(1, steps, 1, codec="raw64"))
    optimum = (CURVATURES * OPTIMA).sum(0) / CURVATURES.sum(0)
    shares = 1 - (1 - lr * CURVATURES) ** steps
    biased = (shares * OPTIMA).sum(0) / shares.sum(0)
    assert (biased - optimum).abs().min() > 0.3
    _, a = train(quadratics(fedavg(), lr=lr, controller=knobs, rounds=30))
    torch.testing.assert_close(a.weights, biased, rtol=0, atol=1e-9)
    _, b = train(quadratics(scaffold(), lr=lr, controller=knobs, rounds=40))
    torch.testing.assert_close(b.weights, optimum, rtol=0, atol=1e-6)


# penalties


SETS = [
    l1_ball(1.5),
    l2_ball(0.8),
    box(-0.3, 0.4),
    half_space(torch.tensor([1.0, 2, 0, 1, -1]), -2),
]


@pytest.mark.parametrize("set", SETS, ids=lambda s: s.name)
def test_a_penaltys_gradient_is_that_of_half_rho_times_the_squared_distance(set):
    """Autograd goes through the projection; the term never does."""
    w = torch.tensor([0.9, -1.2, 0.5, 0.1, -0.7], dtype=torch.float64)
    run = LocalRun(w, torch.ones_like(w), slice(0, 5), (w.clone(),), {}, lambda: None)
    run = replace(run, project=set.project, round=9)
    penalty(growing(2.0))(run)
    at = w.clone().requires_grad_()
    (0.5 * 6.0 * (at - set.project(at)).square().sum()).backward()
    assert at.grad.abs().max() > 0.1
    torch.testing.assert_close(run.grads, 1 + at.grad, rtol=0, atol=1e-12)


RADII = (0.2, 1.0, 0.5, 2.0)


def fenced_bowl(model, x, y):
    """The same loss with 3/2 dist^2 to an l2 ball, whose radius is x's last column."""
    w = model(x)
    outside = torch.relu(torch.linalg.vector_norm(w + 1e-300) - x[0, -1])
    return bowl(model, x[:, :-1], y) + 1.5 * outside.square()


@pytest.mark.parametrize("name", ["fedavg", "fedprox", "scaffold"])
def test_a_penalised_baseline_is_the_algorithm_on_the_penalised_loss(name):
    make = scaffold if name == "scaffold" else fedavg
    terms = [prox(0.4)] if name == "fedprox" else []
    plan = quadratics(
        make(terms=[*terms, penalty(constant(3.0))]),
        constraints=[l2_ball(r) for r in RADII],
        cohort=3,
    )
    _, a = train(plan)
    x = torch.cat([CURVATURES, torch.tensor(RADII, dtype=torch.float64)[:, None]], 1)
    clients = Parts(Arrays(x, OPTIMA), [np.array([i]) for i in range(4)])
    _, b = train(quadratics(make(terms=terms), clients=clients, task=custom(fenced_bowl), cohort=3))
    torch.testing.assert_close(a.weights, b.weights, rtol=0, atol=1e-12)
    _, free = train(quadratics(make(terms=terms), cohort=3))
    assert (a.weights - free.weights).abs().max() > 0.03


def test_penalties_over_rounds():
    assert [constant(0.5)(r) for r in (1, 4, 100)] == [0.5, 0.5, 0.5]
    assert [growing(0.5)(r) for r in (1, 4, 100)] == [0.5, 1.0, 5.0]
    assert [horizon(0.5, 16)(r) for r in (1, 4, 16)] == [2.0, 2.0, 2.0]


def test_a_growing_penalty_grows_with_the_rounds_of_a_run():
    """One step from 0 a round, no loss: the way in round r is lr rho sqrt(r) times the distance."""
    plan = quadratics(
        fedavg(terms=[penalty(growing(0.25))]),
        clients=Parts(
            Arrays(torch.zeros(1, 2).double(), torch.zeros(1, 2).double()), [np.zeros(1, int)]
        ),
        constraints=[box(1.0, 2.0)],
        controller=fixed(Knobs(1, 1, 1, codec="raw64")),
        cohort=1,
        rounds=5,
    )
    _, state = train(plan)
    left = math.prod(1 - plan.lr * 0.25 * math.sqrt(r) for r in range(1, 6))
    torch.testing.assert_close(state.weights, torch.full((2,), 1 - left).double())


# layers that do not train, and statistics


def two_layers(bn=False):
    norm = [nn.BatchNorm1d(5)] if bn else []
    return nn.Sequential(nn.Linear(4, 5), *norm, nn.ReLU(), nn.Linear(5, 3))


def algorithms(agents=3):
    rho = growing(1.0)
    return {
        "scaffold": scaffold(),
        "fedprox": fedavg(terms=[prox(0.1)]),
        "pc-fedavg": pc_fedavg(agents, rho, 0.1),
        "penalised-fedavg": fedavg(terms=[penalty(rho)]),
        "penalised-fedprox": fedavg(terms=[prox(0.1), penalty(rho)]),
        "penalised-scaffold": scaffold(terms=[penalty(rho)]),
    }


NAMES = list(algorithms())


def constrained(name, **changes):
    """Softmax regression, two of three clients a round, each with its l1 ball."""
    settings = {
        "algorithm": algorithms()[name],
        "recipe": SGD,
        "rounds": 6,
        "cohort": 2,
        "controller": fixed(Knobs(1, 3, 8, codec="int8")),
        "constraints": [l1_ball(0.3 + 0.2 * i) for i in range(3)],
        "drop": 0.1,
    }
    return softmax_plan(**(settings | changes))


@pytest.mark.parametrize("name", NAMES)
def test_frozen_layers_stay_as_they_were(name):
    plan = constrained(name, model=two_layers, controller=fixed(Knobs(1, 3, 8)), rounds=4, cohort=3)
    engine = InProcess(plan)
    _, state = train(plan, engine)
    layout = plan.build_model().layout
    assert layout.depth == 2
    frozen, top = layout.span(0, 1), layout.top(1)
    before = rounds.first_state(plan).server
    for key, vector in state.server.items():
        assert torch.equal(vector[frozen], before[key][frozen])
        assert not torch.equal(vector[top], before[key][top])
    for versions in engine.states.values():
        for kept in versions.values():
            for key, vector in kept.items():
                assert not vector[frozen].any(), key


class Kept(InProcess):
    """Keeps the replies of the last round."""

    def run(self, jobs):
        self.replies = []
        for reply in super().run(jobs):
            self.replies.append(reply)
            yield reply


@pytest.mark.parametrize("name", NAMES)
def test_statistics_of_norms_are_averaged_and_nothing_else(name):
    plan = constrained(name, model=partial(two_layers, True), controller=fixed(Knobs(2, 3, 8)))
    layout = plan.build_model().layout
    sets = [per_layer(layout, {"3": l1_ball(0.3 + 0.2 * i)}) for i in range(3)]
    algorithm = plan.algorithm
    if "scaffold" in name:
        algorithm = scaffold(plain(0.5))
    plan = replace(plan, constraints=sets, algorithm=algorithm)
    assert len(layout.statistic_slices) == 2
    engine = Kept(plan)
    before = rounds.first_state(plan)
    for record, state in rounds.run(plan, engine, layout, before):
        updates = [frame.unpack(r.payload, layout) for r in engine.replies if r.payload is not None]
        for where in layout.statistic_slices:
            mean = torch.stack([u[0][where] for u in updates]).mean(0)
            torch.testing.assert_close(state.weights[where] - before.weights[where], mean)
            assert mean.abs().max() > 1e-3
            for second in (u[1][where] for u in updates if len(u) > 1):
                assert not second.any()
        before = state
    assert all(vector.isfinite().all() for vector in state.server.values())
    assert record.validation["accuracy"] > 0.3
    for where in layout.statistic_slices:
        for key in set(state.server) & {"shared"}:
            torch.testing.assert_close(state.server[key][where], state.weights[where])


# the same bits however it runs


@pytest.mark.parametrize("name", NAMES)
def test_worker_processes_give_the_same_bits(name):
    plan = constrained(name)
    records, here = train(plan)
    others, there = train(plan, Workers(plan, 2))
    for key, vector in here.server.items():
        assert torch.equal(vector, there.server[key]), key
    assert here.acks == there.acks
    assert [r.validation for r in records] == [r.validation for r in others]
    assert {"objective", "infeasibility", "worst_infeasibility"} <= set(records[0].validation)


@pytest.mark.parametrize("name", NAMES)
def test_a_run_that_was_stopped_and_resumed_has_the_same_bits(name, tmp_path):
    plan = constrained(name)
    go(plan, tmp_path / "whole")
    go(plan, tmp_path / "half", after=3)
    folder = RunFolder(tmp_path / "half")
    start = folder.load_checkpoint(lambda text: None)
    assert start.state.round == 3
    folder.cut_back(3)
    go(plan, None, start=start, folder=folder)
    for file in ("model.safetensors", "personal.safetensors"):
        a, b = ((tmp_path / n / file).read_bytes() for n in ("whole", "half"))
        assert a == b, file
    for a, b in zip(*(newest(tmp_path / n) for n in ("whole", "half")), strict=True):
        assert a == b
    a, b = (RunFolder(tmp_path / n).records() for n in ("whole", "half"))
    assert [r["validation"] for r in a] == [r["validation"] for r in b]


def newest(path):
    """What a checkpoint holds, as something to compare."""
    state, clients = RunFolder(path).load_checkpoint(lambda text: None)
    yield state.round, state.acks
    yield {name: vector.tolist() for name, vector in state.server.items()}
    for client, versions in sorted(clients.items()):
        for round, kept in sorted(versions.items()):
            yield client, round, {name: vector.tolist() for name, vector in kept.items()}
