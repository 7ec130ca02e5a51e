"""Push-sum mixing of a block of nodes with neighbours in other processes, over torch.distributed.

A process sends one message to each process that holds out-neighbours of its nodes, and nothing to any other. It holds
one row for each edge between the two, the sender's share already applied, and the weight w beside it. At its end stand
the run, the step, the sender, the length and a check value. A peer may send less, more or anything else: nothing of a
message is added before its end is right and its numbers can be a model's. The receiver adds rows in the order of the
senders' numbers, one after the other, as the in-process mixing does: every layout of nodes over processes gives the
same bits. Blocks are contiguous, so that order is: lower processes, own nodes, higher ones.
"""

from __future__ import annotations

import hashlib
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore

from privsgp.devices import device_of
from privsgp.transport.checks import refuse_wild, wild
from privsgp.transport.protocol import Transport
from privsgp.transport.rendezvous import PeerLost, World, blocks

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from privsgp.graph import Edges, Graph


_END = 5  # words of 8 bytes at the end of a message: run, step, sender, length, check value


class _Parcel(NamedTuple):
    """What travels to one process: these of our rows, times these shares (in the dtype of x)."""

    rank: int
    source: Tensor
    share: Tensor


class _Arrival(NamedTuple):
    """What comes from one process (or from our own nodes), as rounds in which no target occurs twice."""

    rank: int
    nodes: Sequence[int]  # who sends each row
    rounds: list[tuple[Tensor, Tensor]]  # (targets among our rows, rows of the message)


class _Plan(NamedTuple):
    """One step's traffic of this process."""

    own: _Parcel
    parcels: list[_Parcel]
    arrivals: list[_Arrival]  # by rank, our own among them
    messages: int  # from our nodes to any other node


