"""Configuration: typed TOML with one level of tables. Every key is documented here, inline.

An unknown key, a wrong type or an impossible value is one sentence with file, key, what was given
and what is allowed.
"""

import difflib
import json
import tomllib
from collections.abc import Iterable, Mapping
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from fedbudget.errors import UserError


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class Data(_Table):
    source: str = Field(
        "tinyshakespeare",
        description="tinyshakespeare, mnist, cifar10, topics (Python's help texts), text (your own "
        "file or folder of .txt files: set path), hf:NAME (Hugging Face), or package.module:function",
    )
    path: str = Field("", description="file or folder to read instead of searching for it")
    columns: list[str] = Field(
        ["text"], description="hf: the text column, or the input and the label column"
    )
    key: str = Field("", description="hf: the column that says whose a row is, for partition = key")
    clients: int = Field(16, ge=1, description="number of clients (partition = key finds its own)")
    partition: Literal["contiguous", "iid", "dirichlet", "shards", "key"] = Field(
        "contiguous",
        description="contiguous (texts), iid, dirichlet or shards (labelled data), key (one client "
        "a file or key)",
    )
    overlap: int = Field(48, ge=0, description="contiguous: tokens a shard reaches into the next")
    alpha: float = Field(0.3, gt=0, description="dirichlet: small is very uneven")
    shards_per_client: int = Field(2, ge=1, description="shards: label shards each client gets")
    validation: float = Field(
        0.1,
        gt=0,
        lt=1,
        description="share held out at the end of a text; labelled data has a test set",
    )


class Model(_Table):
    kind: str = Field("gpt", description="gpt, softmax, cnn, or package.module:function")
    size: str = Field(
        "2x128", description="gpt: layers x width; the papers' are 2x128, 6x256, 8x128"
    )
    heads: int = Field(0, ge=0, description="gpt: attention heads; 0 = width / 32")
    context: int = Field(128, ge=2, description="gpt: tokens a window holds")
    dropout: float = Field(0.0, ge=0, lt=1, description="gpt: dropout")
    layers: list[str] = Field(
        [], description="name prefixes of the layer groups, bottom first; empty finds them"
    )


class Train(_Table):
    cohort: int = Field(6, ge=1, description="clients per round")
    steps: int = Field(60, ge=1, description="optimiser steps of a local run")
    batch: int = Field(16, ge=1, description="examples of a micro-batch")
    accumulate: int = Field(1, ge=1, description="micro-batches per optimiser step")
    layers: int = Field(0, ge=0, description="layer groups that train, from the top; 0 = all")
    optimizer: Literal["adamw", "sgd"] = Field("adamw", description="local optimiser: adamw, sgd")
    lr: float = Field(1e-3, gt=0, description="step size")
    weight_decay: float = Field(0.0, ge=0, description="weight decay")
    betas: tuple[float, float] = Field((0.9, 0.999), description="adamw: decay of the two moments")
    momentum: float = Field(0.0, ge=0, lt=1, description="sgd: momentum")
    clip: float = Field(0.0, ge=0, description="largest gradient norm; 0 = no clipping")
    warmup: float = Field(0.0, ge=0, lt=1, description="share of a local run with rising step size")
    schedule: Literal["constant", "cosine"] = Field(
        "constant", description="step size within a local run: constant, cosine"
    )
    round_schedule: Literal["constant", "cosine"] = Field(
        "constant", description="step size over the rounds: constant, cosine"
    )
    label_smoothing: float = Field(0.0, ge=0, lt=1, description="in the training loss only")
    drop: float = Field(
        0.0, ge=0, lt=1, description="share of each cohort that drops out of its round, at random"
    )
    server: Literal["mean", "momentum", "adam", "yogi"] = Field(
        "mean", description="what the server makes of the mean update: mean, momentum, adam, yogi"
    )
    server_lr: float = Field(1.0, gt=0, description="server step size")
    server_momentum: float = Field(
        0.5, ge=0, lt=1, description="momentum: how much of the last step"
    )
    weighting: Literal["uniform", "examples"] = Field(
        "uniform", description="mean of the updates: uniform (the papers), examples"
    )
    evaluate_every: int = Field(1, ge=1, description="rounds between evaluations")

    @field_validator("betas", mode="before")
    @classmethod
    def _pair(cls, value: Any) -> Any:
        pair = tuple(value) if isinstance(value, list) else value
        if not (
            isinstance(pair, tuple)
            and len(pair) == 2
            and all(isinstance(b, int | float) and 0 <= b < 1 for b in pair)
        ):
            raise ValueError("it must be two numbers from 0 to below 1, such as [0.9, 0.999]")
        return tuple(map(float, pair))


