"""A robust link as plainly as it can be written: the reference of transport/link.py and sites/."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from privsgp.transport.protocol import Transport

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray
    from torch import Tensor

    from privsgp.graph import Graph
    from privsgp.transport.rounding import Rounding

    Rows = Sequence[int] | NDArray[np.int64]


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


class Lockstep(Transport):
    """All nodes in one process over such links, where every message arrives in its step."""

    local = True

    def __init__(self, graph: Graph, like: Tensor, rounding: Rounding | None = None) -> None:
        self.graph, self.pairs, self.rounding = graph, graph.links(), rounding
        width = like.shape[1] + 1
        self.message_bytes = 8 * width
        self.sums = torch.zeros(len(self.pairs), width, dtype=torch.float64)
        self.arrived = self.sums.clone()

    def messages(self, k: int) -> int:
        edges = self.graph.edges(k)
        return int((edges.source != edges.target).sum())

    def mix(self, k: int, x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        edges, rows = self.graph.edges(k), torch.cat([x.double(), w[:, None]], 1)
        away = edges.source != edges.target
        source, target, share = edges.source[away], edges.target[away], edges.share[away]
        link = [self.pairs.index(pair) for pair in zip(source.tolist(), target.tolist(), strict=True)]
        if self.rounding is None:
            self.sums[link] += rows[source] * torch.tensor(share)[:, None]
            mixed = rows * torch.tensor(1 - np.bincount(source, share, self.graph.nodes))[:, None]
        elif link:
            before = self.sums.clone()
            ends = list(zip(source.tolist(), target.tolist(), strict=True))
            carrying = self.rounding.carrying(ends, share.tolist())
            codes, weights = self.rounding.codes(k, carrying, x, w)
            shares = self.rounding.shares(carrying, codes, weights)
            self.sums[link] += torch.cat([shares.double(), weights[:, None]], 1)
            mixed = kept(x, rows, source, [self.sums[one] - before[one] for one in link])
        mixed.index_add_(0, torch.tensor(target), self.sums[link] - self.arrived[link])
        self.arrived[link] = self.sums[link]
        return mixed[:, :-1].to(x.dtype, copy=True), mixed[:, -1].clone()


def kept(x: Tensor, rows: Tensor, source: Rows, given: Sequence[Tensor]) -> Tensor:
    """Return what nodes keep of their rows, x as exact as it is and w, of which they have given rounded shares."""
    mixed = rows.clone()
    for one in sorted(range(len(given)), key=lambda at: source[at]):
        mixed[source[one]] -= given[one]
    mixed[:, :-1] = mixed[:, :-1].to(x.dtype).double()
    return mixed
