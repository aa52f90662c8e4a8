import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedbudget import config
from fedbudget.build import build, prepare
from fedbudget.config import Config, find_config, load, presets, to_toml, validate
from fedbudget.errors import UserError


def write(tmp_path, text):
    path = tmp_path / "c.toml"
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("round = 5", "unknown key round; did you mean rounds? known are name, rounds"),
        ("[trian]\nlr = 1", "unknown table trian; did you mean train? known are"),
        ("[train]\nlrr = 1", "unknown key train.lrr; did you mean train.lr? known are cohort"),
        ("rounds = 0", "rounds = 0: input should be greater than or equal to 1"),
        ('rounds = "many"', 'rounds = "many": it must be a whole number'),
        ("rounds = 1.5", "rounds = 1.5: it must be a whole number"),
        ("[train]\nlr = -1.0", "train.lr = -1.0: input should be greater than 0"),
        ("[train]\nlr = nan", "train.lr = NaN: input should be a finite number"),
        ('[train]\nlr = "big"', 'train.lr = "big": it must be a number'),
        ("[train]\noptimizer = 'adam'", "train.optimizer = \"adam\": it must be 'adamw' or 'sgd'"),
        ("train = 3", "train = 3: it must be a table"),
        ("[train]\ncohort = 17", "train.cohort = 17 is more than data.clients = 16"),
        ("[model]\nsize = 'big'", "model.size = 'big': it must be layers x width"),
        ("[model]\nheads = 7", "model.heads = 7 does not divide the width 128"),
        ("[data]\nsource = 'text'", 'data.source = "text" needs data.path'),
        ("rounds = ", "not valid TOML"),
        ("[train]\nbetas = [2.0, 0.9]", "train.betas = [2.0, 0.9]: it must be two numbers"),
        ("[train]\nbetas = [0.9]", "train.betas = [0.9]: it must be two numbers"),
        ("[model]\nsize = '²x5'", "model.size = '²x5': it must be layers x width"),
        ("algorithm = 'fedsgd'", "algorithm = \"fedsgd\": it must be 'fedavg'"),
    ],
)
def test_a_mistake_is_one_sentence_with_file_key_value_and_what_is_allowed(
    tmp_path, text, sentence
):
    with pytest.raises(UserError) as error:
        load(write(tmp_path, text))
    assert sentence in str(error.value)
    assert "c.toml: " in str(error.value)
    assert "\n" not in str(error.value)


def test_an_override_without_a_value_takes_a_key_out(tmp_path):
    path = write(tmp_path, "[train]\nlr = 0.5\n[budget]\nenergy = '3 J'\nmemory = '9 MB'")
    settings = load(path, ["budget.energy=", "train.lr= "])
    assert settings.budget.classes == [{"memory": "9 MB"}]
    assert settings.train.lr == Config().train.lr
    with pytest.raises(UserError, match=r"there is no budget.enrgy to take out; give it a value"):
        load(path, ["budget.enrgy="])


def test_a_file_may_begin_with_a_mark_of_byte_order(tmp_path):
    path = tmp_path / "c.toml"
    path.write_bytes(b"\xef\xbb\xbfrounds = 5\n")
    assert load(path).rounds == 5


def test_overrides_change_a_key_and_bare_words_are_text(tmp_path):
    path = write(tmp_path, "rounds = 5\n[train]\nlr = 0.1\n")
    settings = load(path, ["rounds=7", "train.optimizer=sgd", "train.betas=[0.8, 0.9]", "seed = 3"])
    assert (settings.rounds, settings.seed, settings.train.optimizer) == (7, 3, "sgd")
    assert settings.train.betas == (0.8, 0.9)
    assert settings.train.lr == 0.1
    for bad, sentence in {"rounds": "key=value", "rounds.x=1": "not a table"}.items():
        with pytest.raises(UserError, match=sentence):
            load(path, [bad])


@pytest.mark.parametrize("name", presets())
def test_every_preset_is_valid_and_starts_with_what_it_is(name):
    path = find_config(name)
    assert path.read_text().startswith("# ")
    assert isinstance(load(path), Config)


