"""The rendezvous of a run's processes: their presence, the owners of nodes, and values on which all must agree.

A process started by torchrun finds the others through a key-value store. It carries public, small values: the shared
configuration, sizes, step numbers, noise levels and test metrics. Parameters never do; they travel as messages
(torch_distributed.py). A process that was started alone has a `world.World` instead, which asks nobody.

Anyone may write anything there, so a process uses its own values as they are and never as they come back, and those of
others only where they have the form that was asked for (privacy.md, "Peers are adversaries"). Every wait has a
deadline.
"""

from __future__ import annotations

import functools
import json
import os
import threading
import time
from concurrent.futures import Future
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, TypeVar

from pydantic import Field, ValidationError
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from privsgp import __version__
from privsgp.errors import Refused, Stopped
from privsgp.files import flat
from privsgp.outside import exactly, fault, parse, shown
from privsgp.transport.world import World, blocks, restarts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence


T = TypeVar("T")

PATIENCE = 120.0  # seconds to wait for a process that lives; PRIVSGP_PATIENCE changes it
_MORE = 3.0  # seconds that the store gets beyond it, for its own answer that time is up
_MOST_WORDS = 8  # differences that are named
_Run = Annotated[str, Field(pattern="^[0-9a-f]{32}$")]


class PeerLost(Stopped, Exception):
    """Another process is gone; ledgers and the last common checkpoint are kept."""

    status = 5

    def __init__(self, what: str, step: int) -> None:
        when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        super().__init__(f"{what}; noticed at step {step}, {when}", step)


def _within(seconds: float, call: Callable[[], T]) -> T:
    """Return what a call returns, in a thread of its own: the store may stand still with the process that holds it."""
    answer: Future[T] = Future()

    def work() -> None:
        try:
            answer.set_result(call())
        except BaseException as error:  # noqa: BLE001 - whatever it is, it is for the caller
            answer.set_exception(error)

    threading.Thread(target=work, daemon=True).start()
    return answer.result(seconds)


class Processes(World):
    """The processes that torchrun started."""

    def __init__(self, rank: int, size: int, store: Store, patience: float = PATIENCE) -> None:
        self.rank, self.size, self.store, self.patience = rank, size, store, patience
        self.step = 0  # for messages: how far this process has come
        self.run = ""  # its number, which messages carry
        self._round = 0

    def apart(self) -> Store:
        """Return another line to the meeting place."""
        line: Store = self.store.clone()  # type: ignore[attr-defined]
        return line

    def reached(self, step: int) -> None:
        """Keep how far this process has come."""
        self.step = step

    def all_gather_nodes(self, own: Sequence[T], kind: object, nodes: int) -> list[T]:
        """Tell the others a value of each of one's own nodes and return all nodes': one's own as they are."""
        expected = [exactly(len(block), kind) for block in blocks(nodes, self.size)]
        return [value for theirs in self.all_gather_each(list(own), expected) for value in theirs]

    def number_run(self, own: str) -> str:
        """Return process 0's number of the run, which every message carries from now on."""
        self.run = self.all_gather(own, _Run)[0]
        return self.run

    def all_or_none(self, action: Callable[[], T]) -> T:
        """Do what may be refused; if one process refuses, none goes on. Why is said by that process alone."""
        try:
            result = action()
        except Refused:
            self.all_gather(value=True, kind=bool)
            raise
        if True in (refused := self.all_gather(value=False, kind=bool)):
            raise Refused(f"process {refused.index(True)} was refused", "see its own message")
        return result

    def connect(self, call: Callable[[], None]) -> None:
        """Do what lets processes find each other through the meeting place.

        `call` has a line of its own to the meeting place (`apart`).
        """
        try:
            self._ask(call)
        except (RuntimeError, TimeoutError) as error:
            raise PeerLost(f"not all processes connected within {self.patience:g} s", self.step) from error

    def refuse(self, rank: int, what: str) -> NoReturn:
        """Refuse what a process did, which no process of this release does."""
        remedy = "nothing of it was used; ask its site which program runs there, and start again"
        raise Refused(f"process {rank} {what}", remedy)

    @contextmanager
    def leaving(self) -> Iterator[None]:
        """Let process 0 stay until all are done: the meeting place ends with it. Nobody is told of an error.

        Which error is raised may be a function of records (privacy.md, "Peers are adversaries").
        """
        yield
        with self._meeting():
            self._ask(partial(self.store.set, f"bye/{self.rank}", ""))
            if self.rank == 0:
                self._wait({rank: f"bye/{rank}" for rank in range(self.size)})

    def all_gather_each(self, value: T, expected: Sequence[Any]) -> list[T]:
        """Do `all_gather` where not all have the same to say."""
        self._round += 1
        word = json.dumps(value)
        with self._meeting():
            self._ask(partial(self.store.set, f"{self._round}/{self.rank}", word))
            keys = {rank: f"{self._round}/{rank}" for rank in range(self.size)}
            self._wait(keys)
            answers = self._ask(partial(self.store.multi_get, list(keys.values())))
            # A process that posts in this round has read the one before.
            self._ask(partial(self.store.delete_key, f"{self._round - 1}/{self.rank}"))
        if answers[self.rank] != word.encode():
            what = f"a message of this process ({self.rank}) was changed at the meeting point"
            raise Refused(what, "another process wrote there: restrict access to that address, and start again")
        return [value if rank == self.rank else self._read(rank, answers[rank], expected[rank]) for rank in keys]

    def _read(self, rank: int, word: bytes, kind: Any) -> Any:  # noqa: ANN401 - a value of that type
        """Return what a process answers, or refuse it."""
        try:
            return parse(kind, word)
        except ValidationError as error:
            self.refuse(rank, f"says {shown(word.decode(errors='replace'))}: {fault(error)}")

    def _ask(self, call: Callable[[], T]) -> T:
        return _within(self.patience + _MORE, call)

    def _wait(self, keys: dict[int, str]) -> None:
        """Wait until all have said something, as long as the patience lasts."""
        try:
            self._ask(partial(self.store.wait, list(keys.values()), timedelta(seconds=self.patience)))
        except RuntimeError:
            silent = [rank for rank, key in keys.items() if not self._ask(partial(self.store.check, [key]))]
            if not silent:
                return
            who = f"process {silent[0]} is" if len(silent) == 1 else f"processes {', '.join(map(str, silent))} are"
            raise PeerLost(f"{who} gone (silent for {self.patience:g} s)", self.step) from None

    @contextmanager
    def _meeting(self) -> Iterator[None]:
        try:
            yield
        except (RuntimeError, TimeoutError) as error:
            how = f"within {self.patience:g} s" if isinstance(error, TimeoutError) else type(error).__name__
            raise PeerLost(f"process 0 is gone (the meeting point does not answer: {how})", self.step) from error


