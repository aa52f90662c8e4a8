"""PC-FedAvg: the recursion is the m-block algorithm, and nothing drives mean and blocks apart."""

import json
import pickle
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import cvxpy as cp
import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch import nn

from fedbudget import rounds, seeds
from fedbudget.algorithms.algorithm import counted
from fedbudget.algorithms.pc_fedavg import pc_fedavg
from fedbudget.algorithms.terms import constant, growing
from fedbudget.client import Recipe
from fedbudget.codecs import frame
from fedbudget.constraints import box, distance, half_space, l1_ball
from fedbudget.control.controller import Controller, fixed
from fedbudget.data.examples import Arrays, Parts, draw
from fedbudget.engines.embedded import InProcess
from fedbudget.plan import Plan
from fedbudget.runs import RunFolder
from fedbudget.task import classify, custom
from fedbudget.types import Knobs
from test_runs import go

M = 7
D = 12
"""a softmax regression of three features and three classes: 9 weights and 3 biases"""
WEIGHTS = 9
STEPS = 2
SAMPLES = 10
CURVATURE = 4.0
"""above that of the loss on these data"""


def agents_data(m=M):
    rng = np.random.default_rng(5)
    x = rng.normal(size=(m * SAMPLES, 3)) + np.repeat(rng.normal(size=(m, 3)), SAMPLES, 0)
    y = rng.integers(0, 3, m * SAMPLES)
    parts = [np.arange(i * SAMPLES, (i + 1) * SAMPLES) for i in range(m)]
    return Parts(Arrays(torch.tensor(x), torch.tensor(y)), parts)


def pc_plan(rho, sigma=0.0, projected=False, sets=None, codec="raw64", **changes):
    """Softmax regression in float64, m agents with two plain gradient steps on batches of four."""
    settings = {
        "name": "pc",
        "seed": 1,
        "rounds": 20,
        "cohort": M,
        "model": partial(nn.Linear, 3, 3, dtype=torch.float64),
        "clients": agents_data(),
        "validation": None,
        "algorithm": pc_fedavg(M, rho, sigma, projected),
        "controller": fixed(Knobs(1, STEPS, 4, codec=codec)),
        "task": classify(),
        "lr": 0.2,
        "recipe": Recipe(optimizer="sgd"),
        "constraints": sets or sets_of("l1")[0],
        "evaluate_every": 10**9,
    }
    return Plan(**(settings | changes))


def go_through(plan, engine=None):
    """After each round: its record, the state, and every agent's own model (m, d)."""
    engine = engine or InProcess(plan)
    layout = plan.build_model().layout
    for record, state in rounds.run(plan, engine, layout, rounds.first_state(plan)):
        yield record, state, blocks(plan, layout, engine, state)


def blocks(plan, layout, engine, state):
    """x_i = C + p_i, from what the server sends and the state that its last Ack names."""
    sent = plan.algorithm.send(state.server)
    found = []
    for agent in range(len(plan.clients)):
        ack = state.acks.get(agent)
        kept = engine.states[agent][ack.round] if ack else {}
        over = counted(ack.counts, layout) if ack else None
        found.append(plan.algorithm.personal(sent, kept, over))
    return torch.stack(found)


# the oracle: the paper's algorithm, every agent with all m blocks, in NumPy alone


def onto_l1(x, radius):
    """Duchi et al. 2008, by sorting."""
    if np.abs(x).sum() <= radius:
        return x
    sizes = np.sort(np.abs(x))[::-1]
    over = (np.cumsum(sizes) - radius) / np.arange(1, len(x) + 1)
    threshold = over[np.nonzero(sizes > over)[0][-1]]
    return np.sign(x) * np.maximum(np.abs(x) - threshold, 0)


def onto_half_space(x, normal, offset):
    return x - max(0.0, normal @ x - offset) / (normal @ normal) * normal


