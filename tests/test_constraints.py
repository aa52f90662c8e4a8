"""Constraint sets: projections against cvxpy and closed forms, and the laws that all of them keep."""

import pickle
import re
import warnings
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedbudget import constraints
from fedbudget.constraints import (
    ConstraintSet,
    affine,
    around,
    box,
    contains,
    distance,
    group_l1_ball,
    half_space,
    intersection,
    l1_ball,
    l2_ball,
    linf_ball,
    nonnegative,
    nuclear_ball,
    on_tensors,
    per_layer,
    simplex,
    stack,
    top_k,
    whole,
)
from fedbudget.errors import UserError
from fedbudget.models.flat import FlatModel, Layout
from fedbudget.threads import one_thread

D = 6
DTYPES = (torch.float32, torch.float64)
NORMAL = torch.tensor([1.0, -2.0, 0.5, 0.0, 3.0, -1.0], dtype=torch.float64)
MATRIX = torch.tensor([[1.0, 1, 0, 0, -1, 2], [0, 2, -1, 1, 0, 1]], dtype=torch.float64)
CENTRE = torch.tensor([3.0, -2.0, 0.1, 0.0, 7.0, -5.0], dtype=torch.float64)
LAYOUT = Layout(("a.weight", "a.bias", "b.weight"), ((2,), (1,), (3,)), (0, 0, 1))

SETS = {
    "whole": whole(),
    "l1": l1_ball(1.3),
    "l1 zero": l1_ball(0),
    "l2": l2_ball(1.3),
    "l2 zero": l2_ball(0.0),
    "linf": linf_ball(0.7),
    "box": box(-0.3, torch.linspace(0, 2, D)),
    "half-bounded box": box(float("-inf"), 0.5),
    "simplex": simplex(2.5),
    "nonnegative": nonnegative(),
    "half-space": half_space(NORMAL, -0.4),
    "affine": affine(MATRIX, [1.0, -2.0]),
    "group": group_l1_ball(1.1, sizes=[1, 2, 3]),
    "labels": group_l1_ball(1.1, labels=[7, 2, 2, 7, 9, 7]),
    "nuclear": nuclear_ball(1.2, (2, 3)),
    "top-k": top_k(2),
    "intersection": intersection(l1_ball(1.5), box(-0.2, 0.5)),
    "simplex and half-space": intersection(simplex(1.0), half_space([1.0] * 3 + [0.0] * 3, 0.3)),
    "around": around(l1_ball(0.5), CENTRE),
    "around an intersection": around(intersection(l2_ball(1.0), nonnegative()), CENTRE),
    "per layer": per_layer(LAYOUT, {"a": l1_ball(0.4), "b.weight": box(0, 1)}),
}
CONVEX = {name: set for name, set in SETS.items() if set.convex}
EXACT = {
    name: set for name, set in CONVEX.items() if "intersection" not in name and "and" not in name
}
every_set = pytest.mark.parametrize("set", SETS.values(), ids=SETS)
every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)


@pytest.fixture(autouse=True, scope="module")
def on_one_thread():
    """As in a run; on a busy machine a second thread costs more than it brings."""
    with one_thread():
        yield


def gaussian(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(size=shape))


def vectors(largest: float = 1e3):
    """Points with zeros, equal coordinates and magnitudes far apart."""
    plain = st.floats(-largest, largest, allow_subnormal=False)
    special = st.sampled_from([0.0, -0.0, 1.0, -1.0, 0.5, 1e-12, -1e-12, largest])
    return st.lists(plain | special, min_size=D, max_size=D).map(
        lambda values: torch.tensor(values, dtype=torch.float64)
    )


POINTS = torch.stack(
    [
        torch.zeros(D, dtype=torch.float64),
        torch.full((D,), -2.0, dtype=torch.float64),
        torch.tensor([5.0, 5.0, 5.0, -5.0, 0.0, 0.0], dtype=torch.float64),
        1e-9 * gaussian(D),
        0.1 * gaussian(D, seed=1),
        torch.tensor([1.3, 0, 0, 0, 0, 0], dtype=torch.float64),
        torch.tensor([0, 0, -40.0, 0, 0, 1e-3], dtype=torch.float64),
        *gaussian(3, D, seed=2),
        *(30 * gaussian(3, D, seed=3)),
    ]
)


