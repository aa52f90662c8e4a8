"""What a run is made of: clients' data, validation data, and a function that makes the model."""

import importlib
import inspect
import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from torch import nn

from fedbudget import seeds
from fedbudget.config import Config
from fedbudget.data import partition, sources, tokens
from fedbudget.data.examples import Examples, Parts, Texts, Windows, as_examples
from fedbudget.data.sources import Labelled, Text
from fedbudget.errors import UserError
from fedbudget.models import hf
from fedbudget.models.cnn import cnn
from fedbudget.models.gpt import GPT, gpt2, scaled
from fedbudget.models.size import parse_size
from fedbudget.models.softmax import Softmax
from fedbudget.tables import Data, Model

STARTS = {"gpt2": gpt2, "scaled": scaled}
Made = tuple[Sequence[Examples], Examples, Callable[[], nn.Module]]


def data_and_model(config: Config) -> Made:
    if ":" in config.data.source and not config.data.source.startswith("hf:"):
        with seeds.torch_seeded(config.seed, 0, seeds.SERVER, "data"):
            made = call(config.data.source, "data.source", config.data)
        if not isinstance(made, tuple | list) or len(made) != 2:
            raise UserError(
                f"data.source = {config.data.source!r}: it must return (clients, validation), "
                f"not a {type(made).__name__}"
            )
        clients, validation = made
        parts = [as_examples(c) for c in clients]
        partition.check_sizes([len(p) for p in parts])
        return parts, as_examples(validation), _own_model(config, "data of your own")
    source = _source(config.data)
    if isinstance(source, Text):
        return _text(config, source)
    return _labelled(config, source)


def _source(data: Data) -> Text | Labelled:
    path = data.path or None
    match data.source:
        case "tinyshakespeare":
            return sources.tiny_shakespeare(path)
        case "mnist":
            return sources.mnist(path)
        case "cifar10":
            return sources.cifar10(path)
        case "topics":
            return sources.python_topics()
        case "text":
            return sources.text_files(data.path)
        case name if name.startswith("hf:"):
            from fedbudget.data.hf import load

            columns = tuple(data.columns)
            return load(name[3:], columns, data.key or None, data.validation)
        case other:
            raise UserError(
                f"data.source = {other!r} is unknown; it is tinyshakespeare, mnist, cifar10, "
                "topics, text (with data.path), hf:NAME or package.module:function"
            )


