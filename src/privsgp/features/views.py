"""Several views of one image, whose gradients are averaged before the sample's clip (De et al. 2022).

The views are fixed: the image itself and its mirror image, or itself and its four neighbours by a pixel. Nothing about
them is random, so there are no coins that would have to be secret and the same at a replay.

Guarantee: the mean over the views of a sample is clipped as one, so the sample counts once whatever their number.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

if TYPE_CHECKING:
    from collections.abc import Callable

    PerSampleFunction = Callable[[Tensor, Tensor], Tensor]

T = TypeVar("T")


def _shifts(x: Tensor) -> list[Tensor]:
    """Return the image and the four that are moved by a pixel, edges repeated."""
    wide = pad(x if x.dim() == 4 else x[:, None], (1, 1, 1, 1), mode="replicate")
    wide, (height, width) = wide if x.dim() == 4 else wide[:, 0], x.shape[-2:]
    return [wide[..., r : r + height, c : c + width] for r, c in ((1, 1), (0, 1), (2, 1), (1, 0), (1, 2))]


KINDS: dict[str, Callable[[Tensor], list[Tensor]]] = {"mirror": lambda x: [x, x.flip(-1)], "shifts": _shifts}


class Views(nn.Module):
    """[B, …] → [B, views, F]: the features of every view, the sample itself first."""

    def __init__(self, kind: str, encoder: nn.Module) -> None:
        super().__init__()
        self.kind, self.encoder = kind, encoder

    def extra_repr(self) -> str:
        """Name what is in no buffer."""
        return self.kind

    def forward(self, x: Tensor) -> Tensor:
        """Encode each view."""
        return torch.stack([self.encoder(view) for view in KINDS[self.kind](x)], 1)


def over_views(loss: PerSampleFunction) -> PerSampleFunction:
    """Return a loss of outputs [..., views, k]: the mean over the views of each sample."""

    def mean(outputs: Tensor, targets: Tensor) -> Tensor:
        return torch.stack([loss(view, targets) for view in outputs.unbind(-2)]).mean(0)

    return mean


def of_the_mean_view(function: Callable[[Tensor, Tensor], T]) -> Callable[[Tensor, Tensor], T]:
    """Return a function of outputs [..., views, k]: that of their mean over the views."""
    return lambda outputs, targets: function(outputs.mean(-2), targets)
