import math
import pickle
import struct
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fedbudget import codecs
from fedbudget.codecs import eden, feedback, frame, sparse
from fedbudget.errors import UserError
from fedbudget.models.flat import Layout

COMPOSED = ["topk60%+eden2", "topk80%+int8", "topk10%+eden1.6", "topk25%+eden3", "topk1%+raw32"]
COMPOSED += ["topk50%+qsgd4", "topk1%+sign", "topk30%+uniform2"]
LOSSY = [name for name in codecs.CODECS if name not in ("raw32", "raw64", "nothing")] + COMPOSED
EDEN = {"eden4": 16, "eden3": 8, "eden2": 4, "eden1.6": 3, "eden1": 2}
UNIFORM = {"int8": 255, "uniform4": 16, "uniform2": 4, "qsgd8": 255, "qsgd4": 15, "qsgd2": 3}
BITS = {"int8": 8, "uniform4": 4, "uniform2": 2, "eden4": 4, "eden3": 3, "eden2": 2}
BITS |= {"eden1.6": 1.6, "eden1": 1, "sign": 1, "qsgd8": 8, "qsgd4": 4, "qsgd2": 2}
BLOCK = {"int8": 4096, "qsgd8": 1024, "qsgd4": 2048, "qsgd2": 4096, "sign": 8192}
BLOCK |= dict.fromkeys(EDEN, 2**14)
"""Numbers that share a scale; all of the vector for the others."""


@pytest.fixture(autouse=True)
def one_thread():
    """As in a run; on a busy machine a second thread costs more than it brings."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def gaussian(count: int, seed: int = 0) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(count, dtype=np.float32))


def student(count: int, seed: int = 0) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).standard_t(3, count).astype(np.float32))


def round_trip(name: str, x: torch.Tensor, seed: int = 0) -> torch.Tensor:
    codec = codecs.named(name)
    return codec.decode(memoryview(codec.encode(x, seed)), len(x), seed)


def nmse(y: torch.Tensor, x: torch.Tensor) -> float:
    x = x.double()
    return float((y.double() - x).square().sum() / x.square().sum())


# what the codecs promise


@pytest.mark.parametrize(
    ("name", "bound"),
    [
        *(("int8", 3e-4), ("qsgd8", 3e-4), ("uniform4", 0.1), ("qsgd4", 0.05), ("qsgd2", 2.1)),
        *(("eden4", 0.011), ("eden3", 0.037), ("eden2", 0.14), ("eden1.6", 0.25), ("eden1", 0.60)),
        ("sign", 0.37),
    ],
)
def test_error_on_a_gaussian_vector(name, bound):
    x = gaussian(2**17)
    assert nmse(round_trip(name, x), x) <= bound


@pytest.mark.parametrize(
    ("name", "bound"),
    [
        *(("int8", 0.01), ("qsgd8", 3e-3), ("qsgd4", 0.8)),
        *(("eden4", 0.011), ("eden3", 0.037), ("eden2", 0.14), ("eden1.6", 0.25), ("eden1", 0.60)),
    ],
)
def test_error_on_a_heavy_tailed_vector(name, bound):
    """Only the rotation makes the error independent of the vector."""
    x = student(2**17)
    assert nmse(round_trip(name, x), x) <= bound


@pytest.mark.parametrize("name", EDEN)
def test_eden_has_the_error_that_theory_gives(name):
    """With the unbiased scale, 1 / (1 - D) - 1 for a quantiser of distortion D."""
    above = eden.POSITIVE_LEVELS[EDEN[name]]
    power = 2 * sum(
        (tail(low) - tail(high)) * v**2 for v, low, high in cells(above, EDEN[name] % 2)
    )  # E q^2 = 1 - D, by the second Lloyd-Max condition
    x = gaussian(2**17)
    assert nmse(round_trip(name, x), x) == pytest.approx(1 / power - 1, rel=0.02)


@pytest.mark.parametrize("name", UNIFORM)
def test_uniform_levels_have_the_error_that_theory_gives(name):
    """A number a fraction f above the level below it has the expected error f (1 - f) step^2."""
    x = gaussian(2**15).double()
    blocks = x.view(-1, BLOCK.get(name, len(x)))
    step = 2 * blocks.abs().amax(1, keepdim=True) / (UNIFORM[name] - 1)
    place = blocks / step + (UNIFORM[name] - 1) / 2
    part = place - place.floor()
    expected = float((part * (1 - part) * step**2).sum() / x.square().sum())
    assert nmse(round_trip(name, x), x) == pytest.approx(expected, rel=0.05)


@pytest.mark.parametrize("name", [*EDEN, *UNIFORM])
@pytest.mark.parametrize(("made", "count"), [(gaussian, 2**17), (gaussian, 5000), (student, 2**17)])
def test_the_mean_of_many_decodings_is_the_vector(name, made, count):
    """The error of a mean of n unbiased decodings is 1/n of one's; a bias would stay."""
    n, x = 200, made(count)
    total, one = torch.zeros(len(x), dtype=torch.float64), 0.0
    for seed in range(n):
        y = round_trip(name, x, seed)
        total += y
        one += nmse(y, x) / n
    assert 0.7 <= nmse(total / n, x) / (one / n) <= 1.3


