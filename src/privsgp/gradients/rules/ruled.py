"""Layer rules: run m models at once and read each sample's gradient off what passes through every layer.

The user's module is copied and every layer that has a rule is replaced by one that holds m weights. Everything between
the layers sees one long batch of m·b samples and need not know. A layer's share of a sample's gradient follows from
its input a and the gradient δ by its output, so one backward pass to the layers' outputs gives all there is to know.
"""

from __future__ import annotations

import contextlib
import copy
import math
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from privsgp.errors import Refused
from privsgp.gradients.per_sample import PerSample, Piece, Plain
from privsgp.gradients.rules.conv import StackedConv2d
from privsgp.gradients.rules.embedding import StackedEmbedding
from privsgp.gradients.rules.layer import StackedLayer, StackedLinear
from privsgp.gradients.rules.norm import StackedGroupNorm, StackedLayerNorm

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from privsgp.gradients.layout import Layout

RULES: dict[type[nn.Module], type[StackedLayer]] = {
    nn.Linear: StackedLinear,
    nn.Conv2d: StackedConv2d,
    nn.GroupNorm: StackedGroupNorm,
    nn.LayerNorm: StackedLayerNorm,
    nn.Embedding: StackedEmbedding,
}


class RuledLayers(ABC):
    """Per-sample gradients of a model some of whose layers are replaced by their rules.

    `rest` names the parameters that belong to no such layer: each sample gets a copy of its own.
    """

    def __init__(
        self, model: nn.Module, layout: Layout, loss: Callable[[Tensor, Tensor], Tensor],
        names: Collection[str] | None = None,
    ) -> None:  # fmt: skip
        self.model = copy.deepcopy(model).requires_grad_(requires_grad=False)
        for layer in self.model.modules():
            if getattr(layer, "inplace", False) is True:  # it would overwrite what a rule keeps
                layer.inplace = False  # type: ignore[assignment]
        self.layout = layout
        self.loss = loss
        self.layers = [self._replace(name, model.get_submodule(name)) for name in names or ruled_layers(model)]
        self.owned = {f"{one.name}.{p}".lstrip("."): one for one in self.layers for p in one.trained}
        self.rest = [name for name in layout.names if name not in self.owned]
        # With samples first, [b·m, C, h, w] is what a grouped convolution takes, without a copy.
        self.samples_first = any(isinstance(layer, StackedConv2d) for layer in self.layers)

    def _replace(self, name: str, layer: nn.Module) -> StackedLayer:
        kind = _rule(layer)
        if kind is None:
            raise RuntimeError(f"{name} has no rule")
        stacked = kind(name, layer)
        module = self.substitute(stacked)
        for p, value in layer.named_parameters():  # whose type and device forward may ask for; a use is seen as NaN
            nothing = torch.full((), math.nan, dtype=value.dtype, device=value.device).expand(value.shape)
            module.register_parameter(p, nn.Parameter(nothing, requires_grad=False))
        if name:
            self.model.set_submodule(name, module)
        else:
            self.model = module
        return stacked

    def substitute(self, layer: StackedLayer) -> nn.Module:
        """Return the module that is called in place of the user's layer."""
        return layer

    @abstractmethod
    def losses(self, data: Tensor, wanted: Tensor, rest: dict[str, Tensor]) -> Tensor:
        """Return the loss of every sample of the long batch."""

    def __call__(self, z: Tensor, inputs: Tensor, targets: Tensor) -> PerSample:
        """Return the gradients of model z[i] on inputs[i, j], for all i and j.

        Guarantee: what a piece says of its input, that it is the data, holds. A table takes out what it once put in by
        the data as they are: had a model written into them, one record's share would not stay within its clip.
        """
        with torch.enable_grad():
            data, wanted = self._long(inputs), self._long(targets)
            before, batch = data._version, inputs.shape[1]
            views = self.layout.views(z)
            for layer in self.layers:
                layer.load(views, len(z), samples_first=self.samples_first)
            each = {name: views[name].detach()[:, None].expand(-1, batch, *views[name].shape[1:]) for name in self.rest}
            rest = {name: self._long(value).requires_grad_() for name, value in each.items()}
            losses = self.losses(data, wanted, rest)
            if data._version != before:
                what = "the model writes into its input for some samples and not for others"
                raise Refused(what, "copy the input first: x = x.clone()")
            if any([len(call.input) for call in layer.calls] != [len(data)] for layer in self.layers):
                what = "the model calls a layer never, more than once, or not with one row per sample"
                raise Refused(what, "let the model call each layer once, with the batch as the first axis")
            calls = {layer: layer.calls.pop() for layer in self.layers}
            asked = [*(call.output for call in calls.values()), *rest.values()]
            found = torch.autograd.grad(losses.sum(), asked, allow_unused=bool(rest), materialize_grads=bool(rest))
        deltas: dict[Any, Tensor] = dict(zip([*calls, *rest], found, strict=True))
        del found
        pieces: list[Piece] = []
        for name in self.layout.names:  # what one layer no longer needs is freed before the next one's turn
            layer_of = self.owned.get(name)
            if layer_of is None:
                delta = deltas.pop(name)
                order = (batch, len(z)) if self.samples_first else (len(z), batch)
                delta = delta.reshape(*order, -1)
                pieces.append(Plain(delta.transpose(0, 1) if self.samples_first else delta))
            elif layer_of in calls:
                call = calls.pop(layer_of)
                same = call.input.data_ptr() == data.data_ptr() and call.input.numel() == data.numel()
                pieces.append(layer_of.piece(call, deltas.pop(layer_of), batch, input_is_data=same))
        return PerSample(pieces)

    def _long(self, x: Tensor) -> Tensor:
        return (x.transpose(0, 1) if self.samples_first else x).flatten(0, 1)