def sets_of(kind):
    """The agents' sets, each another one, and NumPy projections onto the same."""
    rng = np.random.default_rng(11)
    match kind:
        case "l1":
            radii = 0.4 + 0.3 * np.arange(M)
            return [l1_ball(r) for r in radii], [partial(onto_l1, radius=r) for r in radii]
        case "box":
            low, high = -rng.uniform(0, 0.3, (M, D)), rng.uniform(0, 0.3, (M, D))
            pairs = list(zip(low, high, strict=True))
            ours = [box(torch.tensor(a), torch.tensor(b)) for a, b in pairs]
            return ours, [partial(np.clip, a_min=a, a_max=b) for a, b in pairs]
        case _:
            normals, offsets = rng.normal(size=(M, D)), rng.uniform(-1, 0, M)
            pairs = list(zip(normals, offsets, strict=True))
            ours = [half_space(torch.tensor(a), float(b)) for a, b in pairs]
            return ours, [partial(onto_half_space, normal=a, offset=b) for a, b in pairs]


def gradient(w, x, y):
    """Of the mean cross-entropy of a softmax regression."""
    logits = x @ w[:WEIGHTS].reshape(3, 3).T + w[WEIGHTS:]
    p = np.exp(logits - logits.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    p[np.arange(len(y)), y] -= 1
    return np.concatenate([(p.T @ x).ravel(), p.sum(0)]) / len(y)


def m_block(
    plan, projections, rho, sigma, projected=False, trains: Callable[[int, int], int] | None = None
):
    """The blocks (m, d) after each round; trains(round, agent) is where its trained part starts."""
    x = np.tile(plan.build_model().weights.numpy(), (M, 1))
    gamma = plan.lr
    for round in range(1, plan.rounds + 1):
        total, count = np.zeros((M, D)), np.zeros(D)
        for i in rounds.sample(plan, round):
            part = slice(trains(round, i) if trains else 0, D)
            mine = x.copy()  # all m blocks, as agent i has them
            order = seeds.rng(plan.seed, round, i, "batches")
            batches = draw(plan.clients[i], 4, order)
            for _ in range(STEPS):
                z = mine.mean(0)
                g = gradient(z, *(t.numpy() for t in next(batches)))
                own, apart = mine[i].copy(), mine[i] - z
                step = gamma * (g / M - sigma / M * apart)
                mine[:, part] -= step[part]
                pull = g / M + sigma * (1 - 1 / M) * apart
                if projected:
                    there = own.copy()
                    there[part] -= gamma * pull[part]
                    mine[i, part] = projections[i](there)[part]
                else:
                    pull += rho(round) * (own - projections[i](own))
                    mine[i, part] = (own - gamma * pull)[part]
            total[:, part] += mine[:, part]
            count[part] += 1
        x = np.where(count > 0, total / np.maximum(count, 1), x)
        yield x


def largest_gap(plan, oracle):
    """Between the real run and the oracle, over all rounds, the mean and all blocks."""
    gap = 0.0
    for (record, state, own), expected in zip(go_through(plan), oracle, strict=True):
        assert not record.dropped
        gap = max(gap, np.abs(own.numpy() - expected).max())
        gap = max(gap, np.abs(state.weights.numpy() - expected.mean(0)).max())
    assert np.abs(expected - expected.mean(0)).max() > 1e-3, "the sets did nothing"
    return gap


KINDS = ["l1", "box", "half-space"]
numbers = partial(st.floats, allow_subnormal=False)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=2)
@given(
    cohort=st.sampled_from([1, 3]),
    seed=st.integers(0, 10**6),
    sigma=numbers(0, 2),
    rho=numbers(0.1, 5),
    share=numbers(0.2, 1),
)
@example(cohort=7, seed=1, sigma=0.5, rho=2.0, share=0.9)
@example(cohort=3, seed=2, sigma=0.1, rho=5.0, share=0.5)
@example(cohort=1, seed=3, sigma=1.5, rho=0.5, share=1.0)
def test_the_recursion_is_the_m_block_algorithm(kind, cohort, seed, sigma, rho, share):
    sets, projections = sets_of(kind)
    lr = share / (rho + sigma + CURVATURE / M)  # stable, so that rounding is not amplified
    plan = pc_plan(constant(rho), sigma, sets=sets, seed=seed, cohort=cohort, lr=lr, rounds=200)
    assert largest_gap(plan, m_block(plan, projections, constant(rho), sigma)) <= 1e-10


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=2)
@given(
    cohort=st.sampled_from([1, 3]),
    seed=st.integers(0, 10**6),
    sigma=numbers(0, 2),
    share=numbers(0.2, 1),
)
@example(cohort=3, seed=1, sigma=0.5, share=0.5)
def test_the_projected_variant_projects_the_own_block(kind, cohort, seed, sigma, share):
    sets, projections = sets_of(kind)
    lr = share / (sigma + CURVATURE / M)
    plan = pc_plan(constant(0), sigma, True, sets=sets, seed=seed, cohort=cohort, lr=lr, rounds=60)
    assert largest_gap(plan, m_block(plan, projections, None, sigma, projected=True)) <= 1e-10


