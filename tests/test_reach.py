"""What the papers' knobs can come to, said before training; and whose duals they are."""

import json
import re
from itertools import product

import pytest

from fedbudget import cli
from fedbudget.build import build
from fedbudget.config import find_config, load
from fedbudget.control.policies import Base, cafl, cafl_l, reachable, to_knobs
from fedbudget.errors import UserError
from fedbudget.training import train
from fedbudget.types import Reply

OWN = ["data.source=topics"]


def made(name, *changes):
    return build(load(find_config(name), [*OWN, *changes]))


@pytest.mark.parametrize("name", ["cafl-l", "cafl"])
@pytest.mark.parametrize(
    ("changes", "why"),
    [
        (["budget.memory=50%"], r"no setting meets memory <= 0.17\d+; the least is 0.24\d+"),
        (["budget.communication=1%"], "no setting meets communication <= .*the least is"),
        (["budget.memory=", "budget.temperature=", "budget.communication=1%"], "communication"),
        (["budget.accounting=counted"], r"no setting meets energy <= .* J; the least is .* J"),
    ],
)
def test_a_budget_below_what_the_knobs_can_come_to_is_refused(name, changes, why):
    with pytest.raises(UserError, match=f"{name}: .*{why}") as refused:
        made(name, *changes)
    assert "loosen that in [budget], or take it out" in str(refused.value)


@pytest.mark.parametrize(
    "resource", ["energy", "communication", "downlink", "memory", "temperature"]
)
def test_what_is_named_as_the_least_can_be_met(resource):
    """Rounded up: a budget copied from the sentence must not be refused in its turn."""
    with pytest.raises(UserError, match=f"no setting meets {resource}") as refused:
        made("planner", f"budget.{resource}=1e-9")
    least = re.search("the least is ([^,]+),", str(refused.value))[1]
    others = ("energy", "communication", "memory", "temperature")
    made(
        "planner",
        *(f"budget.{r}=" for r in others if r != resource),
        f'budget.{resource}="{least}"',
    )


def test_it_is_exit_code_2_and_nothing_is_written(tmp_path, monkeypatch, capsys):
    out = tmp_path / "r"
    words = ["run", "cafl-l", "--set", "budget.memory=1%", "--set", OWN[0], "--out", str(out)]
    monkeypatch.setattr("sys.argv", ["fedbudget", *words])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert stop.value.code == 2
    assert "no setting meets memory" in capsys.readouterr().err
    assert not out.exists()


def test_budgets_that_stay_broken_are_foreseen():
    """Fewer layers would do, but the dual that freezes them rests once its own budget is met."""
    slack = ["budget.memory=1000%", "budget.temperature=1000%", "budget.energy=75%"]
    for communication in ("1000%", "20%"):
        changes = ["budget.accounting=counted", *slack, f"budget.communication={communication}"]
        plan = made("cafl", *changes)
        (warning,) = plan.warnings
        found = re.search(r"last 5 of 50 rounds too: energy \(in 50, ends at (\d+)%\)", warning)
        assert found
        assert "communication" not in warning
        state, known = plan.controller.init(), plan.meters[0].__self__
        for _ in range(50):
            used = known.expected(plan.controller.knobs(state, 0))
            replies = [Reply(run=0, round=1, client=0, usage={"counted": used})]
            state = plan.controller.update(state, replies)
        (budgets,) = plan.budgets["counted"]
        assert int(found[1]) == round(100 * used["energy"] / budgets["energy"]) > 120


def test_what_is_foreseen_comes_so(tmp_path):
    """Forecast and training agree: rounds over and the last share, by what was recorded."""
    small = ["model.size=1x16", "model.context=16", "train.steps=40", "train.batch=8", "rounds=6"]
    limits = ["budget.accounting=counted", "budget.communication=", "budget.energy=99%"]
    config = load(find_config("cafl"), [*OWN, *small, *limits, "budget.memory=400%", "workers=1"])
    (warning,) = build(config).warnings
    train(config, tmp_path / "r", show="quiet")
    used = json.loads((tmp_path / "r" / "summary.json").read_text())["usage"]["counted"]["energy"]
    assert f"last 3 of 6 rounds too: energy (in {used['rounds_over']}, " in warning


