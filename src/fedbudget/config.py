"""Configuration: typed TOML with one level of tables. Every key is documented here, inline.

An unknown key, a wrong type or an impossible value is one sentence with file, key, what was given
and what is allowed.
"""

import difflib
import json
import math
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, Field, ValidationError, model_validator

from fedbudget.errors import UserError
from fedbudget.tables import (
    Budget,
    CodecTable,
    Constraints,
    Control,
    Data,
    FleetTable,
    Model,
    PrivacyTable,
    Table,
    Train,
    WorldTable,
)


class Config(Table):
    """One run."""

    name: str = Field("", description="what tables call the run; the file's name if empty")
    rounds: int = Field(50, ge=1, description="rounds to train")
    seed: int = Field(0, ge=0, lt=2**63, description="all randomness follows from it")
    algorithm: Literal[
        "fedavg",
        "fedprox",
        "scaffold",
        "pc-fedavg",
        "penalised-fedavg",
        "penalised-fedprox",
        "penalised-scaffold",
    ] = Field(
        "fedavg",
        description="fedavg, fedprox, scaffold, pc-fedavg, penalised-fedavg, penalised-fedprox, "
        "penalised-scaffold",
    )
    engine: Literal["embedded", "flower"] = Field(
        "embedded", description="embedded, flower (Flower's simulation)"
    )
    workers: int = Field(0, ge=0, description="processes; 1 = in this process, 0 = one a core")
    accelerator: Literal["cpu", "cuda", "mps", "xpu"] = Field(
        "cpu", description="where clients compute: cpu, cuda, mps, xpu; a worker for each there is"
    )
    checkpoint_every: int = Field(1, ge=1, description="rounds between checkpoints")
    track: list[str] = Field(
        [], description="tensorboard, mlflow, wandb, or package.module:function: a Callback"
    )
    data: Data = Data()
    model: Model = Model()
    train: Train = Train()
    budget: Budget = Budget()
    control: Control = Control()
    codec: CodecTable = CodecTable()
    constraints: Constraints = Constraints()
    world: WorldTable = WorldTable()
    fleet: FleetTable = FleetTable()
    privacy: PrivacyTable = PrivacyTable()

    @property
    def folder(self) -> str:
        """The name, where a folder is to be called so."""
        name = self.name
        if name in ("", ".", "..") or not name.isprintable() or any(c in name for c in "/\\"):
            raise UserError(
                f"name = {name!r}: a folder is called so; take a name without slashes, or give --out"
            )
        return name

    @model_validator(mode="after")
    def _fits(self) -> "Config":
        dealt = self.data.partition != "key" and ":" not in self.data.source
        if dealt and self.train.cohort > self.data.clients:
            raise ValueError(
                f"train.cohort = {self.train.cohort} is more than data.clients = "
                f"{self.data.clients}; take at most {self.data.clients}"
            )
        classes = self.budget.classes  # lists of different lengths are refused here
        if self.control.controller not in ("fixed", "rotation") and not classes:
            raise ValueError(
                f"control.controller = {self.control.controller!r} needs budgets: "
                'name some in [budget], such as communication = "600 kB"'
            )
        for resource, given in (self.budget.model_extra or {}).items():
            limits = given if isinstance(given, list) else [given]
            if not all(math.isfinite(v) for v in limits if isinstance(v, float)):
                raise ValueError(f"budget.{resource} = {given}: it must be finite")
        if self.control.least_steps > self.control.most_steps:
            raise ValueError(
                f"control.least_steps = {self.control.least_steps} is more than "
                f"control.most_steps = {self.control.most_steps}"
            )
        name = self.control.controller
        own = ":" in name
        paper = ("fixed", "cafl-l", "cafl", "clamped")
        if not own and name not in paper and self.budget.accounting == "paper":
            raise ValueError(
                f"{name} keeps counted budgets, so budget.accounting must be counted; the papers' "
                f"are for {', '.join(paper)}"
            )
        learning = (*paper, "planner")
        if not own and name not in learning and self.budget.accounting == "measured":
            raise ValueError(
                f"{name} goes by what it counts and does not learn from what is measured; "
                f"budget.accounting = 'measured' is for {', '.join(learning)}"
            )
        if self.train.normalise == "work" and self.codec.skip > 0:
            raise ValueError(
                "codec.skip adds updates of several rounds up, so their work is not known; set "
                "train.normalise = 'none', or codec.skip = 0"
            )
        if self.train.normalise == "work" and self.privacy.clip > 0 and self.privacy.model == "sum":
            raise ValueError(
                "privacy.model = 'sum' needs a sum in which every update counts alike; set "
                "train.normalise = 'none'"
            )
        if self.codec.skip > 0 and self.codec.feedback == "none":
            raise ValueError(
                "codec.skip keeps updates back for later, so codec.feedback must be error or "
                "momentum"
            )
        if self.privacy.noise > 0 and self.privacy.clip == 0:
            raise ValueError(
                f"privacy.noise = {self.privacy.noise:g} is in units of privacy.clip, which is 0; "
                "set privacy.clip to the largest norm of an update"
            )
        if self.data.source == "text" and not self.data.path:
            raise ValueError('data.source = "text" needs data.path, a text file or folder')
        if self.model.kind in ("gpt", "softmax", "cnn"):
            for key in ("folder", "lora_rank", "lora_alpha", "lora_targets", "lora_also"):
                if getattr(self.model, key):
                    raise ValueError(f"model.{key} is for model.kind = 'hf' only")
        if self.model.init != "gpt2" and self.model.kind != "gpt":
            raise ValueError(
                "model.init is for model.kind = 'gpt' only; others start as they are made"
            )
        if self.model.kind in ("gpt", "hf") and not self.model.folder:
            from fedbudget.models.size import parse_size

            _, width = parse_size(self.model.size)
            heads = self.model.heads or max(1, width // 32)
            if width % heads:
                raise ValueError(f"model.heads = {heads} does not divide the width {width}")
        return self


def preset_folder() -> Path:
    """Presets are package data in a wheel, and `configs/` in a checkout."""
    inside = Path(str(resources.files("fedbudget"))) / "configs"
    return inside if inside.is_dir() else Path(__file__).parents[2] / "configs"


def presets() -> dict[str, Path]:
    return {p.stem: p for p in sorted(preset_folder().glob("*.toml"))}


def copy_preset(name: str, target: Path, overwrite: bool) -> Path:
    known = presets()
    if name not in known:
        raise UserError(f"no preset is named {name!r}; there are {', '.join(known)}")
    if target.exists() and not overwrite:
        raise UserError(f"{target} is there already; choose another --out or add --overwrite")
    target.write_bytes(known[name].read_bytes())
    return target


def find_config(name: str) -> Path:
    """A path, or a preset's name."""
    path = Path(name)
    if path.is_file():
        return path
    known = presets()
    if name in known:
        return known[name]
    near = difflib.get_close_matches(name, known, 1)
    hint = f"did you mean {near[0]}? " if near else ""
    what = "a folder, not a config" if path.is_dir() else "no such file and no such preset"
    raise UserError(f"{name}: {what}; {hint}presets are {', '.join(known)}")


def load(path: Path, overrides: Iterable[str] = ()) -> Config:
    """Read, override and validate a config file."""
    tables = read_toml(path)
    changes = list(overrides)
    for override in changes:
        _set(tables, override)
    tables.setdefault("name", path.stem)
    return validate(tables, f"{path}{' with --set' if changes else ''}")


def unseeded(what: str, overrides: Sequence[str]) -> None:
    """UserError if a seed is set where --seeds gives them."""
    for override in overrides:
        if override.partition("=")[0].strip() == "seed":
            raise UserError(
                f"{what}: --set {override} would change nothing: the seeds are 0, 1, ..., as many "
                "as --seeds says"
            )


def read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}") from None
    except ValueError as error:  # also bytes that are no text, and numbers of thousands of digits
        raise UserError(f"{path}: not valid TOML: {error}") from None
    except RecursionError:
        raise UserError(f"{path}: not valid TOML: it is nested too deeply") from None