@pytest.mark.parametrize("projected", [False, True])
def test_agents_that_train_different_layers_are_those_of_the_m_block_algorithm(projected):
    """An agent may train its biases only: the rest of its block counts in the projection."""
    sets, projections = sets_of("l1")

    def knobs(state, client):
        return Knobs(1 + (state["round"] + client) % 2, STEPS, 4, codec="raw64")

    def trains(round, client):
        return 0 if (round + client) % 2 else WEIGHTS

    control = Controller(lambda: {"round": 1}, knobs, lambda s, _: {"round": s["round"] + 1})
    rho = growing(1.0)
    plan = pc_plan(rho, 0.3, projected, sets=sets, cohort=3, rounds=60, lr=0.1)
    plan = replace(plan, layers=("weight", "bias"), controller=control)
    oracle = m_block(plan, projections, rho, 0.3, projected, trains)
    assert largest_gap(plan, oracle) <= 1e-10


# what is lost on the way


class Spoiled(InProcess):
    """Agent 1's frames hold what is not a number in every third round; the agent does not know."""

    def run(self, jobs):
        for reply in super().run(jobs):
            if reply.client == 1 and reply.round % 3 == 0:
                nothing = b"\xff" * len(reply.payload.bodies[0])
                reply = replace(reply, payload=replace(reply.payload, bodies=(nothing, nothing)))
            yield reply


def with_a_bad_example(clients):
    """Agent 1's loss is not a number in the rounds that draw it."""
    x = clients.base.x.clone()
    x[SAMPLES] = torch.nan
    return Parts(Arrays(x, clients.base.y), [clients[i].numbers for i in range(M)])


@pytest.mark.parametrize("codec", ["int8", "eden2", "topk10%"])
@pytest.mark.parametrize(
    ("trouble", "reason"),
    [
        (None, None),
        ("drop", "it dropped out"),
        ("bad loss", "the training loss became nan"),
        ("bad frame", ""),  # each codec has its own words for it
    ],
)
def test_the_mean_stays_the_mean_of_the_blocks(codec, trouble, reason):
    plan = pc_plan(growing(1.0), 0.2, codec=codec, cohort=4)
    if trouble == "drop":
        plan = replace(plan, drop=0.4)
    if trouble == "bad loss":
        bad = with_a_bad_example(plan.clients)
        plan = replace(plan, clients=bad, controller=fixed(Knobs(1, 1, 2, codec=codec)))
    engine = Spoiled(plan) if trouble == "bad frame" else InProcess(plan)
    reasons, used = [], 0
    for record, state, own in go_through(plan, engine):
        torch.testing.assert_close(own.mean(0), state.weights, rtol=0, atol=1e-13)
        reasons += record.dropped.values()
        used += state.acks.get(1) is not None and state.acks[1].round == state.round
    assert (own - own.mean(0)).abs().max() > 1e-2
    assert used > 0
    if reason is None:
        assert not reasons
    else:
        assert reasons
        assert all(reason in why for why in reasons)


def test_an_agent_that_lost_its_state_is_refused_once_and_then_taken_as_new():
    plan = pc_plan(constant(1.0), evaluate_every=1)
    engine = InProcess(plan)
    found = []
    for record, state, own in go_through(plan, engine):
        found.append(record)
        if record.round == 3:
            assert (own[2] - state.server["shared"]).abs().max() > 1e-3
            del engine.states[2]
        if record.round == 4:
            assert 2 not in state.acks
            torch.testing.assert_close(own[2], state.server["shared"], rtol=0, atol=0)
    refused = {r.round: dict(r.dropped) for r in found if r.dropped}
    assert list(refused) == [4]
    assert list(refused[4]) == ["2"]
    assert "lost its state (offset) of an earlier round" in refused[4]["2"]
    assert state.acks[2].round == plan.rounds


