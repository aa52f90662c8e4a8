"""The ordered layer groups of any module: bottom first, embeddings at the bottom, head on top.

Freezing is from the bottom up. A frozen prefix has no parameter that needs a gradient, so autograd
keeps no graph and no activations for it: the saving is real, in time and in memory.
"""

from collections.abc import Iterator, Sequence

from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from fedbudget.errors import UserError

Groups = list[list[str]]
"""names of the trainable tensors of each group, bottom first"""

_NORMS = (_NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)


def trainable(model: nn.Module) -> list[str]:
    """What training changes: parameters that need a gradient, and running statistics.

    Parameters the user has frozen (a LoRA base model) are left out: they are the same everywhere.
    """
    names = [name for name, p in model.named_parameters() if p.requires_grad]
    for prefix, module in model.named_modules():
        if isinstance(module, _NormBase) and module.track_running_stats:
            names += [f"{prefix}.running_mean".lstrip("."), f"{prefix}.running_var".lstrip(".")]
    return names


def layer_groups(model: nn.Module, prefixes: Sequence[str] | None = None) -> Groups:
    """The layer groups of a model, found from its structure or given as name prefixes.

    A stack of blocks (`nn.ModuleList`) makes a group of each block, one of everything before it
    and one of everything after it. Elsewhere each child with parameters is a group, and a norm
    joins the layer before it.

    >>> from fedbudget.models.gpt import GPT
    >>> [len(names) for names in layer_groups(GPT(65, layers=2))]
    [2, 12, 12, 3]
    >>> layer_groups(nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)))
    [['0.weight', '0.bias'], ['2.weight', '2.bias']]
    """
    names = trainable(model)
    if not names:
        raise UserError("the model has no parameter that needs a gradient: nothing would train")
    found = _given(names, prefixes) if prefixes is not None else _found(model)
    groups: Groups = [[] for _ in found]
    for name in names:
        # the longest matching prefix: "body.head" belongs to its own group before that of "body"
        matches = [(len(p), i) for i, ps in enumerate(found) for p in ps if _below(name, p)]
        groups[max(matches)[1] if matches else 0].append(name)
    return [group for group in groups if group]


def _below(name: str, prefix: str) -> bool:
    return prefix == "" or name == prefix or name.startswith(prefix + ".")


def _given(names: Sequence[str], prefixes: Sequence[str]) -> list[list[str]]:
    for prefix in prefixes:
        if not any(_below(name, prefix) for name in names):
            known = ", ".join(dict.fromkeys(n.split(".")[0] for n in names))
            raise UserError(
                f"layers: no trainable parameter is below {prefix!r}; the model has {known}"
            )
    return [[prefix] for prefix in prefixes]


def _found(model: nn.Module) -> list[list[str]]:
    """Prefixes of each group, in definition order."""
    parts = list(_parts("", model))
    stacks = [i for i, (_, _, in_stack) in enumerate(parts) if in_stack]
    if stacks:
        below, above = parts[: stacks[0]], parts[stacks[-1] + 1 :]
        middle = parts[stacks[0] : stacks[-1] + 1]
        return [
            group
            for group in (
                [name for name, _, _ in below],
                *([name] for name, _, _ in middle),
                [name for name, _, _ in above],
            )
            if group
        ]
    groups: list[list[str]] = []
    for name, module, _ in parts:
        if groups and isinstance(module, _NORMS):
            groups[-1].append(name)
        else:
            groups.append([name])
    return groups


def _parts(prefix: str, module: nn.Module) -> Iterator[tuple[str, nn.Module, bool]]:
    """(name, module, is a block of a stack) of the pieces a model is made of."""
    children = [
        (f"{prefix}.{name}".lstrip("."), child)
        for name, child in module.named_children()
        if any(True for _ in child.parameters())
    ]
    if not children or any(True for _ in module.parameters(recurse=False)):
        yield prefix, module, False
    for name, child in children:
        if isinstance(child, nn.ModuleList):
            for i, block in enumerate(child):
                yield f"{name}.{i}", block, True
        elif (
            isinstance(child, nn.Sequential | nn.ModuleDict)
            or _holds_stack(child)
            or len(children) == 1
        ):
            yield from _parts(name, child)
        else:
            yield name, child, False


def _holds_stack(module: nn.Module) -> bool:
    return any(isinstance(m, nn.ModuleList) for m in module.modules())
