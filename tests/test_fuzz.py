"""Bytes and texts that nobody meant to send: frames and configs, changed at random from a seed."""

import resource
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch

from fedbudget import codecs
from fedbudget.codecs import frame
from fedbudget.config import Config, load, presets, to_toml
from fedbudget.errors import UserError
from fedbudget.models.flat import Layout

LAYOUT = Layout(("a", "b", "c"), ((9, 3), (20,), (33,)), (0, 1, 2))
NAMES = (*codecs.CODECS, "topk60%+int8", "topk10%+eden2", "topk7.5%+sign")
EXTREMES = (0, 1, 2**7, 2**8 - 1, 2**15, 2**16 - 1, 2**31, 2**32 - 1, 2**62, 2**63, 2**64 - 1)
ROOM = 192 << 20
"""bytes that decoding may ask for beyond what the process has: torch and NumPy warm up in less"""


def whole_frames() -> list[bytes]:
    """Each codec's frame of the whole model, of its top, and of two vectors."""
    rng = torch.Generator().manual_seed(4)
    found = []
    for i, name in enumerate(NAMES):
        for first, vectors in ((0, 1), (1, 1), (0, 2)):
            span = LAYOUT.span(first, LAYOUT.depth)
            dtype = torch.float64 if name == "raw64" else torch.float32
            parts = [
                torch.randn(span.stop - span.start, generator=rng, dtype=dtype)
                for _ in range(vectors)
            ]
            about = {"run": 9, "round": 4, "client": i, "seed": 77 + i, "codec": name}
            packed = frame.pack(parts, LAYOUT, **about, groups=(first, LAYOUT.depth))
            found.append(bytes(frame.to_bytes(packed)))
    return found


def changed(body: bytes, rng: np.random.Generator, others: list[bytes]) -> bytes:
    """One to three changes: bytes, lengths, header fields, the codec's name; often a new checksum."""
    new = bytearray(body)
    for _ in range(rng.integers(1, 4)):
        at = int(rng.integers(0, max(1, len(new))))
        match rng.integers(0, 7):
            case 0 if new:
                new[at] = rng.integers(0, 256)
            case 1:
                del new[at:]
            case 2:
                new[at:at] = rng.bytes(int(rng.integers(1, 40)))
            case 3:
                del new[at : at + int(rng.integers(1, 20))]
            case 4 if len(new) >= frame._HEADER.size:
                _set_field(new, rng)
            case 5 if len(new) >= frame._HEADER.size:
                name = NAMES[rng.integers(0, len(NAMES))].encode()
                new[46:62] = name.ljust(16, b"\0")
            case 6:
                other = others[rng.integers(0, len(others))]
                new[at:] = other[at:]
    if len(new) >= frame._HEADER.size and rng.random() < 0.8:
        if rng.random() < 0.7:
            struct.pack_into("<Q", new, frame._CRC_AT - 8, len(new) - frame._HEADER.size)
        struct.pack_into("<I", new, frame._CRC_AT, frame._crc(memoryview(new)))
    return bytes(new)


FIELDS = ((5, "<B"), (6, "<H"), (8, "<H"), (18, "<Q"), (26, "<I"), (30, "<Q"), (38, "<Q"))
FIELDS = (*FIELDS, (62, "<Q"), (70, "<Q"), (82, "<Q"))
"""where the header's numbers are, and the first part's length"""


def _set_field(body: bytearray, rng: np.random.Generator) -> None:
    at, kind = FIELDS[rng.integers(0, len(FIELDS))]
    size = struct.calcsize(kind)
    if at + size <= len(body):
        value = EXTREMES[rng.integers(0, len(EXTREMES))]
        struct.pack_into(kind, body, at, value % 2 ** (8 * size))


