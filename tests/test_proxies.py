"""The papers' proxies against the papers' table 1."""

import dataclasses

import pytest

from fedbudget.errors import UserError
from fedbudget.models.flat import FlatModel
from fedbudget.models.gpt import GPT
from fedbudget.models.softmax import Softmax
from fedbudget.resources.proxies import (
    TABLE1,
    CaflConstants,
    cafl,
    cafl_l,
    group_sizes,
    of_knobs,
    paper_parameters,
)
from fedbudget.types import Knobs

SIZES = (24704, *[198272] * 8, 8576)
FEDAVG = {"k": 3, "s": 180, "b": 8, "q": 0}
CAFL_L = {"k": 1, "s": 144, "b": 8, "q": 2}


def printed(usage):
    """Energy (1e6), communication (MB), temperature and memory as table 1 prints them."""
    return (
        f"{usage['energy'] / 1e6:.2f}",
        f"{usage['communication'] / 1e6:.2f}",
        f"{usage['temperature']:.2f}",
        f"{usage['memory']:.2f}",
    )


def test_group_sizes_are_those_of_the_model_itself():
    model = GPT(vocabulary=65, context=128, layers=8, width=128, heads=4)
    sizes = group_sizes(FlatModel(model).layout)
    assert sizes == SIZES
    blocks = [sum(p.numel() for p in block.parameters()) for block in model.blocks]
    always = sum(p.numel() for p in model.parameters()) - sum(blocks)
    assert paper_parameters(sizes, 3) == always + sum(blocks[-3:]) == 628_096
    assert paper_parameters(sizes, 1) == always + blocks[-1] == 231_552


def test_more_blocks_than_there_are_is_the_whole_model():
    assert paper_parameters(SIZES, 8) == paper_parameters(SIZES, 99) == sum(SIZES)
    assert paper_parameters(SIZES, 0) == SIZES[0] + SIZES[-1]


def test_a_model_without_blocks_trains_whole():
    (size,) = group_sizes(FlatModel(Softmax(4, 3)).layout)
    assert paper_parameters((size,), 1) == size
    assert paper_parameters((5, 7), 1) == 12


def test_fedavg_prints_as_table_1():
    assert printed(cafl_l(SIZES, **FEDAVG)) == ("4.52", "5.18", "0.62", "0.31")


def test_cafl_l_is_where_the_authors_code_ends():
    usage = cafl_l(SIZES, **CAFL_L)
    assert usage["energy"] == pytest.approx(1.33e6, rel=0.005)
    assert usage["communication"] == pytest.approx(0.243e6, rel=0.005)
    assert usage["temperature"] == pytest.approx(0.57, rel=0.005)
    assert usage["memory"] == pytest.approx(0.244, rel=0.005)


def test_the_appendix_as_written_does_not_give_table_1():
    """A.1 counts the active parameters as sent; the table counts all of them."""
    as_written = dataclasses.replace(TABLE1, sends_all=False)
    sent = cafl_l(SIZES, **FEDAVG, constants=as_written)["communication"]
    assert sent == pytest.approx(0.8 * 628_096 * 4)
    assert f"{sent / 1e6:.2f}" == "2.01"


def test_cafl_is_cafl_l_times_the_clients_of_a_round():
    """Eqs 4 and 5 have tau, 6 and 7 do not."""
    one, six, mean = cafl(SIZES, **FEDAVG), cafl(SIZES, **FEDAVG, tau=6), cafl_l(SIZES, **FEDAVG)
    for resource in ("energy", "memory", "temperature"):
        assert one[resource] == pytest.approx(mean[resource])
    ratios = {resource: six[resource] / one[resource] for resource in one}
    assert ratios == pytest.approx({"energy": 6, "communication": 6, "memory": 1, "temperature": 1})


def test_no_single_overhead_gives_both_communication_rows_of_table_1():
    unit = CaflConstants(b_c=1.0)
    fedavg = 5.182e6 / cafl(SIZES, **FEDAVG, constants=unit)["communication"]
    ours = 0.243e6 / cafl(SIZES, **CAFL_L, constants=unit)["communication"]
    assert (fedavg, ours) == pytest.approx((2.06, 4.20), rel=0.005)


def test_the_energy_proxy_does_not_see_accumulation():
    one = Knobs(layers=2, steps=144, batch=8, accumulate=1, codec="eden2")
    two = dataclasses.replace(one, accumulate=2)
    assert of_knobs(one, SIZES) == of_knobs(two, SIZES) == cafl_l(SIZES, **CAFL_L)
    assert of_knobs(two, SIZES, proxy=cafl) == cafl(SIZES, **CAFL_L)


def test_an_unknown_codec_is_named_and_a_new_one_can_be_given():
    knobs = Knobs(layers=2, steps=1, batch=1, codec="eden4")
    with pytest.raises(UserError, match="'eden4'; they know raw32, int8, eden2"):
        of_knobs(knobs, SIZES)
    assert of_knobs(knobs, SIZES, levels={"eden4": 1}) == cafl_l(SIZES, 1, 1, 1, 1)
