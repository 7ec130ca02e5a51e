"""The rule for two-dimensional convolutions: m models run as one convolution with m times as many groups."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor, nn
from torch.nn.functional import conv2d
from torch.nn.grad import conv2d_input

from privsgp.devices import device_of
from privsgp.gradients.per_sample import Piece, Plain, smaller
from privsgp.gradients.positions import Positions, Window
from privsgp.gradients.product import Through
from privsgp.gradients.rules.layer import Call, StackedLayer

if TYPE_CHECKING:
    import torch


class StackedConv2d(StackedLayer):
    """A convolution of m models: [b·m, C, h, w] is seen as [b, m·C, h, w], and has m times the groups.

    Assumes: the long batch has samples first.
    """

    def __init__(self, name: str, layer: nn.Conv2d) -> None:
        super().__init__(name, layer)
        self.window = window(layer)

    @staticmethod
    def suits(layer: nn.Module) -> bool:
        """Only zeros may lie around the input, equally many on both sides."""
        assert isinstance(layer, nn.Conv2d)  # noqa: S101 - the registry asks for its own kind alone
        odd = all(d * (k - 1) % 2 == 0 for k, d in zip(layer.kernel_size, layer.dilation, strict=True))
        return layer.padding_mode == "zeros" and (layer.padding != "same" or odd)

    @classmethod
    def positions(cls, output: Tensor) -> int:
        """As many as an output has pixels."""
        return max(output[0, 0].numel(), 2)

    def forward(self, x: Tensor) -> Tensor:
        """Run all models at once."""
        m, bias = self.models, self.stacked.get("bias")
        a = x.reshape(-1, m * x.shape[1], *x.shape[2:])
        weight = self.stacked["weight"].flatten(0, 1)

        def run(a: Tensor) -> Tensor:
            w, shift = self.window, None if bias is None else bias.flatten()
            return conv2d(a, weight, shift, w.stride, w.padding, w.dilation, m * w.groups)

        def back(delta: Tensor, weight: Tensor) -> Tensor:
            return input_gradient(delta, weight, a.shape, self.window, m)

        out: Tensor = Through.apply(a, run, back, weight) if device_of(a).has_cudnn else run(a)  # type: ignore[no-untyped-call]
        self.record(x, a, out)
        return _by_model(out, m).flatten(0, 1)

    def piece(self, call: Call, delta: Tensor, batch: int, *, input_is_data: bool) -> Piece:
        """Σ_p δ_p ⊗ a_p, in its smaller form."""
        del batch
        delta, a = (_by_model(t, self.models).transpose(0, 1) for t in (delta, call.kept))
        if "weight" not in self.trained:
            return Plain(delta.sum((-2, -1)))
        w = self.window
        if w.kernel == (1, 1) and w.padding == (0, 0):  # pixels that no position sees need not be kept
            a, w = a[..., :: w.stride[0], :: w.stride[1]], Window(groups=w.groups)
        return smaller(Positions(delta, a, w, "bias" in self.trained, input_is_data=input_is_data))


def input_gradient(delta: Tensor, weight: Tensor, shape: torch.Size, w: Window, models: int) -> Tensor:
    """Return the gradient by a convolution's input, of this shape.

    At stride 1 it is a convolution of δ with the weights turned round. For convolutions cuDNN took tensor cores at all
    batch sizes that were profiled; for gradients as such it did not at 40 samples, and took twice the time.
    """
    groups = models * w.groups
    around = [d * (k - 1) - p for k, d, p in zip(w.kernel, w.dilation, w.padding, strict=True)]
    if w.stride != (1, 1) or min(around) < 0:
        return conv2d_input(shape, weight, delta, w.stride, w.padding, w.dilation, groups)  # type: ignore[no-any-return, no-untyped-call]
    turned = weight.view(groups, -1, *weight.shape[1:]).transpose(1, 2).flip(-2, -1).flatten(0, 1)
    return conv2d(delta, turned, None, 1, around, w.dilation, groups)


def _by_model(t: Tensor, models: int) -> Tensor:
    """View [b, m·C, h, w] as [b, m, C, h, w]."""
    return t.reshape(len(t), models, -1, *t.shape[2:])


def window(layer: nn.Conv2d) -> Window:
    """Return a layer's geometry, with "same" and "valid" as numbers."""
    same = tuple(d * (k - 1) // 2 for k, d in zip(layer.kernel_size, layer.dilation, strict=True))
    padding = layer.padding if isinstance(layer.padding, tuple) else same if layer.padding == "same" else (0, 0)
    return Window(layer.kernel_size, layer.stride, padding, layer.dilation, layer.groups)
