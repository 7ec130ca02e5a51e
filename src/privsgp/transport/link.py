"""A link that survives loss: every message carries the sum of all that was ever sent over it.

The sender's end keeps the running sum s of its shares (P_ij x_j, P_ij w_j), the receiver's end the sum g that has
arrived, both in float64. A message is s; who gets it adds s − g and sets g = s. So the next message makes up for any
that were lost, one that comes twice adds nothing, and one that is older than the newest is ignored: what was received
plus what is on its way, s − g, is always what was sent.

Both ends are kept for many links at once, one row each; the arithmetic of a row is that of a link alone. Of one link
with a large message, `grown` and `gathered` do the same in parts that stay in the processor's cache.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray
    from torch import Tensor

    Rows = Sequence[int] | NDArray[np.int64]
    Sums = NDArray[np.float64]

_PART = 1 << 13  # numbers that are computed on at a time: of more, BLAS gives an inner product to several threads


class Outgoing:
    """The sender's ends of links: the running sum of each, as it was after each of the last `kept` steps.

    A network that delivers late asks for older sums; over a real one the messages themselves are on their way.
    """

    def __init__(self, links: int, width: int, *, kept: int = 1, device: torch.device | None = None) -> None:
        self.sums = torch.zeros(kept, links, width, dtype=torch.float64, device=device)

    def send(self, k: int, links: Rows, shares: Tensor) -> None:
        """Add what goes over some of the links at step k; each link occurs once. Steps come one after the other."""
        now = self.sums[k % len(self.sums)]
        if len(self.sums) > 1:
            now.copy_(self.sums[k % len(self.sums) - 1])
        now.index_add_(0, torch.as_tensor(links, device=now.device), shares)

    def message(self, k: int, links: Rows) -> Tensor:
        """Return what travels over some of the links at step k: all that was ever sent over each, [links, width]."""
        return self.sums[k % len(self.sums), links]


class Incoming:
    """The receiver's ends of links: the sum that has arrived over each, and the step of the newest message."""

    def __init__(self, links: int, width: int, *, device: torch.device | None = None) -> None:
        self.arrived = torch.zeros(links, width, dtype=torch.float64, device=device)
        self.newest = torch.full((links,), -1)

    def is_news(self, step: int, links: Rows) -> NDArray[np.bool_]:
        """Tell of which links a message of this step is newer than all that have arrived."""
        return self.newest.numpy()[links] < step

    def receive(self, step: int, links: Rows, messages: Tensor) -> Tensor:
        """Return what messages that were sent at `step` bring, [links, width]: nothing new where they are old."""
        newer = torch.from_numpy(self.is_news(step, links)).to(messages.device)
        before = self.arrived[links[0] : links[0] + 1] if len(links) == 1 else self.arrived[links]  # one: not copied
        now = messages if bool(newer.all()) else torch.where(newer[:, None], messages, before)
        news = now - before
        self.arrived[links] = now
        self.newest[links] = self.newest[links].clamp(min=step)
        return news


def grown(before: Sums, x: NDArray[np.floating], w: float, share: float) -> Sums:
    """Return a link's running sums after a step: those before it, and a share of its x and w.

    Guarantee: operation for operation what `Outgoing.send` does, so that both ends come to the same bytes.
    """
    after = np.empty(len(x) + 1)
    for part in parts(len(x)):
        np.multiply(x[part], share, out=after[part], dtype=np.float64)
        after[part] += before[part]
    after[-1] = before[-1] + w * share
    return after


class Increment(NamedTuple):
    """A message's weight Δw, the norm of its model Δx/Δw, and the distance of that model from the receiver's x/w."""

    weight: float
    norm: float
    distance: float


_LEAST = 2.0**-500  # stands for a weight that was rounded to 0


def gathered(
    x: NDArray[np.floating], w: float, kept: float, taken: Sequence[tuple[Sums, Sums]]
) -> tuple[NDArray[np.floating], float, list[Increment]]:
    """Return x and w of a node that keeps a share of its own and adds what messages bring: sums, and those before.

    Each message is measured while its numbers are in the processor's cache.

    Guarantee: operation for operation what adding `Incoming.receive` to the share does, one message after the other.
    """
    mixed, total = np.empty_like(x), w * kept
    weights = [float(now[-1] - before[-1]) for now, before in taken]
    held, news, own = np.empty(_PART), np.empty(_PART), np.empty(_PART)
    squares, products, square = np.zeros(len(taken)), np.zeros(len(taken)), 0.0
    for part in parts(len(x)):
        size = len(x[part])
        np.multiply(x[part], kept, out=held[:size], dtype=np.float64)
        np.copyto(own[:size], x[part])
        square += float(own[:size] @ own[:size])
        for at, (now, before) in enumerate(taken):
            new = np.subtract(now[part], before[part], out=news[:size])
            held[:size] += new
            squares[at] += new @ new
            products[at] += new @ own[:size]
        mixed[part] = held[:size]
    for weight in weights:
        total += weight
    found = zip(weights, squares.tolist(), products.tolist(), strict=True)
    return mixed, float(total), [_measured(*one, square, w) for one in found]


def _measured(weight: float, new_new: float, new_own: float, own_own: float, w: float) -> Increment:
    """Measure a message by inner products of Δx and the receiver's x, whatever the weights: no square overflows."""
    weight = weight or _LEAST
    norm, own = math.sqrt(new_new) / weight, math.sqrt(own_own) / w
    scale = max(norm, own) or 1.0
    if not math.isfinite(scale):
        return Increment(weight, norm, math.inf)
    square = (norm / scale) ** 2 - 2 * (new_own / weight / scale) / w / scale + (own / scale) ** 2
    return Increment(weight, norm, scale * math.sqrt(max(0.0, square)))


def parts(length: int) -> Iterator[slice]:
    """Yield what is computed on at a time: what does not leave the processor's cache."""
    for at in range(0, length, _PART):
        yield slice(at, min(at + _PART, length))
