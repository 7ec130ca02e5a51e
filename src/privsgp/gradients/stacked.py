"""From a user's module to its per-sample gradients: which way to take, and what must be refused.

A rule is used only where each parameter belongs to exactly one ruled layer that is called exactly once, and only
after it has given the same gradients as plain autograd on random data. A module in which samples of a batch influence
each other has no per-sample gradient, and clipping it would protect nobody: it is refused.
"""

from __future__ import annotations

import copy
from itertools import product
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.parameter import is_lazy

from privsgp.errors import Refused
from privsgp.gradients.layout import Layout
from privsgp.gradients.per_sample import PerSample, Plain
from privsgp.gradients.rules.mixed import Mixed
from privsgp.gradients.rules.ruled import Ruled, called_once, keeps_rows
from privsgp.gradients.unrolled import unrolled

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    Loss = Callable[[Tensor, Tensor], Tensor]


class Stacked(Protocol):
    """Per-sample gradients of m models: z [m, d], inputs [m, b, …], targets [m, b, …]."""

    layout: Layout

    @property
    def how(self) -> str:
        """In words, how they are computed."""

    def __call__(self, z: Tensor, inputs: Tensor, targets: Tensor) -> PerSample:
        """Return the gradients of model z[i] on inputs[i, j], for all i and j."""


def stack(model: nn.Module, loss: Loss, sample: tuple[Tensor, Tensor], *, rules: bool = True) -> Stacked:
    """Return the gradients of `model` for many parameter vectors at once.

    `sample` is (inputs, targets) of a few *made-up* samples of the right shape: the probe runs on them, never on
    private data. `rules=False` takes the `torch.func` way for everything.
    """
    refuse_mixing_layers(model)
    layout = Layout.of(model)
    if not layout.dim:
        raise Refused("the model has no trainable parameter", "give it at least one layer with requires_grad=True")
    refuse_mixing(model, loss, sample)
    names = called_once(model, sample[0]) if rules else []
    found, why = _by_rules(model, layout, loss, sample, names)
    functional = Functional(unrolled(model), layout, loss, why)
    z = layout.flatten(model).expand(2, -1)
    few = z, *(_real(torch.stack([t[:2]] * 2), z.dtype) for t in sample)
    try:
        functional.mapped(functional.loss, *few)
        if found is not None:
            found(*few)
            return found
        functional(*few)  # the first gradient loads torch's compiler: a second
    except Refused:
        raise
    except (RuntimeError, ValueError) as error:  # a branch on what a whole batch holds, say
        raise Refused(
            f"torch.func cannot differentiate this model sample by sample: {error}",
            "write its forward with operations that vmap supports, without in-place changes or branches that depend on "
            "data. Give models of Hugging Face masks with four axes: mask[:, None, None].bool()",
        ) from error
    return functional


def refuse_mixing_layers(model: nn.Module) -> None:
    """Refuse, by name, layers whose output for a sample depends on more than the sample and the parameters."""
    if hasattr(model, "_orig_mod"):
        raise Refused("the model is compiled", "give the module that torch.compile was given: privsgp replaces layers")
    for name, layer in model.named_modules():
        if any(is_lazy(p) for p in layer.parameters(recurse=False)):
            remedy = "call the model once on made-up samples before"
            raise Refused(f"layer '{name}' is a {type(layer).__name__}, whose weights have no shape yet", remedy)
        if layer._backward_hooks or layer._backward_pre_hooks:
            what = f"layer '{name}' has a backward hook, which would see the gradients of several samples at once"
            raise Refused(what, "remove the hook")
        if (found := _mixing(layer)) is not None:
            label, (fault, remedy) = f"layer '{name}'" if name else "the model", found
            raise Refused(f"{label} is a {type(layer).__name__}{fault}", remedy)


def _mixing(layer: nn.Module) -> tuple[str, str] | None:
    """Return how a layer mixes samples and what to use instead.

    A normalisation with statistics of its own that no longer change is a fixed map of each sample.
    Assumes: as of all that a model starts from, that they are public.
    """
    kind = type(layer).__name__
    inner = {key: value for key, value in vars(layer).items() if "drop" in key and isinstance(value, float) and value}
    if not layer.training and getattr(layer, "running_mean", None) is not None:
        return None
    if "BatchNorm" in kind:
        remedy = "use nn.GroupNorm or nn.LayerNorm; with public statistics that do not change it is fine: call eval()"
        return ": it averages over the batch", remedy
    if getattr(layer, "track_running_stats", False):
        return " that keeps statistics of the data", "use nn.GroupNorm"
    remedy = "take p = 0, dropout = 0 in a configuration, or call eval(): noise keeps a model from learning samples"
    if layer.training and "Dropout" in kind and getattr(layer, "p", 0.0) != 0.0:
        return f" with p = {layer.p}: a sample's gradient would depend on hidden random choices", remedy
    for key, value in inner.items() if layer.training else ():
        return f" with {key} = {value} inside: a sample's gradient would depend on hidden random choices", remedy
    return None


def refuse_mixing(model: nn.Module, loss: Loss, sample: tuple[Tensor, Tensor]) -> None:
    """Compare each sample's loss in a batch with the sample alone (this catches `x.mean(0)` in user code).

    Guarantee: none beyond the probe; a module that mixes samples only on special inputs is not noticed. Gradients do
    not rest on it where code of the user's sees one sample at a time.
    """
    probe = copy.deepcopy(model).double()
    _compare(probe, loss, sample)
    random = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for p in probe.parameters():  # a layer that starts at zero would hide what is before it
            p.add_(0.1 * torch.randn(p.shape, generator=random, dtype=p.dtype).to(p.device))
    _compare(probe, loss, sample)


