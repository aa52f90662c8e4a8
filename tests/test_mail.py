"""Frames between the server and its workers: through shared memory, whole, and not overwritten."""

from multiprocessing import Pipe, get_context

import pytest
import torch

from conftest import softmax_plan
from fedbudget import codecs
from fedbudget.codecs import frame
from fedbudget.engines import mail
from fedbudget.engines.mail import Box

PATIENCE_S = 200
LAYOUT = softmax_plan().build_model().layout


def packed(fill, vectors=1, codec="raw32"):
    values = [torch.full((LAYOUT.size,), float(fill + i)) for i in range(vectors)]
    return frame.pack(values, LAYOUT, run=1, round=2, client=3, seed=4, codec=codec)


def echo(pipe, down, up):
    """A worker that sends each frame back."""
    while True:
        about, came = mail.receive(pipe, down, keep=False)
        if came is None:
            return
        mail.send(pipe, up, {"heard": about["word"]}, came)


@pytest.mark.parametrize("room", [1 << 20, 100])  # in the box; too large for it: through the pipe
def test_frames_cross_to_a_process_and_back(room):
    ours, theirs = Pipe()
    down, up = Box(room), Box(room)
    worker = get_context("spawn").Process(target=echo, args=(theirs, down, up))
    worker.start()
    came = []
    sent = [packed(1), packed(5, vectors=2), packed(7, codec="eden2")]
    for word, one in enumerate(sent):
        mail.send(ours, down, {"word": word}, one)
        assert ours.poll(PATIENCE_S)
        about, back = mail.receive(ours, up, keep=True)
        assert about["heard"] == word
        came.append(back)
    mail.send(ours, down, {}, None)
    worker.join(PATIENCE_S)
    assert worker.exitcode == 0
    for one, back in zip(sent, came, strict=True):  # the earlier ones are still what they were
        assert back.header == one.header
        assert len(back) == len(one)
        assert frame.to_bytes(back) == frame.to_bytes(one)
        for a, b in zip(frame.unpack(back, LAYOUT), frame.unpack(one, LAYOUT), strict=True):
            assert torch.equal(a, b)


def test_a_box_holds_what_was_put_until_something_else_is():
    box = Box(1 << 12)
    assert box.put([b"abc", b"", bytearray(b"defg")])
    first = box.look([3, 0, 4])
    assert [bytes(view) for view in first] == [b"abc", b"", b"defg"]
    assert box.put([b"xyz"])
    assert bytes(first[0]) == b"xyz"
    assert not box.put([bytes(1 << 12), b"1"])
    assert bytes(first[0]) == b"xyz"  # nothing was written
    assert box.put([bytes(1 << 12)])


def test_an_empty_box_takes_no_memory():
    boxes = [Box() for _ in range(64)]  # 64 GB, were it used
    assert all(box.put([b"1"]) for box in boxes)


def test_every_codec_fits_the_way():
    for name in codecs.CODECS:
        one = packed(2, codec=name)
        ours, theirs = Pipe()
        box = Box(1 << 20)
        mail.send(ours, box, {"n": name}, one)
        about, back = mail.receive(theirs, box, keep=True)
        assert about == {"n": name}
        assert frame.to_bytes(back) == frame.to_bytes(one)
