"""Models of token sequences: one with a name in a config, and what vocabulary any module has."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from privsgp.errors import Refused


class MeanEmbedding(nn.Module):
    """A linear model of the mean of a sequence's embeddings; token 0 fills sequences up and does not count."""

    def __init__(self, vocabulary: int, width: int, outputs: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width, padding_idx=0)
        self.out = nn.Linear(width, outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs of sequences [B, T]."""
        there = (x != 0).unsqueeze(-1)
        total = (self.embedding(x) * there).sum(1)
        out: Tensor = self.out(total / there.sum(1).clamp(min=1))
        return out


def embedding(input_shape: tuple[int, ...], outputs: int, vocabulary: int | None, width: int) -> nn.Module:
    """Return the model for sequences of tokens; refuse what is none."""
    if vocabulary is None or len(input_shape) != 1:
        raise Refused(
            f"model.name = 'embedding' with inputs of shape {list(input_shape)} and data.vocabulary = {vocabulary}",
            "it takes sequences of tokens: say data.vocabulary, or [data.text] for texts",
        )
    return MeanEmbedding(vocabulary, width, outputs)


def looked_up(model: nn.Module, shape: tuple[int, ...]) -> int | None:
    """Return the vocabulary of the embedding that a sample's tokens go to; None where they go to no such layer.

    It is asked with tokens 0 that are nobody's. Of several embeddings that are shown them, the smallest counts; one of
    positions is shown others.
    """
    still, seen = copy.deepcopy(model).cpu().eval(), []

    def note(layer: nn.Module, given: tuple[Any, ...], _out: object) -> None:
        index = given[0] if given else None
        if isinstance(layer, nn.Embedding | nn.EmbeddingBag) and isinstance(index, torch.Tensor) and not index.any():
            seen.append(layer.num_embeddings)

    for layer in still.modules():
        if isinstance(layer, nn.Embedding | nn.EmbeddingBag):
            layer.register_forward_hook(note)
    try:
        with torch.no_grad():
            still(torch.zeros((2, *shape), dtype=torch.int64))
    except (RuntimeError, TypeError, ValueError, IndexError):
        return None  # it takes real numbers
    return min(seen, default=None)
