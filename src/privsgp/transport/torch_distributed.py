"""Push-sum mixing of a block of nodes with neighbours in other processes, over torch.distributed.

A process sends one message to each process that holds out-neighbours of its nodes, and nothing to any other. It holds
x and w of each node that has out-neighbours there: the graph is public, so the receiver knows the shares. At its end
are the run, the step, the sender, the length and a check value. A peer may send less, more or anything else: nothing of
a message is added before its end is right and its numbers can be a model's. The receiver mixes the rows by the code of
the in-process transport: every layout of nodes over processes gives the same bits. With fewer than 32 bits a message
holds, instead of x, the codes of each link's rounded share (`rounding.py`).
"""

from __future__ import annotations

import hashlib
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore

from privsgp.devices import device_of
from privsgp.transport.in_process import Round, Rounded, combined, mixing_rounds, rounded, rounds
from privsgp.transport.protocol import Transport, refuse_wild
from privsgp.transport.rendezvous import PeerLost, Processes
from privsgp.transport.world import blocks

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from privsgp.graph import Edges, Graph
    from privsgp.transport.rounding import Carrying, Rounding


_END = 5  # words of 8 bytes at the end of a message: run, step, sender, length, check value


class _Plan(NamedTuple):
    """One step's traffic of this process."""

    sends: dict[int, Tensor]  # by process: which of our rows it needs
    nodes: dict[int, list[int]]  # by process, in order: the nodes of it, or of our own, that our nodes hear
    rounds: list[Round]  # of their rows, one after the other
    messages: int  # from our nodes to any other node
    rounded: Rounded | None = None  # a row is then what a link from one of our nodes carries
    arriving: Mapping[int, Carrying] = MappingProxyType({})  # by process: the links from its nodes