# each oracle: (cvxpy, variable) -> constraints, written from the definition of the set
ORACLES = {
    "whole": lambda cp, z: [],
    "l1": lambda cp, z: [cp.norm1(z) <= 1.3],
    "l1 zero": lambda cp, z: [z == 0],
    "l2": lambda cp, z: [cp.norm2(z) <= 1.3],
    "l2 zero": lambda cp, z: [z == 0],
    "linf": lambda cp, z: [cp.norm_inf(z) <= 0.7],
    "box": lambda cp, z: [z >= -0.3, z <= np.linspace(0, 2, D)],
    "half-bounded box": lambda cp, z: [z <= 0.5],
    "simplex": lambda cp, z: [z >= 0, cp.sum(z) == 2.5],
    "nonnegative": lambda cp, z: [z >= 0],
    "half-space": lambda cp, z: [NORMAL.numpy() @ z <= -0.4],
    "affine": lambda cp, z: [MATRIX.numpy() @ z == np.array([1.0, -2.0])],
    "group": lambda cp, z: [cp.abs(z[0]) + cp.norm2(z[1:3]) + cp.norm2(z[3:]) <= 1.1],
    "labels": lambda cp, z: [cp.norm2(z[[0, 3, 5]]) + cp.norm2(z[1:3]) + cp.abs(z[4]) <= 1.1],
    "nuclear": lambda cp, z: [cp.normNuc(cp.reshape(z, (2, 3), order="C")) <= 1.2],
    "intersection": lambda cp, z: [cp.norm1(z) <= 1.5, z >= -0.2, z <= 0.5],
    "simplex and half-space": lambda cp, z: [z >= 0, cp.sum(z) == 1, cp.sum(z[:3]) <= 0.3],
    "around": lambda cp, z: [cp.norm1(z - CENTRE.numpy()) <= 0.5],
    "around an intersection": lambda cp, z: [
        cp.norm2(z - CENTRE.numpy()) <= 1,
        z >= CENTRE.numpy(),
    ],
    "per layer": lambda cp, z: [cp.norm1(z[:3]) <= 0.4, z[3:] >= 0, z[3:] <= 1],
}


@pytest.mark.parametrize("name", CONVEX)
def test_projection_is_the_nearest_point_that_cvxpy_finds(name):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of solvers that are not installed
        cp = pytest.importorskip("cvxpy")
        z, x = cp.Variable(D), cp.Parameter(D)
        problem = cp.Problem(cp.Minimize(cp.norm2(z - x)), ORACLES[name](cp, z))
        for point in POINTS:
            x.value = point.numpy()
            problem.solve(solver=cp.CLARABEL, tol_gap_abs=1e-11, tol_gap_rel=1e-11, tol_feas=1e-11)
            found = CONVEX[name].project(point)
            assert contains(CONVEX[name], found)
            assert float((found - point).norm()) == pytest.approx(problem.value, abs=2e-6)
            # the nearest point is unique; solvers find it less well than its distance
            np.testing.assert_allclose(found.numpy(), z.value, atol=2e-4)


def test_top_k_keeps_the_largest_magnitudes_and_of_equal_ones_the_first():
    x = torch.tensor([[0.1, -3.0, 2.0, 2.0, 0.0, 1.0], [1.0, 1.0, -1.0, 1.0, 1.0, 1.0]])
    expected = torch.tensor([[0.0, -3.0, 2.0, 0, 0, 0], [1.0, 1.0, 0, 0, 0, 0]])
    assert torch.equal(top_k(2).project(x), expected)
    assert torch.equal(top_k(torch.tensor([1, 6])).project(x)[1], x[1])
    assert torch.equal(top_k(100).project(x), x)


