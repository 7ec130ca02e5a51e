"""Sequences of tokens at a certified budget: a small transformer, and adapters of a frozen transformer.

    python examples/sequences.py

Whole numbers that a model looks up in an embedding stay whole. The transformer has fast rules: attention is made of
nn.Linear (nn.MultiheadAttention works too, by torch.func, slower), positions are looked up for every sample. Adapters
train, send and noise a small share of a model; the base here was learnt from the same sites, so what both runs spend
adds up (`privsgp budget` shows the sum).
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

import privsgp
from privsgp.accounting.shown import up

WORDS, LENGTH = 60, 16


class Attention(nn.Module):
    """One head that every position looks at all others with."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        """Return [B, T, width]."""
        scores = self.query(x) @ self.key(x).mT / x.shape[-1] ** 0.5
        return scores.softmax(-1) @ self.value(x)


class Transformer(nn.Module):
    """An embedding, one block of attention, and the mean over positions."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, width), nn.Embedding(LENGTH, width)
        self.norm, self.attention = nn.LayerNorm(width), Attention(width)
        self.wide, self.narrow, self.out = nn.Linear(width, 32), nn.Linear(32, width), nn.Linear(width, 2)

    def forward(self, x: Tensor) -> Tensor:
        """Return two scores for sequences [B, T]."""
        places = torch.arange(x.shape[1], device=x.device).expand(x.shape)
        h = self.words(x) + self.places(places)
        h = h + self.attention(self.norm(h))
        h = h + self.narrow(torch.relu(self.wide(h)))
        return self.out(h.mean(1))


class Adapter(nn.Module):
    """A frozen linear layer and, beside it, a product of two thin ones, of which the second learns (FFA-LoRA).

    The first is random and stays as it is. Then the sites' average of products is the product of their averages, and
    a message has about half the numbers. All sites make it from the same seed, because nobody sends it.
    """

    def __init__(self, frozen: nn.Linear, rank: int = 2) -> None:
        super().__init__()
        self.frozen = frozen
        self.down = nn.Linear(frozen.in_features, rank, bias=False).requires_grad_(requires_grad=False)
        self.up = nn.Linear(rank, frozen.out_features, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: Tensor) -> Tensor:
        """Return what the frozen layer says, and what was learnt."""
        return self.frozen(x) + self.up(self.down(x))


def adapted(base: Transformer) -> Transformer:
    """Freeze a model but for its last layer, and put adapters beside two of its layers."""
    base.requires_grad_(requires_grad=False)
    torch.manual_seed(1)  # public, and the same at all sites
    base.attention.value, base.wide = Adapter(base.attention.value), Adapter(base.wide)
    base.out.requires_grad_(requires_grad=True)
    return base


def texts(count: int, seed: int, shift: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return made-up texts: class 1 has more words of one kind than of another; `shift` says which kinds."""
    rng = np.random.default_rng(seed)
    x = rng.integers(0, WORDS, (count, LENGTH))
    y = rng.integers(0, 2, count)
    marked = rng.random((count, LENGTH)) < 0.35
    return np.where(marked, 10 * (2 * y[:, None] + shift) + x % 10, x), y


def train(name: str, model: nn.Module, out: Path, steps: int, records: int, shift: int = 0) -> nn.Module:
    """Train at four sites, say how it went, and return the model."""
    result = privsgp.train(
        model,
        [texts(records, seed, shift) for seed in range(4)],
        test=texts(records // 2, 9, shift),
        classes=2,
        out=out / name,
        seed=0,  # leave it out for noise that is secret
        graph="exponential",
        privacy={"epsilon": 3.0, "delta": 1e-5, "clip": 1.0},
        algorithm={"name": "privsgp", "batch": records // 10, "steps": steps, "step_size": 1.0, "momentum": 0.9},
    )
    s, whole = result.summary, sum(p.numel() for p in model.parameters())
    print(
        f"{name}: {s['test_accuracy']:.1%}, ε = {up(max(s['epsilon_spent']), 3)} at each of {s['nodes']} sites; "
        f"{s['dim']:,} of {whole:,} numbers learn, {4 * s['dim']:,} bytes a message"
    )
    return result.model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--records", type=int, default=2000, help="of each site")
    parser.add_argument("--out", type=Path, help="where run folders go; default: a temporary folder")
    options = parser.parse_args()
    out = options.out or Path(tempfile.mkdtemp(prefix="sequences-"))
    torch.manual_seed(0)  # the weights a model starts from are public
    asked = out, options.steps, options.records
    base = train("transformer", Transformer(), *asked)
    train("adapters", adapted(base), *asked, shift=1)


if __name__ == "__main__":
    main()
