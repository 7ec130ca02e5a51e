"""From a user's module to its per-sample gradients: which way to take, and what must be refused.

A rule is used only where each parameter belongs to exactly one ruled layer that is called exactly once, and only
after it has given the same gradients as plain autograd on random data. A module in which samples of a batch influence
each other has no per-sample gradient, and clipping it would protect nobody: it is refused.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from privsgp.errors import Refused
from privsgp.gradients.dropout import is_keyed, keyed, keys_of
from privsgp.gradients.layout import Layout
from privsgp.gradients.per_sample import PerSample, Plain
from privsgp.gradients.rules.ruled import Ruled, covers
from privsgp.gradients.unrolled import unrolled

if TYPE_CHECKING:
    from collections.abc import Callable

    Loss = Callable[[Tensor, Tensor], Tensor]


class Stacked(Protocol):
    """Per-sample gradients of m models: z [m, d], inputs [m, b, …], targets [m, b, …]."""

    layout: Layout

    def __call__(self, z: Tensor, inputs: Tensor, targets: Tensor, keys: Tensor | None = None) -> PerSample:
        """Return the gradients of model z[i] on inputs[i, j], for all i and j; `keys` [m, b] are for dropout."""


def stack(model: nn.Module, loss: Loss, sample: tuple[Tensor, Tensor], *, rules: bool = True) -> Stacked:
    """Return the gradients of `model` for many parameter vectors at once.

    `sample` is (inputs, targets) of a few *made-up* samples of the right shape: the probe runs on them, never on
    private data. `rules=False` takes the `torch.func` way for everything.
    """
    refuse_mixing_layers(model)
    layout = Layout.of(model)
    if not layout.dim:
        raise Refused("the model has no trainable parameter", "give it at least one layer with requires_grad=True")
    model = keyed(model)
    refuse_mixing(model, loss, sample)
    functional = Functional(unrolled(model), layout, loss)
    _probe_functional(functional, functional.losses, model, sample)
    if rules and covers(model, layout) and _agree(model, loss, sample):
        return Ruled(model, layout, loss)
    _probe_functional(functional, functional, model, sample)  # the first gradient loads torch's compiler: a second
    return functional


def refuse_mixing_layers(model: nn.Module) -> None:
    """Refuse, by name, layers whose output for a sample depends on more than the sample and the parameters."""
    for name, layer in model.named_modules():
        kind, label = type(layer).__name__, f"layer '{name}'" if name else "the model"
        if _is_frozen_norm(layer):
            continue
        if "BatchNorm" in kind:
            raise Refused(
                f"{label} is a {kind}: it averages over the batch",
                "use nn.GroupNorm or nn.LayerNorm; with public statistics that do not change it is fine: call eval()",
            )
        if getattr(layer, "track_running_stats", False):
            raise Refused(f"{label} is a {kind} that keeps statistics of the data", "use nn.GroupNorm")
        if "Dropout" in kind and getattr(layer, "p", 0.0) != 0.0 and not is_keyed(layer):
            raise Refused(
                f"{label} is a {kind} with p = {layer.p}: its coins are not keyed", "use nn.Dropout, or p = 0"
            )
        if isinstance(inner := getattr(layer, "dropout", None), float) and inner > 0:
            raise Refused(
                f"{label} is a {kind} with dropout = {inner} inside: its coins are not keyed",
                "take dropout = 0 there, and nn.Dropout layers of their own",
            )


def _is_frozen_norm(layer: nn.Module) -> bool:
    """Tell whether a normalisation has statistics of its own that no longer change: a fixed map of each sample.

    Assumes: as of all that a model starts from, that they are public.
    """
    return not layer.training and getattr(layer, "running_mean", None) is not None


def refuse_mixing(model: nn.Module, loss: Loss, sample: tuple[Tensor, Tensor]) -> None:
    """Compare each sample's loss in a batch with the sample alone (this catches `x.mean(0)` in user code).

    Guarantee: none beyond the probe; a module that mixes samples only on special inputs is not noticed.
    """
    probe = copy.deepcopy(model).double()
    inputs, targets = (_real(t, torch.float64) for t in sample)
    keys = torch.arange(len(targets), device=targets.device)
    with torch.no_grad():
        with keys_of(probe, keys):
            together = loss(probe(inputs), targets)
        if together.shape != targets.shape[:1]:
            raise Refused(
                f"the loss gives a tensor of shape {tuple(together.shape)} for {targets.shape[0]} samples",
                "return one number per sample (reduction='none', averaged over everything but the first axis)",
            )
        alone = torch.cat([_alone(probe, loss, *one) for one in zip(keys, inputs, targets, strict=True)])
    if not torch.allclose(together, alone, rtol=1e-9, atol=1e-12, equal_nan=True):
        apart = float((together - alone).abs().max())
        raise Refused(
            f"the loss of a sample depends on the other samples of its batch (by {apart:.3g})",
            "make every operation of the model and the loss act on each sample alone",
        )


def _alone(model: nn.Module, loss: Loss, key: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Return the loss of one sample that is a batch by itself."""
    with keys_of(model, key[None]):
        return loss(model(x[None]), y[None])


