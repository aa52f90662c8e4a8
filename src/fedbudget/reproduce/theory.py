"""CAFL's theorems 1 and 2 and lemma 1, in numbers: its policies against the papers' proxies.

No training: usage follows from the duals. `smooth` is the policy that the theorems assume, eqs
10-12 without rounding; `whole` is the published one. `optimum` does not run the ascent: it solves
lambda_j >= 0, usage_j <= budget_j, one of the two with equality.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import chain, combinations, product
from pathlib import Path
from typing import NamedTuple

import matplotlib
import numpy as np
import numpy.typing as npt
from matplotlib.figure import Figure

from fedbudget.control import duals, paper, policies
from fedbudget.control.deadzones import one_sided, two_sided
from fedbudget.control.duals import Rule, ascent
from fedbudget.control.policies import Base, Prices
from fedbudget.files import write
from fedbudget.report.figures import COLOURS
from fedbudget.reproduce.cafl import preset
from fedbudget.resources import proxies

Floats = npt.NDArray[np.float64]
Budgets = Mapping[str, float]
Plant = Callable[[Prices], Mapping[str, float]]
"""lambda -> usage"""
Table = list[list[str]]
"""a head, then rows"""

ETA, EPS = 0.01, 0.05
"""CAFL section 5.1"""
TEXT = Base(3, 60, 16)
"""the base that CAFL section 5.1 states"""
FREE = Base(0, 0, 0)
RESOURCES = ("energy", "communication", "memory")
"""temperature never binds"""
BURST = range(1000, 1010)
"""rounds in which usage is three times what the knobs imply"""
ROUNDS = np.arange(1, 3001.0)


class Case(NamedTuple):
    """The model behind table 1, its base knobs and its budgets."""

    sizes: Sequence[int]
    base: Base
    budgets: Budgets


def table1() -> Case:
    of = preset("table1")
    assert of.known.sizes is not None
    base = Base(of.base.layers - 1, of.base.steps, of.base.batch)
    return Case(of.known.sizes, base, {r: of.budgets[r] for r in (*RESOURCES, "temperature")})


def smooth_knobs(now: Prices, base: Base, floors: Base = FREE) -> tuple[float, float, float]:
    """k, s and b of CAFL eqs 10-12 without rounding."""
    c, m, e, t = (now.get(r, 0.0) for r in ("communication", "memory", "energy", "temperature"))
    k = base.k * (1 - min(1.0, 1.8 * (0.8 * c + 0.8 * m + 0.4 * t)))
    s = base.s * (1 - min(1.6 * (0.9 * e + 1.1 * t), 0.9))
    return max(floors.k, k), max(floors.s, s), max(floors.b, base.b / (1 + 8 * t + 6 * m))


def smooth(of: Case, q: int = 2, floors: Base = FREE) -> Plant:
    """CAFL eqs 4-7 at continuous knobs and one level q: neither paper has a rule for it."""
    c, rest, block = proxies.CAFL, proxies.paper_parameters(of.sizes, 0), of.sizes[1]

    def usage(now: Prices) -> Mapping[str, float]:
        k, s, b = smooth_knobs(now, of.base, floors)
        active = rest + block * k
        return {
            "energy": c.a_e * active * s * b,
            "communication": c.b_c * active * c.bytes[q],
            "memory": c.g_m * (active * b + c.m_base),
            "temperature": c.d_t * (c.t_base + c.e_t * s + c.z_t * b),
        }

    return usage


def whole(of: Case, s_min: int = 10) -> Plant:
    """The published policy, eqs 10-12 with the authors' rule for q, on table 1's proxy."""
    knobs = partial(policies.cafl, base=of.base, s_min=s_min)
    return lambda now: proxies.cafl_l(of.sizes, *knobs(now), policies.compression(now))


def zones(eps: float = EPS) -> dict[str, Callable[[float], float]]:
    """CAFL eq. 9, the authors' code, and neither."""
    one, two = partial(one_sided, eps=eps), partial(two_sided, eps=eps)
    return {"one-sided": one, "two-sided": two, "no zone": partial(two_sided, eps=0.0)}


def rules() -> dict[str, Rule]:
    found = {name: ascent(ETA, zone) for name, zone in zones().items()}
    found |= {"nuPI": duals.nupi(), "augmented Lagrangian": duals.augmented_lagrangian()}
    return {**found, "log-barrier": duals.log_barrier()}


