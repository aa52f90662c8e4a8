"""What `train` is given, looked at before anything is made of it."""

from collections.abc import Sequence
from numbers import Integral

from fedbudget.algorithms.algorithm import Algorithm
from fedbudget.constraints import ConstraintSet
from fedbudget.errors import UserError


def whole(**numbers: int | None) -> None:
    for key, value in numbers.items():
        if value is not None and (not isinstance(value, Integral) or isinstance(value, bool)):
            raise UserError(f"{key} = {value!r}: it must be a whole number")


def counts(**numbers: int) -> None:
    whole(**numbers)
    for key, value in numbers.items():
        if value < 1:
            raise UserError(f"{key} = {value}: it must be at least 1")


def kinds(model: object, algorithm: object, codec: object) -> None:
    if not callable(model):  # modules are
        raise UserError(f"model = {model!r}: give a module, or a function that makes one")
    if not isinstance(algorithm, Algorithm):
        raise UserError(
            f"algorithm = {algorithm!r}: give an Algorithm, such as that of "
            "fedbudget.algorithms.scaffold.scaffold()"
        )
    if codec is not None and not isinstance(codec, str):
        raise UserError(f"codec = {codec!r}: give its name, such as 'eden4'")


def sets(algorithm: Algorithm, constraints: Sequence[ConstraintSet] | None, clients: int) -> None:
    if algorithm.agents not in (0, clients):
        raise UserError(
            f"the algorithm is made for {algorithm.agents} agents, but there are {clients} clients"
        )
    if constraints is None:
        if algorithm.agents:
            raise UserError("the algorithm needs constraints: one set per client")
        return
    if len(constraints) != clients:
        raise UserError(
            f"constraints: {len(constraints)} sets for {clients} clients; give each one"
        )
    for number, own in enumerate(constraints):
        if not isinstance(own, ConstraintSet):
            raise UserError(
                f"constraints[{number}] is a {type(own).__name__}; it must be a ConstraintSet, such "
                "as fedbudget.constraints.l1_ball(2.0)"
            )


def choice(key: str, given: str, known: Sequence[str]) -> None:
    if given not in known:
        *some, last = map(repr, known)
        raise UserError(f"{key} = {given!r}: it must be {', '.join(some)} or {last}")