@contextmanager
def limited_memory() -> Iterator[None]:
    """A request for much more than there is fails, be it torch's or NumPy's, used or not."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    before = resource.getrlimit(resource.RLIMIT_AS)
    most = pages * resource.getpagesize() + ROOM
    resource.setrlimit(resource.RLIMIT_AS, (most, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def read_changed_frames(count: int, seed: int) -> int:
    """Only FrameError may come of them; how many were still valid."""
    frames = whole_frames()
    rng = np.random.default_rng(seed)
    valid = 0
    for body in frames:  # warm up: tables, transforms
        frame.unpack(frame.from_bytes(body), LAYOUT)
    with limited_memory():
        for _ in range(count):
            bad = changed(frames[rng.integers(0, len(frames))], rng, frames)
            try:
                packed = frame.from_bytes(bad)
                vectors = frame.unpack(packed, LAYOUT)
            except frame.FrameError as error:
                assert str(error)
                continue
            valid += 1
            assert all(len(v) == packed.header.size <= LAYOUT.size for v in vectors)
    return valid


def test_changed_frames_are_read_or_refused_within_bounded_memory():
    valid = read_changed_frames(20_000, seed=1)
    assert 200 < valid < 19_000  # neither all nor none get past the checksum


@pytest.mark.slow
def test_a_million_changed_frames_are_read_or_refused():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert read_changed_frames(1_000_000, seed=2) > 10_000
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 64 << 10  # kilobytes: nothing is kept of them either


@pytest.mark.parametrize("codec", NAMES)
def test_every_single_bit_flip_of_a_codecs_frame_is_refused(codec):
    vector = torch.linspace(-1, 1, LAYOUT.size, dtype=LAYOUT.dtype)
    packed = frame.pack([vector], LAYOUT, run=9, round=4, client=2, seed=77, codec=codec)
    body = bytes(frame.to_bytes(packed))
    for bit in range(8 * len(body)):
        bad = bytearray(body)
        bad[bit // 8] ^= 1 << bit % 8
        with pytest.raises(frame.FrameError):
            frame.from_bytes(bad)


VALUES = (
    *("0", "-1", "1", "true", "nan", "-inf", "1e400", "1_0", "0x1f", "9" * 30, "9" * 5000),
    *('""', '"many"', "'²x5'", '"0x0"', '"9x9"', '"a:b"', '"x\\u0000"', '"\\n"', "'''\na\n'''"),
    *("[]", "[[1]]", "[1, 2, 3]", "{}", "{a = 1}", "1979-05-27", "07:32:00", "[" * 3000, ""),
    *('"60 kB"', '"27%"', '"-5%"', '"1e999 J"', '["1 kB", "2 kB"]', '"nothing"', '"topk0%"'),
)


def mutated(text: str, rng: np.random.Generator) -> bytes:
    """A config with one to four changes: bytes, lines, keys, values, tables."""
    lines = text.splitlines()
    for _ in range(rng.integers(1, 5)):
        i = int(rng.integers(0, len(lines)))
        match rng.integers(0, 7):
            case 0:
                key = lines[i].partition("=")[0].strip() or "rounds"
                lines[i] = f"{key} = {VALUES[rng.integers(0, len(VALUES))]}"
            case 1:
                lines.insert(int(rng.integers(0, len(lines))), lines[i])
            case 2 if len(lines) > 1:
                del lines[i]
            case 3:
                other = lines[rng.integers(0, len(lines))]
                lines[i] = lines[i].partition("=")[0] + "=" + other.partition("=")[2]
            case 4:
                lines[i] = lines[i].replace("_", "-").replace("]", ".x]")
            case 5:
                word = list(lines[i] or "x")
                word[rng.integers(0, len(word))] = chr(rng.integers(1, 0x2FF))
                lines[i] = "".join(word)
            case 6:
                name = list(Config.model_fields)[rng.integers(0, len(Config.model_fields))]
                lines.append(f"[{name}]\n{lines[i]}")
    body = bytearray("\n".join(lines).encode())
    if rng.random() < 0.2 and body:
        body[rng.integers(0, len(body))] = rng.integers(0, 256)
    return bytes(body)


def load_mutated_configs(folder: Path, count: int, seed: int) -> int:
    """Each is valid, and reads back from what a run folder would keep, or is one sentence."""
    texts = [path.read_text() for path in presets().values()]
    texts += [to_toml(load(path)) for path in presets().values()]
    rng = np.random.default_rng(seed)
    path = folder / "c.toml"
    valid = 0
    for _ in range(count):
        body = mutated(texts[rng.integers(0, len(texts))], rng)
        path.write_bytes(body)
        try:
            settings = load(path)
        except UserError as error:
            assert str(error).startswith(f"{path}: "), body
            assert len(str(error).splitlines()) == 1, body
            continue
        valid += 1
        path.write_text(to_toml(settings), encoding="utf-8")
        assert load(path) == settings, body
    return valid


def test_mutated_configs_are_valid_or_one_sentence(tmp_path):
    assert 10 < load_mutated_configs(tmp_path, 300, seed=1) < 290


@pytest.mark.slow
def test_many_mutated_configs_are_valid_or_one_sentence(tmp_path):
    assert load_mutated_configs(tmp_path, 2000, seed=2) > 100


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (b"\xff\xfe", "not valid TOML"),
        (b"rounds = " + b"9" * 5000, "not valid TOML"),
        (b"rounds = " + b"[" * 100_000, "not valid TOML: it is nested too deeply"),
    ],
)
def test_what_toml_cannot_say_is_one_sentence(tmp_path, text, sentence):
    (tmp_path / "c.toml").write_bytes(text)
    with pytest.raises(UserError, match=sentence):
        load(tmp_path / "c.toml")
