"""Cost to target: energy, bytes and rounds until the validation loss first reached a value."""

from collections.abc import Mapping, Sequence
from statistics import fmean

from fedbudget.errors import UserError
from fedbudget.report.load import Loaded, by_name
from fedbudget.report.sheets import Sheet, spread

AT = 0.6
"""of the first config's rounds: where the default target is read"""
Costs = Mapping[str, float]


def cost_to(run: Loaded, target: float) -> dict[str, float] | None:
    """What it took, over all clients, until the validation loss first reached the target."""
    for number, record in enumerate(run.records, 1):
        loss = (record.get("validation") or {}).get("loss")
        if loss is not None and loss <= target:
            return cost_of(run, number)
    return None


def cost_of(run: Loaded, rounds: int) -> dict[str, float]:
    """What a run's first rounds took, over all clients."""
    spent = {"rounds": 0.0, "energy": 0.0, "uplink": 0.0, "time": 0.0, "device time": 0.0}
    for record in run.records[:rounds]:
        counted = record.get("usage", {}).get("counted", {})
        if world := record.get("world"):
            spent["energy"] += world["wasted_j"]
            spent["device time"] = world["clock_s"]
        spent["rounds"] += 1
        spent["energy"] += sum(use.get("energy", 0.0) for use in counted.values())
        spent["uplink"] += record["up_bytes"]
        spent["time"] += record["wall_s"]
    return spent


def default_target(runs: Sequence[Loaded]) -> tuple[float, int]:
    """Mean over seeds of the first config's loss at 60% of its rounds, and that round."""
    name, same = next(iter(by_name(runs).items()))
    round = max(1, int(AT * same[0].summary["rounds"]))
    losses = [loss for run in same for number, loss in run.losses() if number == round]
    if len(losses) < len(same):
        raise UserError(f"{name} was not evaluated in round {round}; name a loss with --target")
    return fmean(losses), round


def target_rows(runs: Sequence[Loaded], target: float) -> list[list[str]]:
    """Mean and spread over the seeds that reached it; shares are of the first config's, by seed."""
    groups = by_name(runs)
    first = {run.seed: cost_to(run, target) for run in next(iter(groups.values()))}
    found = []
    for name, same in groups.items():
        reached = {run.seed: c for run in same if (c := cost_to(run, target)) is not None}
        costs = list(reached.values())
        pairs = [(c, own) for seed, c in reached.items() if (own := first.get(seed))]
        found.append(
            [
                name,
                f"{len(costs)} of {len(same)}",
                spread([c["rounds"] for c in costs], ".0f"),
                _amount([c["energy"] for c in costs if c["energy"] > 0], "J"),
                _share(pairs, "energy"),
                _amount([c["uplink"] for c in costs], "B"),
                _share(pairs, "uplink"),
                _amount([c["time"] for c in costs], "s"),
            ]
            + ([_amount([c["device time"] for c in costs], "s")] if simulated(runs) else [])
        )
    return found


def simulated(runs: Sequence[Loaded]) -> bool:
    """Whether there is a clock of the devices' own."""
    return any(record.get("world") for run in runs for record in run.records[:1])


WHOLE = {"G": 1e9, "M": 1e6, "k": 1e3, "": 1.0}
PREFIXES = {**WHOLE, "m": 1e-3, "µ": 1e-6}


def _amount(values: Sequence[float], unit: str) -> str:
    """Mean and spread with three or four digits and a prefix."""
    if not values:
        return "-"
    big = fmean(values)
    known = PREFIXES if unit == "J" else {"": 1.0} if unit == "s" else WHOLE
    prefix, scale = next(((p, x) for p, x in known.items() if big >= x), [*known.items()][-1])
    form = ".0f" if big / scale >= (10 if unit == "s" else 100) else ".2f"
    return f"{spread([v / scale for v in values], form)} {prefix}{unit}"


def _share(pairs: Sequence[tuple[Costs, Costs]], what: str) -> str:
    shares = [100 * c[what] / own[what] for c, own in pairs if min(c[what], own[what]) > 0]
    return spread(shares, ".1f") + "%" if shares else "-"


def target_sheet(runs: Sequence[Loaded], target: float, at: int | None = None) -> Sheet:
    """`at` is the round of the first config that the target was read at, if it was."""
    first, same = next(iter(by_name(runs).items()))
    of = f"of {first}'s"
    columns = ["run", "reached by", "rounds", "energy", of, "uplink", of, "time"]
    text = "counted, over all clients, until the loss was first reached; ± over seeds."
    if simulated(runs):
        columns += ["device time"]
        text += (
            " time is this machine's; device time is the simulated fleet's, and energy has what "
            "was spent in vain."
        )
    if at is not None:
        text += f" The target is {first}'s mean loss at round {at}."
        full = {run.seed: cost_of(run, at) for run in same}
        for name, others in list(by_name(runs).items())[1:]:
            reached = {run.seed: c for run in others if (c := cost_to(run, target)) is not None}
            pairs = [(c, full[seed]) for seed, c in reached.items() if seed in full]
            if pairs and all(c["energy"] > 0 for pair in pairs for c in pair):
                few = ""
                if len(pairs) < len(others):
                    few = f", in the {len(pairs)} of {len(others)} seeds that reached it"
                text += (
                    f" Over what {first} spends in {at} round{'s' * (at > 1)}, {name} took "
                    f"{_share(pairs, 'energy')} of the energy and {_share(pairs, 'uplink')} of the "
                    f"uplink{few}."
                )
    return Sheet(columns, target_rows(runs, target), text, f"cost to a loss of {target:.4g}")