def test_the_planner_in_halves_has_the_budgets_of_the_planner_in_all():
    """Twice the rounds with half of what adds up; memory and temperature are not used up."""
    whole, halves = (load(find_config(name)) for name in ("planner", "planner-often"))
    times = halves.rounds / whole.rounds
    for resource, share in whole.budget.model_dump().items():
        adds_up = resource in ("energy", "communication")
        own = halves.budget.model_dump()[resource]
        if adds_up:
            assert float(own.rstrip("%")) * times == pytest.approx(float(share.rstrip("%")))
        else:
            assert own == share
    same = halves.model_copy(
        update={
            "name": whole.name,
            "rounds": whole.rounds,
            "budget": whole.budget,
            "train": halves.train.model_copy(
                update={
                    key: getattr(whole.train, key) for key in ("server_momentum", "evaluate_every")
                }
            ),
            "control": halves.control.model_copy(update={"thrift": whole.control.thrift}),
        }
    )
    assert same == whole


def test_a_name_that_is_neither_file_nor_preset_gets_the_nearest(tmp_path):
    with pytest.raises(UserError, match="did you mean fedavg"):
        find_config("fedavgg")
    with pytest.raises(UserError, match="No such file"):
        load(tmp_path / "none.toml")


def test_the_resolved_config_says_everything_and_reads_back(tmp_path):
    settings = load(find_config("fedavg"), ["seed=4", "model.layers=['tokens','blocks']"])
    text = to_toml(settings)
    assert load(write(tmp_path, text)) == settings
    assert "overlap = 48  # contiguous: tokens a shard" in text
    odd = load(find_config("fedavg"), ["name=\U0001f600\x7f[/x]"])
    assert load(write(tmp_path, to_toml(odd))) == odd


values = st.one_of(
    st.integers(-3, 99),
    st.floats(allow_nan=True),
    st.text(max_size=5),
    st.booleans(),
    st.lists(st.integers(), max_size=3),
    st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
)
tables = [n for n, f in Config.model_fields.items() if n in ("data", "model", "train")]


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"budget": {"device": 5}}, "budget.device = 5: it must be a string"),
        ({"budget": {"device": ["phone", 3]}}, "budget.device.1 = 3: it must be a string"),
        ({"budget": {"energy": ["6 J", True]}}, "budget.energy.1 = true: it must be an amount"),
        ({"world": {"memory": True}}, "world.memory = true: it must be a number"),
        ({"budget": 3}, "budget = 3: it must be a table"),
    ],
)
def test_no_name_of_a_type_stands_in_a_key(given, sentence):
    with pytest.raises(UserError, match=re.escape(sentence)):
        validate(given, "x.toml")


def test_a_value_of_several_types_is_named_by_its_key():
    for value, shown in ((True, "true"), ({"a": 1}, '{"a": 1}')):
        with pytest.raises(UserError) as error:
            validate({"budget": {"energy": value}}, "x.toml")
        sentence = f'budget.energy = {shown}: it must be an amount such as "600 kB", or a number'
        assert str(error.value) == f"x.toml: {sentence}"
    with pytest.raises(UserError, match=r"train\.steps = true: it must be a whole number$"):
        validate({"train": {"steps": True, "batch": True}}, "x.toml")


@given(st.sampled_from([*Config.model_fields, "nonsense"]), st.text(max_size=6), values)
def test_any_config_is_valid_or_one_sentence(table, key, value):
    tree = {table: {key: value}} if table in tables else {table: value}
    try:
        assert isinstance(validate(tree, "x.toml"), Config)
    except UserError as error:
        assert str(error).startswith("x.toml: ")
        assert len(str(error).splitlines()) == 1


def small(**tables):
    tree = {"data": {"source": "topics"}, "model": {"size": "1x32", "context": 32}}
    return validate({**tree, **tables}, "x")


def test_a_config_becomes_a_plan():
    plan = build(small(train={"layers": 2, "cohort": 3}))
    assert (len(plan.clients), plan.cohort) == (16, 3)
    assert plan.controller.knobs({}, 0).layers == 2
    spans = [s for (s,) in plan.clients.spans]
    (held_out,) = plan.validation.spans
    assert max(b for _, b in spans) <= held_out[0]  # no client sees the validation text


def test_texts_can_be_split_by_document_or_at_random():
    by_key = build(small(data={"source": "topics", "partition": "key"}, train={"cohort": 2}))
    assert len(by_key.clients) > 50
    iid = build(
        small(data={"source": "topics", "partition": "iid", "clients": 5}, train={"cohort": 2})
    )
    assert len(iid.clients) == 5