class Budget(BaseModel):
    """Per client and round; any resource that is counted may be named.

    A list gives a limit for each device class; client i is of class i modulo their number.
    """

    model_config = ConfigDict(extra="allow", frozen=True, strict=True)
    __pydantic_extra__: dict[str, str | float | int | list[str | float | int]]

    device: str = Field(
        "raspberry-pi-5", description="device profile that turns work into joules and degrees"
    )
    accounting: Literal["counted", "paper"] = Field(
        "counted", description="which usage the budgets are about: counted, paper (the proxies)"
    )

    @property
    def classes(self) -> list[dict[str, str | float]]:
        """The limits of each device class, as they were written; one class without lists."""
        given = self.__pydantic_extra__ or {}
        lengths = {len(v) for v in given.values() if isinstance(v, list)}
        if len(lengths) > 1 or 0 in lengths:
            raise ValueError(
                "budget: lists have one limit for each device class, so all must be equally long; "
                f"they have {', '.join(map(str, sorted(lengths)))}"
            )
        number = next(iter(lengths), 1)
        return [
            {r: v[i] if isinstance(v, list) else v for r, v in given.items()}
            for i in range(number if given else 0)
        ]


class Control(_Table):
    controller: Literal["fixed", "planner", "cafl-l", "cafl", "clamped"] = Field(
        "fixed", description="fixed, planner, cafl-l, cafl, clamped (the CAFL-L authors' code)"
    )
    noise_scale: float = Field(16.0, gt=0, description="planner: gradient noise scale, in examples")
    batches: list[int] = Field([2, 4, 8, 16, 32], description="planner: batch sizes to choose from")
    codecs: list[str] = Field(
        ["raw32", "int8", "eden4", "eden2", "eden1.6", "eden1"],
        description="planner: codecs to choose from",
    )
    least_steps: int = Field(10, ge=1, description="planner: fewest local steps")
    most_steps: int = Field(1000, ge=1, description="planner: most local steps")
    eta: float = Field(0.01, gt=0, description="duals: step size")
    rule: Literal["ascent", "nupi", "augmented", "barrier"] = Field(
        "ascent", description="duals: ascent (with a dead zone), nupi, augmented, barrier"
    )
    zone: Literal["one-sided", "two-sided"] = Field(
        "one-sided", description="duals: one-sided (CAFL eq. 9), two-sided (the authors' code)"
    )
    epsilon: float = Field(0.05, ge=0, lt=1, description="duals: half-width of the dead zone")
    ema: float = Field(0.0, ge=0, lt=1, description="duals: weight of the past in smoothed usage")
    preserve_tokens: bool = Field(
        True, description="cafl-l, cafl: accumulate micro-batches to keep the samples (eq. 8)"
    )


class CodecTable(_Table):
    name: str = Field("raw32", description="how updates travel where no controller decides")
    feedback: bool = Field(False, description="error feedback: a client keeps what a code lost")


class Config(_Table):
    """One run."""

    name: str = Field("", description="what tables call the run; the file's name if empty")
    rounds: int = Field(50, ge=1, description="rounds to train")
    seed: int = Field(0, ge=0, lt=2**63, description="all randomness follows from it")
    algorithm: Literal["fedavg"] = Field("fedavg", description="fedavg")
    engine: Literal["embedded"] = Field("embedded", description="embedded")
    workers: int = Field(0, ge=0, description="processes; 1 = in this process, 0 = one a core")
    checkpoint_every: int = Field(1, ge=1, description="rounds between checkpoints")
    data: Data = Data()
    model: Model = Model()
    train: Train = Train()
    budget: Budget = Budget()
    control: Control = Control()
    codec: CodecTable = CodecTable()

    @model_validator(mode="after")
    def _fits(self) -> "Config":
        dealt = self.data.partition != "key" and ":" not in self.data.source
        if dealt and self.train.cohort > self.data.clients:
            raise ValueError(
                f"train.cohort = {self.train.cohort} is more than data.clients = "
                f"{self.data.clients}; take at most {self.data.clients}"
            )
        if self.control.controller != "fixed" and not self.budget.classes:
            raise ValueError(
                f"control.controller = {self.control.controller!r} needs budgets: "
                'name some in [budget], such as communication = "600 kB"'
            )
        if self.control.controller == "planner" and self.budget.accounting == "paper":
            raise ValueError("the planner keeps counted budgets; budget.accounting must be counted")
        if self.data.source == "text" and not self.data.path:
            raise ValueError('data.source = "text" needs data.path, a text file or folder')
        if self.model.kind == "gpt":
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
    raise UserError(
        f"{name}: no such file and no such preset; {hint}presets are {', '.join(known)}"
    )


def load(path: Path, overrides: Iterable[str] = ()) -> Config:
    """Read, override and validate a config file."""
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: not valid TOML: {error}") from None
    for override in overrides:
        _set(tables, override)
    tables.setdefault("name", path.stem)
    return validate(tables, str(path))


def validate(tables: Mapping[str, Any], where: str) -> Config:
    try:
        return Config.model_validate(dict(tables))
    except ValidationError as error:
        raise UserError(f"{where}: {_sentence(error)}") from None


def _set(tables: dict[str, Any], override: str) -> None:
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
    table[last] = value


def _sentence(error: ValidationError) -> str:
    """The first thing that is wrong, in one sentence."""
    first = error.errors()[0]
    loc = [json.dumps(str(part))[1:-1] for part in first["loc"]]  # escapes what does not print
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
