"""Models with parameters that no rule fits: `vmap` runs them on each sample, and rules see all samples at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from privsgp.errors import Refused
from privsgp.gradients.rules.ruled import RuledLayers

if TYPE_CHECKING:
    from privsgp.gradients.rules.layer import StackedLayer


class Mixed(RuledLayers):
    """A model with other parameters too: `vmap` runs it on each sample, and rules see all samples at once."""

    @property
    def how(self) -> str:
        """Say which layers have no rule."""
        owners = {name.rpartition(".")[0] for name in self.rest}
        kinds = [f"{owner or 'the model'} ({type(self.model.get_submodule(owner)).__name__})" for owner in owners]
        if not kinds:
            return "by rules; torch.func runs the model's own code on one sample at a time"
        return f"by rules; by torch.func where no rule fits: {', '.join(sorted(kinds))}"

    def substitute(self, layer: StackedLayer) -> nn.Module:
        """Return what brings all samples together for the rule."""
        return _Together(layer)

    def losses(self, data: Tensor, wanted: Tensor, rest: dict[str, Tensor]) -> Tensor:
        """Run the model on each sample alone."""
        several = [one for one in self.model.modules() if isinstance(one, _Together)]

        def one(rest: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
            for together in several:
                together.sample = x
            return self.loss(functional_call(self.model, rest, (x[None],)), y[None]).sum()

        with sdpa_kernel(SDPBackend.MATH):  # the others have no rule for vmap
            found: Tensor = vmap(one)(rest, data, wanted)
        return found


class _Together(nn.Module):
    """A layer that `vmap` calls with one sample, and whose rule gets those of all."""

    def __init__(self, layer: StackedLayer) -> None:
        super().__init__()
        self.rule, self.sample = [layer], torch.empty(0)  # in a list: it is no module of the user's

    def forward(self, x: Tensor) -> Tensor:
        """Run the rule; a constant is the same for all samples."""
        out: Tensor = _AllSamples.apply(x, self.sample, self.rule[0])  # type: ignore[no-untyped-call]
        return out


class _AllSamples(torch.autograd.Function):
    """Under `vmap`, a rule on the long batch."""

    @staticmethod
    def forward(_x: Tensor, _sample: Tensor, _rule: StackedLayer) -> Tensor:
        """Raise: only `vmap` may call it."""
        raise NotImplementedError

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:  # noqa: ANN401 - torch's own
        """Keep nothing: autograd looks into the rule."""

    @staticmethod
    def vmap(info: Any, dims: tuple[int | None, ...], x: Tensor, _sample: Tensor, rule: StackedLayer) -> Any:  # noqa: ANN401
        """Lay the samples out as the long batch.

        Guarantee: a rule sees one row per sample, as `positions` counted them.
        """
        rows = x.expand(info.batch_size, *x.shape) if dims[0] is None else x.movedim(dims[0], 0)
        if rows.ndim < 2 or rows.shape[1] != 1:
            raise Refused("the model calls a layer without one row per sample", "keep the batch as the first axis")
        return rule(rows.flatten(0, 1))[:, None], 0
