"""Causal language models of Hugging Face (extra `[hf]`): shaped, or loaded from a folder; LoRA.

With LoRA (Hu et al., 2021) a weight W stays as it is and W + (alpha / rank) B A is used, where only A
and B train. What does not train is not in a model's vector: it is neither sent nor saved in a
checkpoint, and every process makes it from the same random numbers or reads it from the same folder.
"""

import json
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fedbudget.errors import UserError

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"


@dataclass(frozen=True)
class Lora:
    """Adapters beside frozen weights."""

    rank: int
    alpha: int = 0
    """numerator of the adapters' factor, alpha / rank; 0 = twice the rank"""
    targets: tuple[str, ...] = ()
    """ends of the names of modules that get one; () = every linear layer of the blocks"""
    also: tuple[str, ...] = ()
    """ends of the names of modules that train whole, such as the last norm"""


def shaped(
    vocabulary: int,
    context: int,
    layers: int,
    width: int,
    heads: int,
    dropout: float = 0.0,
    lora: Lora | None = None,
) -> nn.Module:
    """A GPT-2 of a given shape with random weights, for where none can be downloaded.

    Its head is not the embedding: it is in the top layer group, which always trains.
    """
    config = _transformers().GPT2Config(
        vocab_size=vocabulary,
        n_positions=context,
        n_embd=width,
        n_layer=layers,
        n_head=heads,
        resid_pdrop=dropout,
        embd_pdrop=dropout,
        attn_pdrop=dropout,
        bos_token_id=0,
        eos_token_id=0,
        tie_word_embeddings=False,
        use_cache=False,
    )
    return adapted(_transformers().GPT2LMHeadModel(config), lora)


def loaded(folder: str, lora: Lora | None = None) -> nn.Module:
    """The model in a local folder, in float32. No pickle is read, no code of the folder's is run."""
    place = _checked(folder)
    auto = _transformers().AutoModelForCausalLM
    with _explained(folder), _no_bars():
        model, found = auto.from_pretrained(
            place,
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=True,
            dtype=torch.float32,
            output_loading_info=True,
        )
    if lacking := sorted(found["missing_keys"]):
        raise UserError(
            f"model.folder = {folder!r}: its weights lack {lacking[0]}"
            + (f" and {len(lacking) - 1} more tensors" if len(lacking) > 1 else "")
        )
    model.config.use_cache = (
        False  # keys and values of earlier tokens: for writing, not for training
    )
    return adapted(model, lora)


def bounds(folder: str) -> tuple[int, int]:
    """Tokens that a folder's model knows, and how many it can look at (0: any number)."""
    place = _checked(folder)
    with _explained(folder):
        config = _transformers().AutoConfig.from_pretrained(
            place, local_files_only=True, trust_remote_code=False
        )
        return int(config.vocab_size), int(getattr(config, "max_position_embeddings", 0) or 0)


def adapted(model: nn.Module, lora: Lora | None) -> nn.Module:
    """Freeze a model and give it adapters; without LoRA, as it is."""
    if lora is None:
        return model
    _transformers()
    import peft

    config = peft.LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha or 2 * lora.rank,
        target_modules=list(lora.targets) or "all-linear",
        modules_to_save=list(lora.also) or None,
        task_type="CAUSAL_LM",
    )
    _check_names(model, "lora_targets", lora.targets)
    _check_names(model, "lora_also", lora.also)
    with warnings.catch_warnings():
        # it finds out by itself whether a layer keeps its weights transposed, as GPT-2's do
        warnings.filterwarnings("ignore", message="fan_in_fan_out")
        try:
            adapters: nn.Module = peft.get_peft_model(model, config)
        except ValueError as error:
            raise UserError(f"model.lora_targets: {_first_line(error)}") from None
    return adapters


def _check_names(model: nn.Module, key: str, wanted: tuple[str, ...]) -> None:
    """peft leaves out in silence what it does not find, as long as it finds something."""
    names = [name for name, _ in model.named_modules()]
    for end in wanted:
        if not any(name == end or name.endswith(f".{end}") for name in names):
            held = {n.rpartition(".")[0] for n, _ in model.named_parameters(remove_duplicate=False)}
            known = dict.fromkeys(n.split(".")[-1] for n in names if n in held)
            raise UserError(
                f"model.{key}: no module is called {end!r}; the model has {', '.join(known)}"
            )


def _checked(folder: str) -> Path:
    """A folder with a model's config and its weights as safetensors."""
    place = Path(folder).expanduser()
    if not place.is_dir():
        raise UserError(f"model.folder = {folder!r}: no such folder")
    if (place / "adapter_config.json").exists():
        raise UserError(
            f"model.folder = {folder!r} holds an adapter: merge it into its model first "
            "(peft: merge_and_unload, then save_pretrained)"
        )
    if not (place / "config.json").is_file():
        raise UserError(f"model.folder = {folder!r} holds no config.json")
    if (place / WEIGHTS).is_file():
        return place
    if not (place / INDEX).is_file():
        raise UserError(
            f"model.folder = {folder!r} holds no {WEIGHTS}; other formats, such as "
            "pytorch_model.bin, can hold code and are not read: save the model as safetensors"
        )
    with _explained(folder):
        files = set(json.loads((place / INDEX).read_text())["weight_map"].values())
    if any(Path(file).name != file or not file.endswith(".safetensors") for file in files):
        raise UserError(f"model.folder = {folder!r}: its {INDEX} names files of another kind")
    return place


@contextmanager
def _explained(folder: str) -> Iterator[None]:
    """Whatever a damaged folder makes a reader raise, in a sentence."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"model.folder = {folder!r} cannot be read: {_first_line(error)}") from None


@contextmanager
def _no_bars() -> Iterator[None]:
    """Without transformers' progress bars, which would cross ours."""
    logging = _transformers().utils.logging
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def _first_line(error: BaseException) -> str:
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0][:300]


def _transformers() -> Any:
    try:
        import peft  # noqa: F401
        import transformers
    except ImportError as error:
        raise UserError(
            f"model.kind = 'hf' needs the extra ({error}): pip install 'fedbudget[hf]'"
        ) from None
    return transformers