def test_closed_forms():
    def of(*values):
        return torch.tensor(values, dtype=torch.float64)

    assert torch.equal(l1_ball(1).project(of(3, -2.5, 0.1)), of(0.75, -0.25, 0))
    assert torch.allclose(l2_ball(1).project(of(3, -4)), of(0.6, -0.8), rtol=1e-15)
    assert torch.equal(simplex(3.0).project(of(-5, -5, -5)), of(1, 1, 1))
    assert torch.allclose(half_space(of(3, 4), 5).project(of(6, 8)), of(0.6, 0.8), rtol=1e-15)
    assert torch.allclose(affine([[1.0, 1]], [2.0]).project(of(4, 0)), of(3, -1), rtol=1e-15)
    diagonal = nuclear_ball(1, (2, 2)).project(of(3, 0, 0, -2.5))
    assert torch.allclose(diagonal, of(0.75, 0, 0, -0.25), atol=1e-15)


@every_dtype
@every_set
def test_results_have_the_dtype_and_shape_of_the_points_and_leave_them_alone(set, dtype):
    for shape in [(D,), (1, D), (3, D), (2, 3, D), (0, D)]:
        x = 3 * gaussian(*shape).to(dtype)
        before = x.clone()
        p = set.project(x)
        assert (p.dtype, p.shape) == (dtype, x.shape)
        assert (distance(set, x).dtype, distance(set, x).shape) == (dtype, x.shape[:-1])
        assert torch.equal(x, before)


@pytest.mark.parametrize(
    ("dtype", "scales"),
    [
        (torch.float32, [0.0, 1e-40, 1e-9, 1.0, 1e3, 1e30, 3e38]),
        (torch.float64, [0.0, 1e-310, 1e-40, 1e-9, 1.0, 1e3, 1e30, 1e300, 1e308]),
    ],
    ids=str,
)
@every_set
def test_a_projected_point_is_its_own_projection_at_every_scale(set, dtype, scales):
    """Bit for bit, from denormal numbers to those whose squares overflow."""
    x = torch.stack([scale * gaussian(3, D).clamp(-1, 1) for scale in scales]).to(dtype)
    assert x.isfinite().all()
    p = set.project(x)
    assert p.isfinite().all()
    assert torch.equal(set.project(p), p)
    assert (distance(set, p) == 0).all()
    assert contains(set, p).all()


@pytest.mark.parametrize("name", EXACT)
@given(st.data())
@settings(max_examples=25)
def test_projection_never_moves_two_points_apart(name, data):
    x, y = data.draw(vectors()), data.draw(vectors())
    p, q = CONVEX[name].project(x), CONVEX[name].project(y)
    rounding = 1e-13 * (1 + x.norm() + y.norm())
    assert (p - q).norm() <= (x - y).norm() + rounding


@pytest.mark.parametrize("name", CONVEX)
@given(st.data())
@settings(max_examples=15)
def test_the_way_to_the_projection_makes_no_acute_angle_with_the_set(name, data):
    """(x - p).(q - p) <= 0 for q in the set: what makes p the nearest point of a convex set."""
    set = CONVEX[name]
    x, q = data.draw(vectors(30.0)), set.project(data.draw(vectors(30.0)))
    p = set.project(x)
    assert torch.equal(set.project(p), p)
    rounding = (1e-6 if name not in EXACT else 1e-12) * (1 + x.norm()) * (1 + q.norm())
    assert (x - p) @ (q - p) <= rounding


INSIDE = {
    "l1": lambda x: x.abs().sum() - 1.3,
    "l2": lambda x: x.norm() - 1.3,
    "linf": lambda x: x.abs().max() - 0.7,
    "box": lambda x: torch.maximum(-0.3 - x, x - torch.linspace(0, 2, D)).max(),
    "nonnegative": lambda x: -x.min(),
    "half-space": lambda x: NORMAL @ x + 0.4,
    "group": lambda x: x[:1].norm() + x[1:3].norm() + x[3:].norm() - 1.1,
    "nuclear": lambda x: torch.linalg.svdvals(x.view(2, 3)).sum() - 1.2,
    "top-k": lambda x: (x != 0).sum() - 2,
    "around": lambda x: (x - CENTRE).abs().sum() - 0.5,
    "per layer": lambda x: max(x[:3].abs().sum() - 0.4, -x[3:].min(), x[3:].max() - 1),
}


