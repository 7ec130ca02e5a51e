"""One layer of m models at once: what every layer rule has in common.

A rule keeps what its layer is called with and says how the layer's share of each sample's gradient follows from that
and from δ, the gradient by the layer's output.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from torch import Tensor, nn

if TYPE_CHECKING:
    from collections.abc import Mapping

    from privsgp.gradients.per_sample import Piece


class Call(NamedTuple):
    """What passed through a layer: its input as it came, what its rule keeps of it, and its output."""

    input: Tensor
    kept: Tensor
    output: Tensor


class StackedLayer(nn.Module, ABC):
    """One layer of m models; remembers what passed through it.

    A rule declares whether its layer may be `positional`: its weight used at many positions of a sample, whose shares
    of the gradient are added up only after the clip, and may cancel. Clipping is then counted with more slack
    (`rounding.kappa`). False is right where `piece` is `Plain`: what is measured is then what is added.
    """

    positional: ClassVar[bool] = True  # the safe side

    def __init__(self, name: str, layer: nn.Module) -> None:
        super().__init__()
        self.name = name
        self.trained = [p for p, value in layer.named_parameters() if value.requires_grad]
        self.frozen = {p: value.detach() for p, value in layer.named_parameters() if not value.requires_grad}
        self.stacked: dict[str, Tensor] = {}  # [m, *shape] by parameter, set before each pass
        self.calls: list[Call] = []
        self.models = 0
        self.samples_first = False

    @staticmethod
    def suits(layer: nn.Module) -> bool:  # noqa: ARG004 - what a kind of layer can be asked
        """Tell whether the rule covers this layer's options."""
        return True

    @classmethod
    def positions(cls, output: Tensor) -> int:
        """Return at how many positions of a sample an output [b, …] shows the layer used; no fewer than there are."""
        return max(output[0].numel(), 2) if cls.positional else 1

    @abstractmethod
    def piece(self, call: Call, delta: Tensor, batch: int, *, input_is_data: bool) -> Piece:
        """Return the layer's share of the per-sample gradients; δ is shaped like the output of `call`."""

    def load(self, views: Mapping[str, Tensor], models: int, *, samples_first: bool) -> None:
        """Take the weights of m models, before each pass; what is frozen is the same for all."""
        prefix = f"{self.name}." if self.name else ""
        self.stacked = {p: views[prefix + p] for p in self.trained}
        self.stacked |= {p: value.expand(models, *value.shape) for p, value in self.frozen.items()}
        self.models, self.samples_first = models, samples_first
        self.calls.clear()

    def split(self, x: Tensor) -> Tensor:
        """View the long batch as [m, b, …]."""
        if self.samples_first:
            return x.reshape(-1, self.models, *x.shape[1:]).transpose(0, 1)
        return x.reshape(self.models, -1, *x.shape[1:])

    def join(self, x: Tensor) -> Tensor:
        """Lay [m, b, …] out as the long batch."""
        return (x.transpose(0, 1) if self.samples_first else x).flatten(0, 1)

    def record(self, a: Tensor, kept: Tensor, output: Tensor) -> None:
        """Remember a call, and let the backward pass reach its output."""
        if not output.requires_grad:
            output.requires_grad_()
        self.calls.append(Call(a, kept.detach(), output))
