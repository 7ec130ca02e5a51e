"""Which layers are taken, and whether their per-sample gradients are right: 91 configurations, and two common habits.

The configurations span the ranges of the layer tests of Opacus 1.6.0, which draw them at random: kernel, stride,
padding, dilation and groups of convolutions, axes of inputs, biases, layers and directions of recurrent ones. Each
gradient of three models on four samples is compared with plain autograd in float64. `--time` compares the time of a
step with ReLU(inplace=True), and with next(self.parameters()) in forward, with that of the plain model.

    python benchmarks/layers.py            # the table of kinds, and what is refused
    python benchmarks/layers.py --time
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from privsgp.errors import Refused
from privsgp.gradients.layout import Layout
from privsgp.gradients.stacked import Functional, stack

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MODELS, SAMPLES, TOKENS = 3, 4, 16
TOLERANCE = 1e-9


class Sequences(nn.Module):
    """A recurrent layer or attention on [B, T, D], whatever order its axes have inside; its outputs alone."""

    def __init__(self, layer: nn.Module, *, batch_first: bool = True, packed: bool = False, inner: int = 0) -> None:
        super().__init__()
        self.layer, self.batch_first, self.packed = layer, batch_first, packed
        self.keys = nn.Linear(4, inner) if inner else None

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs of the layer."""
        x = x if self.batch_first else x.transpose(0, 1)
        if isinstance(self.layer, nn.MultiheadAttention):
            keys = x if self.keys is None else self.keys(x)
            out = self.layer(x, keys, keys)[0]
        elif self.packed:
            lengths = [x.shape[1] - 1] * len(x)
            packed = pack_padded_sequence(x, lengths, batch_first=True)
            out = pad_packed_sequence(self.layer(packed)[0], batch_first=True)[0]
        else:
            out = self.layer(x)[0]
        return out if self.batch_first else out.transpose(0, 1)


class SequenceBias(nn.Module):
    """Appends a learnt vector to every sequence: a raw parameter."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.randn(width))

    def forward(self, x: Tensor) -> Tensor:
        """Return [B, T + 1, D]."""
        return torch.cat([x, self.bias.expand(len(x), 1, -1)], 1)


def convolutions() -> Iterator[tuple[str, nn.Module, tuple[int, ...]]]:
    """Yield convolutions in one, two and three dimensions."""
    kinds: list[tuple[Any, tuple[int, ...]]] = [(nn.Conv1d, (9,)), (nn.Conv2d, (11, 12)), (nn.Conv3d, (4, 6, 7))]
    more: list[dict[str, Any]] = [
        {}, {"stride": 2}, {"padding": 2}, {"padding": "same"}, {"padding": "valid"}, {"dilation": 2}, {"groups": 3},
        {"stride": 2, "padding": 1, "dilation": 2}, {"bias": False},
    ]  # fmt: skip
    for (kind, size), options in itertools.product(kinds, more):
        yield f"{kind.__name__}", kind(3, 6, 2, **options), (3, *size)
    for kind, size in kinds:
        yield kind.__name__, kind(1, 4, 3), (1, *size)
    yield "Conv3d", nn.Conv3d(3, 6, (1, 2, 3), stride=(1, 2, 3), padding=(1, 2, 3), dilation=(1, 2, 2)), (3, 4, 6, 7)


def others() -> Iterator[tuple[str, nn.Module, tuple[int, ...]]]:
    """Yield linear layers, normalisations and a raw parameter."""
    for shape, bias in itertools.product(((12,), (3, 12), (2, 3, 12)), (True, False)):
        yield "Linear", nn.Linear(12, 5, bias=bias), shape
    for shape, axes in (((6,), 1), ((3, 6), 1), ((3, 6), 2), ((2, 3, 6), 1), ((2, 3, 6), 2), ((2, 3, 6), 3)):
        yield "LayerNorm", nn.LayerNorm(shape[-axes:]), shape
        yield "RMSNorm", nn.RMSNorm(shape[-axes:]), shape
    for groups, shape in ((1, (8, 5, 6)), (4, (8, 5, 6)), (8, (8, 5, 6)), (4, (8, 7))):
        yield "GroupNorm", nn.GroupNorm(groups, 8), shape
    norms: tuple[tuple[Any, tuple[int, ...]], ...] = (
        (nn.InstanceNorm1d, (3, 6)), (nn.InstanceNorm2d, (3, 5, 6)), (nn.InstanceNorm3d, (3, 2, 5, 6)),
    )  # fmt: skip
    for kind, shape in norms:
        yield kind.__name__, kind(3, affine=True), shape
    yield "SequenceBias", SequenceBias(5), (7, 5)


def looked_up() -> Iterator[tuple[str, nn.Module, tuple[int, ...]]]:
    """Yield layers whose inputs are tokens."""
    for shape in ((5,), (5, 2), (5, 2, 3)):
        yield "Embedding", nn.Embedding(TOKENS, 10), shape
    yield "Embedding", nn.Embedding(TOKENS, 10, padding_idx=0), (5,)
    for mode in ("sum", "mean"):
        yield "EmbeddingBag", nn.EmbeddingBag(TOKENS, 10, mode=mode), (5,)


def sequences() -> Iterator[tuple[str, nn.Module, tuple[int, ...]]]:
    """Yield recurrent layers and attention."""
    recurrent: tuple[Any, ...] = (nn.RNN, nn.GRU, nn.LSTM)
    for kind, layers, two in itertools.product(recurrent, (1, 2), (False, True)):
        yield kind.__name__, Sequences(kind(4, 8, layers, batch_first=True, bidirectional=two)), (3, 4)
    for kind in recurrent:
        yield kind.__name__, Sequences(kind(4, 8, bias=False), batch_first=False), (3, 4)
        yield kind.__name__, Sequences(kind(4, 8, batch_first=True), packed=True), (3, 4)
    for bias, kv, zero in itertools.product((True, False), repeat=3):
        layer = nn.MultiheadAttention(4, 2, bias=bias, add_bias_kv=kv, add_zero_attn=zero, batch_first=True)
        yield "MultiheadAttention", Sequences(layer), (6, 4)
    layer = nn.MultiheadAttention(4, 1, kdim=3, vdim=3, batch_first=True)
    yield "MultiheadAttention", Sequences(layer, inner=3), (6, 4)
    yield "MultiheadAttention", Sequences(nn.MultiheadAttention(4, 1), batch_first=False), (6, 4)


def loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return a number per sample that all outputs have a part in."""
    flat = outputs.flatten(1)
    return (flat * torch.linspace(0.5, 1.5, flat.shape[1], dtype=flat.dtype)).sin().sum(1) + targets * 0


