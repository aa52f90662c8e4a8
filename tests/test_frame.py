import struct

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedbudget.codecs import frame
from fedbudget.models.flat import Layout

LAYOUT = Layout(("a", "b", "c"), ((2, 3), (4,), (5,)), (0, 1, 1))


def packed(vectors=None, **changes) -> frame.Packed:
    vectors = [torch.arange(15.0)] if vectors is None else vectors
    about = {"run": 9, "round": 4, "client": 2, "seed": 77, "codec": "raw32"}
    return frame.pack(vectors, LAYOUT, **(about | changes))


@given(
    st.lists(
        st.lists(st.floats(width=32, allow_nan=False), min_size=9, max_size=9),
        min_size=1,
        max_size=3,
    ),
    st.integers(0, 2**64 - 1),
    st.integers(-1, 2**62),
)
def test_what_goes_in_comes_out(rows, seed, client):
    vectors = [torch.tensor(r, dtype=torch.float32) for r in rows]
    out = frame.to_bytes(packed(vectors, seed=seed, client=client, groups=(1, LAYOUT.depth)))
    again = frame.from_bytes(bytes(out))
    assert len(out) == len(packed(vectors, groups=(1, LAYOUT.depth)))
    assert (
        again.header == packed(vectors, seed=seed, client=client, groups=(1, LAYOUT.depth)).header
    )
    for a, b in zip(vectors, frame.unpack(again, LAYOUT), strict=True):
        assert torch.equal(a, b)


def test_every_single_bit_flip_is_refused():
    body = bytes(frame.to_bytes(packed()))
    for i in range(8 * len(body)):
        bad = bytearray(body)
        bad[i // 8] ^= 1 << (i % 8)
        with pytest.raises(frame.FrameError):
            frame.from_bytes(bad)


def test_every_truncation_and_any_text_is_refused():
    body = bytes(frame.to_bytes(packed()))
    for n in range(len(body)):
        with pytest.raises(frame.FrameError):
            frame.from_bytes(body[:n])
    for text in (b"", b"FBGT", b"not a frame at all" * 20, body + b"\0"):
        with pytest.raises(frame.FrameError):
            frame.from_bytes(text)


@given(st.binary(max_size=300))
def test_no_bytes_crash_the_reader(noise):
    with pytest.raises(frame.FrameError):
        frame.from_bytes(noise)


def forged(**changes) -> frame.Packed:
    good = packed()
    return frame.Packed(good.header._replace(**changes), good.bodies)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"digest": b"12345678"}, "another model"),
        ({"size": 2**60}, "elements for layer groups"),
        ({"first": 1}, "elements for layer groups of 9"),
        ({"first": 2}, "layer groups 2 to 2"),
        ({"last": 9}, "layer groups 0 to 9"),
        ({"codec": "rot13"}, "codec 'rot13' is unknown"),
        ({"codec": "raw64"}, "do not hold 15 floats"),
    ],
)
def test_a_frame_with_a_good_checksum_that_lies_is_refused(change, reason):
    again = frame.from_bytes(frame.to_bytes(forged(**change)))
    with pytest.raises(frame.FrameError, match=reason):
        frame.unpack(again, LAYOUT)


def test_a_part_that_reaches_beyond_the_frame_is_refused():
    body = frame.to_bytes(packed())
    at = frame._HEADER.size
    struct.pack_into("<Q", body, at, 2**50)
    struct.pack_into("<I", body, frame._CRC_AT, frame._crc(memoryview(body)))
    with pytest.raises(frame.FrameError, match="beyond the frame"):
        frame.from_bytes(body)


def test_a_frame_that_stays_in_memory_is_not_copied():
    vector = torch.arange(15.0)
    (out,) = frame.unpack(packed([vector]), LAYOUT)
    assert out.data_ptr() == vector.data_ptr()


def test_finite_sees_one_bad_number():
    for bad in (np.nan, np.inf, -np.inf):
        vector = torch.ones(1000)
        assert frame.finite(vector)
        vector[531] = bad
        assert not frame.finite(vector)
