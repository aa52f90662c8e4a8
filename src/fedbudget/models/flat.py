"""Any module as one vector: its trainable tensors, ordered by layer group, in one buffer.

Parameters are views into `weights` and gradients views into `grads`, so that a local step, a
proximal term, an update and a mean are each one vector operation, and the trained top of a model
is a slice. The server, the codecs and the algorithms know only vectors and a `Layout`.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile

import torch
from torch import Tensor, nn

from fedbudget.errors import UserError
from fedbudget.models.layers import layer_groups


@dataclass(frozen=True)
class Layout:
    """Where each tensor lies in the vector."""

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    groups: tuple[int, ...]
    """the layer group of each tensor, not decreasing"""
    dtype: torch.dtype = torch.float32
    statistics: tuple[str, ...] = ()
    """names of running statistics: averaged like weights, but no optimiser's business"""

    @property
    def raw(self) -> str:
        """The codec that loses nothing."""
        return "raw64" if self.dtype == torch.float64 else "raw32"

    @cached_property
    def offsets(self) -> tuple[int, ...]:
        """Start of each tensor, and the end of the last."""
        ends = [0]
        for shape in self.shapes:
            ends.append(ends[-1] + torch.Size(shape).numel())
        return tuple(ends)

    @property
    def size(self) -> int:
        return self.offsets[-1]

    @property
    def depth(self) -> int:
        """Number of layer groups."""
        return self.groups[-1] + 1

    @property
    def titles(self) -> tuple[str, ...]:
        """What each layer group is called: the names its tensors share, or the first of them.

        >>> Layout(("wte", "h.0.w", "h.0.b", "ln.w", "head.w"), ((),) * 5, (0, 1, 1, 2, 2)).titles
        ('wte', 'h.0', 'ln, head')
        """
        found = []
        for group in range(self.depth):
            own = [n for n, g in zip(self.names, self.groups, strict=True) if g == group]
            paths = [name.split(".")[:-1] or [name] for name in own]
            same = takewhile(lambda parts: len(set(parts)) == 1, zip(*paths, strict=False))
            shared = ".".join(parts[0] for parts in same)
            found.append(shared or ", ".join(dict.fromkeys(path[0] for path in paths)))
        return tuple(found)

    def span(self, first: int, last: int) -> slice:
        """The part of the vector that belongs to groups first..last-1."""
        inside = [i for i, g in enumerate(self.groups) if first <= g < last]
        return slice(self.offsets[inside[0]], self.offsets[inside[-1] + 1])

    def top(self, k: int, above: int = 0) -> slice:
        """The part of the vector that belongs to the top k groups, or to the k below the top ones."""
        last = self.depth - above
        return self.span(last - k, last)

    @cached_property
    def digest(self) -> bytes:
        """8 bytes that two sides compare before they exchange vectors."""
        text = repr([*zip(self.names, self.shapes, self.groups, strict=True)])
        return hashlib.blake2b(text.encode(), digest_size=8).digest()

    @cached_property
    def statistic_slices(self) -> tuple[slice, ...]:
        ends = zip(self.names, self.offsets, self.offsets[1:], strict=False)
        return tuple(slice(a, b) for name, a, b in ends if name in self.statistics)

    def named(self, vector: Tensor) -> dict[str, Tensor]:
        """The vector as named tensors (views)."""
        pieces = zip(self.names, self.shapes, self.offsets, strict=False)
        return {n: vector[o : o + torch.Size(s).numel()].view(s) for n, s, o in pieces}


class FlatModel:
    """A module whose trainable state lives in one vector."""

    def __init__(
        self,
        module: nn.Module,
        prefixes: Sequence[str] | None = None,
        device: torch.device | None = None,
    ) -> None:
        if device is not None:
            module.to(device)
        groups = layer_groups(module, prefixes)
        parameters = dict(module.named_parameters())
        tensors = {**parameters, **dict(module.named_buffers())}
        names = [name for group in groups for name in group]
        dtypes = {tensors[name].dtype for name in names}
        if len(dtypes) > 1 or not dtypes <= {torch.float32, torch.float64}:
            raise UserError(
                f"the model's trainable tensors have dtype {', '.join(sorted(map(str, dtypes)))}; "
                "they must all be float32 (model.float()) or all float64"
            )
        self.module = module
        self.layout = Layout(
            tuple(names),
            tuple(tuple(tensors[name].shape) for name in names),
            tuple(i for i, group in enumerate(groups) for _ in group),
            dtypes.pop(),
            tuple(name for name in names if name not in parameters),
        )
        self.weights = torch.zeros(self.layout.size, dtype=self.layout.dtype, device=device)
        self.grads = torch.zeros_like(self.weights)
        self._parameters = {name: parameters[name] for name in names if name in parameters}
        self._grad_views = self.layout.named(self.grads)
        for name, view in self.layout.named(self.weights).items():
            view.copy_(tensors[name].detach())
            tensors[name].data = view
        # the counters of norms are not sent; each local run starts with the model's own
        counters = [b for n, b in module.named_buffers() if n.endswith("num_batches_tracked")]
        self._counters = [(b, b.clone()) for b in counters]
        self._trains = slice(0, 0)
        self._training = False
        self.freeze(self.layout.depth)

    @property
    def frozen_bytes(self) -> int:
        """Of what the module holds outside the vector: parameters that the user froze, buffers."""
        held = (*self.module.named_parameters(), *self.module.named_buffers())
        return sum(t.nbytes for name, t in held if name not in self.layout.names)

    def freeze(self, k: int, above: int = 0) -> slice:
        """Train the top k groups below `above` frozen ones only; returns their slice of the vector."""
        part = self.layout.top(k, above)
        if part != self._trains:
            self._trains = part
            self._training = False
            starts = zip(self.layout.names, self.layout.offsets, strict=False)
            self._frozen = {name for name, at in starts if not part.start <= at < part.stop}
            for name, p in self._parameters.items():
                trains = name not in self._frozen
                p.requires_grad_(trains)
                p.grad = self._grad_views[name] if trains else None
            self._frozen_modules = [m for p, m in self.module.named_modules() if self._still(p, m)]
        return part

    def _still(self, prefix: str, module: nn.Module) -> bool:
        """Whether all that a module itself holds is frozen."""
        held = (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False))
        own = {f"{prefix}.{name}".lstrip(".") for name, _ in held} & set(self.layout.names)
        return bool(own) and own <= self._frozen

    def parameter_slices(self, part: slice) -> list[slice]:
        """The runs of parameters inside `part`: what an optimiser may change, buffers left out."""
        runs: list[slice] = []
        offsets = self.layout.offsets
        for name, a, b in zip(self.layout.names, offsets, offsets[1:], strict=False):
            if not part.start <= a < part.stop or name not in self._parameters:
                continue
            if runs and runs[-1].stop == a:
                runs[-1] = slice(runs[-1].start, b)
            else:
                runs.append(slice(a, b))
        return runs

    def train(self) -> None:
        """Training mode; frozen layers keep their statistics, which are not sent."""
        for counter, start in self._counters:
            counter.copy_(start)
        if not self._training:
            self._training = True
            self.module.train()
            for module in self._frozen_modules:
                module.training = False

    def eval(self) -> None:
        """Evaluation mode."""
        self._training = False
        self.module.eval()

    def state_dict(self, vector: Tensor) -> dict[str, Tensor]:
        """The module's whole state with `vector` in it, as copies that share no memory."""
        self.weights.copy_(vector)
        return {name: t.detach().clone() for name, t in self.module.state_dict().items()}
