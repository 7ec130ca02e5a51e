"""Layer rules: run m models at once and read each sample's gradient off what passes through every layer.

The user's module is copied and every layer that has a rule is replaced by one that holds m weights. Everything between
the layers sees one long batch of m·b samples and need not know. A layer's share of a sample's gradient follows from
its input a and the gradient δ by its output, so one backward pass to the layers' outputs gives all there is to know.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from privsgp.errors import Refused
from privsgp.gradients.per_sample import PerSample
from privsgp.gradients.rules.conv import StackedConv2d
from privsgp.gradients.rules.embedding import StackedEmbedding
from privsgp.gradients.rules.layer import StackedLayer, StackedLinear
from privsgp.gradients.rules.norm import StackedGroupNorm, StackedLayerNorm

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from privsgp.gradients.layout import Layout

RULES: dict[type[nn.Module], type[StackedLayer]] = {
    nn.Linear: StackedLinear,
    nn.Conv2d: StackedConv2d,
    nn.GroupNorm: StackedGroupNorm,
    nn.LayerNorm: StackedLayerNorm,
    nn.Embedding: StackedEmbedding,
}


class Ruled:
    """Per-sample gradients for a module whose trainable parameters all belong to layers with a rule."""

    def __init__(self, model: nn.Module, layout: Layout, loss: Callable[[Tensor, Tensor], Tensor]) -> None:
        self.model = copy.deepcopy(model).requires_grad_(requires_grad=False)
        self.layout = layout
        self.loss = loss
        self.layers = [self._replace(name, model.get_submodule(name)) for name in ruled_layers(model)]
        # With samples first, [b·m, C, h, w] is what a grouped convolution takes, without a copy.
        self.samples_first = any(isinstance(layer, StackedConv2d) for layer in self.layers)

    def _replace(self, name: str, layer: nn.Module) -> StackedLayer:
        stacked = RULES[type(layer)](name, layer)
        if name:
            self.model.set_submodule(name, stacked)
        else:
            self.model = stacked
        return stacked

    def __call__(self, z: Tensor, inputs: Tensor, targets: Tensor) -> PerSample:
        """Return the gradients of model z[i] on inputs[i, j], for all i and j.

        Guarantee: what a piece says of its input, that it is the data, holds. A table takes out what it once put in by
        the data as they are: had a model written into them, one record's share would not stay within its clip.
        """
        with torch.enable_grad():
            data, wanted = self._long(inputs), self._long(targets)
            before = data._version
            views = self.layout.views(z)
            for layer in self.layers:
                layer.load(views, len(z), samples_first=self.samples_first)
            losses = self.loss(self.model(data), wanted)
            if data._version != before:
                raise Refused(
                    "a model that writes into its input at some samples and not at others",
                    "let it work on a copy: x = x.clone()",
                )
            if any([len(call.input) for call in layer.calls] != [len(data)] for layer in self.layers):
                raise Refused(
                    "a layer is not called once with one row per sample", "let the model call each layer once"
                )
            calls = [layer.calls.pop() for layer in self.layers]
            deltas = list(torch.autograd.grad(losses.sum(), [call.output for call in calls]))
        pieces = []
        for layer in self.layers:  # what one layer no longer needs is freed before the next one's turn
            call = calls.pop(0)
            same = call.input.data_ptr() == data.data_ptr() and call.input.numel() == data.numel()
            pieces.append(layer.piece(call, deltas.pop(0), inputs.shape[1], input_is_data=same))
        return PerSample(pieces)

    def _long(self, x: Tensor) -> Tensor:
        return (x.transpose(0, 1) if self.samples_first else x).flatten(0, 1)


def ruled_layers(model: nn.Module) -> list[str]:
    """Name the trained layers of a model that have a rule, in the order of its parameters."""
    return [name for name, layer in model.named_modules() if _ruled(layer)]


def _ruled(layer: nn.Module) -> bool:
    rule = RULES.get(type(layer))
    hooked = layer._forward_hooks or layer._forward_pre_hooks
    return rule is not None and not hooked and rule.suits(layer) and any(p.requires_grad for p in layer.parameters())


def positions(model: nn.Module, made_up: Tensor) -> int:
    """Return at how many positions of a sample, such as the `made_up` ones, the model uses a layer at most.

    A layer's rule declares it. A layer without one, or whose parameters are used without a call, is taken as if it were
    used at two, for it might be at many; its gradients are plain, so that sums have no more terms.
    """
    owners = [layer for layer in model.modules() if next(layer.parameters(recurse=False), None) is not None]
    seen: dict[nn.Module, list[int]] = {layer: [] for layer in owners}

    def note(layer: nn.Module, _given: object, out: Tensor) -> None:
        rule = RULES.get(type(layer))
        seen[layer].append(2 if rule is None else rule.positions(out))

    hooks = [layer.register_forward_hook(note) for layer in owners]
    like = next(model.parameters(), made_up)
    try:
        with torch.no_grad():
            model(made_up.to(like.device, like.dtype if made_up.is_floating_point() else made_up.dtype))
    finally:
        for hook in hooks:
            hook.remove()
    return max((max(places, default=2) for places in seen.values()), default=1)


def covers(model: nn.Module, layout: Layout) -> bool:
    """Tell whether every trained parameter belongs to exactly one layer with a rule, in layout order."""
    owned: list[str] = []
    for name in ruled_layers(model):
        prefix = f"{name}." if name else ""
        owned += [prefix + p for p, value in model.get_submodule(name).named_parameters() if value.requires_grad]
    all_or_none: Sequence[str] = [n for n, p in model.named_parameters(remove_duplicate=False) if p.requires_grad]
    return owned == list(layout.names) == all_or_none