def judged(model: nn.Module, shape: tuple[int, ...], *, tokens: bool) -> str:
    """Return how gradients are computed, "refused: …", "wrong by …" or "crashed: …"."""
    model = model.double()
    x = torch.randint(TOKENS, (MODELS, SAMPLES, *shape)) if tokens else torch.randn(MODELS, SAMPLES, *shape).double()
    y = torch.zeros(MODELS, SAMPLES, dtype=torch.float64)
    layout = Layout.of(model)
    z = layout.flatten(model) * torch.tensor([[1.0], [0.5], [-0.7]], dtype=torch.float64)
    try:
        found = stack(model, loss, (x[0], y[0]))
        away = (found(z, x, y).dense() - Functional(model, layout, loss).one_by_one(z, x, y)).abs().max()
    except Refused as error:
        return f"refused: {error.what}"
    except Exception as error:  # noqa: BLE001 - that is what is counted
        return f"crashed: {type(error).__name__}: {error}"
    if not away < TOLERANCE:
        return f"wrong by {away:.1e}"
    return "by rules in part" if ";" in found.how else found.how.partition(",")[0]


def table() -> list[tuple[str, str]]:
    """Return the kind and the verdict of every configuration."""
    torch.manual_seed(0)
    plain = itertools.chain(convolutions(), others(), sequences())
    found = [(kind, judged(model, shape, tokens=False)) for kind, model, shape in plain]
    return found + [(kind, judged(model, shape, tokens=True)) for kind, model, shape in looked_up()]


class Asking(nn.Sequential):
    """A model that asks for the type of its first parameter."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs."""
        return super().forward(x.to(next(self.parameters()).dtype))


def step(model: nn.Module, rounds: int = 60) -> Callable[[], float]:
    """Return what measures the median seconds of the gradients of 16 nodes on 16 samples."""
    x, y = torch.randn(16, 16, 784), torch.zeros(16, 16)
    z = Layout.of(model).flatten(model).expand(16, -1).contiguous()
    found = stack(model, loss, (x[0], y[0]))

    def measured() -> float:
        times = []
        for _ in range(rounds):
            start = time.perf_counter()
            found(z, x, y)
            times.append(time.perf_counter() - start)
        return statistics.median(times)

    return measured


def habits() -> None:
    """Print the time of two habits over that of the plain model: the median of interleaved rounds."""

    def layers(*, inplace: bool) -> list[nn.Module]:
        relus = [nn.ReLU(inplace=inplace) for _ in range(2)]
        return [nn.Linear(784, 128), relus[0], nn.Linear(128, 64), relus[1], nn.Linear(64, 10)]

    models = {
        "plain": nn.Sequential(*layers(inplace=False)), "ReLU(inplace=True)": nn.Sequential(*layers(inplace=True)),
        "next(self.parameters())": Asking(*layers(inplace=False)),
    }  # fmt: skip
    timers = {name: step(model) for name, model in models.items()}
    rounds = [{name: timer() for name, timer in timers.items()} for _ in range(7)]
    for name in models:
        ratio = statistics.median(one[name] / one["plain"] for one in rounds)
        print(f"{name}: {1e3 * statistics.median(one[name] for one in rounds):.2f} ms, {ratio:.2f} × the plain model")


def main() -> None:
    """Print the table, or the times."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--time", action="store_true")
    if parser.parse_args().time:
        habits()
        return
    found = table()
    counts = Counter((kind, verdict) for kind, verdict in found)
    print("| layer | verdict | configurations |\n|---|---|---:|")
    for (kind, verdict), count in counts.items():
        print(f"| {kind} | {verdict} | {count} |")
    right = sum(verdict.startswith("by ") for _, verdict in found)
    crashed = sum(verdict.startswith("crashed") for _, verdict in found)
    print(f"\n{right} of {len(found)} accepted and right, {crashed} crashed")


if __name__ == "__main__":
    main()
