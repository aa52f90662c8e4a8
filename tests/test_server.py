"""Server optimisers against closed forms and torch's own Adam."""

import pytest
import torch

from conftest import text_plan
from fedbudget import rounds
from fedbudget.algorithms.algorithm import Mean
from fedbudget.algorithms.fedavg import fedavg
from fedbudget.algorithms.server import adam, momentum, nesterov, plain, yogi
from fedbudget.engines.embedded import InProcess


def steps(optimizer, means):
    state = optimizer.init(means[0])
    out = []
    for mean in means:
        step, state = optimizer.step(state, mean)
        out.append(step)
    return out


def test_momentum_is_a_geometric_sum():
    ones = [torch.ones(3)] * 5
    assert [s[0].item() for s in steps(momentum(0.5), ones)] == [1, 1.5, 1.75, 1.875, 1.9375]


def test_zero_momentum_is_the_plain_mean_bit_for_bit():
    finals = []
    for server in (plain(), momentum(0.0)):
        plan = text_plan(algorithm=fedavg(server))
        layout = plan.build_model().layout
        for _, state in rounds.run(plan, InProcess(plan), layout, rounds.first_state(plan)):
            pass
        finals.append(state.weights)
    assert torch.equal(*finals)


@pytest.mark.parametrize("server", [momentum(0.9), adam(0.1), yogi(0.1)])
def test_a_group_that_nobody_trained_stays_as_it_is(server):
    algorithm = fedavg(server)
    state = algorithm.init(torch.zeros(4))
    one = Mean((torch.ones(4),), 1, 1, torch.ones(1))
    state = algorithm.aggregate(state, one)
    half = Mean((torch.tensor([1.0, 1, 0, 0]),), 1, 1, torch.ones(1), (), (slice(2, 4),))
    after = algorithm.aggregate(state, half)
    whole = algorithm.aggregate(state, one)
    for name, vector in after.items():
        assert torch.equal(vector[2:], state[name][2:])
        assert torch.equal(vector[:2], whole[name][:2])


def test_adam_is_torchs_without_its_bias_correction():
    torch.manual_seed(0)
    means = [torch.randn(4) for _ in range(6)]
    ours = steps(adam(0.1, (0.9, 0.99), 1e-3), means)
    weights = torch.zeros(4, requires_grad=True)
    reference = torch.optim.Adam([weights], lr=0.1, betas=(0.9, 0.99), eps=1e-3)
    for t, (mean, step) in enumerate(zip(means, ours, strict=True), 1):
        before = weights.detach().clone()
        weights.grad = -mean
        reference.step()
        state = reference.state[weights]
        first, second = state["exp_avg"], state["exp_avg_sq"]
        torch.testing.assert_close(step, -0.1 * first / (second.sqrt() + 1e-3))
        assert t == state["step"]
        assert not torch.equal(before, weights)


def test_yogi_moves_its_second_moment_by_a_bounded_step():
    means = [torch.tensor([2.0]), torch.tensor([0.1])]
    optimizer = yogi(1.0, (0.0, 0.9), 0.0)
    state = optimizer.init(means[0])
    _, state = optimizer.step(state, means[0])
    assert state["second"].item() == pytest.approx(0.4)
    _, state = optimizer.step(state, means[1])
    assert state["second"].item() == pytest.approx(0.4 - 0.1 * 0.01)


def test_nesterov_starts_clients_where_its_momentum_leads_and_ends_at_their_mean():
    """FedACG: w(t+1) = start + mean, start = w + beta v."""
    algorithm = fedavg(nesterov(0.5))
    state = algorithm.init(torch.zeros(2))
    weights, velocity = torch.zeros(2), torch.zeros(2)
    for update in ([1.0, -2.0], [0.5, 3.0], [0.25, 0.0]):
        (start,) = algorithm.send(state)
        assert torch.equal(start, weights + 0.5 * velocity)
        mean = torch.tensor(update)
        state = algorithm.aggregate(state, Mean((mean,), 1, 1, torch.ones(1)))
        velocity, weights = 0.5 * velocity + mean, start + mean
        assert torch.equal(state["weights"], weights)
        assert torch.equal(algorithm.last(state)[0], weights)


def test_nesterov_is_stable_where_momentum_is_not():
    """Clients that go all the way down a steep bowl undo what of the momentum overshoots."""
    farthest = {}
    for name, server in (("nesterov", nesterov(0.9)), ("momentum", momentum(0.9))):
        algorithm = fedavg(server)
        state = algorithm.init(torch.ones(1))
        passed = []
        for _ in range(10):
            (start,) = algorithm.send(state)
            state = algorithm.aggregate(state, Mean((-start,), 1, 1, torch.ones(1)))
            passed.append(abs(state["weights"].item()))
        farthest[name] = max(passed)
    assert farthest["nesterov"] < 1e-6
    assert farthest["momentum"] == pytest.approx(0.9)


def test_under_nesterov_a_group_that_nobody_trained_stays_where_clients_had_it():
    algorithm = fedavg(nesterov(0.9))
    state = algorithm.init(torch.zeros(4))
    state = algorithm.aggregate(state, Mean((torch.ones(4),), 1, 1, torch.ones(1)))
    (before,) = algorithm.send(state)
    half = Mean((torch.tensor([1.0, 1, 0, 0]),), 1, 1, torch.ones(1), (), (slice(2, 4),))
    state = algorithm.aggregate(state, half)
    (after,) = algorithm.send(state)
    assert torch.equal(after[2:], before[2:])
    assert torch.equal(state["weights"][2:], before[2:])
    assert not torch.equal(after[:2], before[:2])
