"""The rule for linear layers: run m models at once and read each sample's gradient off as two factors.

The user's module is copied and every `nn.Linear` in it replaced by a layer that holds m weights. Everything between
the layers sees one long batch of m·b samples and need not know. The gradient of one sample's loss by a layer's weight
is δ ⊗ a: a is the layer's input, δ the gradient by its output, so one backward pass to the outputs gives all factors.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from privsgp.gradient.per_sample import Outer, PerSample
from privsgp.gradient.product import Forward

if TYPE_CHECKING:
    from collections.abc import Callable

    from privsgp.gradient.parameters import Layout


class _StackedLinear(nn.Module):
    """A linear layer of m models; remembers its input and output of the last call."""

    def __init__(self, name: str, layer: nn.Linear) -> None:
        super().__init__()
        self.name = name
        self.has_bias = layer.bias is not None
        self.weights: Tensor  # [m, out, in], set before each pass
        self.biases: Tensor | None = None  # [m, out]
        self.calls: list[tuple[Tensor, Tensor]] = []

    def forward(self, a: Tensor) -> Tensor:
        a = a.reshape(self.weights.shape[0], -1, *a.shape[1:])
        bias = None if self.biases is None else self.biases[:, None]
        out: Tensor = Forward.apply(a, self.weights, bias)  # type: ignore[no-untyped-call]
        if not out.requires_grad:
            out.requires_grad_()
        self.calls.append((a, out))
        return out.flatten(0, 1)


class LinearRule:
    """Per-sample gradients for a module whose trainable parameters all belong to linear layers."""

    def __init__(self, model: nn.Module, layout: Layout, loss: Callable[[Tensor, Tensor], Tensor]) -> None:
        self.model = copy.deepcopy(model).requires_grad_(requires_grad=False)
        self.layout = layout
        self.loss = loss
        self.layers = [self._replace(name) for name in linear_layers(model)]

    def _replace(self, name: str) -> _StackedLinear:
        stacked = _StackedLinear(name, self.model.get_submodule(name))  # type: ignore[arg-type]
        parent, _, child = name.rpartition(".")
        if name:
            setattr(self.model.get_submodule(parent), child, stacked)
        else:
            self.model = stacked
        return stacked

    def __call__(self, z: Tensor, inputs: Tensor, targets: Tensor) -> PerSample:
        """Return the gradients of model z[i] on inputs[i, j], for all i and j."""
        self._load(z)
        with torch.enable_grad():
            flat = inputs.flatten(0, 1)
            losses = self.loss(self.model(flat), targets.flatten(0, 1))
            calls = [layer.calls.pop() for layer in self.layers]
            deltas = torch.autograd.grad(losses.sum(), [out for _, out in calls])
        return PerSample(
            [
                Outer(delta, a.detach(), layer.has_bias, input_is_data=_same_memory(a, flat))
                for layer, (a, _), delta in zip(self.layers, calls, deltas, strict=True)
            ]
        )

    def _load(self, z: Tensor) -> None:
        views = self.layout.views(z)
        for layer in self.layers:
            prefix = f"{layer.name}." if layer.name else ""
            layer.weights = views[prefix + "weight"]
            layer.biases = views[prefix + "bias"] if layer.has_bias else None
            layer.calls.clear()

    def called_once(self, z: Tensor, inputs: Tensor) -> bool:
        """Run the model and tell whether each layer was called exactly once, on one vector per sample."""
        self._load(z)
        self.model(inputs.flatten(0, 1))
        once = all([a.shape[:-1] for a, _ in layer.calls] == [inputs.shape[:2]] for layer in self.layers)
        for layer in self.layers:
            layer.calls.clear()
        return once


def linear_layers(model: nn.Module) -> list[str]:
    """Name the plain linear layers of a model, in the order of its parameters."""
    return [name for name, layer in model.named_modules() if type(layer) is nn.Linear and _trained(layer)]


def covers(model: nn.Module, layout: Layout) -> bool:
    """Tell whether every trained parameter belongs to exactly one linear layer, in layout order."""
    owned = []
    for name in linear_layers(model):
        layer = model.get_submodule(name)
        prefix = f"{name}." if name else ""
        owned += [prefix + p for p, _ in layer.named_parameters()]
    everywhere = [n for n, p in model.named_parameters(remove_duplicate=False) if p.requires_grad]
    return owned == list(layout.names) == everywhere


def _trained(layer: nn.Module) -> bool:
    hooked = layer._forward_hooks or layer._forward_pre_hooks
    return all(p.requires_grad for p in layer.parameters()) and not hooked


def _same_memory(a: Tensor, data: Tensor) -> bool:
    return a.data_ptr() == data.data_ptr() and a.numel() == data.numel()