def test_fixed_knobs_may_break_a_budget_that_others_could_keep_and_no_other():
    small = ["data.source=topics", "model.size=1x16", "model.context=16", "train.steps=2"]
    for limit in ("1 kB", "20 kB"):  # the knobs in [train] take 27.5 kB
        plan = build(load(find_config("fedavg"), [*small, f"budget.communication={limit}"]))
        assert plan.warnings == ()
    change = "budget.communication=100 B"
    least = r"no setting meets communication <= 100 B; the least is \d+ B, at layers=1 steps=1 "
    with pytest.raises(UserError, match=least):
        build(load(find_config("fedavg"), [*small, change]))
    (warning,) = build(load(find_config("fedavg"), [*small, change]), begun=True).warnings
    assert re.match(least, warning)
    with pytest.raises(UserError, match="device class 1: no setting meets communication"):
        build(load(find_config("fedavg"), [*small, "budget.communication=['1 kB', '100 B']"]))


def test_fixed_knobs_by_the_papers_proxies():
    """What nothing could meet, and codes that they do not know: else nobody would see that the
    budget is about nothing."""
    small = ["model.size=1x16", "model.context=16", "budget.accounting=paper"]

    def plan(*changes):
        return build(load(find_config("fedavg"), [*small, *changes]))

    assert plan("budget.memory=0.21").warnings == ()  # batch 1 could, 16 does not
    for limit in ("memory=0.2", "temperature=0.35", "energy=0.1", "communication=10"):
        resource = limit.split("=")[0]
        with pytest.raises(UserError, match=f"no setting meets {resource} <= .*; the least is"):
            plan(f"budget.{limit}")
    strange = ["budget.energy=1e9", "codec.name=sign"]
    with pytest.raises(
        UserError, match=r"codec.name = 'sign': .* know raw32, int8, eden2; take one"
    ):
        plan(*strange)
    config = load(find_config("fedavg"), [*small, *strange])
    told = "codec.name = 'sign': the papers' proxies"
    assert any(warning.startswith(told) for warning in build(config, begun=True).warnings)
    assert not any(warning.startswith(told) for warning in plan("codec.name=sign").warnings)


def test_nothing_is_foreseen_where_budgets_are_met_or_measured():
    easy = ["budget.energy=", "budget.memory=", "budget.temperature="]
    assert made("cafl-l", *easy).warnings == ()
    assert made("planner").warnings == ()
    timed = ["budget.communication=", "budget.accounting=measured", "budget.time=50%"]
    (only,) = made("cafl-l", *easy, *timed).warnings
    assert "has no knob for time" in only


def test_a_class_and_a_clients_own_turns_are_foreseen():
    every = [
        f"budget.{r}=[{v}]" for r, v in (("energy", "'8%', '85%'"), ("memory", "'90%', '90%'"))
    ]
    every += ["budget.communication=['50%', '50%']", "control.eta=0.01"]
    (warning,) = made("classes", *every).warnings
    assert re.match(r"device class 0: cafl-l: .* last 5 of 10 client turns too: energy", warning)


@pytest.mark.parametrize("name", ["cafl-l", "cafl", "clamped"])
def test_one_layer_group_is_too_little_for_the_papers(name):
    with pytest.raises(
        UserError, match=f"'{name}' freezes the blocks .* train.layers to 2 or more"
    ):
        made("cafl-l", f"control.controller={name}", "train.layers=1")


@pytest.mark.parametrize("controller", ["planner", "cafl-l", "rotation"])
@pytest.mark.parametrize("more", [[], ["budget.device=['raspberry-pi-5', 'phone']"]])
def test_a_refusal_names_the_device_class(controller, more):
    only = ["budget.energy=", "budget.memory=", "budget.temperature="]
    poor = "budget.communication=['1 MB', '10 B']"
    with pytest.raises(
        UserError, match=r"^(rounds of all layers: )?device class 1: .*meets communication <= 10 B"
    ):
        made("planner", f"control.controller={controller}", *only, poor, *more)


def test_without_token_preservation_counted_energy_can_be_met():
    made("cafl-l", "budget.accounting=counted", "control.preserve_tokens=false")


