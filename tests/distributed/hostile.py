"""Peers that do not keep to the protocol: hooks for `cluster.start`, called in every process with its rank."""

from __future__ import annotations

import os
import re
import signal
import time
from typing import Any


def say(rank: int, *, liar: int, about: int, pattern: str, word: str) -> None:
    """Let one process put `word` in the place of what process `about` said, wherever that fits the pattern."""
    from privsgp.transport import rendezvous
    from privsgp.transport import torch_distributed as distributed

    join = rendezvous.Processes.__init__

    def joined(self, *args: Any, **kwargs: Any) -> None:
        join(self, *args, **kwargs)
        if rank == liar:
            self.store = _Lying(self.store, rank, about, pattern, word)

    rendezvous.Processes.__init__ = joined
    connect = distributed._connect

    def connected(world: Any, device: Any) -> None:
        lying, world.store = world.store, getattr(world.store, "_store", world.store)
        connect(world, device)
        world.store = lying

    distributed._connect = connected


class _Lying:
    """A store through which one hears what another said before one's own word is heard."""

    def __init__(self, store: Any, rank: int, about: int, pattern: str, word: str) -> None:
        self._store, self._rank, self._about, self._pattern, self._word = store, rank, about, pattern, word
        self._meant: dict[str, bytes] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def set(self, key: str, value: str) -> None:
        if not re.fullmatch(r"\d+/\d+", key):
            return self._store.set(key, value)
        theirs, said = f"{key.split('/', maxsplit=1)[0]}/{self._about}", value
        if self._about != self._rank:
            while not self._store.check([theirs]):
                time.sleep(0.001)
            said = self._store.get(theirs).decode()
        if re.fullmatch(self._pattern, said):
            self._store.set(theirs, self._word)
            if self._about == self._rank:
                self._meant[key] = value.encode()
                return None
        return self._store.set(key, value)

    def multi_get(self, keys: list[str]) -> list[bytes]:
        """Who lies of himself does not believe it."""
        return [self._meant.get(key, word) for key, word in zip(keys, self._store.multi_get(keys), strict=True)]


def send(rank: int, *, liar: int, step: int, how: str) -> None:
    """Let one process send something else than its message, from a step on."""
    import torch
    import torch.distributed as dist

    from privsgp.transport import torch_distributed as distributed

    batch, packed, calls = dist.batch_isend_irecv, distributed.TorchDistributed._packed, iter(range(10**9))

    def sent(operations: list[Any]) -> Any:
        if next(calls) >= step and rank == liar:
            for op in operations:
                if op.op is dist.isend and how in ("short", "nothing", "long", "flipped"):
                    op.tensor = _other(op.tensor, how)
        return batch(operations)

    def changed(self: Any, message: Any, parcel: Any, x: Any, w: Any) -> Any:
        if rank == liar and self.world.step >= step and how not in ("short", "nothing", "long", "flipped"):
            x, w = x.clone(), w.clone()
            number = float(how.removeprefix("w="))
            (w if how.startswith("w=") else x.view(torch.float32))[-1] = number
        return packed(self, message, parcel, x, w)

    def _other(message: Any, how: str) -> Any:
        if how == "flipped":
            message[len(message) // 2] ^= 64
            return message
        return message[: {"short": -100, "nothing": 1}[how]].clone() if how != "long" else torch.cat([message] * 3)

    distributed.dist.batch_isend_irecv = sent
    distributed.TorchDistributed._packed = changed


def pause(rank: int, *, victim: int, step: int) -> None:
    """Let one process stop at a step; the test lets it go on, or not."""
    from privsgp.transport.torch_distributed import TorchDistributed

    mix = TorchDistributed.mix

    def sleeping(self: Any, k: int, *given: Any) -> Any:
        if rank == victim and k == step:
            os.kill(os.getpid(), signal.SIGSTOP)
        return mix(self, k, *given)

    TorchDistributed.mix = sleeping  # type: ignore[method-assign]


def pause_at_exchange(rank: int, *, victim: int, number: int) -> None:
    """Let one process stop when it is to say something for the n-th time."""
    from privsgp.transport.rendezvous import Processes

    gather, calls = Processes.all_gather_each, iter(range(number))

    def stopping(self: Any, value: Any, expected: Any) -> Any:
        if rank == victim and next(calls, None) is None:
            Processes.all_gather_each = gather
            os.kill(os.getpid(), signal.SIGSTOP)
        return gather(self, value, expected)

    Processes.all_gather_each = stopping
