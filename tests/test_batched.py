"""Many agents at once: the loop's numbers up to rounding, whatever the algorithm and the cohort."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from conftest import blobs, softmax_plan, text_plan
from fedbudget import constraints, rounds, seeds
from fedbudget.algorithms import terms
from fedbudget.algorithms.fedavg import fedavg
from fedbudget.algorithms.pc_fedavg import pc_fedavg
from fedbudget.algorithms.scaffold import scaffold
from fedbudget.client import Recipe
from fedbudget.control.controller import Controller, fixed
from fedbudget.data.examples import Arrays, Part, Parts, draw
from fedbudget.data.together import draw_together, joined
from fedbudget.engines import choose
from fedbudget.engines.batched import Batched
from fedbudget.engines.embedded import InProcess
from fedbudget.engines.rows import Rows
from fedbudget.models.cnn import cnn
from fedbudget.models.softmax import Softmax
from fedbudget.runner import Stop, execute
from fedbudget.runs import RunFolder
from fedbudget.task import classify, custom
from fedbudget.types import Knobs
from fedbudget.uplink import Uplink

AGENTS = 10
ALGORITHMS = {
    "fedavg": fedavg(),
    "fedprox": fedavg(terms=[terms.prox(0.5)]),
    "scaffold": scaffold(),
    "penalised fedavg": fedavg(terms=[terms.penalty(terms.growing(2.0))]),
    "penalised fedprox": fedavg(terms=[terms.prox(0.5), terms.penalty(terms.constant(1.0))]),
    "penalised scaffold": scaffold(terms=[terms.penalty(terms.constant(1.0))]),
    "pc-fedavg": pc_fedavg(AGENTS, terms.growing(1.0), sigma=0.1),
    "projected pc-fedavg": pc_fedavg(AGENTS, terms.constant(0.0), sigma=0.1, projected=True),
}
SGD = Recipe("sgd")


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))


def squared(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (model(x) - y[:, None]).square().mean()


class Strict(Batched):
    """A chunk that raises would go to the loop, and equal it for the wrong reason."""

    def _one_by_one(self, jobs):
        raise AssertionError("the loop was asked")


def plan(**changes):
    """Ten unequal agents, each with an l1 ball of its own."""
    data = blobs(300)
    order = np.random.default_rng(0).permutation(300)
    cuts = np.split(order, [5, 20, 50, 70, 110, 150, 180, 220, 250])
    settings = {
        "rounds": 4,
        "cohort": AGENTS,
        "clients": Parts(data, cuts),
        "controller": fixed(Knobs(1, 3, 16)),
        "recipe": SGD,
        "constraints": [constraints.l1_ball(0.2 + 0.1 * i) for i in range(AGENTS)],
    }
    return softmax_plan(**(settings | changes))


def rounds_of(given, engine):
    """(records, states) of all rounds."""
    layout = given.build_model().layout
    with engine:
        return list(zip(*rounds.run(given, engine, layout, rounds.first_state(given)), strict=True))


def told(record):
    """Usage without what is read from clocks: it is never twice the same."""
    return {a: u for a, u in record.usage.items() if a not in ("measured", "estimated")}


def check_same(given, chunk: int | None = None) -> None:
    """The batched engine is the loop, to 1e-6 of how far the run moved each vector."""
    together = Strict(given)
    together.chunk = chunk or together.chunk
    loop = InProcess(given)
    (records, states), (mine, own) = rounds_of(given, loop), rounds_of(given, together)
    begin = rounds.first_state(given).server
    for a, b in zip(states, own, strict=True):
        for name, vector in a.server.items():
            moved = (vector - begin[name]).norm()
            assert (vector - b.server[name]).norm() <= 1e-6 * moved, name
        assert a.acks == b.acks
    for a, b in zip(records, mine, strict=True):
        assert b.train_loss == pytest.approx(a.train_loss, rel=1e-6)
        assert b.validation == pytest.approx(a.validation, rel=1e-5, abs=1e-6)
        assert (b.up_bytes, b.down_bytes, told(b)) == (a.up_bytes, a.down_bytes, told(a))
        assert b.dropped == a.dropped
    assert set(loop.states) == set(together.states)
    rounding = 1e-7 * states[-1].weights.norm()
    for client, versions in loop.states.items():
        assert set(versions) == set(together.states[client])
        for round, state in versions.items():
            for name, vector in state.items():
                there = together.states[client][round][name]
                assert (vector - there).norm() <= 1e-5 * vector.norm() + rounding, (client, name)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_numbers_are_the_loops(name):
    check_same(plan(algorithm=ALGORITHMS[name]))


@pytest.mark.parametrize("name", ALGORITHMS)
def test_any_module_goes_through_vmap(name):
    check_same(plan(algorithm=ALGORITHMS[name], model=mlp, controller=fixed(Knobs(2, 3, 16))))


@pytest.mark.parametrize("name", ["scaffold", "pc-fedavg"])
def test_partial_participation_in_small_chunks(name):
    """Agents with and without earlier rounds meet in a cohort, chunks do not divide it."""
    check_same(plan(algorithm=ALGORITHMS[name], cohort=7, drop=0.2, rounds=6), chunk=3)


def by_parity(state, client: int) -> Knobs:
    return Knobs(1 + client % 2, 2 + client % 2, 8, accumulate=1 + client % 2, codec="int8")


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "pc-fedavg", "projected pc-fedavg"])
def test_partial_layers_and_knobs_that_differ(name):
    start = fixed(Knobs(2, 1, 1))
    mixed = Controller(start.init, by_parity, start.update, start.duals)
    given = plan(algorithm=ALGORITHMS[name], model=mlp, controller=mixed, cohort=8, rounds=5)
    exact = replace(given, controller=Controller(start.init, exact_by_parity, *mixed[2:]))
    check_same(exact)
    records, _ = rounds_of(given, Strict(given))  # a lossy codec may round either way
    assert all(not record.dropped for record in records)


def exact_by_parity(state, client: int) -> Knobs:
    return replace(by_parity(state, client), codec="raw32")


@pytest.mark.parametrize(
    "recipe",
    [
        Recipe("adamw", weight_decay=0.1, warmup=0.5, schedule="cosine"),
        Recipe("sgd", momentum=0.9, weight_decay=0.01, clip=0.05),
    ],
)
def test_every_recipe(recipe):
    check_same(plan(algorithm=fedavg(), recipe=recipe, controller=fixed(Knobs(1, 6, 16, 2))))


def test_label_smoothing_and_a_loss_of_ones_own():
    check_same(plan(task=classify(0.1), constraints=None))
    check_same(plan(task=custom(squared), constraints=None))


def test_sets_of_many_kinds_and_final_figures():
    sets = [constraints.l1_ball(0.5), constraints.l2_ball(0.3), constraints.box(-0.1, 0.1)]
    many = [sets[i % 3] for i in range(AGENTS)]
    given = plan(algorithm=ALGORITHMS["pc-fedavg"], constraints=many, final_projection=True)
    check_same(given)
    figures, models = [], []
    for engine in (InProcess(given), Batched(given)):
        _, states = rounds_of(given, engine)
        found = engine.final(given.algorithm.send(states[-1].server), states[-1].acks)
        figures.append(found[0])
        models.append(dict(found[1]))
    apart, together = (found.pop("agents") for found in figures)
    assert together.keys() == apart.keys()
    for name, values in apart.items():
        assert together[name] == pytest.approx(values, rel=1e-5)
    assert figures[1] == pytest.approx(figures[0], rel=1e-5)
    for agent, own in models[1].items():
        assert constraints.distance(many[agent], own) < 1e-6
        assert torch.allclose(own, models[0][agent], atol=1e-6)


def test_the_objective_is_the_mean_of_the_agents_means():
    given = plan(algorithm=ALGORITHMS["pc-fedavg"])
    state = rounds.first_state(given)
    weights = torch.randn(state.weights.shape, generator=torch.Generator().manual_seed(0))
    found = Batched(given).assess((weights, weights), {})
    losses = []
    for part in given.clients:
        x, y = part.batch(np.arange(len(part)))
        logits = x @ weights[:12].view(3, 4).T + weights[12:]
        losses.append(float(nn.functional.cross_entropy(logits, y)))
    far = [float(constraints.distance(s, weights)) for s in given.constraints]
    assert found["objective"] == pytest.approx(np.mean(losses), rel=1e-6)
    assert found["infeasibility"] == pytest.approx(np.mean(far), rel=1e-6)
    assert found["worst_infeasibility"] == pytest.approx(max(far), rel=1e-6)


def test_one_agent_without_numbers_fails_alone_and_keeps_its_state():
    data = blobs(200)
    poisoned = data.x.clone()
    poisoned[:20] = torch.nan
    good = [Part(data, np.arange(i * 20, (i + 1) * 20)) for i in range(AGENTS)]
    bad = [Part(Arrays(poisoned, data.y), np.arange(20)), *good[1:]]
    given = plan(algorithm=ALGORITHMS["pc-fedavg"], clients=good)
    engine = Batched(given)
    layout = engine.layout
    _, state = rounds.one_round(given, engine, layout, rounds.first_state(given), 1)
    before = {c: {r: dict(s) for r, s in v.items()} for c, v in engine.states.items()}
    kept = before[0][1]["pending"].clone()
    broken = replace(given, clients=bad)
    sick, loop = Strict(broken), InProcess(broken)
    sick.states.update(before)
    loop.states.update(before)
    record, after = rounds.one_round(broken, sick, layout, state, 2)
    expected, wanted = rounds.one_round(broken, loop, layout, state, 2)
    assert record.dropped == expected.dropped
    assert "the training loss became nan at local step 1" in record.dropped["0"]
    assert torch.allclose(after.weights, wanted.weights, atol=1e-7)
    assert list(sick.states[0]) == [1]
    assert torch.equal(sick.states[0][1]["pending"], kept)
    assert sorted(sick.states[5]) == [1, 2]


def test_what_an_agents_data_raises_stays_with_the_agent():
    class Broken(Arrays):
        def batch(self, numbers):
            raise OSError("its card was pulled")

    data = blobs(200)
    parts = [Arrays(data.x[i::AGENTS], data.y[i::AGENTS]) for i in range(AGENTS)]
    parts[3] = Broken(parts[3].x, parts[3].y)
    given = plan(clients=parts, constraints=None)
    records, _ = rounds_of(given, Batched(given))
    assert records[0].dropped == {"3": "OSError: its card was pulled"}


def test_an_agent_that_lost_its_state_says_so():
    given = plan(algorithm=ALGORITHMS["pc-fedavg"], evaluate_every=10)
    engine = Batched(given)
    _, state = rounds.one_round(given, engine, engine.layout, rounds.first_state(given), 1)
    del engine.states[4]
    record, after = rounds.one_round(given, engine, engine.layout, state, 2)
    assert list(record.dropped) == ["4"]
    assert 4 not in after.acks


def test_state_in_a_file_gives_the_same_bits():
    given = plan(algorithm=ALGORITHMS["pc-fedavg"], cohort=8)
    inside, mapped = Batched(given), Batched(given, mapped_above=0)
    _, a = rounds_of(given, inside)
    _, b = rounds_of(given, mapped)
    assert mapped.rows.mapped
    assert not inside.rows.mapped
    assert torch.equal(a[-1].weights, b[-1].weights)
    assert mapped.rows.bytes == inside.rows.bytes > 0


def test_rows_are_a_mapping_of_versions():
    rows = Rows(5)
    first, second, third = ({"a": torch.full((3,), float(i))} for i in (1, 2, 3))
    rows[2] = {1: first, 4: second}
    rows[2] = {4: rows[2][4], 6: third}  # a view of a row that stays
    assert list(rows) == [2]
    assert {r: s["a"].tolist() for r, s in rows[2].items()} == {4: [2.0] * 3, 6: [3.0] * 3}
    rows.put([2, 3], [6, 0], 9, {"a": torch.tensor([[7.0] * 3, [8.0] * 3])})
    assert {r: s["a"][0].item() for r, s in rows[2].items()} == {6: 3.0, 9: 7.0}
    assert {r: s["a"][0].item() for r, s in rows[3].items()} == {9: 8.0}
    assert rows.gather([2, 3], [6, 9])["a"][:, 0].tolist() == [3.0, 8.0]
    with pytest.raises(ValueError, match="3 versions"):
        rows[0] = {1: first, 2: first, 3: first}


def test_batches_drawn_together_are_those_drawn_alone():
    data = blobs(90)
    parts = [Part(data, np.arange(0, 7)), Part(data, np.arange(7, 90))]
    apart = [Arrays(*part.batch(np.arange(len(part)))) for part in parts]
    for some in (parts, apart, [parts[0], apart[1]]):
        rngs = [seeds.rng(0, 1, i, "batches") for i in range(2)]
        alone = [draw(p, 4, seeds.rng(0, 1, i, "batches")) for i, p in enumerate(parts)]
        for x, y, _ in draw_together(some, 4, 3, rngs):
            for i in range(2):
                inputs, targets = next(alone[i])
                assert torch.equal(x[i], inputs)
                assert torch.equal(y[i], targets)
        whole, _ = joined(some).batch(np.array([6, 7, 89, 0]))
        assert torch.equal(whole, data.x[[6, 7, 89, 0]])


def test_whole_parts_with_shares_have_the_batches_means():
    data = blobs(30)
    parts = [Part(data, np.arange(0, 3)), Part(data, np.arange(3, 10))]
    rngs = [seeds.rng(0, 1, i, "batches") for i in range(2)]
    alone = [draw(p, 8, seeds.rng(0, 1, i, "batches")) for i, p in enumerate(parts)]
    for x, y, share in draw_together(parts, 8, 5, rngs, shares=True):
        assert x.shape == (2, 7, 4)
        for i in range(2):
            inputs, targets = next(alone[i])
            assert torch.allclose(share[i] @ x[i], inputs.mean(0), atol=1e-6)
            assert torch.allclose(share[i] @ y[i].float(), targets.float().mean(), atol=1e-6)


def test_agents_smaller_than_a_batch():
    check_same(plan(task=classify(0.2), controller=fixed(Knobs(1, 3, 64, accumulate=2))))


def test_resume_through_a_checkpoint_is_bit_identical(tmp_path):
    given = plan(algorithm=ALGORITHMS["pc-fedavg"], cohort=8, rounds=6)

    def run(path, until: int, start=None):
        folder = RunFolder(path) if start else RunFolder.create(path, "")
        stop = Stop()

        class Watching:
            def on_reply(self, reply):
                pass

            def on_round(self, record):
                stop.asked = record.round == until

        return execute(
            given, folder, {}, partial(choose.choose, given, 2), 1, Watching(), stop, start
        ), folder

    whole, straight = run(tmp_path / "a", 6)
    _, folder = run(tmp_path / "b", 3)
    again, folder = run(tmp_path / "b", 6, folder.load_checkpoint(print))
    assert whole["engine"] == again["engine"] == "batched"
    (a, b) = (f.load_checkpoint(print) for f in (straight, folder))
    assert torch.equal(a.state.weights, b.state.weights)
    assert whole["personal"] == again["personal"]


def test_the_plan_chooses_the_engine():
    assert choose.suits(plan(constraints=None))
    assert choose.suits(plan(model=mlp, controller=fixed(Knobs(2, 3, 16)), constraints=None))
    with choose.choose(plan(), workers=3) as engine:
        assert engine.kind == "batched"
    with choose.choose(plan(cohort=7)) as engine:
        assert engine.kind == "loop"


def noisy(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(nn.functional.dropout(model(x), 0.5), y)


def looks_at_numbers(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    loss = nn.functional.cross_entropy(model(x), y)
    return loss * 2 if loss.item() > 1 else loss


def squared_distance(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return model(x).square().mean()


def not_by_rows(run, lr: float) -> None:
    run.weights.sub_(lr * run.grads / run.grads.norm())


def normed() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 3))


def images() -> list[Arrays]:
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(AGENTS, 4, 1, 8, 8, generator=generator)
    return [Arrays(pixels, torch.arange(4) % 3) for pixels in x]


@pytest.mark.parametrize(
    "changes",
    [
        {"recipe": replace(SGD, uplink=Uplink("error"))},
        {"recipe": replace(SGD, keeps_model=True), "changed_only": True},
        {"task": custom(noisy)},
        {"task": custom(looks_at_numbers)},
        {"algorithm": fedavg()._replace(step=not_by_rows)},
        {"model": normed, "controller": fixed(Knobs(2, 3, 16))},
        {"model": partial(cnn, 1, 3, 2), "clients": images(), "controller": fixed(Knobs(4, 3, 2))},
        {"model": partial(nn.Linear, 4, 9000), "task": custom(squared_distance)},
        {"clients": [*[blobs(9)] * 9, Arrays(torch.zeros(6, 5), torch.zeros(6).long())]},
    ],
)
def test_plans_that_are_left_to_the_loop(changes):
    assert not choose.suits(plan(**({"constraints": None} | changes)))


def test_texts_are_left_to_the_loop():
    clients = text_plan().clients
    assert not choose.suits(text_plan(cohort=8, clients=[clients[i % 4] for i in range(8)]))


def test_double_precision():
    def double() -> nn.Module:
        return Softmax(4, 3).double()

    data = blobs(300)
    wide = Arrays(data.x.double(), data.y)
    parts = Parts(wide, np.array_split(np.arange(300), AGENTS))
    codec = fixed(Knobs(1, 3, 16, codec="raw64"))
    given = plan(
        algorithm=ALGORITHMS["pc-fedavg"],
        model=double,
        clients=parts,
        controller=codec,
        validation=None,
    )
    _, a = rounds_of(given, InProcess(given))
    _, b = rounds_of(given, Batched(given))
    assert torch.allclose(a[-1].weights, b[-1].weights, rtol=1e-12, atol=1e-14)