def _text(config: Config, text: Text) -> Made:
    data, context = config.data, config.model.context
    text = _numbered(config, text)
    kept = int(len(text.tokens) * (1 - data.validation))
    rng = seeds.rng(config.seed, 0, seeds.SERVER, "partition")
    match data.partition:
        case "contiguous":
            spans = partition.contiguous(kept, data.clients, data.overlap)
        case "iid":
            spans = partition.blocks(kept, data.clients, 8 * context, rng)
        case "key":
            spans = [[(a, min(b, kept))] for a, b in text.documents if a < kept]
        case other:
            raise UserError(
                f"data.partition = {other!r} needs labels, and {text.name} is a text; "
                "it can be contiguous, iid or key"
            )
    clients = Texts(text.tokens, context, spans)
    lengths = [sum(b - a for a, b in s) for s in spans]
    partition.check_sizes(
        [max(0, n - context) for n in lengths],
        hint=f", more text or a model.context below {context}",
    )
    validation = Windows(text.tokens, context, ((kept, len(text.tokens)),), stride=context)
    if len(validation) == 0:
        raise UserError(f"{text.name}: the held-out part is shorter than model.context = {context}")
    match config.model.kind:
        case "hf" if config.model.folder:
            _check_bounds(config.model, text)
            make = _loaded(config.model)
        case "gpt" | "hf" as kind:
            layers, width = parse_size(config.model.size)
            heads = config.model.heads or max(1, width // 32)
            shape = (len(text.vocabulary), context, layers, width, heads, config.model.dropout)
            make = (
                partial(hf.shaped, *shape, _lora(config.model))
                if kind == "hf"
                else partial(GPT, *shape, STARTS[config.model.init])
            )
        case _:
            make = _own_model(config, "a text")
    return clients, validation, make


def _numbered(config: Config, text: Text) -> Text:
    """The text in the tokens that the config names."""
    data, folder = config.data, config.model.folder
    if data.tokenizer == "bytes":
        return tokens.by_bytes(text)
    if data.alphabet:
        return sources.spelled(text, data.alphabet)
    if data.tokenizer == "auto" and folder and tokens.here(folder):
        return tokens.by_tokenizer(text, folder)
    return text


def _loaded(model: Model) -> Callable[[], nn.Module]:
    return partial(hf.loaded, model.folder, _lora(model))


def _lora(model: Model) -> hf.Lora | None:
    if model.lora_rank == 0:
        return None
    targets, also = tuple(model.lora_targets), tuple(model.lora_also)
    return hf.Lora(model.lora_rank, model.lora_alpha, targets, also)


def _check_bounds(model: Model, text: Text) -> None:
    """A folder's model must know all tokens, and look at as many as a window holds."""
    vocabulary, longest = hf.bounds(model.folder)
    largest = int(text.tokens.max())
    if largest >= vocabulary:
        raise UserError(
            f"model.folder = {model.folder!r} knows {vocabulary} tokens, but {text.name} has number "
            f"{largest}: set data.tokenizer or data.alphabet to what the model was trained with"
        )
    if longest and model.context > longest:
        raise UserError(
            f"model.context = {model.context}, but the model in {model.folder!r} sees {longest} tokens"
        )


def _labelled(config: Config, source: Labelled) -> Made:
    data, train = config.data, source.train
    labels = train.y.numpy()
    rng = seeds.rng(config.seed, 0, seeds.SERVER, "partition")
    match data.partition:
        case "iid":
            parts = partition.iid(len(train), data.clients, rng)
        case "dirichlet":
            parts = partition.dirichlet(labels, data.clients, data.alpha, rng)
        case "shards":
            parts = partition.shards(labels, data.clients, data.shards_per_client, rng)
        case "key" if source.keys is not None:
            parts = partition.by_key(source.keys)
        case "key":
            raise UserError(f"data.partition = 'key': {source.name} has no keys; set data.key")
        case other:
            raise UserError(
                f"data.partition = {other!r} is for texts; {source.name} can be split by "
                "iid, dirichlet, shards or key"
            )
    hint = " or a larger data.alpha" if data.partition == "dirichlet" else ""
    partition.check_sizes([len(p) for p in parts], hint=hint)
    shape = tuple(train.x.shape[1:])
    match config.model.kind:
        case "softmax":
            make: Callable[[], nn.Module] = partial(Softmax, int(np.prod(shape)), source.classes)
        case "cnn" if len(shape) == 3:
            make = partial(cnn, shape[0], source.classes)
        case "cnn":
            raise UserError(f"model.kind = 'cnn' needs images; {source.name} has shape {shape}")
        case _:
            make = _own_model(config, "labelled data")
    return Parts(train, parts), source.test, make


def _own_model(config: Config, what: str) -> Callable[[], nn.Module]:
    kind = config.model.kind
    if kind == "hf" and config.model.folder and what == "data of your own":
        return _loaded(config.model)
    if ":" not in kind:
        named = {"a text": "gpt, hf", "labelled data": "softmax, cnn"}
        fitting = named.get(what, "hf with a model.folder")
        raise UserError(
            f"model.kind = {kind!r} does not fit {what}; "
            f"it can be {fitting} or package.module:function"
        )
    return partial(_module, kind, config.model)


def _module(kind: str, table: Model) -> nn.Module:
    made = call(kind, "model.kind", table)
    if not isinstance(made, nn.Module):
        raise UserError(
            f"model.kind = {kind!r}: it must return an nn.Module, not a {type(made).__name__}"
        )
    return made


def call(name: str, key: str, *arguments: Any) -> Any:
    """Import `package.module:function` and call it with its config table."""
    made = imported(name, key)
    try:
        inspect.signature(made).bind(*arguments)
    except (TypeError, ValueError) as error:
        raise UserError(f"{key} = {name!r}: {error}") from None
    return made(*arguments)


def imported(name: str, key: str) -> Any:
    """What `package.module:name` names."""
    module, _, function = name.partition(":")
    if not (module and function):
        raise UserError(f"{key} = {name!r}: write it as package.module:name")
    if os.getcwd() not in sys.path:  # a user's module beside the config, as with `python -m`
        sys.path.insert(0, os.getcwd())
    try:
        return getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise UserError(f"{key} = {name!r}: {error}") from None
