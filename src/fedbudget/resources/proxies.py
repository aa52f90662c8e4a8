"""Both CAFL papers' unitless resource proxies, with the constants that give their table 1.

They are what the papers report, not what a device spends. They take no number of accumulated
micro-batches G: token preservation (CAFL-L eq. 8) puts back the compute that smaller s and b took
away, and the energy proxy does not see it. They count the embeddings, the final norm and the head
as trained whatever k is, and (in table 1) every parameter as sent. The authors' code also clips
the temperature at its budget; these do not.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from fedbudget.errors import UserError
from fedbudget.models.flat import Layout
from fedbudget.types import Knobs

Usage = dict[str, float]
"""energy (unitless; table 1 prints it in 1e6), communication (bytes), memory and temperature
(unitless)"""

BYTES = (4.0, 1.0, 0.25)
"""bytes per parameter at q = 0, 1, 2: 32, 8 and 2 bits"""

LEVELS: Mapping[str, int] = {"raw32": 0, "int8": 1, "eden2": 2}
"""codec -> q"""


@dataclass(frozen=True)
class CaflLConstants:
    """The constants of CAFL-L A.1. The paper publishes none; these give its table 1."""

    a_e: float = 5e-3
    a_m: float = 1.03
    b_m: float = 2e-8
    a_t: float = 1.0
    g_t: float = 0.0015
    d_t: float = 0.0005
    deep_sparsity: float = 0.8
    """share of the parameters sent when k > 2"""
    shallow_sparsity: float = 0.6
    """share of the parameters sent when k <= 2"""
    sends_all: bool = True
    """whether all parameters are sent, as in table 1, or the trained ones, as A.1 says"""
    bytes: tuple[float, ...] = BYTES


@dataclass(frozen=True)
class CaflConstants:
    """The constants of CAFL eqs 4-7: those of CAFL-L in CAFL's form, and no protocol overhead.

    No single b_c gives both rows of table 1 at tau = 1: FedAvg's needs 2.06, CAFL-L's 4.20.
    """

    a_e: float = 5e-3
    b_c: float = 1.0
    g_m: float = 1.03 * 2e-8
    m_base: float = 0.2 / 2e-8
    d_t: float = 1.0
    t_base: float = 0.35
    e_t: float = 0.0015
    z_t: float = 0.0005
    bytes: tuple[float, ...] = BYTES


TABLE1 = CaflLConstants()
CAFL = CaflConstants()


def group_sizes(layout: Layout) -> tuple[int, ...]:
    """Parameters of each layer group, bottom first: embeddings, each block, norm with head."""
    spans = (layout.span(i, i + 1) for i in range(layout.depth))
    return tuple(span.stop - span.start for span in spans)


def paper_parameters(sizes: Sequence[int], k: int) -> int:
    """P(k) of CAFL eq. 4: the top k blocks, and the bottom and the top group always.

    >>> table1 = (24704, *[198272] * 8, 8576)  # 8 layers x 128, vocabulary 65, context 128
    >>> paper_parameters(table1, 3), paper_parameters(table1, 1), sum(table1)
    (628096, 231552, 1619456)
    """
    blocks = sizes[1:-1]
    return sum(sizes) - sum(blocks[: max(0, len(blocks) - k)])


def cafl_l(
    sizes: Sequence[int], k: int, s: int, b: int, q: int, constants: CaflLConstants = TABLE1
) -> Usage:
    """One client's usage in one round, CAFL-L A.1."""
    c = constants
    active = paper_parameters(sizes, k)
    sparsity = c.deep_sparsity if k > 2 else c.shallow_sparsity
    return {
        "energy": c.a_e * active * s * b,
        "communication": sparsity * (sum(sizes) if c.sends_all else active) * c.bytes[q],
        "memory": c.a_m * (0.2 + c.b_m * active * b),
        "temperature": c.a_t * (0.35 + c.g_t * s + c.d_t * b),
    }


def cafl(
    sizes: Sequence[int],
    k: int,
    s: int,
    b: int,
    q: int,
    tau: int = 1,
    constants: CaflConstants = CAFL,
) -> Usage:
    """Usage of a round of tau clients, CAFL eqs 4-7; tau = 1 gives one client's."""
    c = constants
    active = paper_parameters(sizes, k)
    return {
        "energy": c.a_e * active * s * b * tau,
        "communication": c.b_c * active * c.bytes[q] * tau,
        "memory": c.g_m * (active * b + c.m_base),
        "temperature": c.d_t * (c.t_base + c.e_t * s + c.z_t * b),
    }


def of_knobs(
    knobs: Knobs,
    sizes: Sequence[int],
    proxy: Callable[[Sequence[int], int, int, int, int], Usage] = cafl_l,
    levels: Mapping[str, int] = LEVELS,
) -> Usage:
    """A proxy of our knobs: the papers count blocks, so k = layers - 1; G is left out (above)."""
    q = level(knobs.codec, levels)
    if q is None:
        raise UserError(
            f"the papers' proxies know no codec {knobs.codec!r}; they know {', '.join(levels)}"
        )
    return proxy(sizes, knobs.layers - 1, knobs.steps, knobs.batch, q)


def level(codec: str, levels: Mapping[str, int] = LEVELS) -> int | None:
    """q of a codec; the proxies have a sparsity factor of their own, so a top fraction is left out.

    >>> level("topk60%+eden2"), level("sign")
    (2, None)
    """
    return levels.get(codec.rpartition("+")[2])