@pytest.mark.parametrize("name", INSIDE)
@given(st.data())
@settings(max_examples=50)
def test_distance_is_zero_exactly_when_the_point_is_inside(name, data):
    set, x = SETS[name], data.draw(vectors(3.0))
    if data.draw(st.booleans()):  # a point between the projection and the middle: often inside
        middle = CENTRE if name == "around" else 0 * x
        x = middle + data.draw(st.floats(0, 1.5)) * (set.project(x) - middle)
    excess = float(INSIDE[name](x))
    if abs(excess) > 1e-13:
        assert (float(distance(set, x)) == 0) == (excess < 0)
        assert torch.equal(set.project(x), x) == (excess < 0)


@every_dtype
def test_a_huge_point_still_has_an_exact_projection(dtype):
    x = torch.tensor([1e30, 0, -1e30, 1, 2, 3], dtype=dtype)
    half = torch.tensor([0.5, 0, -0.5, 0, 0, 0], dtype=dtype)
    assert torch.equal(l1_ball(1.0).project(x), half)
    assert torch.allclose(l2_ball(1.0).project(x), half * 2**0.5)
    assert torch.equal(simplex(1.0).project(x), torch.eye(6, dtype=dtype)[0])
    assert torch.equal(group_l1_ball(1.0, sizes=[1] * 6).project(x), half)
    along = half_space(torch.tensor([1.0, 0, -1.0, 0, 0, 0]), 1.0).project(x)
    assert torch.allclose(along, torch.tensor([0.5, 0, -0.5, 1, 2, 3], dtype=dtype))


@every_dtype
@pytest.mark.parametrize("d", [7850, 100_000])
def test_l1_projection_of_a_large_model_meets_its_optimality_conditions(d, dtype):
    x = gaussian(2, d).to(dtype)
    for radius in (1e-3, 1.0, 300.0):
        p = l1_ball(radius).project(x)
        assert p.double().abs().sum(-1).numpy() == pytest.approx(radius, rel=4e-7)
        for row, nearest in zip(x.double(), p.double(), strict=True):
            shrunk = (row - nearest).abs()
            threshold = shrunk.max()
            assert (shrunk[nearest != 0] - threshold).abs().max() <= 4e-7 * threshold
            assert (row[nearest == 0].abs() <= threshold).all()
        assert torch.equal(l1_ball(radius).project(p), p)


def test_l1_projection_is_exact_where_every_step_drops_few_coordinates():
    """Sorted sums as the reference, on inputs that spread over many magnitudes."""
    for x in (
        torch.arange(1, 3001, dtype=torch.float64).reciprocal(),
        torch.arange(1, 3001, dtype=torch.float64).log(),
        2.0 ** -torch.linspace(0, 900, 3000, dtype=torch.float64),
        torch.ones(3000, dtype=torch.float64),
    ):
        u = x.sort(descending=True)[0]
        excess = (u.cumsum(0) - 0.8) / torch.arange(1, 3001)
        threshold = excess[(u > excess).nonzero().max()]
        expected = (x - threshold).clamp(min=0)
        assert torch.allclose(l1_ball(0.8).project(-x), -expected, atol=1e-14)


RADII = torch.tensor([0.0, 0.5, 2.0, 1e9])


@pytest.mark.parametrize(
    "make", [l1_ball, l2_ball, linf_ball, partial(group_l1_ball, sizes=[2, 4])]
)
def test_one_radius_per_agent_projects_each_row_on_its_own_ball(make):
    x = 3 * gaussian(2, 4, D)
    p = make(RADII).project(x)
    for i, radius in enumerate(RADII):
        assert torch.allclose(p[:, i], make(float(radius)).project(x[:, i]), rtol=1e-14)