def test_figures_go_on_while_an_agent_that_lost_its_state_is_not_asked():
    plan = pc_plan(constant(1.0), evaluate_every=1, cohort=2, rounds=12)
    engine = InProcess(plan)
    model = plan.build_model()
    for record, state in rounds.run(plan, engine, model.layout, rounds.first_state(plan)):
        assert np.isfinite(record.validation["infeasibility"])
        if record.round == 4:
            lost = next(c for c in state.acks if c not in rounds.sample(plan, 5))
            del engine.states[lost]
    _, models = engine.final(plan.algorithm.send(state.server), state.acks)
    assert len(list(models)) == M


# where it converges to


def residual(module, x, y):
    return 0.5 * (module(x).squeeze(-1) - y).square().mean()


AGENTS, WIDE = 3, 5
RADII = (0.2, 0.5, 1.4)


def least_squares(rho, rounds):
    """One full-batch step of everybody: gradient descent on the penalised problem."""
    rng = np.random.default_rng(3)
    a = rng.normal(size=(AGENTS, 8, WIDE))
    b = a @ np.array([1.5, -1.0, 0.0, 0.5, 0.0]) + 0.3 * rng.normal(size=(AGENTS, 8))
    flat = Arrays(torch.tensor(a.reshape(-1, WIDE)), torch.tensor(b.ravel()))
    hessian = np.mean([x.T @ x / 8 for x in a], 0)
    top = np.linalg.eigvalsh(hessian)[-1]
    plan = Plan(
        name="least squares",
        seed=0,
        rounds=rounds,
        cohort=AGENTS,
        model=partial(nn.Linear, WIDE, 1, bias=False, dtype=torch.float64),
        clients=Parts(flat, [np.arange(8 * i, 8 * i + 8) for i in range(AGENTS)]),
        validation=None,
        algorithm=pc_fedavg(AGENTS, constant(rho)),
        controller=fixed(Knobs(1, 1, 8, codec="raw64")),
        task=custom(residual),
        lr=1.5 * AGENTS / (top + rho),
        recipe=Recipe(optimizer="sgd"),
        constraints=[l1_ball(r) for r in RADII],
        evaluate_every=rounds,
    )
    return plan, a, b, hessian


def mean_loss(a, b, w):
    return sum(cp.sum_squares(x @ w - y) for x, y in zip(a, b, strict=True)) / (2 * 8 * AGENTS)


def solve(objective, constraints):
    problem = cp.Problem(cp.Minimize(objective), constraints)
    problem.solve(solver=cp.CLARABEL, tol_gap_abs=1e-12, tol_gap_rel=1e-12, tol_feas=1e-12)
    assert problem.status == cp.OPTIMAL


def penalised_optimum(a, b, rho):
    """The mean x_i of min F(mean of x_i) + rho/(2m) sum dist^2(x_i, X_i); the x_i are many."""
    x, y = cp.Variable((AGENTS, WIDE)), cp.Variable((AGENTS, WIDE))
    mean = cp.sum(x, axis=0) / AGENTS
    inside = [cp.norm1(y[i]) <= RADII[i] for i in range(AGENTS)]
    solve(mean_loss(a, b, mean) + rho / (2 * AGENTS) * cp.sum_squares(x - y), inside)
    return x.value.mean(0)


def constrained_optimum(a, b):
    """Over the Minkowski mean of l1 balls: the l1 ball of the mean radius."""
    w = cp.Variable(WIDE)
    solve(mean_loss(a, b, w), [cp.norm1(w) <= np.mean(RADII)])
    return w.value


