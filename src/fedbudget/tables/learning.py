"""What is learnt and how: data, model, training, codec, constraint sets, privacy."""

from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from fedbudget.tables.table import Names, Table


class Data(Table):
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
    alphabet: str = Field(
        "",
        description="texts: the characters that all clients number alike: ascii, or the characters "
        "themselves; empty = those in the text",
    )
    tokenizer: Literal["auto", "characters", "bytes"] = Field(
        "auto",
        description="texts: what is numbered: characters, bytes, auto (the tokens of model.folder's "
        "tokenizer.json where there is one, else characters)",
    )
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


class Model(Table):
    kind: str = Field(
        "gpt",
        description="gpt, hf (a Hugging Face language model), softmax, cnn, or "
        "package.module:function",
    )
    size: str = Field(
        "2x128", description="gpt, hf: layers x width; the papers' are 2x128, 6x256, 8x128"
    )
    heads: int = Field(0, ge=0, description="gpt, hf: attention heads; 0 = width / 32")
    context: int = Field(128, ge=2, description="gpt, hf: tokens a window holds")
    dropout: float = Field(0.0, ge=0, lt=1, description="gpt, hf: dropout")
    init: Literal["gpt2", "scaled"] = Field(
        "gpt2",
        description="gpt: first weights: gpt2 (0.02 whatever the size), scaled (by each layer's inputs, "
        "positions as waves: a narrow model learns sooner)",
    )
    folder: str = Field(
        "",
        description="hf: local folder with config.json and safetensors, which has its own size, heads "
        "and dropout; empty = a GPT-2 of this size with random weights",
    )
    lora_rank: int = Field(0, ge=0, description="hf: rank of LoRA adapters; 0 = all weights train")
    lora_alpha: int = Field(
        0, ge=0, description="hf: adapters count lora_alpha / lora_rank; 0 = twice the rank"
    )
    lora_targets: Names = Field(
        [],
        description="hf: ends of the names of modules that get adapters; empty = all linear layers "
        "of the blocks",
    )
    lora_also: Names = Field(
        [], description="hf: ends of the names of modules that train whole beside adapters"
    )
    layers: Names = Field(
        [], description="name prefixes of the layer groups, bottom first; empty finds them"
    )


class Train(Table):
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
    mu: float = Field(0.01, ge=0, description="fedprox: weight of the proximal term")
    clip: float = Field(0.0, ge=0, description="largest gradient norm; 0 = no clipping")
    warmup: float = Field(0.0, ge=0, lt=1, description="share of a local run with rising step size")
    schedule: Literal["constant", "cosine"] = Field(
        "constant", description="step size within a local run: constant, cosine"
    )
    precision: Literal["float32", "bfloat16"] = Field(
        "float32",
        description="of matrix products: float32, bfloat16 (refused where it does not work or is "
        "slower; weights and optimiser stay in float32)",
    )
    round_schedule: Literal["constant", "cosine", "cooldown", "sqrt-cooldown"] = Field(
        "constant",
        description="step size over the rounds: constant, cosine, or constant and then to nothing over "
        "the last of them: cooldown (in a line), sqrt-cooldown (as 1 - sqrt: soon small)",
    )
    cooldown: float = Field(0.3, gt=0, le=1, description="cooldowns: share of the rounds they take")
    lr_rule: Literal["constant", "square-root", "linear", "tokens"] = Field(
        "constant",
        description="step size against the effective batch of the base knobs: constant, "
        "square-root, linear; tokens divides it by the samples over their target (CAFL-L's code)",
    )
    label_smoothing: float = Field(0.0, ge=0, lt=1, description="in the training loss only")
    drop: float = Field(
        0.0, ge=0, lt=1, description="share of each cohort that drops out of its round, at random"
    )
    server: Literal["mean", "momentum", "nesterov", "adam", "yogi"] = Field(
        "mean",
        description="what the server makes of the mean update: mean, momentum, nesterov (momentum, and "
        "clients start where it leads), adam, yogi",
    )
    server_lr: float = Field(
        1.0, gt=0, description="server step size; where it is not given, 0.01 for adam and yogi"
    )
    server_momentum: float = Field(
        0.5, ge=0, lt=1, description="momentum, nesterov: how much of the last step"
    )
    screen: Literal["off", "drop", "clip"] = Field(
        "drop",
        description="an update far larger than the cohort's median: drop, clip, off (take it)",
    )
    screen_factor: float = Field(10.0, gt=1, description="times the median size that is allowed")
    aggregate: Literal["mean", "median", "trimmed"] = Field(
        "mean", description="number by number: mean, median, trimmed (mean without the extremes)"
    )
    trim: float = Field(
        0.2, gt=0, lt=0.5, description="trimmed: share of the updates left out at each end"
    )
    weighting: Literal["uniform", "examples"] = Field(
        "uniform", description="mean of the updates: uniform (the papers), examples"
    )
    normalise: Literal["none", "work"] = Field(
        "none",
        description="what is averaged: updates as they are (none), or per unit of local work, and "
        "the mean times the mean work (work: FedNova)",
    )
    evaluate_every: int = Field(1, ge=1, description="rounds between evaluations")

    @model_validator(mode="before")
    @classmethod
    def _adaptive_steps(cls, given: Any) -> Any:
        """Each number moves by up to the step size: 1 would wipe a model out."""
        if isinstance(given, dict) and given.get("server") in ("adam", "yogi"):
            return {"server_lr": 0.01, **given}
        return given

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


