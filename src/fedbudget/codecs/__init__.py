"""Codecs: a vector as bytes on the wire and back. `named` is the list of them."""

import re
from fractions import Fraction

from fedbudget.codecs.codec import Codec
from fedbudget.codecs.eden import eden1, eden1_6, eden2, eden4
from fedbudget.codecs.qsgd import qsgd2, qsgd4, qsgd8
from fedbudget.codecs.raw import raw32, raw64
from fedbudget.codecs.sign import sign
from fedbudget.codecs.sparse import topk
from fedbudget.codecs.uniform import int8, uniform2, uniform4
from fedbudget.errors import UserError

_NAMED = {
    "raw32": raw32,
    "raw64": raw64,
    "int8": int8,
    "uniform4": uniform4,
    "uniform2": uniform2,
    "eden4": eden4,
    "eden2": eden2,
    "eden1.6": eden1_6,
    "eden1": eden1,
    "qsgd8": qsgd8,
    "qsgd4": qsgd4,
    "qsgd2": qsgd2,
    "sign": sign,
    "topk1%": topk(Fraction(1)),
    "topk10%": topk(Fraction(10)),
}
CODECS = tuple(_NAMED)
"""Names to choose from; any other percentage also names a top-k."""
_NAME_BYTES = 16  # what a frame has room for


def named(name: str) -> Codec:
    """The codec a knob or a frame names."""
    if name in _NAMED:
        return _NAMED[name]
    percent = re.fullmatch(r"topk(\d+(?:\.\d+)?)%", name, re.ASCII)
    if percent and len(name) <= _NAME_BYTES and 0 < Fraction(percent[1]) <= 100:
        return topk(Fraction(percent[1]))
    raise UserError(
        f"codec {name!r} is unknown; known are {', '.join(CODECS)}, and topkP% for 0 < P <= 100"
    )
