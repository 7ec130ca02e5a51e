"""Where the processes of a run meet: who is there, who owns which nodes, and what all of them must agree on.

A process started by torchrun finds the others through a key-value store. What goes through it is public and small:
the shared configuration, sizes, step numbers, noise levels, test metrics, and who is gone. Parameters never do; they
travel as messages (distributed.py). A process that was started alone is a world of one, for which nothing here happens.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import itertools
import json
import os
import threading
import time
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from privsgp import __version__
from privsgp.engine.stops import Interrupted
from privsgp.errors import Refused

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch.distributed.distributed_c10d import Store

T = TypeVar("T")

PATIENCE = 120.0  # seconds to wait for a process that lives; PRIVSGP_PATIENCE changes it
SILENCE = 5.0  # seconds without a sign of life after which a process counts as gone
REFUSED = "refused"
_BEAT = 0.5
_PAUSE = 0.002


class PeerLost(Interrupted):
    """Another process is gone; ledgers and the last common checkpoint are kept."""

    def __init__(self, rank: int, how: str, step: int) -> None:
        when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        Exception.__init__(self, f"process {rank} is gone ({how}); noticed at step {step}, {when}")
        self.rank, self.step = rank, step


def blocks(nodes: int, processes: int) -> list[range]:
    """Give each process its nodes: contiguous ranges whose lengths differ by one at most."""
    if processes > nodes:
        raise Refused(f"{processes} processes with data.nodes = {nodes}", f"start at most {nodes} processes")
    ends = [(nodes * rank) // processes for rank in range(processes + 1)]
    return [range(a, b) for a, b in itertools.pairwise(ends)]


class World:
    """The processes of a run. Calls that exchange something are made by all of them, in the same order."""

    def __init__(self, rank: int = 0, size: int = 1, store: Store | None = None, patience: float = PATIENCE) -> None:
        self.rank, self.size, self.patience = rank, size, patience
        self.step = 0  # for messages: how far this process has come
        self._store = store
        self._round = 0
        self._pulse: threading.Thread | None = None
        self._ended = threading.Event()

    @property
    def alone(self) -> bool:
        """Whether this process is all there is."""
        return self.size == 1

    @property
    def store(self) -> Store:
        """The meeting place."""
        if self._store is None:
            raise RuntimeError("a world of one has no meeting place")
        return self._store

    def exchange(self, value: T) -> list[T]:
        """Tell the others a small public value and return everybody's, in the order of ranks."""
        if self.alone:
            return [value]
        self._round += 1
        self._live()
        with self._meeting():
            self.store.set(f"{self._round}/{self.rank}", json.dumps(value))
            keys = {rank: f"{self._round}/{rank}" for rank in range(self.size)}
            self._wait(keys)
            said = [json.loads(word) for word in self.store.multi_get(list(keys.values()))]
            # Whoever posts in this round has read the one before.
            self.store.delete_key(f"{self._round - 1}/{self.rank}")
        return said

    def everywhere(self, action: Callable[[], T]) -> T:
        """Do what may be refused; if one process refuses, none goes on. Why is said by that process alone."""
        if self.alone:
            return action()
        try:
            result = action()
        except Refused:
            self.exchange(REFUSED)
            raise
        if REFUSED in (said := self.exchange("")):
            raise Refused(f"process {said.index(REFUSED)} was refused", "see its own message")
        return result

    def lost(self, rank: int, how: str) -> PeerLost:
        """Return the reason to stop, told to all: the first that was noticed, for who notices it also leaves.

        A process that waits for a silent one may itself be taken for silent by a third.
        """
        try:
            told, reason = json.loads(self.store.compare_set("alarm", "", json.dumps([rank, how])))
            waited = told == self.rank != rank
            rank, how = told, f"so it seems to others: {reason}; it waited for process {rank}" if waited else reason
        except (RuntimeError, ValueError):
            how += "; the meeting place is gone too"
        return PeerLost(rank, how, self.step)

    @contextmanager
    def leaving(self) -> Iterator[None]:
        """Let no process go while another still needs the meeting place; tell the others about a bad end."""
        try:
            yield
        except BaseException as error:
            if not self.alone and not isinstance(error, Interrupted | Refused):
                self.lost(self.rank, f"it ended with {type(error).__name__}")
            raise
        if not self.alone:
            self.store.set(f"bye/{self.rank}", "")
            if self.rank == 0:
                self._wait({rank: f"bye/{rank}" for rank in range(self.size)})

    def _wait(self, keys: dict[int, str]) -> None:
        """Wait until all have said something, as long as they live and nobody is missed."""
        begun = looked = time.monotonic()
        alive: dict[int, tuple[int, float]] = {}
        while not self.store.check(list(keys.values())):
            time.sleep(_PAUSE)
            now = time.monotonic()
            late = now - begun > self.patience
            if late or now - looked > _BEAT:
                looked = now
                self._look(keys, alive, late=late)

    def _look(self, keys: dict[int, str], alive: dict[int, tuple[int, float]], *, late: bool) -> None:
        """Find out who is missing; `alive` holds each one's last sign of life and when it came."""
        for rank in [rank for rank, key in keys.items() if not self.store.check([key])]:
            beats, now = self.store.add(f"beat/{rank}", 0), time.monotonic()
            if rank not in alive or beats != alive[rank][0]:
                alive[rank] = beats, now
            if late:
                raise self.lost(rank, f"silent for {self.patience:g} s")
            if self.store.check(["alarm"]) or (beats and now - alive[rank][1] > SILENCE):
                raise self.lost(rank, f"no sign of life for {SILENCE:g} s")

    def _live(self) -> None:
        """Give signs of life from now on."""
        if self._pulse is None:
            self._pulse = threading.Thread(target=self._beat, daemon=True)
            self._pulse.start()
            atexit.register(self._die)

    def _beat(self) -> None:
        with contextlib.suppress(RuntimeError):  # the meeting place is gone: the main thread will notice
            while not self._ended.wait(_BEAT):
                self.store.add(f"beat/{self.rank}", 1)

    def _die(self) -> None:
        self._ended.set()
        if self._pulse is not None:
            self._pulse.join()

    @contextmanager
    def _meeting(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            raise PeerLost(0, f"the meeting place does not answer: {type(error).__name__}", self.step) from error


@functools.cache
def join() -> World:
    """Return the world this process was started in: by torchrun or anything that sets its variables, or alone."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return World()
    patience = float(os.environ.get("PRIVSGP_PATIENCE", PATIENCE))
    store, rank, size = next(rendezvous("env://", timeout=timedelta(seconds=patience)))
    return World(rank, size, PrefixStore(f"privsgp/{_restarts()}", store), patience)


def restarted() -> bool:
    """Tell whether torchrun has started this process anew after a failure."""
    return _restarts() > 0


def _restarts() -> int:
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


def greet(world: World, shared: dict[str, Any]) -> None:
    """Refuse a peer that runs another release or another configuration, before anything else happens.

    `shared` is what all must agree on; paths, devices and data are not in it.
    """
    refuse_differences(world, {"version": __version__} | _flat(shared))


def refuse_differences(world: World, mine: dict[str, Any]) -> None:
    """Refuse where another process says otherwise, and name what differs, with both values."""
    mine = json.loads(json.dumps(mine))
    said = world.exchange(mine)
    world.exchange(None)  # nobody leaves before all have heard
    for rank, theirs in enumerate(said):
        differ = [key for key in mine | theirs if mine.get(key) != theirs.get(key)]
        if differ:
            words = "; ".join(f"{key}: {mine.get(key)} here, {theirs.get(key)} there" for key in differ)
            raise Refused(
                f"process {rank} does not fit this one (process {world.rank}): {words}",
                "start all processes with the same release and the same shared configuration",
            )


def _flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in values.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
    return flat