class Course(NamedTuple):
    """Rounds of a rule against a plant, from lambda = 0; row t is round t + 1."""

    duals: Floats  # (rounds, resources)
    ratios: Floats  # (rounds, resources): usage / budget

    def within(self, level: float = 1 + EPS + 0.01) -> int:
        """The round from which every usage / budget is at most `level` for good."""
        return _last(self.ratios.max(1) > level) + 1

    def at_rest(self) -> int:
        """The round from which every dual is within 1% of the largest one's limit."""
        return _last(abs(self.duals - self.duals[-1]).max(1) > 0.01 * self.duals[-1].max()) + 1

    def swings(self) -> bool:
        return bool(np.ptp(self.ratios[-50:], axis=0).max() > 1e-6)

    def overshoots(self) -> bool:
        return bool(self.ratios[-1].max() < 1 + EPS - 1e-6)


def _last(where: npt.NDArray[np.bool_]) -> int:
    hits = np.flatnonzero(where)
    return int(hits[-1]) + 1 if len(hits) else 0


def course(
    plant: Plant, rule: Rule, budgets: Budgets, rounds: int, burst: Sequence[int] = ()
) -> Course:
    """CAFL's algorithm without the training; in the rounds of `burst` usage is threefold."""
    state, seen, ratios = {r: rule.init() for r in budgets}, [], []
    for number in range(rounds):
        now = duals.prices(state)
        usage = {r: used * (3 if number in burst else 1) for r, used in plant(now).items()}
        seen.append(list(now.values()))
        ratios.append([usage[r] / budget for r, budget in budgets.items()])
        state = duals.ascend(rule, state, usage, budgets)
    return Course(np.array(seen), np.array(ratios))


def ratios_at(plant: Plant, budgets: Budgets, at: Floats) -> Floats:
    usage = plant(dict(zip(budgets, at.tolist(), strict=True)))
    return np.array([usage[r] / budget for r, budget in budgets.items()])


def jacobian(f: Callable[[Floats], Floats], at: Floats) -> Floats:
    """d f_i / d lambda_j by central differences."""
    return np.array([(f(at + d) - f(at - d)) / 2e-7 for d in 1e-7 * np.eye(len(at))]).T


def optimum(plant: Plant, budgets: Budgets, level: float = 1.0) -> list[Floats]:
    """Every lambda* with ratios <= level, = level where lambda_j > 0: Newton on each active set."""
    f, n, found = partial(ratios_at, plant, budgets), len(budgets), []
    for active in chain.from_iterable(combinations(range(n), size) for size in range(n + 1)):
        star, on = np.zeros(n), list(active)
        for _ in range(60 if on else 0):
            slopes = jacobian(f, star)[np.ix_(on, on)]
            move = np.linalg.lstsq(slopes, f(star)[on] - level, rcond=None)[0]
            star[on] = np.maximum(0.0, star[on] - np.clip(move, -0.1, 0.1))
        gaps = f(star) - level
        if gaps.max() < 1e-9 and (abs(gaps[on]) < 1e-9).all():
            found.append(star)
    return found


class Panel(NamedTuple):
    """One plot: its lines by name, and the levels (across) and places (down) to mark."""

    title: str
    x: str
    y: str
    lines: Mapping[str, tuple[Floats, Floats]]
    across: Sequence[float] = (1.0,)
    down: Sequence[float] = ()
    log: str = ""
    style: str = "-"


Section = tuple[Table, Sequence[Panel]]
"""what is written about one claim"""


def convergence(of: Case) -> Section:
    """Theorems 1 and 2: the limit of the ascent beside the optimum, and how long it takes."""
    head = "budgets|zone|lambda* (E, C, M)|lambda at the end|usage / budget at the end|"
    head += "worst at round 50|all <= 1.06 from round|lambda within 1% from round"
    table, x = [head.split("|")], "round (line: 50)"
    cases = [(f"{r} alone", {r: of.budgets[r]}, 0) for r in RESOURCES]
    for name, budgets, q in [*cases, ("all, 2 bit", of.budgets, 2), ("all, 32 bit", of.budgets, 0)]:
        (star,) = optimum(smooth(of, q), budgets)
        above, below = [], []
        for zone, dz in zones().items():
            path = course(smooth(of, q), ascent(ETA, dz), budgets, 3000)
            ends = [v[:3].tolist() for v in (star, path.duals[-1], path.ratios[-1])]
            counts = (f"{path.ratios[49].max():.2f}", str(path.within()), str(path.at_rest()))
            table.append([name, zone, *(", ".join(f"{v:.3f}" for v in e) for e in ends), *counts])
            seen = [{r: (ROUNDS, y[:, j]) for j, r in enumerate(budgets)} for y in path]
            above.append(Panel(f"{name}, {zone}", x, "lambda", seen[0], star.tolist(), [50], "x"))
            below.append(Panel("", x, "usage / budget", seen[1], (1, 1.05), [50], "x"))
    return table, [*above, *below]