def tail(t: float) -> float:
    return math.erfc(t / math.sqrt(2)) / 2


def cells(above, odd):
    """(level, lower, upper boundary) of the levels above zero."""
    first = above[0] / 2 if odd else 0.0
    bounds = [first, *((a + b) / 2 for a, b in pairwise(above)), math.inf]
    return zip(above, bounds, bounds[1:], strict=False)


@pytest.mark.parametrize("count", eden.POSITIVE_LEVELS)
def test_levels_are_the_means_of_their_cells(count):
    """Lloyd-Max: boundaries midway between levels, each level its cell's mean under N(0, 1)."""
    above = eden.POSITIVE_LEVELS[count]
    assert len(above) == count // 2
    for level, low, high in cells(above, count % 2):
        density = math.exp(-(low**2) / 2) - math.exp(-(high**2) / 2)
        mean = density / math.sqrt(2 * math.pi) / (tail(low) - tail(high))
        assert level == pytest.approx(mean, abs=1e-13)


@pytest.mark.parametrize("count", [1, 2, 3, 7, 100, 4095, 2**14])
def test_the_rotation_is_orthonormal_and_its_own_inverse(count):
    x = gaussian(3 * count).view(3, count)
    y = eden.rotate(x.clone())
    torch.testing.assert_close(eden.rotate(y.clone()), x, rtol=0, atol=1e-5)
    torch.testing.assert_close(y @ y.T, x @ x.T, rtol=1e-4, atol=1e-2)


@pytest.mark.parametrize("name", EDEN)
def test_eden_decodes_to_the_same_inner_product(name):
    """S = |x|^2 / <y, q> means <decoded, x> = |x|^2, block by block."""
    x = student(2**14 + 777)
    y = round_trip(name, x)
    for block in (slice(0, 2**14), slice(2**14, None)):
        a, b = y[block].double(), x[block].double()
        assert float(a @ b) == pytest.approx(float(b @ b), rel=1e-5)


# sizes


def on_the_wire(name: str, x: torch.Tensor) -> int:
    layout = Layout(("x",), ((len(x),),), (0,))
    return len(frame.pack([x], layout, run=0, round=0, client=0, seed=0, codec=name))


@given(st.integers(1, 70_000))
@settings(max_examples=40, deadline=None)
@example(1)
@example(7)
@example(100)
@example(2**14)
@example(2**14 + 1)
@example(429_824)
def test_a_frame_is_no_larger_than_its_bits(count):
    x = torch.ones(count)
    for name, bits in BITS.items():
        assert on_the_wire(name, x) <= 1.005 * bits * count / 8 + 128


def test_the_bar_on_sizes_covers_every_codec_of_fixed_size():
    fixed = {name for name in codecs.CODECS if codecs.named(name).fixed}
    assert fixed == {*BITS, "raw32", "raw64", "nothing"}


@pytest.mark.parametrize("name", [*BITS, "raw32", "raw64"])
@given(st.integers(0, 40_000))
@settings(max_examples=20, deadline=None)
def test_a_size_is_known_before_it_is_encoded(name, count):
    codec = codecs.named(name)
    assert codec.size(count) == len(codec.encode(torch.ones(count), 0))


