"""Dead zones: how far usage / budget is outside a band round 1, and in which direction."""


def one_sided(ratio: float, eps: float = 0.05) -> float:
    """CAFL eq. 9. Never negative: with it a dual can only rise, and unused budget stays unused.

    >>> one_sided(1.5, eps=0.25), one_sided(1.1, eps=0.25), one_sided(0.25, eps=0.25)
    (0.25, 0.0, 0.0)
    """
    return max(0.0, ratio - (1 + eps))


def two_sided(ratio: float, eps: float = 0.05) -> float:
    """The authors' code; CAFL-L eq. 4 leaves dz open. Below the band the dual falls again.

    >>> two_sided(1.5, eps=0.25), two_sided(1.1, eps=0.25), two_sided(0.25, eps=0.25)
    (0.25, 0.0, -0.5)
    """
    return max(0.0, ratio - (1 + eps)) + min(0.0, ratio - (1 - eps))
