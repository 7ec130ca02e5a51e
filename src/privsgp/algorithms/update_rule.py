"""Weight and momentum of a node's noised direction, before the step.

    v_i ← β v_i + (1 − β) g_i            `momentum` β; the distance γK stays what it is
    x_i^{k+½} = x_i − γ n p_i v_i        p_i is how much node i counts: f = Σ_i p_i f_i

Guarantee: nothing but the noised g_i, public numbers and what was made of them before is used: post-processing, which
costs no privacy.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Literal

import torch
from pydantic import Field

from privsgp.options import Options, Positive, option

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    Weights = Literal["equal", "samples", "noise"] | Sequence[float]


class UpdateOptions(Options):
    """What is made of noised directions by every push-sum method."""

    weights: Literal["equal", "samples", "noise"] | list[Positive] = option(
        "equal",
        "the weight of a node: equal, J_i, 1/σ_i² (pairwise: 1/σ_i), or a list with one number per node",
    )
    momentum: Annotated[float, Field(ge=0, lt=1)] = option(0.0, "β of v ← β v + (1 − β) g")


class UpdateRule:
    """The nodes of a block; `scale` is n p_i of each, None for all 1."""

    def __init__(self, like: Tensor, *, momentum: float = 0.0, scale: Sequence[float] | None = None) -> None:
        self.momentum = momentum
        self.scale = None if scale is None else torch.tensor(scale, dtype=like.dtype, device=like.device)[:, None]
        self.velocity = torch.zeros_like(like) if momentum else None

    def __call__(self, g: Tensor) -> Tensor:
        """Return n p_i v_i; g is overwritten."""
        if self.velocity is not None:
            g = g.copy_(self.velocity.mul_(self.momentum).add_(g, alpha=1 - self.momentum))
        return g if self.scale is None else g.mul_(self.scale)

    def arrays(self) -> dict[str, Tensor]:
        """Return what must survive."""
        return {} if self.velocity is None else {"velocity": self.velocity}


def node_weights(
    given: Weights, samples: Sequence[int], sigmas: Sequence[float], *, shared: bool = False
) -> list[float] | None:
    """Return p_i, how much each node counts in f = Σ_i p_i f_i; None for all alike.

    `"noise"` minimises Σ_i p_i² σ_i², the noise of the average model: p_i ∝ 1/σ_i². Another node can then only lower
    it, however small its budget is. For pairwise noise, `sigmas` being the need of each, that noise is about
    max_i p_i σ_i, and p_i ∝ 1/σ_i makes it least. J and σ are public.
    """
    if given == "equal":
        return None
    parts = {
        "samples": samples,
        "noise": [sigma ** (-1 if shared else -2) for sigma in sigmas] if given == "noise" else [],
    }
    shares = parts[given] if isinstance(given, str) else given
    total = math.fsum(shares)
    return [share / total for share in shares]
