"""How good the models are: the average model x̄ = Σx_i / Σw_i, every node's z_i, and how far they are apart."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.func import functional_call

if TYPE_CHECKING:
    from collections.abc import Callable

    from privsgp.algorithms import State
    from privsgp.gradient import Layout

    PerSampleFunction = Callable[[Tensor, Tensor], Tensor]

_CHUNK = 2048


def average(s: State) -> Tensor:
    """Return Σx_i / Σw_i, summed in node order in float64 (the same bits wherever the nodes live)."""
    total = torch.zeros_like(s.x[0], dtype=torch.float64)
    weight = torch.zeros((), dtype=torch.float64, device=s.x.device)
    for x, w in zip(s.x, s.w, strict=True):
        total += x
        weight += w
    return (total / weight).to(s.x.dtype)


def present(s: State) -> Tensor:
    """Tell which nodes are still there: the weight of one that left a simulated network for good is 0."""
    return s.w > 0


def consensus_error(s: State) -> float:
    """Return (1/n) Σ_i ‖z_i − x̄‖², the paper's consensus error."""
    return float((s.z[present(s)] - average(s)).double().square().sum(1).mean())


class Evaluator:
    """Means of per-sample functions over a data set, for one parameter vector at a time."""

    def __init__(self, model: nn.Module, layout: Layout) -> None:
        self.model, self.layout = model, layout

    def mean(self, function: PerSampleFunction, x: Tensor, inputs: Tensor, targets: Tensor) -> float:
        """Return the mean of function(model_x(input), target) over the samples."""
        parameters = self.layout.views(x)
        total = torch.zeros((), dtype=torch.float64, device=x.device)
        with torch.no_grad():
            for a, b in zip(torch.split(inputs, _CHUNK), torch.split(targets, _CHUNK), strict=True):
                total += function(functional_call(self.model, parameters, (a,)), b).double().sum()
        return float(total / len(inputs))
