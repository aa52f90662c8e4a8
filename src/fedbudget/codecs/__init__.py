"""Codecs: a vector as bytes on the wire and back. `named` is the list of them."""

import re
from fractions import Fraction

from fedbudget.codecs.codec import Codec
from fedbudget.codecs.eden import eden1, eden1_6, eden2, eden3, eden4
from fedbudget.codecs.nothing import nothing
from fedbudget.codecs.qsgd import qsgd2, qsgd4, qsgd8
from fedbudget.codecs.raw import raw32, raw64
from fedbudget.codecs.sign import sign
from fedbudget.codecs.sparse import topk
from fedbudget.codecs.uniform import int8, uniform2, uniform4
from fedbudget.errors import UserError, about

NOTHING = "nothing"
"""what a client may send in place of an update; no choice for all of them"""
_DENSE = {
    "raw32": raw32,
    "int8": int8,
    "uniform4": uniform4,
    "uniform2": uniform2,
    "eden4": eden4,
    "eden3": eden3,
    "eden2": eden2,
    "eden1.6": eden1_6,
    "eden1": eden1,
    "qsgd8": qsgd8,
    "qsgd4": qsgd4,
    "qsgd2": qsgd2,
    "sign": sign,
}
_NAMED = {
    **_DENSE,
    "raw64": raw64,
    NOTHING: nothing,
    "topk1%": topk(Fraction(1)),
    "topk10%": topk(Fraction(10)),
}
CODECS = tuple(_NAMED)
"""Names to choose from; any other percentage also names a top-k, alone or with a dense codec."""
_NAME_BYTES = 16  # what a frame has room for


def named(name: str) -> Codec:
    """The codec a knob or a frame names."""
    if name in _NAMED:
        return _NAMED[name]
    parts = re.fullmatch(r"topk(\d+(?:\.\d+)?)%(?:\+(.+))?", name, re.ASCII)
    if parts and len(name) > _NAME_BYTES:
        raise UserError(
            f"codec {name!r} has {len(name)} characters; a frame has room for {_NAME_BYTES}"
        )
    if parts and not 0 < Fraction(parts[1]) <= 100:
        raise UserError(f"codec {name!r}: the percentage must be above 0 and at most 100")
    if parts and (inner := _DENSE.get(parts[2] or "raw32")) is not None:
        return topk(Fraction(parts[1]), inner)
    if name.rpartition("+")[2] in ("error", "momentum"):
        raise UserError(f"codec {name!r}: feedback is a setting of its own, codec.feedback")
    raise UserError(
        f"codec {name!r} is unknown; known are {', '.join(n for n in CODECS if n != NOTHING)}, "
        "topkP% for 0 < P <= 100, and "
        f"topkP%+NAME, in at most {_NAME_BYTES} characters, where NAME is {', '.join(_DENSE)}"
    )


def chosen(name: str, where: str) -> Codec:
    """The codec that a user names for every update; `where` is the setting that names it."""
    if name == NOTHING:
        raise UserError(f"{where} = {name!r} would send no update at all; take raw32")
    with about(where):
        return named(name)
