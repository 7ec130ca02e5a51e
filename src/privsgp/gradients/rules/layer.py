"""One layer of m models at once: what every layer rule has in common, and the rule for linear layers.

A rule keeps what its layer is called with and says how the layer's share of each sample's gradient follows from that
and from δ, the gradient by the layer's output.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from torch import Tensor, nn

from privsgp.devices import device_of
from privsgp.gradients.per_sample import Outer, Piece, Plain, smaller
from privsgp.gradients.positions import Positions, Window
from privsgp.gradients.product import Through, product

if TYPE_CHECKING:
    from collections.abc import Mapping


class Call(NamedTuple):
    """One call of a layer: its input, the part that its rule keeps, and its output."""

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


class StackedLinear(StackedLayer):
    """A linear layer of m models: the gradient of one sample's loss by the weight is δ ⊗ a.

    On sequences, [batch, …, in], it is the sum of such products over the positions (see `positions`).
    """

    @classmethod
    def positions(cls, output: Tensor) -> int:
        """One where a sample is one row."""
        return 1 if output.ndim == 2 else max(output[0, ..., 0].numel(), 2)

    def forward(self, x: Tensor) -> Tensor:
        """Multiply each model's rows by its own weight."""
        a = self.split(x).flatten(1, -2)
        weight, bias = self.stacked["weight"], self.stacked.get("bias")
        shift = None if bias is None else bias[:, None]
        given = a, lambda a: product(a, weight.transpose(1, 2), shift), product, weight
        out: Tensor = Through.apply(*given)  # type: ignore[no-untyped-call]
        self.record(x, a, out)
        return self.join(out.view(self.models, -1, *x.shape[1:-1], out.shape[-1]))

    def piece(self, call: Call, delta: Tensor, batch: int, *, input_is_data: bool) -> Piece:
        """δ ⊗ a where a sample is one row, a sum of such products where it is several."""
        if "weight" not in self.trained:
            return Plain(delta.view(self.models, batch, -1, delta.shape[-1]).sum(2))
        bias = "bias" in self.trained
        if call.input.ndim == 2:
            return Outer(delta, call.kept, bias, input_is_data=input_is_data)
        window = Window(linear=device_of(delta).in_host_memory)
        delta, a = (_positions(t, batch, window) for t in (delta, call.kept))
        return smaller(Positions(delta, a, window, bias, input_is_data=input_is_data))


def _positions(t: Tensor, batch: int, window: Window) -> Tensor:
    """View [m, b · positions, size] as [m, b, size, positions, 1]; on a CPU samples come first in memory.

    Sums of numbers that lie otherwise round otherwise, and of one model a view would do.
    """
    view = t.view(len(t), batch, -1, t.shape[-1]).permute(1, 0, 3, 2)[..., None]
    return (view.contiguous() if window.linear else view).transpose(0, 1)
