"""Push-sum over a simulated bad network: messages are lost or late, nodes are down or leave.

Links survive that (`link.py`). Nothing is lost for good: nodes plus links, Σ_i x_i + Σ_links (s − g), stay what they
were, and so does Σw; z_i = x_i / w_i still reaches the average.

A node that is down neither sends nor receives nor moves. What a node that leaves for good had on the way is handed
over, what was on the way to it goes back to its sender, and what would be sent to it later is kept: the others agree
on Σ_{j≠i} x_j / Σ_{j≠i} w_j, what was in flight included. Its x and w are 0 from then on.

Which message is lost is public randomness, keyed by the step, so that a run with faults can be repeated and resumed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
import torch
from scipy.sparse.csgraph import connected_components
from torch import Tensor

from privsgp.errors import Refused
from privsgp.graph.assumptions import HORIZON, union
from privsgp.transport.protocol import Transport

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from privsgp.graph import Graph


class _Sent(NamedTuple):
    """The messages of one step between nodes that were there to send them."""

    link: NDArray[np.int64]
    source: NDArray[np.int64]
    target: NDArray[np.int64]
    share: NDArray[np.float64]
    lost: NDArray[np.bool_]
    arrives: NDArray[np.int64]


class LossyNetwork(Transport):
    """Mixes all nodes in one process over a network with faults; x and w of a link are a row of d + 1 numbers."""

    local: ClassVar[bool] = True
    plain: ClassVar[bool] = False
    once: ClassVar[bool] = True

    def __init__(self, graph: Graph, like: Tensor, faults: Faults) -> None:
        self.graph, self.faults, self.device = graph, faults, like.device
        self.links = np.array([j * graph.nodes + i for j, i in graph.links()], np.int64)
        links, width = len(self.links), like.shape[1] + 1
        self.message_bytes = width * torch.float64.itemsize
        # of each link the sums s after each of the last steps, g, and the step of the newest message that arrived
        self.sums = torch.zeros(faults.delay + 1, links, width, dtype=torch.float64, device=like.device)
        self.arrived = torch.zeros(links, width, dtype=torch.float64, device=like.device)
        self.newest = torch.full((links,), -1)
        self.held = _joined(like, like.new_ones(len(like)))
        self.counts = torch.zeros(4, dtype=torch.int64)  # sent, lost, late, waited for
        self._recent: dict[int, _Sent] = {}

    def restart(self, x: Tensor, w: Tensor) -> None:
        """Begin anew: the nodes hold x and w, and nothing was ever sent."""
        for sums in (self.sums, self.arrived, self.counts):
            sums.zero_()
        self.newest.fill_(-1)
        self.held = _joined(x, w)

    def mix(self, k: int, x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        """Return what the nodes hold after step k: x in its own precision, w in float64."""
        down, left = self.faults.down(k), self.faults.left(k)
        rows = _joined(x, w)
        rows[down] = self.held[down]
        self._depart(k, rows)
        rows[left] = 0
        sent = self._sent(k)
        shares = torch.tensor(sent.share, device=self.device)[:, None]
        now, before = self.sums[k % len(self.sums)], self.sums[(k - 1) % len(self.sums)]
        now.copy_(before).index_add_(0, torch.tensor(sent.link, device=self.device), rows[sent.source] * shares)
        given = np.bincount(sent.source, sent.share, self.graph.nodes)
        mixed = rows * torch.tensor(1 - given, device=self.device)[:, None]
        self._receive(k, mixed)
        late = ~sent.lost & (sent.arrives > k)
        self.counts[:3] += torch.tensor([len(sent.link), int(sent.lost.sum()), int(late.sum())])
        self.held = mixed
        return mixed[:, :-1].to(x.dtype, copy=True), mixed[:, -1].clone()

    def messages(self, k: int) -> int:
        """Count the messages sent at step k, lost ones included."""
        return len(self._sent(k).link)

    def arrays(self) -> dict[str, Tensor]:
        """Return what a checkpoint must hold besides x and w."""
        links = {"sums": self.sums, "arrived": self.arrived, "stamp": self.newest}
        return links | {"held": self.held, "counts": self.counts}

    def report(self) -> dict[str, Any]:
        """Return what happened, in words and numbers."""
        sent, lost, late, waited = self.counts.tolist()
        words: dict[str, Any] = {"sent": sent, "lost": lost, "late": late, "waited_for": waited}
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
            comes = ~sent.lost & (sent.arrives == k)
            newest = self.newest.numpy()[sent.link]
            if step == k:  # a link that was silent for too long is waited for
                waited = newest < k - self.faults.staleness
                self.counts[3] += int(np.count_nonzero(waited & ~comes))
                comes |= waited
            comes &= newest < step
            comes &= ~np.isin(sent.target, [*down, *self.faults.left(k)])
            self._arrive(step, sent.link[comes], sent.target[comes], mixed)

    def _arrive(self, step: int, link: NDArray[np.int64], node: NDArray[np.int64], rows: Tensor) -> None:
        """Give nodes what is new in the messages of a step."""
        message = self.sums[step % len(self.sums), link]
        rows.index_add_(0, torch.tensor(node, device=self.device), message - self.arrived[link])
        self.arrived[link], self.newest[link] = message, step

    def _depart(self, k: int, rows: Tensor) -> None:
        """Settle the links of a node that leaves now: what it had sent arrives, what was sent to it goes back."""
        for node, step in self.faults.leaves:
            if step != k:
                continue
            source, target = np.divmod(self.links, self.graph.nodes)
            link = np.flatnonzero((source == node) | (target == node))
            other = np.where(source[link] == node, target[link], source[link])
            self._arrive(k - 1, link, other, rows)


def _joined(x: Tensor, w: Tensor) -> Tensor:
    return torch.cat([x.double(), w.double()[:, None]], 1)


DOWN = 20  # steps a crashed node needs to come back, where nothing else is said
STALENESS = 64


@dataclass(frozen=True)
class Faults:
    """`drop`: chance that a message is lost. `delay`: it arrives 0 to so many steps late, each equally often.

    `crashes`: nodes that are down, with the first step of it and the first after it. `leaves`: nodes that take no step
    from another on.
    `staleness`: a receiver that has had nothing over a link for more than so many steps waits for its next message,
    which then gets through at once.
    """

    drop: float = 0.0
    delay: int = 0
    crashes: tuple[tuple[int, int, int], ...] = ()
    leaves: tuple[tuple[int, int], ...] = ()
    staleness: int = STALENESS
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.drop < 1:
            raise Refused(f"--drop {self.drop}", "give the chance that a message is lost: 0 to less than 1")
        for name, least in (("delay", 0), ("staleness", 1)):
            if getattr(self, name) < least:
                raise Refused(f"--{name} {getattr(self, name)}", f"give a number of steps, at least {least}")

    @classmethod
    def parse(
        cls,
        graph: Graph,
        *,
        drop: float = 0.0,
        delay: int = 0,
        crash: Sequence[str] = (),
        leave: Sequence[str] = (),
        staleness: int = STALENESS,
        seed: int = 0,
    ) -> Faults | None:
        """Read what the command line says: crash 3@200 or 3@200+50 (down for 50 steps), leave 5@300."""
        outages = [_parts("crash", text, graph.nodes) for text in crash]
        leaves = tuple(_parts("leave", text, graph.nodes)[:2] for text in leave)
        crashes = tuple((node, first, first + steps) for node, first, steps in outages)
        faults = cls(drop, delay, crashes, leaves, staleness, seed)
        if not (drop or delay or crashes or leaves):
            return None
        faults.refuse_cut(graph)
        return faults

    def refuse_cut(self, graph: Graph) -> None:
        """Refuse to let nodes leave without whom the others are no longer strongly connected."""
        gone = {node for node, _ in self.leaves}
        stay = [node for node in range(graph.nodes) if node not in gone]
        heard = union(graph, 0, graph.period or HORIZON)[np.ix_(stay, stay)]
        if not stay or connected_components(heard, directed=True, connection="strong")[0] > 1:
            raise Refused(
                f"--leave of nodes {sorted(gone)} on graph {graph.name!r}",
                "the rest would fall apart: choose a denser graph, or other nodes",
            )

    def refuse_late(self, steps: int) -> None:
        """Refuse what would begin after the last step, steps − 1, and so never."""
        begun = [("crash", *crash[:2]) for crash in self.crashes] + [("leave", *leave) for leave in self.leaves]
        for option, node, step in begun:
            if step >= steps:
                raise Refused(
                    f"--{option} {node}@{step} with algorithm.steps = {steps}", f"name a step from 0 to {steps - 1}"
                )

    def down(self, k: int) -> list[int]:
        """Return the nodes that are down at step k."""
        return sorted({node for node, first, stop in self.crashes if first <= k < stop})

    def left(self, k: int) -> list[int]:
        """Return the nodes that have left before step k is taken."""
        return sorted({node for node, step in self.leaves if step <= k})

    def weather(self, k: int, messages: int) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
        """Return which messages of step k are lost, and by how many steps the others are late."""
        rng = np.random.Generator(np.random.Philox(key=self.seed % 2**128, counter=[0, 0, 0, k]))
        return rng.random(messages) < self.drop, rng.integers(0, self.delay + 1, messages)


def _parts(option: str, text: str, nodes: int) -> tuple[int, int, int]:
    """Return node, step, and steps of an outage."""
    found = re.fullmatch(r"(\d+)@(\d+)(?:\+(\d+))?" if option == "crash" else r"(\d+)@(\d+)()", text)
    if found is None or int(found[1]) >= nodes or int(found[3] or DOWN) == 0:
        example = "3@200 or, down for 50 steps, 3@200+50" if option == "crash" else "3@200"
        raise Refused(f"--{option} {text}", f"write NODE@STEP, like {example}, with a node from 0 to {nodes - 1}")
    return int(found[1]), int(found[2]), int(found[3] or DOWN)