def test_one_box_per_agent():
    x, low = 3 * gaussian(4, D), -gaussian(4, D, seed=1).abs()
    p = box(low, 0.1).project(x)
    for i in range(4):
        assert torch.equal(p[i], box(low[i], 0.1).project(x[i]))


@every_dtype
@every_set
def test_a_batch_is_its_rows(set, dtype):
    x = 3 * gaussian(2, 5, D, seed=4).to(dtype)
    rows = torch.stack([set.project(row) for row in x.view(-1, D)]).view(x.shape)
    assert torch.allclose(set.project(x), rows, rtol=4 * torch.finfo(dtype).eps, atol=1e-14)


def agents(i: int) -> dict[str, ConstraintSet]:
    """Agent i's set of each kind."""
    a = 0.5 + i
    return {
        "l1": l1_ball(a),
        "l2": l2_ball(a),
        "linf": linf_ball(a / 4),
        "box": box(-a / 4, a / 5),
        "simplex": simplex(a),
        "nonnegative": nonnegative(),
        "half-space": half_space(gaussian(D, seed=i), -a),
        "affine": affine(gaussian(2, D, seed=i), gaussian(2, seed=i)),
        "group": group_l1_ball(a, labels=[0, 1, 0, 2, (i + 1) % 2, 1]),
        "nuclear": nuclear_ball(a, (3, 2)),
        "top-k": top_k(i + 1),
        "around": around(l1_ball(a), gaussian(D, seed=i)),
        "intersection": intersection(l1_ball(a), box(-a / 4, a / 5)),
        "per layer": per_layer(LAYOUT, {"a": l2_ball(a), "b": simplex(a)}),
    }


@pytest.mark.parametrize("kind", agents(0))
def test_a_stack_of_one_kind_projects_at_once_and_as_each_agent_would(kind):
    sets = [agents(i)[kind] for i in range(3)]
    both = stack(sets)
    x = 3 * gaussian(2, 3, D, seed=5)
    expected = torch.stack([sets[i].project(x[:, i]) for i in range(3)], 1)
    assert torch.allclose(both.project(x), expected, rtol=1e-13, atol=1e-14)
    assert both.project.func.__name__ == "_together"
    assert both.convex == sets[0].convex


def test_a_stack_of_several_kinds_projects_row_by_row():
    mine = ConstraintSet("halved", partial(_halved, by=torch.tensor(2.0)))
    for sets in [
        [l1_ball(1), l2_ball(1), top_k(1)],
        [nuclear_ball(1, (2, 3)), nuclear_ball(1, (3, 2)), nuclear_ball(1, (6, 1))],
        [per_layer(LAYOUT, {"a": l1_ball(1)}), per_layer(LAYOUT, {"b": l1_ball(1)}), whole()],
        [mine, mine, mine],
        [around(mine, [0.0] * D)] * 3,
        [box(0, 1), box(torch.zeros(D), 1), box(0, 2)],
    ]:
        x = 3 * gaussian(2, 3, D)
        p = stack(sets).project(x)
        assert stack(sets).project.func.__name__ == "_row_by_row"
        assert torch.equal(p, torch.stack([sets[i].project(x[:, i]) for i in range(3)], 1))
    assert not stack([l1_ball(1), top_k(1)]).convex


def _halved(x: torch.Tensor, by: torch.Tensor) -> torch.Tensor:
    return x / by


@every_set
def test_sets_travel_to_worker_processes(set):
    x = 3 * gaussian(4, D)
    for one in (set, stack([set] * 4)):
        assert torch.equal(pickle.loads(pickle.dumps(one)).project(x), one.project(x))


@every_set
def test_a_set_prints_its_kind_and_none_of_its_numbers(set):
    for one in (set, stack([set, set])):
        assert repr(one) == str(one) == f"ConstraintSet({one.name})"
        assert "tensor" not in repr(one)
        assert not re.search(r"\d", re.sub(r"\bl[12]\b", "", one.name))