def clustered(count, kept, how, seed):
    """Large numbers in one place, in a few, at both ends, or evenly apart: gaps of every kind."""
    x = gaussian(count, seed)
    places = {
        "start": range(kept),
        "end": range(count - kept, count),
        "ends": [*range(kept // 2), *range(count - kept + kept // 2, count)],
        "even": range(0, count, max(1, count // kept)),
    }[how]
    x[[*places][:kept]] += 100
    return x


@given(
    st.integers(1, 20_000),
    st.sampled_from(["0.1", "1", "5", "30", "60", "100"]),
    st.sampled_from(["raw32", "eden2", "sign"]),
    st.sampled_from(["start", "end", "ends", "even"]),
    st.integers(0, 9),
)
@settings(max_examples=150, deadline=None)
def test_a_top_fraction_never_takes_more_than_its_size(count, percent, inner, how, seed):
    codec = codecs.named(f"topk{percent}%+{inner}")
    x = clustered(count, sparse.kept(count, Fraction(percent)), how, seed)
    body = codec.encode(x, 0)
    assert len(body) <= codec.size(count)
    random = len(codec.encode(gaussian(count, seed), 0))
    assert codec.size(count) <= 1.12 * random + 16  # and the bound is not far from what is usual


@given(st.integers(1, 70_000), st.integers(1, 99), st.sampled_from([*BITS]), st.integers(0, 9))
@settings(max_examples=40, deadline=None)
def test_a_composed_frame_is_no_larger_than_a_bitmap_and_its_bits(count, percent, inner, seed):
    size = on_the_wire(f"topk{percent}%+{inner}", gaussian(count, seed))
    k = math.ceil(count * percent / 100)
    assert size <= count / 8 + 1.005 * BITS[inner] * k / 8 + 128


@pytest.mark.parametrize("percent", [0.1, 1, 10, 40])
def test_positions_take_little_more_than_their_entropy(percent):
    x = gaussian(100_000)
    p = percent / 100
    entropy = -p * math.log2(p) - (1 - p) * math.log2(1 - p)
    coded = 8 * (len(codecs.named(f"topk{percent}%").encode(x, 0)) - 4 * p * len(x))
    assert coded <= 1.04 * entropy * len(x) + 24


def test_all_positions_take_a_bit_each():
    assert len(codecs.named("topk100%").encode(gaussian(1000), 0)) == 1 + 4 * 1000 + 125


# any vector comes back, any bytes are refused or decoded


@pytest.mark.parametrize("name", LOSSY)
@given(
    st.lists(st.floats(-(2.0**100), 2.0**100, width=32), min_size=1, max_size=40),
    st.integers(0, 2**64 - 1),
)
@settings(max_examples=40, deadline=None)
def test_any_vector_comes_back_as_numbers(name, numbers, seed):
    x = torch.tensor(numbers, dtype=torch.float32)
    y = round_trip(name, x, seed)
    assert y.shape == x.shape
    assert y.dtype == torch.float32
    assert torch.isfinite(y).all()


@pytest.mark.parametrize("name", LOSSY)
@pytest.mark.parametrize("value", [0.0, 1.0, -1e30, 1e30, 1e-30, 1e-42])
def test_constant_vectors_over_several_blocks_come_back_as_numbers(name, value):
    for dtype in (torch.float32, torch.float64):
        y = round_trip(name, torch.full((2**14 + 4097,), value, dtype=dtype))
        assert torch.isfinite(y).all()
        if value == 0:
            assert not y.any()


@pytest.mark.parametrize("name", [*EDEN, "int8", "qsgd8", "qsgd2", "sign", "topk1%"])
@pytest.mark.parametrize("value", [3.0, -1e30, 1e-30])
def test_a_single_number_is_exact_to_rounding(name, value):
    assert round_trip(name, torch.tensor([value])).item() == pytest.approx(value, rel=1e-6)


@pytest.mark.parametrize("name", ["int8", "qsgd4", "qsgd2", "topk10%"])
def test_zeros_stay_zero(name):
    x = gaussian(3000)
    x[::2] = 0
    assert not round_trip(name, x)[::2].any()


@pytest.mark.parametrize("name", LOSSY)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 1e39])
def test_a_vector_that_is_not_finite_is_refused(name, bad):
    for at in (0, 17_000):
        x = torch.ones(2**14 + 1000, dtype=torch.float64)
        x[at] = bad
        with pytest.raises(ValueError, match="not finite"):
            codecs.named(name).encode(x, 0)


@pytest.mark.parametrize("name", LOSSY)
def test_every_truncation_and_a_byte_more_are_refused(name):
    codec = codecs.named(name)
    body = bytes(codec.encode(gaussian(700), 0))
    for n in range(len(body)):
        with pytest.raises(ValueError, match=r"bytes|positions"):
            codec.decode(memoryview(body[:n]), 700, 0)
    for more in (b"\0", b"\xff", b"\1"):
        with pytest.raises(ValueError, match=r"bytes|positions"):
            codec.decode(memoryview(body + more), 700, 0)


@pytest.mark.parametrize("name", LOSSY)
def test_a_count_beyond_the_body_is_refused_before_memory_is_taken(name):
    body = memoryview(codecs.named(name).encode(gaussian(700), 0))
    with pytest.raises(ValueError, match="bytes"):
        codecs.named(name).decode(body, 2**50, 0)


@pytest.mark.parametrize("name", LOSSY)
@given(st.integers(1, 60), st.data())
@settings(max_examples=60, deadline=None)
def test_no_bytes_crash_the_decoder(name, count, data):
    size = len(codecs.named(name).encode(gaussian(count), 0))
    body = data.draw(st.binary(min_size=max(0, size - 1), max_size=size + 1))
    try:
        y = codecs.named(name).decode(memoryview(body), count, 0)
    except ValueError:
        return
    assert y.shape == (count,)
    assert not torch.isnan(y).any()


def spoiled(name: str, at: int, new: bytes) -> None:
    body = bytearray(codecs.named(name).encode(gaussian(700), 0))
    at %= len(body)
    body[at : at + len(new)] = new
    codecs.named(name).decode(memoryview(body), 700, 0)


@pytest.mark.parametrize("name", [n for n in LOSSY if "topk" not in n])
@pytest.mark.parametrize("scale", [math.nan, math.inf, -1.0])
def test_a_bad_scale_is_refused(name, scale):
    with pytest.raises(ValueError, match="scale"):
        spoiled(name, 0, struct.pack("<f", scale))


@pytest.mark.parametrize(
    ("name", "byte"),
    [
        *(("int8", 255), ("qsgd8", 255), ("qsgd4", 0xF0), ("qsgd2", 3), ("eden1.6", 243)),
        *(("topk80%+int8", 255), ("topk60%+qsgd2", 3), ("topk60%+eden1.6", 243)),
    ],
)
def test_a_code_without_a_level_is_refused(name, byte):
    with pytest.raises(ValueError, match="levels"):
        spoiled(name, 40, bytes([byte]))


@pytest.mark.parametrize(
    ("at", "new", "reason"),
    [
        (0, b"\x28", "does not hold"),
        (1, struct.pack("<f", math.nan), "value is not finite"),
        (-1, b"\xff", "positions"),
    ],
)
def test_a_bad_sparse_body_is_refused(at, new, reason):
    with pytest.raises(ValueError, match=reason):
        spoiled("topk1%", at, new)


def test_a_position_beyond_the_vector_is_refused():
    last = torch.zeros(12)
    last[11] = 1
    body = memoryview(codecs.named("topk1%").encode(last, 0))
    assert torch.equal(codecs.named("topk1%").decode(body, 12, 0), last)
    with pytest.raises(ValueError, match="position 11 of 11"):
        codecs.named("topk1%").decode(body, 11, 0)


@pytest.mark.parametrize(
    ("at", "new", "reason"),
    [
        (0, b"\x28", "does not hold"),
        (0, b"\x1f", "does not hold"),
        (1, struct.pack("<f", math.nan), "scale is negative or not finite"),
        (1, struct.pack("<f", -1.0), "scale is negative or not finite"),
        (1, struct.pack("<f", 3.4e38), "value is not finite"),
        (-1, b"\xff", "positions"),
        (-1, b"\0", "positions"),
    ],
)
def test_a_bad_composed_body_is_refused(at, new, reason):
    with pytest.raises(ValueError, match=reason):
        spoiled("topk60%+eden2", at, new)


@pytest.mark.parametrize("name", COMPOSED)
@pytest.mark.parametrize("count", [1, 2, 350, 1400, 70_000])
def test_a_composed_body_for_another_count_is_refused(name, count):
    body = memoryview(codecs.named(name).encode(student(700), 0))
    with pytest.raises(ValueError, match=r"bytes|position"):
        codecs.named(name).decode(body, count, 0)


def test_a_composed_body_read_as_another_codec_is_refused():
    body = memoryview(codecs.named("topk60%+eden2").encode(gaussian(700), 0))
    for name in ("topk60%", "topk50%+eden2", "topk70%+eden2", "topk60%+eden4", "topk60%+eden1"):
        with pytest.raises(ValueError, match=r"bytes|position"):
            codecs.named(name).decode(body, 700, 0)


@pytest.mark.parametrize("name", [*codecs.CODECS, "topk60%+eden2"])
def test_no_numbers_take_no_bytes_and_come_back(name):
    codec = codecs.named(name)
    assert codec.size(0) == len(codec.encode(torch.zeros(0), 1)) == 0
    assert codec.decode(memoryview(b""), 0, 1).shape == (0,)
    with pytest.raises(ValueError, match="bytes"):
        codec.decode(memoryview(b"x"), 0, 1)


def test_nothing_decodes_as_zeros_and_refuses_bytes():
    assert not round_trip("nothing", gaussian(700)).any()
    with pytest.raises(ValueError, match="where none belong"):
        codecs.named("nothing").decode(memoryview(b"\0"), 700, 0)


# the bytes are what docs/wire-format.md says


def philox(key: int, words: int) -> list[int]:
    """Philox4x64-10 (Salmon et al. 2011); the first counter is 1."""
    mask, out = 2**64 - 1, []
    for block in range(1, -(-words // 4) + 1):
        c, k = [block, 0, 0, 0], [key, 0]
        for _ in range(10):
            a, b = 0xD2E7470EE14C6C93 * c[0], 0xCA5A826395121157 * c[2]
            c = [(b >> 64) ^ c[1] ^ k[0], b & mask, (a >> 64) ^ c[3] ^ k[1], a & mask]
            k = [(k[0] + 0x9E3779B97F4A7C15) & mask, (k[1] + 0xBB67AE8584CAA73B) & mask]
        out += c
    return out[:words]


def naive_rotation(x: list[float]) -> list[float]:
    n = len(x)
    if n != 2**14:
        angle = 2 * math.pi / n
        return [
            sum(v * (math.cos(angle * (j * k % n)) + math.sin(angle * (j * k % n))) for k, v in e)
            / math.sqrt(n)
            for j in range(n)
            for e in [enumerate(x)]
        ]
    half = 1
    while half < n:
        for i in range(0, n, 2 * half):
            for j in range(i, i + half):
                x[j], x[j + half] = x[j] + x[j + half], x[j] - x[j + half]
        half *= 2
    return [v / 128 for v in x]


def naive_decode(name: str, body: bytes, count: int, seed: int) -> list[float]:
    """Straight from the document, in plain Python."""
    if name in EDEN:
        base = EDEN[name]
        above = eden.POSITIVE_LEVELS[base]
        levels = [-v for v in reversed(above)] + [0.0] * (base % 2) + list(above)
    elif name == "sign":
        base, levels = 2, [-1.0, 1.0]
    else:
        base = 2 ** BITS[name]
        levels = [2 * k / (UNIFORM[name] - 1) - 1 for k in range(UNIFORM[name])]
    per, group = {2: (8, 1), 3: (5, 1), 4: (4, 1), 8: (8, 3), 16: (2, 1), 256: (1, 1)}[base]
    block = BLOCK.get(name, count)
    blocks = math.ceil(count / block)
    at, out = 4 * blocks, []
    words = philox(seed, math.ceil(count / 64))
    for i in range(blocks):
        (scale,) = struct.unpack_from("<f", body, 4 * i)
        n = min(block, count - i * block)
        end = at + group * math.ceil(n / per)
        groups = [int.from_bytes(body[g : g + group], "little") for g in range(at, end, group)]
        x = [levels[groups[j // per] // base ** (j % per) % base] for j in range(n)]
        at = end
        if name in EDEN:
            signs = [
                1 - 2 * (words[j // 64] >> j % 64 & 1) for j in range(i * block, i * block + n)
            ]
            x = [s * v for s, v in zip(signs, naive_rotation(x), strict=True)]
        out += [scale * v for v in x]
    assert at == len(body)
    return out


@pytest.mark.parametrize("name", BITS)
def test_a_decoder_written_from_the_document_agrees(name):
    x, seed = gaussian(2**14 + 101), 2**64 - 59
    body = bytes(codecs.named(name).encode(x, seed))
    theirs = torch.tensor(naive_decode(name, body, len(x), seed))
    ours = codecs.named(name).decode(memoryview(body), len(x), seed)
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("percent", ["0.1", "1", "10", "33.3", "100"])
def test_top_k_keeps_the_largest_and_its_bytes_are_as_documented(percent):
    x, name = student(5000), f"topk{percent}%"
    k = math.ceil(5000 * Fraction(percent) / 100)
    body = bytes(codecs.named(name).encode(x, 0))
    low = body[0]
    values = struct.unpack_from(f"<{k}f", body, 1)
    bits = "".join(f"{b:08b}"[::-1] for b in body[1 + 4 * k :])
    unary = bits[8 * math.ceil(low * k / 8) :]
    expected, place, at = torch.zeros(5000), -1, 0
    for i, value in enumerate(values):
        one = unary.index("1", at)
        place += 1 + ((one - at) << low) + int("0" + bits[i * low : (i + 1) * low][::-1], 2)
        at = one + 1
        expected[place] = value
    assert torch.equal(round_trip(name, x), expected)
    largest = x.abs().argsort(descending=True)[:k]
    assert torch.equal(expected[largest], x[largest])
    assert int(expected.count_nonzero()) == k


@pytest.mark.parametrize("inner", [*BITS, "raw32"])
@pytest.mark.parametrize("percent", ["2", "60"])
def test_a_composed_body_is_the_positions_and_the_inner_codecs_body(inner, percent):
    """The body of topkP% with other values in it, as another decoder reads them."""
    x, seed, name = student(600), 2**64 - 59, f"topk{percent}%+{inner}"
    body = bytes(codecs.named(name).encode(x, seed))
    plain = bytes(codecs.named(f"topk{percent}%").encode(x, seed))
    k = 6 * int(percent)
    places = x.abs().argsort(descending=True)[:k].sort().values
    size = len(body) - (len(plain) - 4 * k)
    assert body[:1] == plain[:1]
    assert body[1 + size :] == plain[1 + 4 * k :]
    values = body[1 : 1 + size]
    expected = torch.zeros(600)
    if inner == "raw32":
        expected[places] = torch.tensor(struct.unpack(f"<{k}f", values))
    else:
        expected[places] = torch.tensor(naive_decode(inner, values, k, seed))
    torch.testing.assert_close(round_trip(name, x, seed), expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(expected[places], round_trip(inner, x[places], seed))


@pytest.mark.parametrize(("percent", "least"), [(60, 0.524400513), (10, 1.644853627)])
@pytest.mark.parametrize("inner", EDEN)
def test_a_composed_codec_has_the_error_of_both(percent, least, inner):
    """What |x| < t held, and the inner codec's share of the rest; P = 2 Q(t) for N(0, 1)."""
    x = gaussian(2**18)
    density = math.exp(-(least**2) / 2) / math.sqrt(2 * math.pi)
    held = percent / 100 + 2 * least * density  # E x^2 over |x| >= t
    error = nmse(round_trip(inner, gaussian(2**18, 1)), gaussian(2**18, 1))
    expected = 1 - held + held * error
    assert nmse(round_trip(f"topk{percent}%+{inner}", x), x) == pytest.approx(expected, rel=0.02)


def test_of_equal_numbers_top_k_keeps_the_first():
    x = torch.tensor([1.0, -2, 2, 1, -1, 3, 1, -1, 1, 1])
    assert round_trip("topk50%", x).tolist() == [1, -2, 2, 1, 0, 3, 0, 0, 0, 0]


# codecs are values


@pytest.mark.parametrize("name", [*codecs.CODECS, *COMPOSED])
def test_a_codec_is_a_function_of_vector_and_seed_and_can_be_pickled(name):
    x = gaussian(40_000)
    body = bytes(codecs.named(name).encode(x, 3))
    np.random.seed(1)
    torch.manual_seed(1)
    again = pickle.loads(pickle.dumps(codecs.named(name)))
    assert bytes(again.encode(x.clone(), 3)) == body
    assert len(name.encode()) <= 16
    if name in EDEN or name in UNIFORM:
        assert bytes(again.encode(x, 4)) != body


@pytest.mark.parametrize(
    "name",
    [
        *("", "eden5", "topk%", "topk-1%", "topk1e1%", "topk60%+", "topk60%+eden5", "topk60%eden2"),
        *("topk60%+ eden2", "topk60%+topk10%", "topk60%+topk60%", "topk60%+raw64", "eden2+topk60%"),
        *("topk60%+eden2\n",),
    ],
)
def test_an_unknown_name_is_the_users_mistake(name):
    with pytest.raises(UserError, match="unknown; known are raw32"):
        codecs.named(name)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("topk0%", "the percentage must be above 0 and at most 100"),
        ("topk101%", "the percentage must be above 0 and at most 100"),
        ("topk0%+eden2", "the percentage must be above 0 and at most 100"),
        ("topk0.12345678901%", "has 18 characters; a frame has room for 16"),
        ("topk33.33%+eden2x", "has 17 characters"),
        ("topk33.3%+eden1.6", "has 17 characters"),
        ("topk60%+eden2+int8", "has 18 characters"),
        ("eden2+error", "feedback is a setting of its own, codec.feedback"),
    ],
)
def test_a_name_that_is_nearly_one_is_told_what_is_wrong(name, why):
    with pytest.raises(UserError, match=why):
        codecs.named(name)


def test_a_sparse_codec_inside_a_sparse_one_is_refused():
    with pytest.raises(ValueError, match="sparse codec inside a sparse one"):
        sparse.topk(Fraction(60), codecs.named("topk10%"))


def test_a_percentage_is_exact():
    assert sparse.kept(3_000_000, Fraction("0.1")) == 3000
    assert sparse.kept(10, Fraction("0.001")) == 1


@pytest.mark.parametrize("name", ["topk1%", "sign", "eden1", "qsgd2"])
def test_with_feedback_all_that_was_decoded_is_all_that_was_put_in_less_the_residual(name):
    put_in = decoded = torch.zeros(5000, dtype=torch.float64)
    residual = None
    for seed in range(20):
        update = student(5000, seed).double()
        sent = feedback.compensated(update, residual)
        arrived = round_trip(name, sent, seed)
        residual = feedback.remainder(sent, arrived)
        put_in, decoded = put_in + update, decoded + arrived
    torch.testing.assert_close(decoded, put_in - residual, rtol=0, atol=1e-9)


@pytest.mark.parametrize("with_feedback", [True, False])
def test_top_1_diverges_on_a_quadratic_unless_with_feedback(with_feedback):
    """Beznosikov et al. 2020, example 1: three clients whose largest entries are misleading."""
    a = torch.tensor([[-3.0, 2, 2], [2, -3, 2], [2, 2, -3]])
    x = torch.ones(3)
    residuals = [None] * 3
    for _ in range(600):
        step = torch.zeros(3)
        for i in range(3):
            update = -0.01 * (2 * (a[i] @ x) * a[i] + x / 2)
            sent = feedback.compensated(update, residuals[i]) if with_feedback else update
            arrived = round_trip("topk33%", sent)
            residuals[i] = feedback.remainder(sent, arrived)
            step += arrived / 3
        x = x + step
    assert (x.norm() < 1e-2) if with_feedback else (x.norm() > 1e3)
