"""Codecs: a vector as bytes on the wire and back. `named` is the list of them."""

from fedbudget.codecs.codec import Codec
from fedbudget.codecs.raw import raw32, raw64
from fedbudget.errors import UserError

CODECS = ("raw32", "raw64")


def named(name: str) -> Codec:
    """The codec a knob or a frame names."""
    match name:
        case "raw32":
            return raw32
        case "raw64":
            return raw64
        case _:
            raise UserError(f"codec {name!r} is unknown; known are {', '.join(CODECS)}")