def test_a_set_keeps_its_numbers_when_their_tensor_changes():
    radius = torch.tensor(1.0, dtype=torch.float64)
    set = l1_ball(radius)
    radius.fill_(100.0)
    assert float(set.project(torch.tensor([5.0]))) == 1.0


def test_a_radius_is_not_rounded_to_float32():
    assert float(linf_ball(0.1).project(torch.ones(1, dtype=torch.float64))) == 0.1


@every_set
def test_a_point_that_is_not_finite_is_in_no_set(set):
    x = gaussian(3, D)
    x[1, 2] = float("nan")
    p = set.project(x)
    assert not contains(set, x)[1]
    assert p[[0, 2]].isfinite().all()


def test_an_infinite_radius_is_the_whole_space():
    x = 1e30 * gaussian(3, D)
    for make in (l1_ball, l2_ball, linf_ball):
        assert torch.equal(make(float("inf")).project(x), x)


def test_an_affine_set_may_repeat_its_equations():
    once, twice = affine(MATRIX, [1.0, -2.0]), affine(MATRIX.repeat(2, 1), [1.0, -2.0] * 2)
    x = gaussian(5, D)
    assert torch.allclose(once.project(x), twice.project(x), atol=1e-14)
    assert torch.equal(affine(torch.zeros(1, D), [0.0]).project(x), x)


def test_per_layer_projects_each_layer_as_one_vector_and_leaves_the_rest_free():
    torch.manual_seed(0)
    model = FlatModel(
        torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 2))
    )
    layout = model.layout
    set = per_layer(layout, {"0": l2_ball(0.1), "2.weight": nuclear_ball(0.2, (2, 4))})
    x = gaussian(layout.size)
    before, after = layout.named(x), layout.named(set.project(x))
    first = torch.cat([after["0.weight"].flatten(), after["0.bias"]])
    assert first.norm() == pytest.approx(0.1)
    assert torch.linalg.svdvals(after["2.weight"]).sum() == pytest.approx(0.2)
    for free in ("1.weight", "1.bias", "1.running_mean", "1.running_var", "2.bias"):
        assert torch.equal(before[free], after[free])
    norm = per_layer(layout, {"1": l1_ball(0)}).project(x)
    assert torch.equal(layout.named(norm)["1.running_var"], before["1.running_var"])
    assert (layout.named(norm)["1.weight"] == 0).all()
    assert not per_layer(layout, {"0": top_k(1)}).convex


def test_models_as_named_tensors_are_projected_whole_or_by_layer():
    tensors = {
        "fc2.weight": gaussian(3, 2),
        "fc2.bias": gaussian(3),
        "fc.weight": gaussian(4),
        "steps": torch.tensor(7),
    }
    found = on_tensors(l1_ball(1.0), tensors)
    assert list(found) == list(tensors)
    assert found["fc2.weight"].shape == (3, 2)
    assert found["steps"] is tensors["steps"]
    assert sum(t.abs().sum() for n, t in found.items() if n != "steps") == pytest.approx(1.0)
    by_layer = on_tensors({"fc": linf_ball(0.0), "fc2.bias": nonnegative()}, tensors)
    assert (by_layer["fc.weight"] == 0).all()
    assert torch.equal(by_layer["fc2.weight"], tensors["fc2.weight"])
    assert torch.equal(by_layer["fc2.bias"], tensors["fc2.bias"].clamp(min=0))
    assert on_tensors(l1_ball(1.0), {"steps": tensors["steps"]}) == {"steps": tensors["steps"]}


