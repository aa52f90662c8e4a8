"""Clients' states beyond what memory should hold, and checkpoints that are written piece by piece."""

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open

from conftest import text_plan
from fedbudget import rounds
from fedbudget.client import Recipe
from fedbudget.control.controller import fixed
from fedbudget.engines.embedded import InProcess
from fedbudget.engines.states import States
from fedbudget.files import write
from fedbudget.runs import KINDS, pieces
from fedbudget.types import Knobs
from fedbudget.uplink import Uplink


def state(value: float, size: int = 5):
    return {"a": torch.full((size,), value), "b": torch.full((2,), -value)}


@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.integers(1, 7), st.sampled_from(["new", "next", "del"]))
    ),
    st.sampled_from([0, 60, 10**9]),
)
def test_it_holds_what_a_dict_would(actions, held):
    ours, plain = States(held), {}
    for i, (client, size, action) in enumerate(actions):
        if action == "del":
            if client in plain:
                del ours[client], plain[client]
            continue
        new = {i: state(float(i), size)}
        if (
            action == "next" and client in plain
        ):  # as an engine does: the valid version, and a new one
            last = max(plain[client])
            plain[client] = {
                last: plain[client][last],
                i: {k: t.clone() for k, t in new[i].items()},
            }
            ours[client] = {last: ours[client][last], **new}
        else:
            plain[client] = {i: {k: t.clone() for k, t in new[i].items()}}
            ours[client] = new
        assert ours.in_memory <= held
    assert set(ours) == set(plain)
    assert len(ours) == len(plain)
    for client, versions in plain.items():
        assert ours[client].keys() == versions.keys()
        for round, kept in versions.items():
            assert all(torch.equal(kept[name], ours[client][round][name]) for name in kept)


def test_room_is_used_again():
    states = States(held=0)
    for i in range(100):
        states[0] = {i: state(float(i))}
    assert len(states._slots) == 2
    assert sum(map(len, states._free.values())) <= 2


def test_training_with_states_in_files_gives_the_same_bits():
    plan = text_plan(
        recipe=Recipe(uplink=Uplink("error")), controller=fixed(Knobs(3, 2, 4, codec="eden1"))
    )
    ends = []
    for states in (States(), States(held=0)):
        with InProcess(plan) as engine:
            engine.states = states
            layout = engine.host.model.layout
            ends.append([*rounds.run(plan, engine, layout, rounds.first_state(plan))][-1][1])
    assert torch.equal(ends[0].weights, ends[1].weights)
    assert (states.in_memory, bool(states._slots)) == (0, True)


def test_a_file_in_pieces_is_one_that_safetensors_reads(tmp_path):
    tensors = {f"t{i}": torch.ones((i, 2)).to(kind) for i, kind in enumerate(KINDS)}
    tensors["empty"] = torch.zeros(0)
    tensors["number"] = torch.tensor(3.5)
    write(tmp_path / "x.safetensors", *pieces(tensors, {"said": "ü"}))
    with safe_open(tmp_path / "x.safetensors", framework="pt") as f:
        assert f.metadata() == {"said": "ü"}
        assert set(f.keys()) == set(tensors)
        for name, tensor in tensors.items():
            found = f.get_tensor(name)
            assert found.dtype == tensor.dtype
            assert found.shape == tensor.shape
            np.testing.assert_array_equal(found, tensor)
