"""The rule for linear layers: the gradient of one sample's loss by the weight is δ ⊗ a.

On sequences, [batch, …, in], it is the sum of such products over the positions (see `positions`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from privsgp.devices import device_of
from privsgp.gradients.per_sample import Outer, Piece, Plain, smaller
from privsgp.gradients.positions import Positions, Window
from privsgp.gradients.product import product, through
from privsgp.gradients.rules.layer import Call, StackedLayer

if TYPE_CHECKING:
    from torch import Tensor


class StackedLinear(StackedLayer):
    """A linear layer of m models."""

    @classmethod
    def positions(cls, output: Tensor) -> int:
        """One where a sample is one row."""
        return 1 if output.ndim == 2 else max(output[0, ..., 0].numel(), 2)

    def forward(self, x: Tensor) -> Tensor:
        """Multiply each model's rows by its own weight."""
        a = self.split(x).flatten(1, -2)
        weight, bias = self.stacked["weight"], self.stacked.get("bias")
        shift = None if bias is None else bias[:, None]
        out = through(a, lambda a: product(a, weight.transpose(1, 2), shift), product, weight)
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