def tolerance(of: Case) -> Section:
    """Theorem 1 (eq. 15): ||lambda - lambda*|| as the zone shrinks, all budgets."""
    names = (f"{zone}, {bits} bit" for bits in (32, 2) for zone in ("one-sided", "two-sided"))
    table = [["eps", *names], *([eps] for eps in ("0.2", "0.1", "0.05", "0.02", "0.01", "0"))]
    for q in (0, 2):
        (star,) = optimum(smooth(of, q), of.budgets)
        for line in table[1:]:
            for dz in list(zones(float(line[0])).values())[:2]:
                end = course(smooth(of, q), ascent(ETA, dz), of.budgets, 3000).duals[-1]
                line.append(f"{np.linalg.norm(end - star):.4f}")
    return table, []


def bound(of: Case, budgets: Budgets, unit: Base) -> float:
    """1 / (2 L max R) of theorem 1, L and R at lambda = 0; knobs are over `unit`, R over budget."""

    def knobs(at: Floats) -> Floats:
        now = dict(zip(budgets, at.tolist(), strict=True))
        return np.array(smooth_knobs(now, of.base))

    zero = np.zeros(len(budgets))
    steepest = np.linalg.norm(jacobian(knobs, zero) / np.array(unit)[:, None], 2)
    return float(1 / (2 * steepest * ratios_at(smooth(of), budgets, zero).max()))


def edge(of: Case, budgets: Budgets, zone: str, fails: Callable[[Course], bool]) -> str:
    """The first eta, going up from 0.05 by 10% and then by 1%, with which a course fails."""
    eta = 0.05
    for factor in (1.1, 1.01):
        while not fails(course(smooth(of), ascent(eta * factor, zones()[zone]), budgets, 1500)):
            eta *= factor
    return f"{eta * 1.01:.3f}"


def step_size(of: Case) -> Section:
    """Theorem 1's condition on eta beside the eta at which things really go wrong, at 2 bit."""
    table = [["what", "eta", "predicted", "lambda within 1% from round, at this eta, no zone"]]
    energy, steepest = {"energy": of.budgets["energy"]}, []
    for name, budgets in (("energy", energy), ("all", of.budgets)):
        for unit, word in ((Base(1, 1, 1), "k, s, b"), (of.base, "k / k0, s / s0, b / b0")):
            eta = bound(of, budgets, unit)
            path = course(smooth(of), ascent(eta, zones()["no zone"]), budgets, 20000)
            table.append([f"condition: {name}, {word}", f"{eta:.2g}", "", str(path.at_rest())])
        (star,) = optimum(smooth(of), budgets)
        slopes = jacobian(partial(ratios_at, smooth(of), budgets), star)[:, star > 0][star > 0]
        steepest.append(abs(np.linalg.eigvals(slopes)).max())
        found = edge(of, budgets, "no zone", Course.swings)
        table.append([f"{name}, no zone: swings", found, f"{2 / steepest[-1]:.3f}", ""])
    found = edge(of, energy, "one-sided", Course.overshoots)
    table.append(["energy, one-sided: overshoots", found, f"{1 / steepest[0]:.3f}", ""])
    found = edge(of, energy, "two-sided", Course.swings)
    table.append(["energy, two-sided: swings", found, "", ""])
    etas, panels, marks = np.geomspace(0.005, 4, 120), [], (ETA, bound(of, energy, of.base))
    x, y = "eta (lines: the paper's, the condition's)", "energy / budget"
    for zone, dz in zones().items():
        tails = [course(smooth(of), ascent(e, dz), energy, 800).ratios[-30:, 0] for e in etas]
        dots = {"each of the last 30 of 800 rounds": (np.repeat(etas, 30), np.concatenate(tails))}
        panels.append(Panel(zone, x, y, dots, (1.0,), marks, "x", "."))
    return table, panels


