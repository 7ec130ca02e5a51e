"""Static word vectors of the `wordllama` package: a text's features are the mean of its tokens' vectors.

The vectors (256 numbers for each of 32,000 tokens; MIT, learnt by its authors from token embeddings of Llama models and
public texts) lie inside the PyPI package and are read only if their SHA-256 is the one below. Nothing is fetched.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from safetensors.torch import load
from torch import nn

from privsgp.data.tokens import EXTRA, PACKAGE, VOCABULARY
from privsgp.errors import Refused
from privsgp.features.options import WORDLLAMA
from privsgp.files import packaged

if TYPE_CHECKING:
    from torch import Tensor

_FILE = "weights/l2_supercat_256.safetensors"
_SHA256 = "64b47a2dc493cb8e85944076601189739852d7b64e0e1eedcb1937a251cd9fd5"


class WordLlama(nn.Module):
    """Tokens [B, T] → [B, F], rows of length √F: a text's mean vector, about that of all tokens; 0 does not count."""

    def __init__(self, vectors: Tensor) -> None:
        super().__init__()
        self.register_buffer("vectors", vectors.float() - vectors.float().mean(0))

    def forward(self, x: Tensor) -> Tensor:
        """Return each text's features; a text without tokens has none."""
        tokens, vectors = x.long(), self.get_buffer("vectors")
        total = (vectors[tokens] * (tokens != 0).unsqueeze(-1)).sum(1)
        length: Tensor = total.norm(dim=1, keepdim=True)
        return total / length.clamp(min=1e-12) * math.sqrt(total.shape[1])


def make(shape: tuple[int, ...]) -> WordLlama:
    """Return the map for sequences of this shape."""
    if len(shape) != 1:
        remedy = f'it is for texts: [data.text] tokens = "{WORDLLAMA}"'
        raise Refused(f"features.name = {WORDLLAMA!r} with samples of shape {list(shape)}", remedy)
    vectors: Tensor = load(packaged(PACKAGE, _FILE, _SHA256, EXTRA))["embedding.weight"]
    if len(vectors) != VOCABULARY:
        raise Refused(f"{len(vectors)} vectors for {VOCABULARY} tokens", f"install {PACKAGE} again")
    return WordLlama(vectors).requires_grad_(requires_grad=False).eval()
