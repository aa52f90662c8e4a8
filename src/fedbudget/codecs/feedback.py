"""Error feedback: what a lossy codec left out of one update is added to the next.

A client keeps e, 0 at first; for its update u it sends C(u + e) and keeps u + e - C(u + e)
(Karimireddy et al. 2019). So nothing is lost for good: all that was decoded is all that was put in,
less the last residual. That is what makes the biased codecs (top-k, sign) converge.
"""

from torch import Tensor


def compensated(update: Tensor, residual: Tensor | None) -> Tensor:
    """What to encode: the update and what earlier ones still lack; None before the first."""
    return update if residual is None else update + residual


def remainder(sent: Tensor, decoded: Tensor) -> Tensor:
    """The residual to keep, from what was encoded and what the server will decode."""
    return sent - decoded