def _compare(probe: nn.Module, loss: Loss, sample: tuple[Tensor, Tensor]) -> None:
    inputs, targets = (_real(t, torch.float64) for t in sample)
    with torch.no_grad():
        together = loss(probe(inputs), targets)
    if together.shape != targets.shape[:1]:
        what = f"the loss gives a tensor of shape {tuple(together.shape)} for {targets.shape[0]} samples"
        raise Refused(what, "return one number per sample (reduction='none', averaged over all but the first axis)")
    samples = zip(torch.split(inputs, 1), torch.split(targets, 1), strict=True)
    with torch.no_grad():
        alone = torch.cat([loss(probe(x), y) for x, y in samples])
    if not torch.allclose(together, alone, rtol=1e-9, atol=1e-12, equal_nan=True):
        apart = float((together - alone).abs().max())
        what = f"the loss of a sample depends on the other samples of its batch (by {apart:.3g})"
        raise Refused(
            what, "make every operation of the model and the loss act on each sample alone, and change no state"
        )


def _by_rules(
    model: nn.Module, layout: Layout, loss: Loss, sample: tuple[Tensor, Tensor], names: Sequence[str]
) -> tuple[Ruled | Mixed | None, str]:
    """Return the gradients by the rules of these layers if they are those of plain autograd; else why they are not."""
    why = "each layer with weights has no rule, or is called several times"
    owned = [f"{name}.{p}".lstrip(".") for name in names for p in Layout.of(model.get_submodule(name)).names]
    ways: list[tuple[type[Ruled | Mixed], nn.Module]] = [(Mixed, unrolled(model))] if names else []
    if owned == list(layout.names) and keeps_rows(model):
        ways.insert(0, (Ruled, model))
    for kind, made in ways:
        why = _differs(kind, made, loss, sample, names)
        if not why:
            return kind(made, layout, loss, names), ""
    return None, why


def _differs(
    kind: type[Ruled | Mixed], model: nn.Module, loss: Loss, sample: tuple[Tensor, Tensor], names: Collection[str]
) -> str:
    """Say how rules fail to give the gradients of one sample alone, for two different models at once, in float64."""
    double = copy.deepcopy(model).double()
    layout = Layout.of(double)
    moved = 0.1 * torch.randn(2, layout.dim, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    z = layout.flatten(double) + moved.to(sample[0].device)  # a layer that starts at zero would hide others
    x, y = sample[0][:2], sample[1][:2]
    inputs, targets = (_real(torch.stack([t, t.flip(0)]), torch.float64) for t in (x, y))
    try:
        fast = kind(double, layout, loss, names)(z, inputs, targets)
        plain = Functional(double, layout, loss).one_by_one(z, inputs, targets)
    except (RuntimeError, AttributeError, ValueError, TypeError, IndexError) as error:
        return str(error).partition("\n")[0]  # a forward that uses its layers in some other way than calling them
    same = torch.allclose(fast.dense(), plain, rtol=1e-9, atol=1e-12)
    same = same and torch.allclose(fast.norm(), plain.norm(dim=-1), rtol=1e-9, atol=1e-12)
    return "" if same else "the model uses the weights of a layer without calling it, or changes the layer"


def _real(t: Tensor, dtype: torch.dtype) -> Tensor:
    """Return real numbers in another precision, and whole ones, such as tokens, as they are."""
    return t.to(dtype) if t.is_floating_point() else t


class Functional:
    """The gradient of one sample alone, mapped over samples and over models: slower, and the same numbers."""

    def __init__(
        self, model: nn.Module, layout: Layout, loss: Callable[[Tensor, Tensor], Tensor], why: str = ""
    ) -> None:
        self.layout = layout
        self.how = f"by torch.func, which is slower: {why}"

        def one(parameters: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
            return loss(functional_call(model, parameters, (x[None],)), y[None]).sum()

        self.loss, self._gradient = one, grad(one)

    def __call__(self, z: Tensor, inputs: Tensor, targets: Tensor) -> PerSample:
        """Return the gradients of model z[i] on inputs[i, j], for all i and j."""
        gradients = self.mapped(self._gradient, z, inputs, targets)
        return PerSample([Plain(torch.cat([gradients[name].flatten(2) for name in self.layout.names], -1))])

    def mapped(self, one: Callable[..., Any], z: Tensor, x: Tensor, y: Tensor) -> Any:  # noqa: ANN401 - what `one` returns
        """Return `one` of each sample alone, over samples and over models."""
        views = {name: v.contiguous() for name, v in self.layout.views(z).items()}
        with sdpa_kernel(SDPBackend.MATH):  # the others have no rule for vmap
            return vmap(vmap(one, in_dims=(None, 0, 0)))(views, x, y)

    def one_by_one(self, z: Tensor, inputs: Tensor, targets: Tensor) -> Tensor:
        """Return the same as [m, b, d] by plain autograd, one model and one sample after the other."""
        rows = []
        for i, j in product(*map(range, inputs.shape[:2])):
            views = {name: v.detach().requires_grad_() for name, v in self.layout.views(z[i]).items()}
            with torch.enable_grad():
                loss = self.loss(views, inputs[i, j], targets[i, j])
            found = torch.autograd.grad(loss, list(views.values()), allow_unused=True, materialize_grads=True)
            rows.append(torch.cat([g.flatten() for g in found]))
        return torch.stack(rows).view(*inputs.shape[:2], -1)
