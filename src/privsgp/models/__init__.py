"""Models with a name in a config, and the losses they are trained with; any `torch.nn.Module` works from Python."""

from __future__ import annotations

from typing import TYPE_CHECKING

from privsgp import later

if TYPE_CHECKING:
    from privsgp.models.additive import Shape, shapes
    from privsgp.models.loss import class_weights, correct, in_any_precision, meaning, outputs, per_sample, task
    from privsgp.models.networks import make, mean

__all__ = [
    "Shape", "class_weights", "correct", "in_any_precision", "make", "mean", "meaning", "outputs", "per_sample",
    "shapes", "task",
]  # fmt: skip
_ELSEWHERE = {"make": "networks", "mean": "networks", "Shape": "additive", "shapes": "additive"}
__getattr__ = later.names(__name__, dict.fromkeys(__all__, "loss") | _ELSEWHERE)