class TorchDistributed(Transport):
    """Mixes a block of nodes with those of other processes."""

    local: ClassVar[bool] = False

    def __init__(self, graph: Graph, like: Tensor, world: Processes, rounding: Rounding | None = None) -> None:
        self.graph, self.world, self.like, self.rounding = graph, world, like[:0], rounding
        self.device, self.dtype, self.dim = like.device, like.dtype, like.shape[1]
        self.width = self.dim * like.element_size() if rounding is None else rounding.width  # bytes of a row
        self.message_bytes = self.width + torch.float64.itemsize
        self.blocks = blocks(graph.nodes, world.size)
        self._plans: dict[int, _Plan] = {}
        self._sending: list[tuple[int, dist.Work, Tensor]] = []
        _connect(world, self.device)

    def mix(self, k: int, x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        """Return this block's rows of (P^k x, P^k w)."""
        self.world.reached(k)
        plan, rank = self._at(k), self.world.rank
        refuse_wild(k, x, self.blocks[rank], f" (process {rank})")
        self._finish_sending()
        own, parts = (x, w), []  # every node hears itself
        if self.rounding is None or plan.rounded is None:
            arriving = self._post(plan, x.view(torch.uint8), w)
        else:
            codes, weights = self.rounding.codes(k, plan.rounded.links, x, w)
            arriving = self._post(plan, codes, weights)
            shares = self.rounding.shares(plan.rounded.links, codes, weights)
            parts.append(plan.rounded.remaining(x, w, shares, weights))
            if rank in plan.sends:
                own = shares[plan.sends[rank]], weights[plan.sends[rank]]
        for source, nodes in plan.nodes.items():
            if source == rank:
                parts.append(own)
            else:
                work, message = arriving[source]
                self._wait(source, work)
                parts.append(self._checked(message, source, nodes, plan.arriving.get(source)))
        return combined(plan.rounds, torch.cat([rows for rows, _ in parts]), torch.cat([ws for _, ws in parts]))

    def arrays(self) -> dict[str, Tensor]:
        """Return what both ends of links remember."""
        return {} if self.rounding is None else {"carried": self.rounding.carried}

    def messages(self, k: int) -> int:
        """Count the messages from this block's nodes to other nodes at step k."""
        return self._at(k).messages

    def _finish_sending(self) -> None:
        """Wait until the last step's messages have left."""
        for rank, work, _ in self._sending:
            self._wait(rank, work)
        self._sending.clear()

    def gather(self, x: Tensor, w: Tensor) -> tuple[Tensor, Tensor] | None:
        """Bring all nodes' x and w to process 0, once, when the run has ended; None elsewhere."""
        self._finish_sending()
        if self.world.rank:
            with self._watching(0):
                rows = torch.arange(len(x), device=x.device)
                dist.send(self._packed(self._room(len(w), x[0].nbytes), rows, x.view(torch.uint8), w), 0)
            return None
        parts = [(x, w)]
        for rank, block in list(enumerate(self.blocks))[1:]:
            message = self._room(len(block), x[0].nbytes)
            with self._watching(rank):
                dist.recv(message, rank)
            parts.append(self._checked(message, rank, block))
        return torch.cat([rows_of for rows_of, _ in parts]), torch.cat([weight for _, weight in parts])

    def _post(self, plan: _Plan, rows: Tensor, w: Tensor) -> dict[int, tuple[dist.Work, Tensor]]:
        """Start all of a step's sends and receives at once."""
        receives = {r: self._room(len(nodes), self.width) for r, nodes in plan.nodes.items() if r != self.world.rank}
        away = {r: own for r, own in plan.sends.items() if r != self.world.rank}
        sends = {r: self._packed(self._room(len(own), self.width), own, rows, w) for r, own in away.items()}
        operations = [dist.P2POp(dist.irecv, message, rank) for rank, message in receives.items()]
        operations += [dist.P2POp(dist.isend, message, rank) for rank, message in sends.items()]
        if not operations:
            return {}
        with self._watching(operations[0].peer):
            works = dist.batch_isend_irecv(operations)
        works *= len(operations) if len(works) == 1 else 1  # NCCL makes one work of them
        self._sending = [(r, work, m) for (r, m), work in zip(sends.items(), works[len(receives) :], strict=True)]
        return {r: (work, m) for (r, m), work in zip(receives.items(), works[: len(receives)], strict=True)}

    def _wait(self, rank: int, work: dist.Work) -> None:
        with self._watching(rank):
            work.wait(timedelta(seconds=self.world.patience))

    @contextmanager
    def _watching(self, rank: int) -> Iterator[None]:
        """Turn a connection that broke into the name of who is gone."""
        try:
            yield
        except RuntimeError as error:
            timed_out = "timed out" in str(error).lower()
            how = f"no message within {self.world.patience:g} s" if timed_out else "its connection broke"
            raise PeerLost(f"process {rank} is gone ({how})", self.world.step) from error

    def _room(self, rows: int, width: int) -> Tensor:
        """Return memory for a message: the rows' weights (float64), the rows, and its end, in whole words of 8 bytes.

        It is zero: what a sender leaves out must never be what lay in this process's memory before.
        """
        words = rows + -(-rows * width // 8) + _END
        return torch.zeros(8 * words, dtype=torch.uint8, device=self.device)

    def _packed(self, message: Tensor, source: Tensor, rows: Tensor, w: Tensor) -> Tensor:
        """Write some of our rows, as bytes, and weights into a message, and its end."""
        room, weights = self._opened(message, len(source), rows.shape[1])
        torch.index_select(rows, 0, source, out=room)
        torch.index_select(w, 0, source, out=weights)
        words = message.view(torch.int64)
        words[-_END:-1] = torch.tensor(self._end(self.world.rank, message), device=self.device)
        words[-1] = words[:-1].sum()
        return message

    def _opened(self, message: Tensor, rows: int, width: int) -> tuple[Tensor, Tensor]:
        return message[8 * rows : rows * (8 + width)].view(rows, width), message[: 8 * rows].view(torch.float64)

    def _end(self, sender: int, message: Tensor) -> list[int]:
        """Return what stands at the end of a sender's message of this step, but for the check value."""
        run = int.from_bytes(hashlib.sha256(f"privsgp/message/{self.world.run}".encode()).digest()[:7])
        return [run, self.world.step, sender, message.numel()]

    def _checked(
        self, message: Tensor, rank: int, nodes: Sequence[int], carrying: Carrying | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return a message's rows and weights, if it is this step's from that process and whole.

        Guarantee: what is returned was sent by the peer to its last byte, w is positive and rows are finite.
        """
        words = message.view(torch.int64)
        *end, check, added = torch.cat([words[-_END:], words[:-1].sum()[None]]).tolist()
        if end != self._end(rank, message) or check != added:
            k, n = self.world.step, message.numel()
            self.world.refuse(rank, f"sent something at step {k} that is no message of {n} bytes of this run and step")
        codes = self.rounding if carrying is not None else None
        width = self.dim * self.dtype.itemsize if codes is None else codes.width
        rows, weights = self._opened(message, len(nodes), width)
        wrong = ~((weights > 0) & (weights <= self.graph.nodes * (1 + 1e-9)))
        if bool(wrong.any()):
            node, w = nodes[int(wrong.nonzero()[0])], float(weights[wrong][0])
            self.world.refuse(rank, f"sent w = {w:g} for its node {node} at step {self.world.step}: it lies in (0, n]")
        rows = rows.view(self.dtype) if codes is None or carrying is None else codes.shares(carrying, rows, weights)
        refuse_wild(self.world.step, rows, nodes, f" (process {rank})")
        return rows, weights

    def _at(self, k: int) -> _Plan:
        at = k if self.graph.period is None else k % self.graph.period
        if at not in self._plans:
            self._plans = self._plans if self.graph.period else {}
            self._plans[at] = self._plan(self.graph.edges(k))
        return self._plans[at]

    def _plan(self, edges: Edges) -> _Plan:
        """Sort the edges by the processes at their ends; blocks are contiguous, so ranks are in the order of nodes."""
        owner = np.concatenate([np.full(len(block), rank) for rank, block in enumerate(self.blocks)])
        rank, start = self.world.rank, self.blocks[self.world.rank].start
        sender, here = owner[edges.source], owner[edges.target] == rank
        mine = sender == rank
        others = [int(r) for r in np.unique(owner[edges.target[mine]]) if r != rank]
        sends = {r: np.unique(edges.source[mine & (owner[edges.target] == r)]) - start for r in others}
        if self.rounding is not None:
            return self._rounded_plan(self.rounding, edges, owner)
        heard = np.unique(edges.source[here])
        nodes = {int(r): heard[owner[heard] == r].tolist() for r in np.unique(owner[heard])}
        shares = edges.shares(str(self.dtype).removeprefix("torch."))[here]
        made = rounds(edges.target[here] - start, np.searchsorted(heard, edges.source[here]), shares, self.like)
        away = int(np.count_nonzero(mine & (edges.source != edges.target)))
        return _Plan({r: torch.tensor(rows, device=self.device) for r, rows in sends.items()}, nodes, made, away)

    def _rounded_plan(self, rounding: Rounding, edges: Edges, owner: NDArray[np.int64]) -> _Plan:
        """Sort the links, in the order of edges, by the processes at their ends: a row is what one of them carries."""
        away, rank = edges.source != edges.target, self.world.rank
        source, target = edges.source[away], edges.target[away]
        share = edges.shares(str(self.dtype).removeprefix("torch."))[away]
        mine, here = owner[source] == rank, owner[target] == rank
        receivers, senders = owner[target[mine]], owner[source]
        sends = {int(r): np.flatnonzero(receivers == r) for r in np.unique(receivers)}
        heard = {int(r): np.flatnonzero(here & (senders == r)) for r in np.unique(senders[here])}
        order = np.concatenate([*heard.values(), np.empty(0, np.int64)])
        arriving = {
            r: rounding.carrying(zip(source[rows].tolist(), target[rows].tolist(), strict=True), share[rows].tolist())
            for r, rows in heard.items() if r != rank
        }  # fmt: skip
        return _Plan(
            {r: torch.tensor(rows, device=self.device) for r, rows in sends.items()},
            {r: source[rows].tolist() for r, rows in heard.items()},
            mixing_rounds(rounding.here, source[order], target[order], self.like),
            int(mine.sum()),
            rounded(rounding, source[mine], target[mine], share[mine], self.like),
            arriving,
        )


def _connect(world: Processes, device: torch.device) -> None:
    """Let messages travel by NCCL between GPUs, else by gloo. Neither encrypts nor asks who is there."""
    if not dist.is_initialized():
        world.connect(
            partial(
                dist.init_process_group,
                "nccl" if device_of(device).has_cudnn else "gloo",
                store=PrefixStore("messages", world.apart()),
                rank=world.rank,
                world_size=world.size,
                timeout=timedelta(seconds=world.patience),
            )
        )