class Ruled(RuledLayers):
    """A model all of whose trained parameters belong to layers with a rule: it sees one long batch."""

    how = "by rules"

    def losses(self, data: Tensor, wanted: Tensor, rest: dict[str, Tensor]) -> Tensor:
        """Run the model on the long batch."""
        del rest
        return self.loss(self.model(data), wanted)


def ruled_layers(model: nn.Module) -> list[str]:
    """Name the trained layers of a model that have a rule, in the order of its parameters."""
    return [name for name, layer in model.named_modules() if _ruled(layer)]


def called_once(model: nn.Module, made_up: Tensor) -> list[str]:
    """Name the layers with a rule that the model calls once, and whose parameters no other layer has."""
    every = [p for _, p in model.named_parameters(remove_duplicate=False)]
    layers = {name: model.get_submodule(name) for name in ruled_layers(model)}
    counts = dict.fromkeys(layers, 0)
    with _watched(layers, lambda name, _out: counts.update({name: counts[name] + 1})), torch.no_grad():
        model(_as_parameters(model, made_up))
    return [
        name for name, layer in layers.items()
        if counts[name] == 1 and all(sum(p is one for one in every) == 1 for p in layer.parameters())
    ]  # fmt: skip


def _as_parameters(model: nn.Module, made_up: Tensor) -> Tensor:
    """Return samples where the model lies, and in its precision."""
    like = next(model.parameters(), made_up)
    return made_up.to(like.device, like.dtype if made_up.is_floating_point() else made_up.dtype)


@contextlib.contextmanager
def _watched(layers: dict[str, nn.Module], watch: Callable[[str, Any], object]) -> Iterator[None]:
    """Call note(name, output) whenever one of these layers is called."""
    hooks = [
        layer.register_forward_hook(lambda _layer, _given, out, name=name: watch(name, out) and None)
        for name, layer in layers.items()
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _rule(layer: nn.Module) -> type[StackedLayer] | None:
    """Return the rule of a layer's class, or of the class whose forward it inherits; None: there is none."""
    found = next((kind for kind in type(layer).__mro__ if kind in RULES), None)
    if found is None or type(layer).forward is not found.forward or next(layer.children(), None) is not None:
        return None
    return RULES[found]


def _ruled(layer: nn.Module) -> bool:
    rule = _rule(layer)
    hooked = layer._forward_hooks or layer._forward_pre_hooks
    return rule is not None and not hooked and rule.suits(layer) and any(p.requires_grad for p in layer.parameters())


def positions(model: nn.Module, made_up: Tensor) -> int:
    """Return at how many positions of a sample, such as the `made_up` ones, the model uses a layer at most.

    A layer's rule declares it. A layer without one, or whose parameters are used without a call, is taken as if it were
    used at two, for it might be at many; its gradients are plain, so that sums have no more terms.
    """
    owners = {
        name: layer for name, layer in model.named_modules() if next(layer.parameters(recurse=False), None) is not None
    }
    found: dict[str, list[int]] = {name: [] for name in owners}

    def watch(name: str, out: Any) -> None:  # noqa: ANN401 - a layer without a rule returns anything
        rule = _rule(owners[name])
        found[name].append(2 if rule is None else rule.positions(out))

    with _watched(owners, watch), torch.no_grad():
        model(_as_parameters(model, made_up))
    return max((max(places, default=2) for places in found.values()), default=1)