def validate(tables: Mapping[str, Any], where: str) -> Config:
    try:
        return Config.model_validate(dict(tables))
    except ValidationError as error:
        raise UserError(f"{where}: {_sentence(error)}") from None


def _set(tables: dict[str, Any], override: str) -> None:
    """`table.key=value`; without a value the key is taken out."""
    key, equals, text = override.partition("=")
    if not equals or not key.strip():
        raise UserError(f"--set {override}: write it as key=value or table.key=value")
    try:
        value = tomllib.loads(f"v = {text}")["v"]
    except tomllib.TOMLDecodeError:
        value = text.strip()  # a bare word is a string
    *parents, last = key.strip().split(".")
    table = tables
    for name in parents:
        table = table.setdefault(name, {})
        if not isinstance(table, dict):
            raise UserError(f"--set {override}: {name} is a value, not a table")
    if text.strip():
        table[last] = value
    elif table.pop(last, None) is None:
        raise UserError(f"--set {override}: there is no {key.strip()} to take out; give it a value")


def _sentence(error: ValidationError) -> str:
    """The first thing that is wrong, in one sentence."""
    every = error.errors()
    # where a key may have several types there is an error for each; the deepest has come the farthest
    same = [other for other in every if other["loc"][:2] == every[0]["loc"][:2]]
    first = max(same, key=lambda other: len(other["loc"]))
    # below table and key only places in a list: the names of types stand there as if they were keys
    places = (p for i, p in enumerate(first["loc"]) if i < 2 or isinstance(p, int))
    loc = [json.dumps(str(part))[1:-1] for part in places]  # escapes what does not print
    key = ".".join(loc)
    given = first["input"]
    context = first.get("ctx", {})
    shown = json.dumps(given, default=str)
    match first["type"]:
        case "extra_forbidden":
            known = _keys(loc[:-1])
            near = difflib.get_close_matches(loc[-1], known, 1)
            hint = f"did you mean {'.'.join([*loc[:-1], near[0]])}? " if near else ""
            kind = "table" if isinstance(given, dict) else "key"
            return f"unknown {kind} {key}; {hint}known are {', '.join(known)}"
        case "value_error":
            prefix = f"{key} = {shown}: " if key else ""
            return f"{prefix}{context.get('error', first['msg'])}"
        case "literal_error":
            return f"{key} = {shown}: it must be {context['expected']}"
        case kind if kind.endswith(("_type", "_parsing")):
            if loc[0] == "budget" and len(loc) > 1 and loc[1] not in Budget.model_fields:
                return f'{key} = {shown}: it must be an amount such as "600 kB", or a number'
            name = kind.removesuffix("_type").removesuffix("_parsing")
            words = {"int": "a whole number", "float": "a number", "model": "a table"}
            return f"{key} = {shown}: it must be {words.get(name, f'a {name}')}"
        case _:
            return f"{key} = {shown}: {first['msg'][0].lower()}{first['msg'][1:]}"