@functools.cache
def join() -> World:
    """Return the world this process was started in: by torchrun or anything that sets its variables, or alone."""
    if os.environ.get("WORLD_SIZE", "1") == "1":
        return World()
    patience = _patience()
    try:
        store, rank, size = next(rendezvous("env://", timeout=timedelta(seconds=patience)))
    except (RuntimeError, ValueError) as error:
        where = ":".join(os.environ.get(name, "") for name in ("MASTER_ADDR", "MASTER_PORT"))
        what = f"the processes do not meet at {where} within {patience:g} s: {str(error).splitlines()[0]}"
        raise Refused(what, "start all processes with torchrun, process 0 at that address (docs/cluster.md)") from error
    return Processes(rank, size, PrefixStore(f"privsgp/{restarts()}", store), patience)


def _patience() -> float:
    given = os.environ.get("PRIVSGP_PATIENCE", str(PATIENCE))
    try:
        patience = float(given)
    except ValueError:
        patience = 0.0
    if not 0 < patience < 1e6:
        raise Refused(f"PRIVSGP_PATIENCE = {given} is no number of seconds", "give a number above 0")
    return patience


def greet(world: World, shared: dict[str, Any]) -> None:
    """Refuse a peer that runs another release or another configuration, before anything else happens.

    `shared` is what all must agree on; paths, devices and data are not in it.
    """
    refuse_differences(world, {"version": __version__} | flat(shared))


def refuse_differences(world: World, mine: dict[str, Any]) -> None:
    """Refuse where another process says otherwise, and name what differs, with both values."""
    mine = json.loads(json.dumps(mine))
    answers = world.all_gather(mine, dict[str, Any])
    world.all_gather(None, None)  # nobody leaves before all have heard
    for rank, theirs in enumerate(answers):
        differ = [key for key in mine | theirs if mine.get(key) != theirs.get(key)]
        if differ:
            each = [f"{_word(key)}: {_word(mine.get(key))} here, {_word(theirs.get(key))} there" for key in differ]
            what = f"process {rank} does not fit this one (process {world.rank}): {'; '.join(each[:_MOST_WORDS])}"
            raise Refused(what, "start all processes with the same release and the same shared configuration")


def _word(value: object) -> str:
    """Return a value as a sentence has it; what a peer says may hold anything."""
    return shown(value).strip('"')
