"""Several inputs of a sample, inside the model: its own call takes apart what lies side by side in one row.

The model is given (a, b, …) or (name=…), as it was written for.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from privsgp.data.samples import field_arrays
from privsgp.errors import Refused

if TYPE_CHECKING:
    from collections.abc import Sequence

_EXACT = 2**24  # whole numbers below are float32's own


@dataclass(frozen=True)
class Fields:
    """The inputs of a sample in order: names (None: by position), shapes, and which are whole numbers.

    `vocabulary` is the number of tokens of each field that the model looks up; 0: real numbers.
    """

    names: tuple[str, ...] | None
    shapes: tuple[tuple[int, ...], ...]
    vocabulary: tuple[int, ...] = ()

    @property
    def widths(self) -> list[int]:
        """How many numbers each field has."""
        return [math.prod(shape) for shape in self.shapes]

    @property
    def columns(self) -> tuple[int, ...]:
        """The vocabulary of each number of a sample."""
        return tuple(most for most, width in zip(self.vocabulary, self.widths, strict=True) for _ in range(width))

    def apart(self, x: Tensor) -> list[Tensor]:
        """Take rows [B, width] apart; tokens are whole numbers again."""
        parts = torch.split(x, self.widths, dim=1)
        shaped = [part.reshape(-1, *shape) for part, shape in zip(parts, self.shapes, strict=True)]
        return [part.long() if most else part for part, most in zip(shaped, self.vocabulary, strict=True)]

    def __call__(
        self, _module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Give the model its fields where it is called with a row of all; a call as it was written for stays."""
        x = args[0] if len(args) == 1 and not kwargs else None
        if not isinstance(x, Tensor) or x.ndim != 2 or x.shape[1] != sum(self.widths):
            return args, kwargs
        parts = self.apart(x)
        return (tuple(parts), {}) if self.names is None else ((), dict(zip(self.names, parts, strict=True)))

    def given_to(self, model: nn.Module) -> nn.Module:
        """Return a copy of the model that takes rows of all fields, and still what it was written for."""
        made = copy.deepcopy(model)
        made.register_forward_pre_hook(self, with_kwargs=True)
        return made


def fields_of(x: Mapping[str, Any] | tuple[Any, ...], model: nn.Module) -> Fields:
    """Read off what samples are made of, and off the model which whole numbers it looks up."""
    names = tuple(map(str, x)) if isinstance(x, Mapping) else None
    parts = field_arrays(x)
    bare = Fields(names, tuple(part.shape[1:] for part in parts), (0,) * len(parts))
    kinds = [torch.int64 if part.dtype.kind in "iu" else torch.float32 for part in parts]
    found = [_looked_up(bare, kinds, model, number) if kind == torch.int64 else 0 for number, kind in enumerate(kinds)]
    if max(found) > _EXACT:
        raise Refused(f"a vocabulary of {max(found)} among several inputs", f"take at most {_EXACT}")
    return Fields(names, bare.shapes, tuple(found))


def looked_up(model: nn.Module, shape: tuple[int, ...]) -> int | None:
    """Return the vocabulary of the embedding that a sample's tokens go to; None where they go to no such layer."""
    try:
        return _looked_up(Fields(None, (shape,)), [torch.int64], model, 0) or None
    except Refused:
        return None  # it takes real numbers


def _looked_up(bare: Fields, kinds: Sequence[torch.dtype], model: nn.Module, number: int) -> int:
    """Return the smallest embedding that is shown ones where this field alone is ones; 0 where there is none.

    An embedding of positions is shown others.
    """
    still, seen = copy.deepcopy(model).cpu().eval(), []

    def note(layer: nn.Module, given: tuple[Any, ...], _out: object) -> None:
        if given and isinstance(given[0], Tensor) and bool((given[0] == 1).all()):
            seen.append(int(layer.num_embeddings))  # type: ignore[arg-type]

    for layer in still.modules():
        if isinstance(layer, nn.Embedding | nn.EmbeddingBag):
            layer.register_forward_hook(note)
    shown = [
        torch.full((2, *shape), int(index == number), dtype=kind)
        for index, (kind, shape) in enumerate(zip(kinds, bare.shapes, strict=True))
    ]
    try:
        with torch.no_grad():
            still(*shown) if bare.names is None else still(**dict(zip(bare.names, shown, strict=True)))
    except (RuntimeError, TypeError, ValueError, IndexError) as error:
        what = f"the model cannot be called with inputs of shapes {[list(s) for s in bare.shapes]}: {error}"
        raise Refused(what, "give its forward one argument for each input, by position or by name") from error
    return min(seen, default=0)