NAN = float("nan")
BAD = {
    "radius is -1": lambda: l1_ball(-1),
    "must be 0 or more": lambda: linf_ball(torch.tensor([1.0, -2.0])),
    "radius is not a number": lambda: l2_ball(NAN),
    "low is above high at [1]": lambda: box([0.0, 2.0], [1.0, 1.0]),
    "low is not a number": lambda: box(NAN, 1),
    "box is empty": lambda: box(float("inf"), float("inf")),
    "low has shape (2,) and high (3,)": lambda: box([0.0] * 2, [1.0] * 3),
    "total must be above 0": lambda: simplex(0),
    "above 0 and finite": lambda: simplex(float("inf")),
    "not all zeros": lambda: half_space([0.0, 0.0], 1),
    "one offset for each normal": lambda: half_space([1.0, 0.0], [1.0, 2.0]),
    "half-space is empty": lambda: half_space([1.0], -float("inf")),
    "contradict": lambda: affine([[1.0, 1], [2, 2]], [1.0, 3.0]),
    "equations contradict each other": lambda: affine([[0.0, 0]], [1.0]),
    "(equations, coordinates)": lambda: affine([[1.0, 1]], [1.0, 3.0]),
    "must be finite": lambda: affine([[float("inf"), 1]], [1.0]),
    "sizes of its groups or labels": lambda: group_l1_ball(1),
    "sizes must be a list of whole numbers of 1": lambda: group_l1_ball(1, sizes=[2, 0]),
    "labels must be a list of whole numbers of 0": lambda: group_l1_ball(1, labels=[0.5]),
    "(rows, columns)": lambda: nuclear_ball(1, (3, 0)),
    "whole number of 1 or more": lambda: top_k(0),
    "k of top-k": lambda: top_k(1.5),
    "centre has a coordinate that is not finite": lambda: around(whole(), [float("inf")]),
    "centre is not a number": lambda: around(whole(), [NAN]),
    "at least one set; whole()": lambda: intersection(),
    "top-k is not convex": lambda: intersection(l1_ball(1), top_k(1)),
    "tolerance must be above 0": lambda: intersection(whole(), tolerance=0),
    "one for each agent": lambda: stack([]),
    "it has a.weight": lambda: per_layer(LAYOUT, {"a.wieght": whole()}),
    "it has a, a.weight": lambda: per_layer(LAYOUT, {"": whole()}),
    "a.bias has two sets": lambda: per_layer(LAYOUT, {"a.bias": whole(), "a": whole()}),
    "several floating dtypes": lambda: on_tensors(
        whole(), {"a": torch.ones(1), "b": torch.ones(1, dtype=torch.float64)}
    ),
    # numbers that do not fit the points
    "given for 3 agents": lambda: l1_ball([1.0, 2, 3]).project(torch.ones(2, D)),
    "given for 2 agents": lambda: l2_ball([1.0, 2]).project(torch.ones(D)),
    "the box has shape (2,)": lambda: box([0.0, 0], 1).project(torch.ones(D)),
    "half-space is about 1 coord": lambda: half_space([1.0], 1).project(torch.ones(D)),
    "affine set is about 2 coord": lambda: affine([[1.0, 1]], [1.0]).project(torch.ones(D)),
    "ball is about 5 coord": lambda: group_l1_ball(1, sizes=[2, 3]).project(torch.ones(D)),
    "nuclear norm ball is about 4": lambda: nuclear_ball(1, (2, 2)).project(torch.ones(D)),
    "the centre has shape (2,)": lambda: around(whole(), [1.0, 2]).project(torch.ones(D)),
    "set of a model is about 6": lambda: per_layer(LAYOUT, {}).project(torch.ones(5)),
    "a stack of 2 sets needs": lambda: stack([whole(), whole()]).project(torch.ones(3, D)),
    "k is given for 2 agents": lambda: top_k(torch.tensor([1, 2])).project(torch.ones(D)),
    "dtype torch.int64": lambda: whole().project(torch.ones(D, dtype=torch.int64)),
    "and shape ()": lambda: nonnegative().project(torch.tensor(1.0)),
    "no point in common": lambda: intersection(
        l2_ball(1), around(l2_ball(1), [9.0] * D), max_iterations=50
    ).project(torch.ones(D)),
}


@pytest.mark.parametrize("sentence", BAD)
def test_bad_input_is_answered_with_one_sentence(sentence):
    with pytest.raises(UserError) as error:
        BAD[sentence]()
    text = " ".join(str(error.value).split())
    assert sentence in text
    assert "tensor(" not in text


def test_all_is_what_is_exported():
    for name in constraints.__all__:
        assert getattr(constraints, name) is not None
