"""What can be reproduced, by name. Each imports its own: a table of proxies needs no training."""

from collections.abc import Sequence
from pathlib import Path

from fedbudget.config import unseeded
from fedbudget.errors import UserError
from fedbudget.terminal import say

NAMES = ("cafl", "theory", "pc-fedavg", "policies", "codecs")


def reproduce(
    what: str, out: Path, seeds: int, quick: bool, full: bool, overrides: Sequence[str]
) -> list[str]:
    """Tables and figures into `out`; the lines to print."""
    trains = not (what == "theory" or (what == "cafl" and quick))
    if full and not (trains and what == "cafl"):
        raise UserError(f"reproduce {what}: --full is for cafl, with training")
    if overrides and not (trains and what != "pc-fedavg"):
        raise UserError(
            f"reproduce {what}{' --quick' if quick else ''}: --set {overrides[0]} would change nothing; "
            "it is for cafl (with training), policies and codecs"
        )
    unseeded(f"reproduce {what}", overrides)
    match what:
        case "cafl":
            from fedbudget.reproduce import cafl, trained

            trained.check(full, overrides)
            lines = cafl.run(out)
            if quick:
                return lines
            print("\n".join(lines))
            return trained.run(out, seeds, full, overrides)
        case "theory":
            from fedbudget.reproduce import theory

            return theory.run(out)
        case "pc-fedavg":
            from fedbudget.reproduce import pc_fedavg, rates

            lines = pc_fedavg.run(out, quick, say)
            return [*lines, "theorem 3.4 by numbers", "", rates.run(out, quick)]
        case "policies":
            from fedbudget.reproduce import policies

            return policies.run(out, seeds, quick, overrides)
        case "codecs":
            from fedbudget.reproduce import codecs

            return codecs.run(out, seeds, quick, overrides)
    known = f"{', '.join(NAMES[:-1])} or {NAMES[-1]}"
    raise UserError(f"reproduce {what}: it must be {known}")
