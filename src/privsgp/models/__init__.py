"""Models with a name in a config, and the losses they are trained with; any `torch.nn.Module` works from Python."""

from __future__ import annotations

from privsgp.models.loss import correct, in_any_precision, meaning, outputs, per_sample, task
from privsgp.models.networks import make
from privsgp.models.tokens import looked_up

__all__ = ["correct", "in_any_precision", "looked_up", "make", "meaning", "outputs", "per_sample", "task"]