def _probe_functional(
    functional: Functional, take: Callable[..., object], model: nn.Module, sample: tuple[Tensor, Tensor]
) -> None:
    """Refuse what `torch.func` cannot take apart sample by sample: a branch on what a whole batch holds, say."""
    z = functional.layout.flatten(model)[None]
    keys = torch.arange(2, device=z.device)[None, : len(sample[1])]
    try:
        take(z, _real(sample[0][None, :2], z.dtype), sample[1][None, :2], keys)
    except (RuntimeError, ValueError) as error:
        raise Refused(
            f"torch.func cannot differentiate this model sample by sample: {error}",
            "write its forward with operations that vmap supports, without in-place changes or data-dependent branches",
        ) from error


def _agree(model: nn.Module, loss: Loss, sample: tuple[Tensor, Tensor]) -> bool:
    """Tell whether the rule gives the gradients of one sample alone, for two different models at once, in float64."""
    double = copy.deepcopy(model).double()
    layout = Layout.of(double)
    rule, functional = Ruled(double, layout, loss), Functional(unrolled(double), layout, loss)
    z = layout.flatten(double) * torch.tensor([[1.0], [0.5]], dtype=torch.float64, device=sample[0].device)
    x, y = sample[0][:2], sample[1][:2]
    inputs, targets = (_real(torch.stack([t, t.flip(0)]), torch.float64) for t in (x, y))
    keys = torch.arange(targets.shape[0] * targets.shape[1], device=targets.device).view(targets.shape[:2])
    try:
        if not rule.called_once(z, inputs):
            return False
        fast, plain = rule(z, inputs, targets, keys), functional.one_by_one(z, inputs, targets, keys)
    except (RuntimeError, AttributeError, ValueError, TypeError):
        return False  # a forward that uses its layers in some other way than calling them
    same = torch.allclose(fast.dense(), plain, rtol=1e-9, atol=1e-12)
    return same and torch.allclose(fast.norm(), plain.norm(dim=-1), rtol=1e-9, atol=1e-12)


def _real(t: Tensor, dtype: torch.dtype) -> Tensor:
    """Return real numbers in another precision, and whole ones, such as tokens, as they are."""
    return t.to(dtype) if t.is_floating_point() else t


class Functional:
    """The gradient of one sample alone, mapped over samples and over models: slower, and the same numbers."""

    def __init__(self, model: nn.Module, layout: Layout, loss: Callable[[Tensor, Tensor], Tensor]) -> None:
        self.layout = layout

        def one(parameters: dict[str, Tensor], x: Tensor, y: Tensor, key: Tensor | None) -> Tensor:
            with keys_of(model, None if key is None else key[None]):
                return loss(functional_call(model, parameters, (x[None],)), y[None]).sum()

        self._loss, self._gradient = one, grad(one)

    def __call__(self, z: Tensor, inputs: Tensor, targets: Tensor, keys: Tensor | None = None) -> PerSample:
        """Return the gradients of model z[i] on inputs[i, j], for all i and j; `keys` [m, b] are for dropout."""
        gradients = self._mapped(self._gradient, z, inputs, targets, keys)
        return PerSample([Plain(torch.cat([gradients[name].flatten(2) for name in self.layout.names], -1))])

    def losses(self, z: Tensor, inputs: Tensor, targets: Tensor, keys: Tensor | None = None) -> Tensor:
        """Return the loss of model z[i] on inputs[i, j], for all i and j."""
        found: Tensor = self._mapped(self._loss, z, inputs, targets, keys)
        return found

    def _mapped(self, one: Callable[..., Any], z: Tensor, inputs: Tensor, targets: Tensor, keys: Tensor | None) -> Any:  # noqa: ANN401 - what `one` returns
        """Return `one` of each sample alone, over samples and over models."""
        views = {name: v.contiguous() for name, v in self.layout.views(z).items()}
        key = None if keys is None else 0
        per_sample = vmap(one, in_dims=(None, 0, 0, key))
        return vmap(per_sample, in_dims=(0, 0, 0, key))(views, inputs, targets, keys)

    def one_by_one(self, z: Tensor, inputs: Tensor, targets: Tensor, keys: Tensor | None = None) -> Tensor:
        """Return the same as [m, b, d] by plain autograd, one model and one sample after the other."""
        models = z.repeat_interleave(inputs.shape[1], 0)
        flat = [None] * len(models) if keys is None else keys.flatten()
        samples = zip(models, inputs.flatten(0, 1), targets.flatten(0, 1), flat, strict=True)
        return torch.stack([self._alone(*one) for one in samples]).view(*inputs.shape[:2], -1)

    def _alone(self, row: Tensor, x: Tensor, y: Tensor, key: Tensor | None) -> Tensor:
        views = {name: v.detach().requires_grad_() for name, v in self.layout.views(row).items()}
        wanted = [views[name] for name in self.layout.names]
        with torch.enable_grad():
            loss = self._loss(views, x, y, key)
        found = torch.autograd.grad(loss, wanted, allow_unused=True, materialize_grads=True)
        return torch.cat([g.flatten() for g in found])