class CodecTable(Table):
    name: str = Field("raw32", description="how updates travel where no controller decides")
    feedback: Literal["none", "error", "momentum"] = Field(
        "none",
        description="what a client keeps of a lossy code: none, error (feedback), momentum (DGC)",
    )
    momentum: float = Field(0.9, ge=0, lt=1, description="feedback = momentum: its decay")
    skip: float = Field(
        0.0,
        ge=0,
        description="keep an update back when it is below this share of how far the model moved in "
        "a round (LAG); needs feedback; 0 sends all",
    )
    down: str = Field("raw32", description="how the model travels down")
    changed_only: bool = Field(
        False, description="send down only the layer groups that changed since the client saw them"
    )


class Constraints(Table):
    """Each agent's private set: of one kind, with radii spread evenly over the agents."""

    set: str = Field(
        "l1",
        description="l1, l2, linf, simplex, nonnegative, box, topk, or package.module:function of "
        "(this table, agent number) that returns a set",
    )
    radius: float | tuple[float, float] = Field(
        1.0, description="of the ball, or the size of the simplex; [first, last] spreads it"
    )
    low: float = Field(0.0, description="box: lower bound")
    high: float = Field(1.0, description="box: upper bound")
    keep: int = Field(1, ge=1, description="topk: how many numbers may differ from 0")
    layers: list[str] = Field([], description="name prefixes of tensors it holds for; empty = all")
    rho: float = Field(1.0, ge=0, description="weight of the penalty")
    schedule: Literal["constant", "growing", "horizon"] = Field(
        "growing", description="rho over rounds: constant, growing (sqrt(r+1)), horizon (sqrt(R))"
    )
    sigma: float = Field(0.0, ge=0, description="pc-fedavg: pull of an agent's model to the mean")
    projected: bool = Field(
        False, description="pc-fedavg: project the own model at every step, without penalty"
    )
    final_projection: bool = Field(
        False, description="project each agent's model onto its set when the run ends"
    )
    safe_step: float = Field(
        1.5, ge=0, lt=2, description="keep step size x penalty's curvature below this; 0 = do not"
    )
    save_personal: bool = Field(True, description="write each agent's own model")

    @field_validator("radius", mode="before")
    @classmethod
    def _ends(cls, value: Any) -> Any:
        if isinstance(value, list):
            if len(value) != 2 or not all(isinstance(v, int | float) for v in value):
                raise ValueError("it must be a number, or two: the first agent's and the last's")
            return tuple(map(float, value))
        return value


class PrivacyTable(Table):
    """Differential privacy of each client's update; `docs/privacy.md`."""

    clip: float = Field(
        0.0, ge=0, description="largest norm of an update that a client sends; 0 = no privacy"
    )
    noise: float = Field(
        0.0, ge=0, description="standard deviation of the noise, in units of clip; see model"
    )
    model: Literal["local", "sum"] = Field(
        "local",
        description="whose noise that is: local (each client's own, against the server), sum (a "
        "full cohort's, where only sums are seen)",
    )
    delta: float = Field(1e-5, gt=0, lt=1, description="of the (epsilon, delta) that is reported")