@pytest.mark.parametrize(
    ("tables", "sentence"),
    [
        ({"train": {"layers": 9}}, "the model has 3 layer groups"),
        ({"codec": {"name": "nothing"}}, "codec.name = 'nothing' would send no update"),
        ({"codec": {"down": "nothing"}}, "codec.down = 'nothing' would send no update"),
        ({"data": {"source": "topics", "partition": "dirichlet"}}, "needs labels"),
        ({"data": {"source": "topics", "clients": 20_000}}, "client 19999 has 0 examples"),
        ({"data": {"source": "topicz"}}, "'topicz' is unknown; it is tinyshakespeare"),
        ({"model": {"kind": "softmax"}}, "does not fit a text; it can be gpt"),
        ({"model": {"kind": "no.such:thing"}}, "model.kind = 'no.such:thing': No module"),
        ({"data": {"source": "no.such:thing"}}, "data.source = 'no.such:thing'"),
    ],
)
def test_parts_that_do_not_fit_are_explained(tables, sentence):
    with pytest.raises(UserError, match=sentence.replace(".", r"\.")):
        build(small(**tables))


def test_own_model_and_data_come_from_a_module(tmp_path, monkeypatch):
    (tmp_path / "mine_for_test.py").write_text(
        "import torch\n"
        "def data(table):\n"
        "    x, y = torch.randn(40, 3), torch.arange(40) % 2\n"
        "    return [(x[i::4], y[i::4]) for i in range(4)], (x, y)\n"
        "def model(table):\n"
        "    return torch.nn.Linear(3, 2)\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    tree = {
        "data": {"source": "mine_for_test:data", "clients": 4},
        "model": {"kind": "mine_for_test:model"},
        "train": {"cohort": 2},
    }
    plan = build(config.validate(tree, "x"))
    assert len(plan.clients) == 4
    assert plan.build_model().layout.size == 8


def test_device_classes_are_lists_of_equal_length():
    budget = {"energy": ["20%", "60%"], "memory": "100%"}
    plan = build(small(budget=budget, control={"controller": "planner"}, train={"cohort": 2}))
    low, high = plan.budgets["counted"]
    assert low["energy"] == pytest.approx(high["energy"] / 3)
    assert low["memory"] == high["memory"]
    with pytest.raises(UserError, match=r"all must be equally long; they have 2, 3"):
        small(budget={**budget, "time": ["1 s", "2 s", "3 s"]}, control={"controller": "planner"})
    with pytest.raises(UserError, match=r"a list is empty"):
        small(budget={"energy": []})
    with pytest.raises(UserError, match=r"least_steps = 10 is more than control\.most_steps = 5"):
        small(control={"most_steps": 5})
    with pytest.raises(UserError, match="controller = 'planner' needs budgets"):
        small(control={"controller": "planner"})


@pytest.mark.parametrize("name", ["cafl", "cafl-l"])
def test_base_knobs_below_the_papers_floors_are_kept(name):
    budget = {"accounting": "paper", "energy": "100%"}
    train = {"cohort": 2, "steps": 5, "batch": 4}
    plan = build(small(budget=budget, control={"controller": name}, train=train))
    knobs = plan.controller.knobs(plan.controller.init(), 0)
    assert (knobs.steps, knobs.batch, knobs.accumulate) == (5, 4, 1)


@pytest.mark.parametrize("controller", ["planner", "cafl", "cafl-l", "clamped", "fixed"])
def test_every_controller_can_be_named(controller):
    budget = {"energy": "50%", "communication": "20%"}
    control = {"controller": controller, "preserve_tokens": False}
    plan = build(small(budget=budget, control=control, train={"cohort": 2}))
    knobs = plan.controller.knobs(plan.controller.init(), 0)
    assert 1 <= knobs.layers <= 3


@pytest.mark.parametrize("rule", ["ascent", "nupi", "augmented", "barrier"])
def test_every_dual_rule_can_be_named(rule):
    budget = {"energy": "50%"}
    control = {"controller": "cafl", "rule": rule, "zone": "two-sided", "preserve_tokens": False}
    build(small(budget=budget, control=control, train={"cohort": 2}))


def test_a_model_that_memory_does_not_hold_is_refused(monkeypatch):
    def too_large(*_):
        raise RuntimeError("[enforce fail at alloc_cpu.cpp:121] can't allocate memory: you tried")

    monkeypatch.setattr("fedbudget.build.FlatModel", too_large)
    small = load(find_config("fedavg"), ["data.source=topics"])
    with pytest.raises(UserError, match="there is not enough memory here for one"):
        prepare(small)