def cycles(of: Case) -> Section:
    """What whole knobs do instead of converging: rounds 4001-6000, all budgets."""
    head = "rule|energy|memory|mean energy|mean comm|rounds over 1.05|rounds per swing of k|"
    table, panels = [(head + "all <= 1.05 from round").split("|")], []
    for name, rule in rules().items():
        path = course(whole(of), rule, of.budgets, 6000)
        tail, start = path.ratios[-2000:], path.within(1 + EPS)
        spans = [f"{tail[:, j].min():.3f} to {tail[:, j].max():.3f}" for j in (0, 2)]
        means = [f"{tail[:, j].mean():.3f}" for j in (0, 1)]
        ups = int((np.diff(tail[:, 2]) > 0).sum())  # memory moves with k alone: b is at its floor
        rest = [f"{2000 / ups:.2f}" if ups else "at rest", str(start) if start < 4000 else "never"]
        table.append([name, *spans, *means, f"{(tail.max(1) > 1 + EPS).mean():.1%}", *rest])
        lines = {r: (ROUNDS[:40], tail[:40, j]) for j, r in enumerate(RESOURCES)}
        panels.append(Panel(name, "round, from 4000", "usage / budget", lines, style=".-"))
    return table, [panels[0], panels[1], panels[4]]


def floors(of: Case) -> Section:
    """The least usage that floors leave at any lambda; above 1.05 lambda rises for ever."""
    table = [["floors", "resource", "least usage / budget", "rise of lambda a round, one-sided"]]
    high, low = dict.fromkeys(of.budgets, 1e9), of.base.s * 8 // 10
    cases = [(0, 0, 0, "communication", 0), (1, 0, 0, "communication", 0), (1, 0, 8, "memory", 2)]
    cases += [(2, 0, 8, "memory", 2), (1, 10, 8, "energy", 2), (1, low, 8, "energy", 2)]
    for k, s, b, resource, q in cases:
        ratio = smooth(of, q, Base(k, s, b))(high)[resource] / of.budgets[resource]
        name = f"k >= {k}, s >= {s}, b >= {b}, {(32, 8, 2)[q]} bit"
        table.append([name, resource, f"{ratio:.3f}", f"{ETA * one_sided(ratio, EPS):.2e}"])
    return table, []