def test_the_authors_code_warns_of_its_own_table_1():
    (warning,) = made("table1").warnings
    assert re.search(r"no setting meets energy <= 1.2e\+06; the least is 1.3\d+e\+06", warning)
    (warning,) = made(
        "table1", "budget.energy=1.5e6"
    ).warnings  # once below 90% of all, it loosens all
    assert "too: communication (in 3, ends at 41%)" in warning
    assert "energy" not in warning
    others = ["budget.memory=", "budget.communication=", "budget.temperature="]
    assert made("table1", "budget.energy=2.6e6", *others).warnings == ()  # it turns k in any case


@pytest.mark.parametrize("policy", [cafl_l, cafl])
@pytest.mark.parametrize("named", [("energy",), ("memory",), ("energy", "communication")])
def test_no_dual_leads_below_what_is_called_reachable(policy, named):
    base = Base(3, 180, 16)
    every = reachable(policy, named, base, 4)
    least = [min(getattr(k, key) for k in every) for key in ("layers", "steps", "batch")]
    for prices in product((0.0, 0.05, 0.3, 1.0, 1e6), repeat=len(named)):
        setting = policy(dict(zip(named, prices, strict=True)), base)
        knobs = to_knobs(setting, 0, base, 4)
        found = knobs.layers, knobs.steps, knobs.batch
        assert all(a >= b for a, b in zip(found, least, strict=True))
    far = policy(dict.fromkeys(named, 1e6), base)
    assert [far.k + 1, far.s, far.b] == least


def test_cafls_cut_of_steps_has_a_floor_of_its_own():
    """1.6 p is at most 0.9, so a tenth of the steps is left."""
    limits = ["train.steps=180", "budget.communication=", "budget.memory=", "budget.temperature="]
    made("cafl-l", *limits, "budget.energy=6%")
    with pytest.raises(UserError, match=r"cafl: no setting meets energy .* steps=18"):
        made("cafl", *limits, "budget.energy=6%")


@pytest.mark.parametrize(
    "change", ["eta=0.09", "rule=nupi", "zone=two-sided", "epsilon=0.1", "ema=0.9", "per=client"]
)
def test_what_the_authors_code_has_of_its_own_cannot_be_set(change):
    key, _, value = change.partition("=")
    with pytest.raises(UserError, match=rf"^control.{key} = '?{value}'?: clamped has a step"):
        made("cafl-l", "control.controller=clamped", f"control.{change}")


def test_the_authors_code_preserves_tokens_or_not_and_compresses_as_it_is_told():
    """And each device class has duals of its own."""
    classes = "budget.energy=['10%', '1000%']"
    changes = ["control.controller=clamped", "budget.memory=", "budget.temperature=", classes]
    changes += ["budget.communication=", 'control.thresholds=["energy > 1e-3: int8"]']
    for preserved, accumulated in (("true", 3), ("false", 1)):
        controller = made("cafl-l", *changes, f"control.preserve_tokens={preserved}").controller
        state = controller.init()
        for _ in range(9):
            used = [
                Reply(run=0, round=1, client=client, usage={"paper": {"energy": 1e6}})
                for client in (0, 1)
            ]
            state = controller.update(state, used)
        poor, rich = (controller.knobs(state, client) for client in (0, 1))
        assert (poor.accumulate, poor.codec) == (accumulated, "int8")
        assert (rich.codec, rich.layers) == ("raw32", 4)