class TorchDistributed(Transport):
    """Mixes a block of nodes with those of other processes."""

    local: ClassVar[bool] = False
    plain: ClassVar[bool] = False

    def __init__(self, graph: Graph, like: Tensor, world: World) -> None:
        self.graph, self.world = graph, world
        self.device, self.dtype, self.dim = like.device, like.dtype, like.shape[1]
        self.message_bytes = self.dim * like.element_size() + torch.float64.itemsize
        self.blocks = blocks(graph.nodes, world.size)
        self._plans: dict[int, _Plan] = {}
        self._sending: list[tuple[int, dist.Work]] = []
        self._rooms: dict[tuple[str, int, int], Tensor] = {}
        _connect(world, self.device)

    def mix(self, k: int, x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        """Return this block's rows of (P^k x, P^k w)."""
        self.world.step = k
        plan = self._at(k)
        self._refuse_wild(self.world.rank, self.blocks[self.world.rank], x)
        self.settle()
        arriving = self._post(plan, x, w)
        mixed, weights = torch.full_like(x, -0.0), torch.full_like(w, -0.0)  # −0 + c is c, also where c is −0
        for arrival in plan.arrivals:
            if arrival.rank == self.world.rank:
                own, share = plan.own.source, plan.own.share  # rounded to x's precision for both: it cancels in x / w
                rows, shares = x[own].mul_(share), w[own] * share[:, 0].double()
            else:
                work, message = arriving[arrival.rank]
                self._wait(arrival.rank, work)
                rows, shares = self._checked(message, arrival.rank, arrival.nodes)
            for target, row in arrival.rounds:
                every = len(row) == len(rows)
                mixed.index_add_(0, target, rows if every else rows[row])
                weights.index_add_(0, target, shares if every else shares[row])
        return mixed, weights

    def messages(self, k: int) -> int:
        """Count the messages from this block's nodes to other nodes at step k."""
        return self._at(k).messages

    def settle(self) -> None:
        """See the last step's messages off: their memory is used again."""
        for rank, work in self._sending:
            self._wait(rank, work)
        self._sending.clear()

    def gather(self, x: Tensor, w: Tensor) -> tuple[Tensor, Tensor] | None:
        """Bring all nodes' x and w to process 0, once, when the run has ended; None elsewhere."""
        self.settle()
        if self.world.rank:
            with self._watching(0):
                dist.send(self._packed(self._room(len(w)), self._whole(x), x, w), 0)
            return None
        parts = [(x, w)]
        for rank, block in list(enumerate(self.blocks))[1:]:
            message = self._room(len(block))
            with self._watching(rank):
                dist.recv(message, rank)
            parts.append(self._checked(message, rank, block))
        return torch.cat([part for part, _ in parts]), torch.cat([weight for _, weight in parts])

    def _whole(self, x: Tensor) -> _Parcel:
        return _Parcel(0, torch.arange(len(x), device=x.device), torch.ones(len(x), 1, dtype=x.dtype, device=x.device))

    def _post(self, plan: _Plan, x: Tensor, w: Tensor) -> dict[int, tuple[dist.Work, Tensor]]:
        """Start all of a step's sends and receives at once."""
        sends = [(p.rank, self._packed(self._kept("to", p.rank, len(p.source)), p, x, w)) for p in plan.parcels]
        others = [a for a in plan.arrivals if a.rank != self.world.rank]
        receives = [(a.rank, self._emptied(self._kept("from", a.rank, len(a.nodes)))) for a in others]
        operations = [dist.P2POp(dist.irecv, message, rank) for rank, message in receives]
        operations += [dist.P2POp(dist.isend, message, rank) for rank, message in sends]
        if not operations:
            return {}
        with self._watching(operations[0].peer):
            works = dist.batch_isend_irecv(operations)
        works *= len(operations) if len(works) == 1 else 1  # NCCL makes one work of them
        self._sending = [(rank, work) for (rank, _), work in zip(sends, works[len(receives) :], strict=True)]
        return {r: (work, m) for (r, m), work in zip(receives, works[: len(receives)], strict=True)}

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

    def _room(self, rows: int) -> Tensor:
        """Return memory for a message: the rows' weights (float64), the rows, and its end, in whole words of 8 bytes.

        It is zero: what a sender leaves out must never be what lay in this process's memory before.
        """
        words = rows + -(-rows * self.dim * self.dtype.itemsize // 8) + _END
        return torch.zeros(8 * words, dtype=torch.uint8, device=self.device)

    def _kept(self, way: str, rank: int, rows: int) -> Tensor:
        """Return memory for the messages of one size from or to one process; it is allocated once."""
        key = way, rank, rows
        if key not in self._rooms:
            self._rooms[key] = self._room(rows)
        return self._rooms[key]

    def _emptied(self, message: Tensor) -> Tensor:
        """Wipe the end of the message before: of one that is too short, it would still be right."""
        message[-8 * _END :].zero_()
        return message

    def _packed(self, message: Tensor, parcel: _Parcel, x: Tensor, w: Tensor) -> Tensor:
        """Write a parcel's rows and weights into a message, shares applied, and its end."""
        rows, weights = self._opened(message, len(parcel.source))
        torch.index_select(x, 0, parcel.source, out=rows).mul_(parcel.share)
        torch.index_select(w, 0, parcel.source, out=weights).mul_(parcel.share[:, 0].double())
        words = message.view(torch.int64)
        words[-_END:-1] = torch.tensor(self._end(self.world.rank, message), device=self.device)
        words[-1] = words[:-1].sum()
        return message

    def _opened(self, message: Tensor, rows: int) -> tuple[Tensor, Tensor]:
        body = message[8 * rows : rows * (8 + self.dim * self.dtype.itemsize)]
        return body.view(self.dtype).view(rows, self.dim), message[: 8 * rows].view(torch.float64)

    def _end(self, sender: int, message: Tensor) -> list[int]:
        """Return what stands at the end of a sender's message of this step, but for the check value."""
        run = int.from_bytes(hashlib.sha256(f"privsgp/message/{self.world.run}".encode()).digest()[:7])
        return [run, self.world.step, sender, message.numel()]

    def _checked(self, message: Tensor, rank: int, nodes: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Return a message's rows and weights, if it is this step's from that process and whole.

        Guarantee: what is returned was sent by the peer to its last byte, w is positive and rows are finite.
        """
        words = message.view(torch.int64)
        *end, check, added = torch.cat([words[-_END:], words[:-1].sum()[None]]).tolist()
        if end != self._end(rank, message) or check != added:
            k, n = self.world.step, message.numel()
            self.world.refuse(rank, f"sent something at step {k} that is no message of {n} bytes of this run and step")
        rows, weights = self._opened(message, len(nodes))
        wrong = ~((weights > 0) & (weights <= self.graph.nodes * (1 + 1e-9)))
        if bool(wrong.any()):
            node, w = nodes[int(wrong.nonzero()[0])], float(weights[wrong][0])
            self.world.refuse(rank, f"sent w = {w:g} for its node {node} at step {self.world.step}: it lies in (0, n]")
        self._refuse_wild(rank, nodes, rows)
        return rows, weights

    def _refuse_wild(self, rank: int, nodes: Sequence[int], rows: Tensor) -> None:
        """End the run at a message that can be no model, in the name of its sender."""
        row = wild(rows)
        if row is not None:
            refuse_wild(self.world.step, rows, nodes, f" (process {rank})")

    def _at(self, k: int) -> _Plan:
        if self.graph.period is None:
            return self._plan(self.graph.edges(k))
        k %= self.graph.period
        if k not in self._plans:
            self._plans[k] = self._plan(self.graph.edges(k))
        return self._plans[k]

    def _plan(self, edges: Edges) -> _Plan:
        """Sort the edges by who sends to whom; within a message rows keep the order of edges: target, then source."""
        owner = np.concatenate([np.full(len(block), rank) for rank, block in enumerate(self.blocks)])
        rank, here = self.world.rank, self.blocks[self.world.rank]
        sender, receiver = owner[edges.source], owner[edges.target]
        shares = edges.shares(str(self.dtype).removeprefix("torch."))

        def parcel(to: int) -> _Parcel:
            chosen = (sender == rank) & (receiver == to)
            share = torch.tensor(shares[chosen], device=self.device)[:, None]
            return _Parcel(to, self._tensor(edges.source[chosen] - here.start), share)

        def arrival(source: int) -> _Arrival:
            chosen = (sender == source) & (receiver == rank)
            return _Arrival(source, edges.source[chosen].tolist(), self._rounds(edges.target[chosen] - here.start))

        targets, sources = np.unique(receiver[sender == rank]), np.unique(sender[receiver == rank])
        away = int(np.count_nonzero((sender == rank) & (edges.source != edges.target)))
        parcels = [parcel(int(to)) for to in targets if to != rank]
        return _Plan(parcel(rank), parcels, [arrival(int(source)) for source in sources], away)

    def _rounds(self, targets: NDArray[np.int64]) -> list[tuple[Tensor, Tensor]]:
        place = np.arange(len(targets)) - np.searchsorted(targets, targets)
        rounds = [np.flatnonzero(place == r) for r in range(place.max() + 1)]
        return [(self._tensor(targets[rows]), self._tensor(rows)) for rows in rounds]

    def _tensor(self, values: NDArray[np.int64]) -> Tensor:
        return torch.tensor(values, device=self.device)


def _connect(world: World, device: torch.device) -> None:
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