def _keys(loc: list[str]) -> list[str]:
    table: type[BaseModel] = Config
    for name in loc:
        inner = table.model_fields[name].annotation
        assert isinstance(inner, type)
        table = inner
    return list(table.model_fields)


def differences(old: Config, new: Config) -> dict[str, str]:
    """Keys with other values: "table.key" -> "old -> new"."""
    a, b = _flat(old), _flat(new)
    return {
        key: f"{_shown(a, key)} -> {_shown(b, key)}"
        for key in {**a, **b}
        if a.get(key) != b.get(key)
    }


def _flat(model: BaseModel, prefix: str = "") -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name, value in model:
        if isinstance(value, BaseModel):
            values |= _flat(value, f"{name}.")
        else:
            values[prefix + name] = value
    return values


def _shown(values: Mapping[str, Any], key: str) -> str:
    return _toml(values[key]) if key in values else "nothing"


def to_toml(config: Config) -> str:
    """The whole config as commented TOML: what a run folder keeps."""
    lines: list[str] = []

    def table(model: BaseModel) -> None:
        for name, field in type(model).model_fields.items():
            value = getattr(model, name)
            if not isinstance(value, BaseModel):
                lines.append(f"{name} = {_toml(value)}  # {field.description}")
        for name, value in (model.model_extra or {}).items():
            lines.append(f"{_toml(name)} = {_toml(value)}")

    table(config)
    for name in Config.model_fields:
        if isinstance(inner := getattr(config, name), BaseModel):
            lines += ["", f"[{name}]"]
            table(inner)
    return "\n".join(lines) + "\n"


def _toml(value: Any) -> str:
    """JSON is TOML for what a config holds, but for a character that TOML wants escaped."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