def test_the_mean_converges_to_the_optimum_over_the_mean_of_the_sets():
    """The fixed point is the penalised optimum, to the solver's accuracy; and that is near x*.

    There rho (x_i - Proj x_i) = -g for every agent, g the gradient of F at the mean: infeasibility
    is |g| / rho exactly. With y the mean of the projections, <g, y' - y> >= 0 on the mean set, and
    the same holds at x*, so mu |xbar - x*|^2 <= <g - g*, xbar - y> <= L |xbar - x*| |g| / rho.
    """
    gaps = []
    for rho in (6.0, 24.0):
        plan, a, b, hessian = least_squares(rho, rounds=int(60 + 12 * rho))
        *_, (record, state, _) = go_through(plan)
        xbar = state.weights.numpy()
        np.testing.assert_allclose(xbar, penalised_optimum(a, b, rho), atol=1e-5)
        w = torch.tensor(xbar, requires_grad=True)
        x, y = torch.tensor(a).reshape(-1, WIDE), torch.tensor(b).ravel()
        (0.5 * (x @ w - y).square().mean()).backward()
        steepness = w.grad.norm().item()
        assert record.validation["infeasibility"] == pytest.approx(steepness / rho, rel=1e-4)
        assert record.validation["worst_infeasibility"] == pytest.approx(steepness / rho, rel=1e-4)
        mu, *_, top = np.linalg.eigvalsh(hessian)
        gap = np.linalg.norm(xbar - constrained_optimum(a, b))
        assert gap <= 1.001 * top / mu * steepness / rho
        gaps.append(gap)
    assert 0.2 < gaps[1] / gaps[0] < 0.3  # a quarter, but for terms of the second order


# the agents' own models, and their secret


@pytest.mark.parametrize("final_projection", [False, True])
def test_personal_models_are_the_blocks_and_exactly_feasible_when_projected(
    tmp_path, final_projection
):
    plan = pc_plan(constant(1.0), 0.1, cohort=3, final_projection=final_projection)
    summary = go(plan, tmp_path / "r")
    *_, (_, _, own) = go_through(plan)
    saved = load_file(tmp_path / "r" / "personal.safetensors")
    layout = plan.build_model().layout
    assert len(saved) == M * len(layout.names)
    far = []
    for agent, set in enumerate(plan.constraints):
        model = torch.cat([saved[f"{agent}/{name}"].flatten() for name in layout.names])
        expected = set.project(own[agent]) if final_projection else own[agent]
        assert torch.equal(model, expected)
        far.append(distance(set, model).item())
    assert (max(far) == 0) == final_projection
    inside = torch.stack([s.project(x) for s, x in zip(plan.constraints, own, strict=True)])
    sparsity = (inside == 0).double().mean().item()
    assert summary["personal"]["projected_sparsity"] == pytest.approx(sparsity)


RADIUS = 0.123456789


def tells(body: bytes) -> bool:
    """Whether bytes hold the radius, as text or as a float."""
    floats = [np.array(RADIUS, kind).tobytes() for kind in ("<f4", "<f8", ">f4", ">f8")]
    return any(secret in body for secret in (b"0.1234567", b"1.234567", *floats))


class Overheard(InProcess):
    """Everything that passes between the server and the devices."""

    def __init__(self, plan):
        super().__init__(plan)
        self.heard = []

    def run(self, jobs):
        for job in jobs:
            self.heard += [json.dumps(job.header()).encode(), bytes(frame.to_bytes(job.payload))]
        for reply in super().run(jobs):
            self.heard.append(json.dumps(reply.header()).encode())
            if reply.payload is not None:
                self.heard.append(bytes(frame.to_bytes(reply.payload)))
            yield reply


@pytest.mark.parametrize("projected", [False, True])
def test_nothing_that_is_sent_or_written_tells_an_agents_set(tmp_path, projected):
    sets = [l1_ball(RADIUS) for _ in range(M)]
    plan = pc_plan(growing(1.0), 0.1, projected, sets=sets, evaluate_every=1)
    plan = replace(plan, clients=with_a_bad_example(plan.clients))  # what an error says counts too
    assert tells(pickle.dumps(plan.constraints)), "the search finds what is there"
    engine = Overheard(plan)
    *_, (record, _, own) = go_through(plan, engine)
    assert record.validation["infeasibility"] < 1
    assert (own.abs().sum(1) > 0).all()
    assert any(b"the training loss became" in body for body in engine.heard)
    assert not any(map(tells, engine.heard))
    assert not tells(repr(plan.constraints).encode())
    go(plan, tmp_path / "r")
    files = [path for path in (tmp_path / "r").rglob("*") if path.is_file()]
    assert {"rounds.jsonl", "summary.json", "round-00000020.safetensors"} <= {
        path.name for path in files
    }
    assert not [path.name for path in files if tells(path.read_bytes())]
    assert len(RunFolder(tmp_path / "r").records()) == plan.rounds
