"""Server optimisers against closed forms and torch's own Adam."""

import pytest
import torch

from conftest import text_plan
from fedbudget import rounds
from fedbudget.algorithms.algorithm import Mean
from fedbudget.algorithms.fedavg import fedavg
from fedbudget.algorithms.server import adam, momentum, plain, yogi
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
