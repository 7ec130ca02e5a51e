"""Push-sum that survives loss: a message carries all its sender ever sent over that link, so the next makes it good.

Link (j → i) has a running sum s_ji of the shares (P_ij x_j, P_ij w_j) sent over it and the sum g_ji that has arrived,
both in float64. A message is s_ji; who gets it adds s_ji − g_ji and sets g_ji = s_ji. Nothing is lost for good: nodes
plus links, Σ_i x_i + Σ_links (s − g), stay what they were, and so does Σw; z_i = x_i / w_i still reaches the average.
A message that is older than one that has arrived is ignored.

A node that is down neither sends nor receives nor moves. What a node that leaves for good had on the way is handed
over, what was on the way to it goes back to its sender, and what would be sent to it later is kept: the others agree
on Σ_{j≠i} x_j / Σ_{j≠i} w_j, what was in flight included. Its x and w are 0 from then on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from privsgp.graph import Graph
    from privsgp.transport.faults import Faults


class _Sent(NamedTuple):
    """The messages of one step between nodes that were there to send them."""

    link: NDArray[np.int64]
    source: NDArray[np.int64]
    target: NDArray[np.int64]
    share: NDArray[np.float64]
    lost: NDArray[np.bool_]
    arrives: NDArray[np.int64]


class Robust:
    """Mixing of all nodes in one process over a network with faults."""

    def __init__(self, graph: Graph, like: Tensor, faults: Faults) -> None:
        self.graph, self.faults, self.device = graph, faults, like.device
        self.links = _links(graph)
        slots, count, d = faults.delay + 1, len(self.links), like.shape[1]
        # x and w of a link, a row of d + 1 numbers; of the running sums the last few, which late messages carry.
        self.sums = torch.zeros(slots, count, d + 1, dtype=torch.float64, device=like.device)
        self.arrived = torch.zeros(count, d + 1, dtype=torch.float64, device=like.device)
        self.stamp = torch.full((count,), -1)
        self.held = _joined(like, torch.ones(len(like), dtype=torch.float64, device=like.device))
        self.counts = torch.zeros(4, dtype=torch.int64)  # sent, lost, late, waited for
        self._recent: dict[int, _Sent] = {}

    def __call__(self, k: int, x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        """Return what the nodes hold after step k: x in its own precision, w in float64."""
        down, left = self.faults.down(k), self.faults.left(k)
        rows = _joined(x, w)
        rows[down] = self.held[down]
        self._depart(k, rows)
        rows[left] = 0
        sent = self._sent(k)
        shares = torch.tensor(sent.share, device=self.device)[:, None]
        slot = k % len(self.sums)
        self.sums[slot] = self.sums[k % len(self.sums) - 1]
        self.sums[slot, sent.link] += rows[sent.source] * shares
        given = np.bincount(sent.source, sent.share, self.graph.nodes)
        mixed = rows * torch.tensor(1 - given, device=self.device)[:, None]
        self._receive(k, mixed)
        self._count(k, sent)
        self.held = mixed
        return mixed[:, :-1].to(x.dtype), mixed[:, -1].clone()

    def messages(self, k: int) -> int:
        """Count the messages sent at step k, lost ones included."""
        return len(self._sent(k).link)

    def arrays(self) -> dict[str, Tensor]:
        """Return what a checkpoint must hold besides x and w."""
        return {"sums": self.sums, "arrived": self.arrived, "stamp": self.stamp, "held": self.held} | {
            "counts": self.counts
        }

    def in_flight(self, k: int) -> tuple[Tensor, Tensor]:
        """Return Σ_links (s − g) of x and of w after step k."""
        total = (self.sums[k % len(self.sums)] - self.arrived).sum(0)
        return total[:-1], total[-1]

    def report(self) -> dict[str, object]:
        """Return what happened, in words and numbers."""
        sent, lost, late, waited = self.counts.tolist()
        words: dict[str, object] = {"sent": sent, "lost": lost, "late": late, "waited_for": waited}
        if self.faults.leaves:
            words["left"] = [list(leave) for leave in self.faults.leaves]
            words["average"] = "of the nodes that stayed: Σx/Σw without those that left, what was in flight included"
        return words

    def _sent(self, k: int) -> _Sent:
        """Return the messages of step k; shares meant for a node that has left stay where they are."""
        if k not in self._recent:
            self._recent = {step: sent for step, sent in self._recent.items() if step >= k - self.faults.delay}
            self._recent[k] = self._send(k)
        return self._recent[k]

    def _send(self, k: int) -> _Sent:
        edges = self.graph.edges(k)
        away = edges.source != edges.target
        lost, late = self.faults.weather(k, int(away.sum()))
        source, target, share = edges.source[away], edges.target[away], edges.share[away]
        absent = self.faults.left(k)
        there = ~np.isin(source, [*self.faults.down(k), *absent]) & ~np.isin(target, absent)
        link = np.searchsorted(self.links, source * self.graph.nodes + target)
        arrives = k + late
        return _Sent(link[there], source[there], target[there], share[there], lost[there], arrives[there])

    def _receive(self, k: int, mixed: Tensor) -> None:
        """Add what arrives at step k: messages of this step and late ones, older before newer."""
        down = self.faults.down(k)
        for step in range(max(0, k - self.faults.delay), k + 1):
            sent = self._sent(step)
            stamp = self.stamp.numpy()[sent.link]
            comes = ~sent.lost & (sent.arrives == k)
            if step == k:  # a link that was silent for too long is waited for
                waited = k - stamp > self.faults.staleness
                self.counts[3] += int(np.count_nonzero(waited & ~comes))
                comes |= waited
            comes &= (stamp < step) & ~np.isin(sent.target, [*down, *self.faults.left(k)])
            link = sent.link[comes]
            news = self.sums[step % len(self.sums), link]
            mixed.index_add_(0, torch.tensor(sent.target[comes], device=self.device), news - self.arrived[link])
            self.arrived[link] = news
            self.stamp[link] = step

    def _depart(self, k: int, rows: Tensor) -> None:
        """Settle the links of a node that leaves now: what it had sent arrives, what was sent to it goes back."""
        for node, step in self.faults.leaves:
            if step != k:
                continue
            source, target = np.divmod(self.links, self.graph.nodes)
            link = np.flatnonzero((source == node) | (target == node))
            other = np.where(source[link] == node, target[link], source[link])
            latest = self.sums[k % len(self.sums) - 1, link]
            rows.index_add_(0, torch.tensor(other, device=self.device), latest - self.arrived[link])
            self.arrived[link] = latest
            self.stamp[link] = k - 1

    def _count(self, k: int, sent: _Sent) -> None:
        late = ~sent.lost & (sent.arrives > k)
        self.counts[:3] += torch.tensor([len(sent.link), int(sent.lost.sum()), int(late.sum())])


def _joined(x: Tensor, w: Tensor) -> Tensor:
    return torch.cat([x.double(), w.double()[:, None]], 1)


def _links(graph: Graph) -> NDArray[np.int64]:
    """Return source · n + target of every link that is ever used, sorted; a graph that never repeats may use any."""
    n = graph.nodes
    if graph.period is None:
        return _apart(np.arange(n * n), n)
    steps = [graph.edges(k) for k in range(graph.period)]
    return _apart(np.unique(np.concatenate([e.source * n + e.target for e in steps])), n)


def _apart(pairs: NDArray[np.int64], n: int) -> NDArray[np.int64]:
    return np.asarray(pairs[pairs // n != pairs % n])