def runaway(of: Case) -> Section:
    """lambda_E by round: s >= 0.8 s0, as in the authors' code, leaves no knob that meets energy."""
    plant, model = whole(of, of.base.s * 8 // 10), partial(proxies.of_knobs, sizes=of.sizes)
    found = {n: course(plant, r, of.budgets, 4000).duals[:, 0] for n, r in rules().items()}
    path = paper.simulate(paper.clamped(of.base, len(of.sizes), of.budgets), model, 4000)
    found["the authors' code"] = np.array([p.duals.get("energy", 0.0) for p in path])
    table = [["rule", "lambda_E at round 50", "at round 150", "at round 4000", "growth"]]
    for name, dual in found.items():
        rise, factor = (dual[-1] - dual[-2001]) / 2000, dual[99] / dual[98]
        growth = f"x {factor:.2f} a round" if factor > 1.1 else f"+ {rise:.2e} a round"
        table.append([name, *(f"{dual[t - 1]:.3g}" for t in (50, 150, 4000)), growth])
    lines = {name: (np.arange(2.0, 4001), dual[1:]) for name, dual in found.items()}
    return table, [Panel("", "round", "lambda of energy", lines, (), log="xy")]


def overload(of: Case) -> Section:
    """Energy / budget, continuous knobs, before and after ten rounds of threefold usage."""
    head = "rule|before|first round after|50 after|4990 after|left unused|back within 0.02 after"
    table, lines = [head.split("|")], {}
    for name, rule in rules().items():
        path = course(smooth(of), rule, {"energy": of.budgets["energy"]}, 6000, BURST)
        before, after = path.ratios[BURST.start - 1, 0], path.ratios[BURST.stop :, 0]
        back = _last(abs(after - before) > 0.02)
        shown = (f"{x:.3f}" for x in (before, after[0], after[49], after[-1]))
        unused = f"{max(0.0, 1 - after[-1]):.1%}"
        table.append([name, *shown, unused, str(back) if back < len(after) else "never"])
        lines[name] = (np.arange(-20.0, 120), path.ratios[BURST.start - 20 : BURST.start + 120, 0])
    x = "round, from the overload's first"
    return table, [Panel("", x, "energy / budget", lines, down=(0, 10))]


def reachable(base: Base) -> list[tuple[int, int]]:
    """Every (s, b) that CAFL eqs 11-12 can give: lambda_E moves s alone, lambda_M b alone."""
    grid = [i / 5000 for i in range(5001)]
    steps = {policies.cafl({"energy": x}, base).s for x in grid}
    return sorted(product(steps, {policies.cafl({"memory": x}, base).b for x in grid}))


def shares(base: Base) -> dict[str, Floats]:
    """Lemma 1 (eq. 17): s b G / (s0 b0) of every setting, G by eq. 14 and by two other roundings."""
    s, b = np.array(reachable(base)).T
    up = [policies.accumulation(base, int(x), int(y)) for x, y in zip(s, b, strict=True)]
    near = np.maximum(1, np.floor(base.s * base.b / (s * b) + 0.5))
    runs = (s * np.array(up), s * near, np.rint(base.s * base.b / b))  # micro-batches
    names = ("G rounded up", "G to the nearest", "G fractional")
    return {how: b * n / (base.s * base.b) for how, n in zip(names, runs, strict=True)}


def tokens(of: Case) -> Section:
    """Lemma 1 over all settings, and over 50 rounds of the published controller."""
    cases = {f"s0 = {x.s}, b0 = {x.b}": shares(x) for x in (of.base, TEXT)}
    steps = np.array(reachable(of.base))[:, 0].astype(float)
    first = {how: (steps, x) for how, x in cases["s0 = 180, b0 = 8"].items()}
    panels = [Panel("table 1's base, b = 8", "local steps s", "tokens / target", first)]
    for name, share in cases.items():
        ranks = {h: (np.sort(x), np.linspace(0, 1, len(x))) for h, x in share.items()}
        panels.append(Panel(name, "tokens / target", "share of settings", ranks, ()))
    controller = paper.dual_controller(of.base, len(of.sizes), of.budgets, policies.cafl, ascent())
    path = paper.simulate(controller, partial(proxies.of_knobs, sizes=of.sizes), 50)
    run = np.array([policies.token_ratio(of.base, step.knobs) for step in path])
    table = [["base", "G", "settings", "least", "mean", "most", "more than 1.25x"]]
    for name, share in {**cases, "50 rounds from table 1's base": {"G rounded up": run}}.items():
        for how, x in share.items():
            spread = (f"{v:.3f}" for v in (x.min(), x.mean(), x.max()))
            table.append([name, how, str(len(x)), *spread, f"{(x > 1.25).mean():.0%}"])
    return table, panels


def draw(panels: Sequence[Panel]) -> Figure:
    """Panels by three, or in one row; the lines' names once, below."""
    rows, columns = (len(panels) // 3, 3) if len(panels) > 2 else (1, len(panels))
    with matplotlib.rc_context({"font.size": 9}):
        figure = Figure((9.0 if columns > 1 else 6.4, 2.6 * rows + 0.8), layout="constrained")
        plots = figure.subplots(rows, columns, squeeze=False).flat
        for axes, panel in zip(plots, panels, strict=True):
            for (name, (x, y)), colour in zip(panel.lines.items(), COLOURS, strict=False):
                axes.plot(x, y, panel.style, color=colour, label=name, markersize=3)
            for level in panel.across:
                axes.axhline(level, color="black", linewidth=0.7, linestyle=":")
            for at in panel.down:
                axes.axvline(at, color="grey", linewidth=0.7)
            scales = {f"{axis}scale": "log" for axis in panel.log}
            axes.set(title=panel.title, xlabel=panel.x, ylabel=panel.y, **scales)
            axes.grid(alpha=0.3)
            axes.spines[["top", "right"]].set_visible(False)
        names = figure.axes[0].get_legend_handles_labels()
        figure.legend(*names, loc="outside lower center", ncols=4, frameon=False)
    return figure


def run(out: Path) -> list[str]:
    """Write a figure for each section that has one, and tables.md; the tables' lines, to print."""
    of, lines = table1(), []
    out.mkdir(parents=True, exist_ok=True)
    for make in (convergence, tolerance, step_size, cycles, floors, runaway, overload, tokens):
        (head, *rows), panels = make(of)
        cells = [head, ["---"] * len(head), *rows]
        lines += [f"## {make.__name__}", "", *(f"| {' | '.join(row)} |" for row in cells), ""]
        if panels:
            draw(panels).savefig(out / f"{make.__name__}.png", dpi=110)
    write(out / "tables.md", "\n".join(lines).encode())
    return lines
