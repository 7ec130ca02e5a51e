"""Gradients of layers that use one weight at many positions: convolutions, and linear layers on sequences.

The gradient of one sample is Σ_p δ_p ⊗ a_p over the positions p, where a_p is the patch of the input that position p
sees. It has as many numbers as the weight or as its two factors: the smaller of the two is kept, plain or as a
`Positions` piece. A linear layer on a sequence is a convolution with a window of one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.grad import conv2d_weight

from privsgp.devices import device_of, runs_on
from privsgp.gradients.per_sample import Product, squared_norm
from privsgp.gradients.product import no_tf32, product
from privsgp.gradients.rounding import GRAM_CHANNELS, cancelled, gram_rounding, product_error, sum_rounding

if TYPE_CHECKING:
    from collections.abc import Iterator

Pair = tuple[int, ...]  # height and width
_MEASURABLE = 2.0**-90  # squared lengths in which float32 loses no square that matters
_COLUMNS = 2**16  # of a row, added at a time


@dataclass(frozen=True)
class Window:
    """Which part of the input a position sees; zeros lie around the input."""

    kernel: Pair = (1, 1)
    stride: Pair = (1, 1)
    padding: Pair = (0, 0)
    dilation: Pair = (1, 1)
    groups: int = 1
    linear: bool = False  # of a linear layer on a CPU: a node's bits do not depend on who stands beside it

    @property
    def geometry(self) -> tuple[Pair, Pair, Pair, Pair]:
        """All of it but the groups."""
        return self.kernel, self.stride, self.padding, self.dilation

    @property
    def places(self) -> int:
        """How many pixels a position sees."""
        return self.kernel[0] * self.kernel[1]


@dataclass
class Positions(Product):
    """Gradients Σ_p δ_p ⊗ (a_p, 1): `delta` [m, b, out, h', w'], `input` [m, b, in, h, w], never multiplied out.

    In memory samples come before models, as in the grouped convolution that runs them.

    Guarantee: let L = ‖δ‖ √(places ‖a‖² + positions), the largest sum of the terms' lengths. If positions cancel, ‖Σ_p
    δ_p ⊗ a_p‖ is small compared with L, and rounding need not be small compared with ‖Σ_p δ_p ⊗ a_p‖. All that the
    rounding of products can add is counted as part of the norm; and the norm counts as no less than L / `cancelled`, so
    that what the rounding of additions can add stays below κ. A sample that cancels further is clipped more than
    others, not less. Norms of gradients in float32 can still come out short by more than κ where hundreds of channels
    round alike: where there is something to protect they are measured `exact`.

    Guarantee, where `exact`: each gradient is multiplied out by itself and added to the others in float64. The
    vector F that is added for a sample does not depend on the other samples, bit for bit. ‖F − Σ_p δ_p ⊗ a_p‖ ≤ η L
    with η = `sum_rounding`, because L bounds the sum of absolute values. The norm counts all that: it is no
    shorter than F, nor is that of scaled factors, which round anew. The more a sample's positions cancel, the more it
    is clipped. (docs/proofs/rounding.md, "Positions".)
    """

    window: Window
    bias: bool

    @property
    def size(self) -> int:
        """Weights and biases."""
        return self.delta.shape[2] * (self.input.shape[2] // self.window.groups * self.window.places + self.bias)

    def _samples_first(self) -> tuple[Tensor, Tensor]:
        """Return δ and a as they lie in memory, [b, m, …], in the precision of δ."""
        return self.delta.transpose(0, 1), self.input.transpose(0, 1).to(self.delta.dtype)

    def squared_norm(self, *, exact: bool = False) -> Tensor:
        """‖Σ_p δ_p ⊗ a_p‖² + ‖Σ_p δ_p‖².

        Biases, and differences of a table whose input is the data, are added up in float64 with those of other samples:
        positions may cancel as far as `rounding` counts with.
        """
        delta, a = (t.flatten(0, 1) for t in self._samples_first())
        w, positions = self.window, delta[0, 0].numel()
        of_delta, of_a = (squared_norm(v.flatten(1)) for v in (delta, a))
        exact = exact and delta.dtype != torch.float64
        if exact:
            total = _exact_squares(delta, a, w, of_delta, of_a)
        else:
            measure = _by_gram if _gram_is_cheaper(delta, a, w) else _by_gradient
            total = measure(delta, a, w, of_delta, of_a)
        most = w.places * of_a
        if self.bias:
            total = total + (_squared_biases(delta, of_delta) if exact else squared_norm(delta.sum((-2, -1))))
            most = most + positions
        least = of_delta * most / cancelled(torch.float64 if exact else delta.dtype, positions) ** 2
        squares = torch.maximum(total, least).view(-1, len(self.delta)).t()
        return squares.contiguous() if w.linear else squares  # laid out as what they will scale

    def sum_into(self, out: Tensor, *, exact: bool = False) -> None:
        """Σ_j Σ_p δ_jp ⊗ a_jp for all models is the weight gradient of one grouped convolution."""
        delta, a = self._samples_first()
        weight = (_exact_sums if exact else _weight_sums)(delta.contiguous(), a.contiguous(), self.window)
        out[:, : weight.shape[1]] = weight
        if self.bias:
            rows = self.window.linear and not exact
            out[:, weight.shape[1] :] = _rows(delta).sum(1) if rows else delta.sum((0, -2, -1), dtype=out.dtype)

    def dense(self) -> Tensor:
        """Multiply and sum the outer products out."""
        delta, a = (t.flatten(0, 1) for t in self._samples_first())
        weight = torch.cat(list(_some_at_a_time(delta, a, self.window)))
        whole = torch.cat([weight, delta.sum((-2, -1))], 1) if self.bias else weight
        by_model = whole.view(-1, len(self.delta), self.size).transpose(0, 1)
        return by_model.contiguous() if self.window.linear else by_model


def _exact_squares(delta: Tensor, a: Tensor, w: Window, of_delta: Tensor, of_a: Tensor) -> Tensor:
    """Return (‖Σ_p δ_p ⊗ a_p‖ + 2 η L)², by whichever of two ways is cheaper; see `Positions`."""
    longest, eta = (w.places * of_delta * of_a).sqrt(), sum_rounding(a, delta[0, 0].numel())
    if _gram_is_cheaper(delta, a, w):
        unit = _gram_terms(delta, a, w, of_delta, of_a, GRAM_CHANNELS) / w.places + gram_rounding(delta, a, w.places)
        unit = unit.where(torch.minimum(of_delta, of_a) > _MEASURABLE, 1.0)  # squares float32 has no room for
        length = unit.sqrt() * longest
    else:
        squares = [squared_norm(gradients) for gradients in _some_at_a_time(delta, a, w, plain=True)]
        length = torch.cat(squares).sqrt() + eta * longest
    return (length + (2 * eta) * longest).square()


def _squared_biases(delta: Tensor, of_delta: Tensor) -> Tensor:
    """Return (‖Σ_p δ_p‖ + 2u √P ‖δ‖)²: each δ_p is rounded when it is scaled, and they may cancel."""
    rounding = torch.finfo(delta.dtype).eps * (delta[0, 0].numel() * of_delta).sqrt()
    total: Tensor = delta.sum((-2, -1), dtype=torch.float64).square().sum(-1).sqrt() + rounding
    return total.square()


def _exact_sums(delta: Tensor, a: Tensor, w: Window) -> Tensor:
    """Return Σ_j F_j in float64, [m, weights], from δ [b, m, out, …] and a; see `Positions`."""
    if _at_once(delta, a, w):
        from privsgp.kernels.positions import exact_sums

        return exact_sums(delta, a, w.geometry)
    if not device_of(delta).in_host_memory:
        delta, a = delta.double(), a.double()
    return _sums_by_products(delta, a, w)


def _sums_by_products(delta: Tensor, a: Tensor, w: Window) -> Tensor:
    """Multiply each sample out by itself, and add them up in float64; a few samples of all models at a time.

    Some columns at a time are added, since torch makes a float64 copy of what it adds.
    """
    m, inputs = delta.shape[1], a.shape[2] * w.places
    some = max(1, _chunk(a) // (m * inputs * delta[0, 0, 0].numel()))
    total = delta.new_zeros(m * delta.shape[2] * inputs // w.groups, dtype=torch.float64)
    for d, x in zip(torch.split(delta, some), torch.split(a, some), strict=True):
        rows = _by_itself(d.flatten(0, 1), x.flatten(0, 1), w).reshape(len(d), -1)
        for columns, out in zip(torch.split(rows, _COLUMNS, 1), torch.split(total, _COLUMNS), strict=True):
            out.add_(columns.sum(0, dtype=torch.float64))
    return total.view(m, -1)


def _by_itself(delta: Tensor, a: Tensor, w: Window) -> Tensor:
    """Return F of every sample, [samples, weights], by `product`, whose bits do not depend on the stack."""
    return product(*_stacks(delta, a, w)).reshape(len(delta), -1)


def _stacks(delta: Tensor, a: Tensor, w: Window) -> tuple[Tensor, Tensor]:
    """Return δ and the patches as matrices, one of each for every sample and group, whose products are gradients."""
    positions = delta[0, 0].numel()
    d = delta.reshape(len(delta) * w.groups, -1, positions)
    return d, _patches(a, delta.shape[-2:], w).reshape(len(d), -1, positions).transpose(1, 2)


def _weight_sums(delta: Tensor, a: Tensor, w: Window) -> Tensor:
    """Return Σ_j Σ_p δ_jp ⊗ a_jp, [m, weights]; measured, the kernel is faster where a sample has few positions."""
    if _at_once(delta, a, w) and (w.places == 1 or delta[0, 0, 0].numel() <= 64):
        from privsgp.kernels.positions import weight_sums

        return weight_sums(delta, a, w.geometry)
    if device_of(delta).has_cudnn and delta.dtype == torch.float64:  # in which cuDNN is slow
        return _sums_by_products(delta, a, w)
    if w.linear:  # a grouped convolution rounds by the number of its groups
        return product(_rows(delta).mT, _rows(a)).reshape(delta.shape[1], -1)
    models = delta.shape[1]
    shape = (models * delta.shape[2], a.shape[2] // w.groups, *w.kernel)
    return _grouped(delta.flatten(1, 2), a.flatten(1, 2), shape, w, models).view(models, -1)


def _rows(v: Tensor) -> Tensor:
    """Lay [b, m, size, h, w] out as one row for each position of each sample, [m, b · h · w, size]."""
    return v.permute(1, 0, 3, 4, 2).reshape(v.shape[1], -1, v.shape[2])


def _products(a: Tensor, b: Tensor, w: Window) -> Tensor:
    """Return a @ b for stacks of matrices; of linear layers by `product`, whose bits do not depend on the stack."""
    return product(a, b) if w.linear else torch.bmm(a, b)


def _at_once(delta: Tensor, a: Tensor, window: Window) -> bool:
    """Tell whether `privsgp.kernels.positions` takes these."""
    suits = runs_on(delta) and delta.dtype == torch.float32 and window.groups == 1
    return suits and max(delta.numel(), a.numel()) < 2**31


def _some_at_a_time(delta: Tensor, a: Tensor, window: Window, *, plain: bool = False) -> Iterator[Tensor]:
    """Yield Σ_p δ_p ⊗ a_p, [samples, weights], of a few samples after the other, from δ [samples, out, …] and a.

    Their patches are larger than all that is kept.

    `plain`: as sums of products, which `sum_rounding` is about. cuDNN may take Winograd's or Fourier's way.
    """
    each = a.shape[1] * window.places * delta[0, 0].numel()
    parts = (torch.split(t, max(1, _chunk(a) // each)) for t in (delta, a))
    return (_weight_gradients(d, x, window, plain=plain) for d, x in zip(*parts, strict=True))


def _chunk(v: Tensor) -> int:
    """Return how many numbers of patches are made at a time."""
    return 2**26 if device_of(v).in_host_memory else 2**28


def _weight_gradients(delta: Tensor, a: Tensor, window: Window, *, plain: bool) -> Tensor:
    samples, groups = len(delta), window.groups
    # measured: only for many equally many channels at stride 1 is the convolution below faster
    slow = window.stride == (1, 1) and a.shape[1] >= 16 and delta.shape[1] < 128 and not plain
    if _at_once(delta, a, window) and not slow and delta[0, 0].numel() % 32 == 0:
        from privsgp.kernels.positions import sample_gradients

        return sample_gradients(delta.contiguous(), a.contiguous(), window.geometry)
    convolved = device_of(delta).has_cudnn and delta.dtype != torch.float64 and not plain
    if convolved and window.stride == (1, 1) and window.places > 1:
        # one group a sample: twice as fast as patches here, and many times slower for strides
        shape = (samples * delta.shape[1], a.shape[1] // groups, *window.kernel)
        return _grouped(delta.flatten(0, 1)[None], a.flatten(0, 1)[None], shape, window, samples).view(samples, -1)
    return _products(*_stacks(delta, a, window), window).reshape(samples, -1)


def _grouped(delta: Tensor, a: Tensor, shape: tuple[int, ...], w: Window, times: int) -> Tensor:
    """Return the weight gradient of a convolution with so many times the groups."""
    weight: Tensor = conv2d_weight(a, shape, delta, w.stride, w.padding, w.dilation, times * w.groups)  # type: ignore[no-untyped-call]
    return weight


def _patches(a: Tensor, positions: torch.Size, window: Window) -> Tensor:
    """View what each position sees, [samples, in, kernel, kernel, h', w']; only the zeros around are copied.

    `torch.nn.functional.unfold` took a tenth more of a small CNN's step.
    """
    a = _padded(a, window, 1)
    step = [a.stride(-2), a.stride(-1)]
    strides = [s * n for size in (window.dilation, window.stride) for s, n in zip(step, size, strict=True)]
    return a.as_strided((*a.shape[:2], *window.kernel, *positions), (a.stride(0), a.stride(1), *strides))


def _padded(a: Tensor, window: Window, times: int) -> Tensor:
    """Put zeros around the last 2 · times axes, which are height and width so many times over."""
    (height, width) = window.padding
    return functional.pad(a, (width, width, height, height) * times) if height or width else a


def _gram_is_cheaper(delta: Tensor, a: Tensor, window: Window) -> bool:
    """Compare the numbers that go through memory; neither way is short of arithmetic."""
    positions, pixels = delta[0, 0].numel(), a[0, 0].numel()
    patch = a.shape[1] * window.places
    by_gram = window.groups * (2 * pixels**2 + 3 * window.places * positions**2)
    return by_gram < 2 * patch * positions + patch // window.groups * delta.shape[1]


def _by_gradient(delta: Tensor, a: Tensor, window: Window, of_delta: Tensor, of_a: Tensor) -> Tensor:
    """Return ‖Σ_p δ_p ⊗ a_p‖² by making the gradients, some at a time; `of_delta` and `of_a` are ‖δ‖² and ‖a‖²."""
    squares = [squared_norm(gradients) for gradients in _some_at_a_time(delta, a, window)]
    # of this norm's products, and of the sum's
    rounding = 2 * product_error(a) * (window.places * of_delta * of_a).sqrt()
    norm: Tensor = torch.cat(squares).sqrt() + rounding
    return norm.square()


def _by_gram(delta: Tensor, a: Tensor, window: Window, of_delta: Tensor, of_a: Tensor) -> Tensor:
    """Return ‖Σ_p δ_p ⊗ a_p‖² = Σ_{p,p'} ⟨δ_p, δ_p'⟩ ⟨a_p, a_p'⟩.

    ⟨a_p, a_p'⟩ is the sum of ⟨x_u, x_u'⟩ over the pixels u, u' at equal places of the two windows: one product of
    pixels, and as many shifted sums as a window has places. No patch is made. The products are never TF32: of a norm
    squared, an error of 2⁻⁹ would be one of 2⁻⁴ of the norm.
    """
    terms = _gram_terms(delta, a, window, of_delta, of_a)
    eps = torch.finfo(a.dtype).eps
    unit = terms + 4 * eps * window.places
    if (error := product_error(a)) > 2 * eps:  # what the sum's products may add; else the line above covers it
        unit = (unit.sqrt() + error * window.places**0.5).square()
    return unit * of_delta * of_a


def _gram_terms(
    delta: Tensor, a: Tensor, window: Window, of_delta: Tensor, of_a: Tensor, channels: int | None = None
) -> Tensor:
    """Return `_by_gram`'s sum for δ/‖δ‖ and a/‖a‖, as it is computed; of so many channels at a time in float32."""
    (h, w), (height, width) = delta.shape[-2:], a.shape[-2:]
    positions = _gram(delta, of_delta, window, channels)
    pixels = _padded(_gram(a, of_a, window, channels).view(-1, height, width, height, width), window, 2)
    patches = pixels.new_zeros(len(pixels), h, w, h, w)
    for i in range(window.kernel[0]):
        for j in range(window.kernel[1]):
            rows, columns = _visible(i, h, window, 0), _visible(j, w, window, 1)
            patches += pixels[:, rows, columns, rows, columns]
    terms = positions.mul_(patches.view(positions.shape)).flatten(1).sum(1, dtype=torch.float64)
    return terms.view(len(delta), -1).sum(1).clamp(min=0)


def _gram(v: Tensor, squared: Tensor, window: Window, channels: int | None) -> Tensor:
    """Return the inner products of the positions of v/‖v‖, given ‖v‖² [samples]: no product of two such overflows."""
    v = v.reshape(len(v) * window.groups, -1, v[0, 0].numel())
    unit = (1 / squared).where(squared > 0, 0.0).repeat_interleave(window.groups)
    with no_tf32(v):
        parts = torch.split(v, channels or v.shape[1], 1)
        first, *rest = (_products(some.mT, some, window) for some in parts)
    products = sum((product_of_some.double() for product_of_some in rest), first.double()) if rest else first
    return products.mul_(unit.to(products.dtype)[:, None, None])


def _visible(offset: int, positions: int, window: Window, axis: int) -> slice:
    start = offset * window.dilation[axis]
    return slice(start, start + window.stride[axis] * (positions - 1) + 1, window.stride[axis])
