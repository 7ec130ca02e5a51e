"""Losses of one sample each: a mean over the batch would hide the per-sample gradients that are clipped.

Every function maps outputs [..., k] and targets [...] (mse: [..., k] as well) to values [...], for any number of
leading axes: a batch, a batch of each of m nodes, or the single sample that `torch.func.vmap` shows.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, cast

import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits, log_softmax

from privsgp.errors import Refused

PerSample = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
Kind = Literal["cross-entropy", "binary", "mse", "survival"]
_OF_TORCH: dict[type, Kind] = {
    nn.CrossEntropyLoss: "cross-entropy", nn.BCEWithLogitsLoss: "binary", nn.MSELoss: "mse", nn.L1Loss: "mse",
    nn.SmoothL1Loss: "mse", nn.HuberLoss: "mse",
}  # fmt: skip


@dataclass(frozen=True)
class _Loss:
    per_sample: PerSample
    correct: PerSample | None
    task: Literal["classification", "regression"]


def per_sample(name: str) -> PerSample:
    """The loss `name` of each sample: "cross-entropy", "binary" (one logit, labels 0 and 1), "mse" or "survival"."""
    return _known(name).per_sample


def meaning(loss: object) -> Kind | None:
    """Tell what outputs mean under a loss: its name, that of torch's own; None where its author alone knows."""
    return cast("Kind", loss) if isinstance(loss, str) else _OF_TORCH.get(type(loss))


def class_weights(loss: object) -> tuple[float, ...] | None:
    """Return the weight of each class in a loss of torch's own; None if all are alike."""
    given = None
    if isinstance(loss, nn.CrossEntropyLoss) and loss.weight is not None:
        given = loss.weight.tolist()
    elif isinstance(loss, nn.BCEWithLogitsLoss) and loss.pos_weight is not None and loss.pos_weight.numel() == 1:
        given = [1.0, float(loss.pos_weight)]
    return tuple(given) if given and min(given) > 0 and max(given) != min(given) else None


def in_any_precision(loss: PerSample, axes: int = 0) -> PerSample:
    """Return a loss of the user's whose own numbers, weights of classes say, are in the precision of the outputs.

    Probes run in float64 and steps in float32: nn.CrossEntropyLoss(weight=…) would refuse one of them. Those of torch
    that want targets of the outputs' shape get them; where a sample has several (in `axes` axes), they are averaged.
    """
    if not isinstance(loss, nn.Module):
        return loss
    elementwise = meaning(loss) in ("binary", "mse")
    known: dict[tuple[torch.dtype, torch.device], nn.Module] = {}

    def value(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        kind = outputs.dtype, outputs.device
        if kind not in known:
            known[kind] = copy.deepcopy(loss).to(*kind[::-1])
        real = targets.to(outputs.dtype) if elementwise or targets.is_floating_point() else targets
        found: torch.Tensor = known[kind](outputs, real.reshape(outputs.shape) if elementwise else real)
        if axes and found.ndim > axes:
            return found.mean(tuple(range(-axes, 0)))
        return found.reshape(targets.shape) if elementwise and loss.reduction == "none" else found

    return value


def correct(name: str) -> PerSample | None:
    """Whether each sample is classified correctly, for a loss of classification; None for numbers."""
    return _known(name).correct


def task(name: str) -> Literal["classification", "regression"]:
    """The kind of targets that the loss needs."""
    return _known(name).task


def outputs(name: str, *, classes: int | None, target_shape: tuple[int, ...]) -> int:
    """How many outputs a model needs for the loss `name` and targets of `target_shape`, () or (k,), each."""
    _known(name)
    if name in ("mse", "survival"):
        return target_shape[0] if target_shape else 1
    if classes is None or classes < 2 or (name == "binary" and classes != 2):
        needs = "two classes" if name == "binary" else "at least two classes"
        raise Refused(
            f"model.loss = {name!r} needs {needs}, and the data have {classes}", "use another loss, or other data"
        )
    return 1 if name == "binary" else classes


def _cross_entropy(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return -log_softmax(outputs, -1).gather(-1, targets.unsqueeze(-1)).squeeze(-1)


def _binary(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return binary_cross_entropy_with_logits(outputs.squeeze(-1), targets.to(outputs.dtype), reduction="none")


def _mse(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return (outputs - targets.reshape(outputs.shape)).square().mean(-1)


def _survival(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Sum the cross-entropy of the hazards over the bins in which a person was at risk.

    A bin counts if the event was in it, or if the person was seen for at least half of it.
    """
    event = targets < 0
    at_risk = event | (targets >= 0.5)
    loss = binary_cross_entropy_with_logits(outputs, event.to(outputs.dtype), reduction="none")
    return (loss * at_risk).sum(-1)


_LOSSES = {
    "cross-entropy": _Loss(_cross_entropy, lambda outputs, y: outputs.argmax(-1) == y, "classification"),
    "binary": _Loss(_binary, lambda outputs, y: (outputs.squeeze(-1) > 0) == (y > 0), "classification"),
    "mse": _Loss(_mse, None, "regression"),
    "survival": _Loss(_survival, None, "regression"),
}


def _known(name: str) -> _Loss:
    if name not in _LOSSES:
        raise Refused(f"model.loss = {name!r} is unknown", f"use one of {', '.join(_LOSSES)}")
    return _LOSSES[name]