def test_gains_of_the_rules_come_from_the_config():
    """One round over budget by 1.5: nuPI's first dual is eta K_I e, its second has K_P in it."""
    only = ["budget.energy=1e6", "budget.memory=", "budget.temperature=", "budget.communication="]
    found = {}
    for gains in (["ki=2"], ["ki=2", "kp=3"], ["ki=2", "kp=3", "nu=0.5"]):
        changes = [f"control.{gain}" for gain in gains]
        controller = made("cafl-l", *only, "control.rule=nupi", *changes).controller
        state = controller.init()
        for used in (1.5e6, 2e6):
            reply = Reply(run=0, round=1, client=0, usage={"paper": {"energy": used}})
            state = controller.update(state, [reply])
        found[len(gains)] = controller.duals(state, 0)["energy"]
    assert found[1] == pytest.approx(0.01 * (2 * 0.5 + 2 * 1 + 1 * 0.5))
    assert found[2] == pytest.approx(0.01 * (2 * 0.5 + 2 * 1 + 3 * 0.5))
    assert found[3] == pytest.approx(0.01 * (2 * 0.5 + 2 * 1 + 3 * 0.25))
    for rule, changes, dual in (
        ("barrier", ["control.mu=0.09"], (0.005 + (0.005**2 + 4 * 0.01 * 0.09) ** 0.5) / 2),
        ("augmented", ["control.rho_max=0.01"], 0.01 * 0.5),
    ):
        controller = made("cafl-l", *only, f"control.rule={rule}", *changes).controller
        reply = Reply(run=0, round=1, client=0, usage={"paper": {"energy": 1.5e6}})
        state = controller.update(controller.init(), [reply])
        assert controller.duals(state, 0)["energy"] == pytest.approx(dual)


@pytest.mark.parametrize(
    ("rules", "why"),
    [
        (
            '["energy >= 1: int8"]',
            "control.thresholds: 'energy >= 1: int8' is no rule; write a res",
        ),
        ('["energy > 1: int9"]', "control.thresholds: codec 'int9' is unknown"),
        (
            '["enrgy > 1: int8"]',
            "control.thresholds: nothing counts 'enrgy'; known are energy, com",
        ),
        ('["energy > 1e999: int8"]', "control.thresholds: 'energy > 1e999: int8': the dual must"),
        ('["energy > 1: eden4"]', "the papers' proxies know no codec 'eden4'"),
        ('["energy > 1: nothing"]', "control.thresholds = 'nothing' would send no update at all"),
    ],
)
def test_a_rule_that_is_none_is_refused(rules, why):
    with pytest.raises(UserError, match=f"^{re.escape(why)}"):
        made("cafl-l", f"control.thresholds={rules}", "budget.memory=")


def test_the_proxies_have_no_unit():
    for given in ("energy=1.2 kJ", "temperature=41 C", "memory=600 kB"):
        with pytest.raises(UserError, match="the papers' proxies have no unit"):
            made("cafl-l", f"budget.{given}")
    made("cafl-l", "budget.communication=160 kB", "budget.energy=0.6e6")


def test_accumulation_is_the_papers_own_choice():
    with pytest.raises(UserError, match="accumulate = 4: cafl-l chooses it itself"):
        made("cafl-l", "train.accumulate=4")


def reply(client, energy):
    usage = {"energy": energy, "communication": 1.0, "memory": 1.0}
    return Reply(run=0, round=1, client=client, usage={"counted": usage})


def test_duals_are_a_clients_a_classes_or_the_cohorts():
    def after(*changes):
        controller = made("classes", *changes).controller
        state = controller.update(controller.init(), [reply(0, 100.0), reply(1, 1e-3)])
        return [dict(controller.duals(state, client)) for client in (0, 3, 1, 4)]

    first, unseen, second, other = after()
    assert first["energy"] > 0 == second["energy"]
    assert unseen == other == {}
    first, same, second, other = after("control.per=class")
    assert first["energy"] > 0 == second["energy"]
    assert same == first
    assert other == second
    with pytest.raises(UserError, match="limits of their own; take class"):
        after("control.per=cohort")
    one = [f"budget.{r}=50%" for r in ("energy", "communication")] + ["budget.memory=75%"]
    first, same, second, _ = after(*one)
    assert first == same == second  # the cohort's
    first, unseen, second, _ = after(*one, "control.per=client")
    assert unseen == {}
    assert first["energy"] > second["energy"]


def test_an_adaptive_server_has_a_small_step_unless_told():
    for server, step in (("adam", 0.01), ("yogi", 0.01), ("momentum", 1.0), ("mean", 1.0)):
        assert load(find_config("fedavg"), [f"train.server={server}"]).train.server_lr == step
    told = load(find_config("fedavg"), ["train.server=adam", "train.server_lr=0.5"])
    assert told.train.server_lr == 0.5


def test_a_run_that_has_begun_goes_on_with_a_warning():
    config = load(find_config("cafl-l"), [*OWN, "budget.memory=1%"])
    (warning,) = build(config, begun=True).warnings
    assert "no setting meets memory" in warning
