"""Where the processes of a run meet: who is there, who owns which nodes, and what all of them must agree on.

A process started by torchrun finds the others through a key-value store. What goes through it is public and small:
the shared configuration, sizes, step numbers, noise levels, test metrics, and who is gone. Parameters never do; they
travel as messages (distributed.py). A process that was started alone is a world of one, for which nothing here happens.

Anyone may write anything there, so a process uses its own values as they are and never as they come back, and those of
others only where they have the form that was asked for (privacy.md, "Peers are adversaries"). Nobody is waited for
without a deadline: the store is asked by a thread of its own, for it may stand still with the process that holds it.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import itertools
import json
import os
import queue
import threading
import time
from concurrent.futures import Future, wait
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from privsgp import __version__
from privsgp.errors import Interrupted, Refused
from privsgp.files import flat
from privsgp.transport import forms

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from privsgp.transport.forms import Form

T = TypeVar("T")

PATIENCE = 120.0  # seconds to wait for a process that lives; PRIVSGP_PATIENCE changes it
REFUSED = "refused"
_QUIET = 0.25  # of the patience: without a sign of life for so long a process counts as gone
_LAST_WORD = 3.0  # seconds that are left to tell the others why one leaves
_BEAT = 0.5
_PAUSE = 0.002
_MOST_WORDS = 8  # differences that are named
_SAID = forms.text(f"|{REFUSED}", "a yes, or a refusal")


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


class _Line:
    """A thread that asks the meeting place, so that nobody waits for an answer longer than he will."""

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]]] = queue.SimpleQueue()
        self._dead = False
        threading.Thread(target=self._serve, daemon=True).start()

    def __call__(self, call: Callable[[], T], seconds: float) -> T:
        """Return what the call returns, within so many seconds; after one that took longer none is answered."""
        if self._dead:
            raise TimeoutError
        try:
            return self.begin(call).result(seconds)
        except TimeoutError:
            self._dead = True
            raise

    def begin(self, call: Callable[[], T]) -> Future[T]:
        """Return what will be the answer."""
        answer: Future[T] = Future()
        self._calls.put((call, answer))
        return answer

    def _serve(self) -> None:
        while True:
            call, answer = self._calls.get()
            try:
                answer.set_result(call())
            except BaseException as error:  # noqa: BLE001 - whatever it is, it is for who asked
                answer.set_exception(error)


class World:
    """The processes of a run. Calls that exchange something are made by all of them, in the same order."""

    def __init__(self, rank: int = 0, size: int = 1, store: Store | None = None, patience: float = PATIENCE) -> None:
        self.rank, self.size, self.patience = rank, size, patience
        self.silence = max(_QUIET * patience, min(patience, 4 * _BEAT))
        self.step = 0  # for messages: how far this process has come
        self.run = ""  # its number, which messages carry
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

    def apart(self) -> Store:
        """Return another line to the meeting place."""
        line: Store = self.store.clone()  # type: ignore[attr-defined]
        return line

    def all_gather(self, value: T, form: Form) -> list[T]:
        """Tell the others a small public value and return everybody's, in the order of ranks: one's own as it is."""
        return self.all_gather_each(value, [form] * self.size)

    def all_gather_nodes(self, own: Sequence[T], form: Form, nodes: int) -> list[T]:
        """Tell the others a value of each of one's own nodes and return all nodes': one's own as they are."""
        expected = [forms.each(form, len(block)) for block in blocks(nodes, self.size)]
        return [value for theirs in self.all_gather_each(list(own), expected) for value in theirs]

    def all_or_none(self, action: Callable[[], T]) -> T:
        """Do what may be refused; if one process refuses, none goes on. Why is said by that process alone."""
        if self.alone:
            return action()
        try:
            result = action()
        except Refused:
            self.all_gather(REFUSED, _SAID)
            raise
        if REFUSED in (said := self.all_gather("", _SAID)):
            raise Refused(f"process {said.index(REFUSED)} was refused", "see its own message")
        return result

    def connect(self, call: Callable[[], None]) -> None:
        """Do what lets processes find each other through the meeting place; where it fails, somebody is missed.

        Meanwhile it is watched who gives signs of life. `call` has a line of its own to the meeting place (`apart`):
        on this one it would keep everybody else waiting, those signs too.
        """
        answer, alive, end = _Line().begin(call), dict[int, tuple[int, float]](), self.patience + _LAST_WORD
        others = {rank: f"connected/{rank}" for rank in range(self.size) if rank != self.rank}  # never said
        begun = time.monotonic()
        try:
            while not wait([answer], _BEAT).done and time.monotonic() - begun < end:
                with self._meeting():
                    self._look(others, alive, late=False)
            answer.result(0)
        except (RuntimeError, TimeoutError) as error:
            how = f"the processes did not connect within {self.patience:g} s"
            raise self.lost(0 if self.rank else 1, how) from error

    def lost(self, rank: int, how: str, *, heard: bool = False) -> PeerLost:
        """Return the reason to stop, told to all: of those who are missed, one who does not tell whom it misses itself.

        Who notices a loss leaves, and is missed by others; one that waits for a silent one may itself be taken for
        silent by a third. Who has only heard that somebody is gone (`heard`) says so of nobody.
        """
        if (first := self.warn(rank, how, heard=heard)) is None:
            return PeerLost(rank, f"{how}; the meeting place is gone too", self.step)
        gone, why = self._silent(first)
        if gone == self.rank != rank:
            why = f"so it seems to others: {why}; it waited for process {rank}"
        return PeerLost(gone, why, self.step)

    def warn(self, rank: int, how: str, *, heard: bool = False) -> tuple[int, str] | None:
        """Tell all who is gone, and return who was the first that somebody told of; None if nobody can be told."""
        word, seconds = json.dumps([rank, how]), min(_LAST_WORD, self.patience)
        try:
            self._ask(partial(self.store.set, f"lost/{self.rank}", "null" if heard else word), seconds)
            told = self._alarm(self._ask(partial(self.store.compare_set, "alarm", "", word), seconds))
        except (RuntimeError, ValueError, TimeoutError):
            return None
        return told or (rank, how)

    def _silent(self, first: tuple[int, str]) -> tuple[int, str]:
        """Return who is gone: who says so of itself, who is missed and says nothing, else the first that was missed.

        Connections break before a process can say why it breaks them: it is given a moment. Where all that are missed
        have spoken, one that has not, and gives no sign of life either, is what they have in common.
        """
        said: dict[int, tuple[int, str] | None] = {}
        left, missed, words = list(range(self.size)), [first], [first]
        end, silent = time.monotonic() + min(2 * _BEAT, self.patience), list[int]()
        with contextlib.suppress(RuntimeError, ValueError, TimeoutError):  # gone, or changed: as far as it went
            beats = [self._beats(rank) for rank in left]
            while left and time.monotonic() < end:
                time.sleep(_PAUSE)
                for rank in left:
                    if self._ask(partial(self.store.check, [f"lost/{rank}"]), _LAST_WORD):
                        said[rank] = self._alarm(self._ask(partial(self.store.get, f"lost/{rank}"), _LAST_WORD))
                left = [rank for rank in left if rank not in said]
                words = [first, *(word for word in said.values() if word is not None)]
                missed = [word for word in words if word[0] in left]
            silent = [rank for rank in left if self._beats(rank) == beats[rank]]
        confessed = [word for word in words if said.get(word[0]) == word]
        alone = [(silent[0], "it gives no sign of life")] if len(left) == len(silent) == 1 else [first]
        return next(iter(confessed or missed or alone))

    def refuse(self, rank: int, what: str) -> NoReturn:
        """Refuse what a process did, which no process of this release does, and tell the others whom to leave."""
        self.warn(rank, "it does not keep to the protocol")
        raise Refused(
            f"process {rank} {what}", "nothing of it was used; ask its site which program runs there, and start again"
        )

    @contextmanager
    def leaving(self) -> Iterator[None]:
        """Let no process go while another still needs the meeting place; tell the others about a bad end, not which.

        Which error is raised may be a function of records (privacy.md, "Peers are adversaries").
        """
        try:
            yield
        except BaseException as error:
            if not self.alone and not isinstance(error, Interrupted | Refused):
                self.warn(self.rank, "it ended: see its own message")
            raise
        if not self.alone:
            with self._meeting():
                self._ask(partial(self.store.set, f"bye/{self.rank}", ""))
                if self.rank == 0:
                    self._wait({rank: f"bye/{rank}" for rank in range(self.size)})

    def all_gather_each(self, value: T, expected: Sequence[Form]) -> list[T]:
        """Do `all_gather` where not all have the same to say."""
        if self.alone:
            return [value]
        self._round += 1
        self._live()
        word = json.dumps(value)
        with self._meeting():
            self._ask(partial(self.store.set, f"{self._round}/{self.rank}", word))
            keys = {rank: f"{self._round}/{rank}" for rank in range(self.size)}
            self._wait(keys)
            said = self._ask(partial(self.store.multi_get, list(keys.values())))
            # Whoever posts in this round has read the one before.
            self._ask(partial(self.store.delete_key, f"{self._round - 1}/{self.rank}"))
        if said[self.rank] != word.encode():
            self.warn(self.rank, "what it said was changed in the meeting place")
            raise Refused(
                f"what this process ({self.rank}) said was changed in the meeting place",
                "somebody there does not keep to the protocol: find out who can reach it, and start again",
            )
        return [value if rank == self.rank else self._read(rank, said[rank], expected[rank]) for rank in keys]

    def _read(self, rank: int, word: bytes, form: Form) -> Any:  # noqa: ANN401 - what fits the form
        """Return what a process said, or refuse it."""
        try:
            said = json.loads(word)
        except (ValueError, RecursionError):
            self.refuse(rank, f"says {forms.shown(word[:80].decode(errors='replace'))}, which cannot be read")
        if not form.fits(said):
            self.refuse(rank, f"says {forms.shown(said)}, where it was to say {form.text}")
        return said

    def _alarm(self, word: bytes) -> tuple[int, str] | None:
        """Read who is said to be gone, and why, if anybody is; anybody may have written it."""
        match json.loads(word):
            case [int(rank), str(reason)] if not isinstance(rank, bool) and 0 <= rank < self.size:
                return rank, forms.shown(reason)[1:-1]
            case None:
                return None
        raise ValueError("no alarm of this program's")

    def _ask(self, call: Callable[[], T], seconds: float | None = None) -> T:
        return self._line(call, self.patience if seconds is None else seconds)

    @functools.cached_property
    def _line(self) -> _Line:
        return _Line()

    def _wait(self, keys: dict[int, str]) -> None:
        """Wait until all have said something, as long as they live and nobody is missed."""
        begun = looked = time.monotonic()
        alive: dict[int, tuple[int, float]] = {}
        while not self._ask(partial(self.store.check, list(keys.values()))):
            time.sleep(_PAUSE)
            now = time.monotonic()
            late = now - begun > self.patience
            if late or now - looked > _BEAT:
                looked = now
                self._look(keys, alive, late=late)

    def _look(self, keys: dict[int, str], alive: dict[int, tuple[int, float]], *, late: bool) -> None:
        """Find out who is missing; `alive` holds each one's last sign of life and when it came."""
        for rank in [rank for rank, key in keys.items() if not self._ask(partial(self.store.check, [key]))]:
            beats, now = self._beats(rank), time.monotonic()
            if rank not in alive or beats != alive[rank][0]:
                alive[rank] = beats, now
            if late:
                raise self.lost(rank, f"silent for {self.patience:g} s")
            heard = self._ask(partial(self.store.check, ["alarm"]))
            if heard or (beats and now - alive[rank][1] > self.silence):
                raise self.lost(rank, f"no sign of life for {self.silence:g} s", heard=heard)

    def _beats(self, rank: int) -> int:
        """Return how many signs of life a process has given."""
        return self._ask(partial(self.store.add, f"beat/{rank}", 0))

    def _live(self) -> None:
        """Give signs of life from now on."""
        if self._pulse is None:
            self._pulse = threading.Thread(target=self._beat, daemon=True)
            self._pulse.start()
            atexit.register(self._die)

    def _beat(self) -> None:
        with contextlib.suppress(RuntimeError):  # the meeting place is gone: the main thread will notice
            beating = True  # at once: who is gone before it ever gave a sign would not be missed
            while beating:
                self.store.add(f"beat/{self.rank}", 1)
                beating = not self._ended.wait(_BEAT)

    def _die(self) -> None:
        self._ended.set()
        if self._pulse is not None:
            self._pulse.join(2 * _BEAT)  # it may wait for a meeting place that stands still

    @contextmanager
    def _meeting(self) -> Iterator[None]:
        try:
            yield
        except (RuntimeError, TimeoutError) as error:
            how = f"within {self.patience:g} s" if isinstance(error, TimeoutError) else type(error).__name__
            raise PeerLost(0, f"the meeting place does not answer: {how}", self.step) from error


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
        raise Refused(
            f"the processes do not meet at {where} within {patience:g} s: {str(error).splitlines()[0]}",
            "start process 0 there and all others, with torchrun or with its variables (docs/cluster.md)",
        ) from error
    return World(rank, size, PrefixStore(f"privsgp/{_restarts()}", store), patience)


def _patience() -> float:
    given = os.environ.get("PRIVSGP_PATIENCE", str(PATIENCE))
    try:
        patience = float(given)
    except ValueError:
        patience = 0.0
    if not 0 < patience < 1e6:
        raise Refused(f"PRIVSGP_PATIENCE = {given}", "give a number of seconds above 0")
    return patience


def restarted() -> bool:
    """Tell whether torchrun has started this process anew after a failure."""
    return _restarts() > 0


def _restarts() -> int:
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


def greet(world: World, shared: dict[str, Any]) -> None:
    """Refuse a peer that runs another release or another configuration, before anything else happens.

    `shared` is what all must agree on; paths, devices and data are not in it.
    """
    refuse_differences(world, {"version": __version__} | flat(shared))


def refuse_differences(world: World, mine: dict[str, Any]) -> None:
    """Refuse where another process says otherwise, and name what differs, with both values."""
    mine = json.loads(json.dumps(mine))
    said = world.all_gather(mine, forms.WORDS)
    world.all_gather(None, forms.NOTHING)  # nobody leaves before all have heard
    for rank, theirs in enumerate(said):
        differ = [key for key in mine | theirs if mine.get(key) != theirs.get(key)]
        if differ:
            each = [f"{_word(key)}: {_word(mine.get(key))} here, {_word(theirs.get(key))} there" for key in differ]
            raise Refused(
                f"process {rank} does not fit this one (process {world.rank}): {'; '.join(each[:_MOST_WORDS])}",
                "start all processes with the same release and the same shared configuration",
            )


def _word(value: object) -> str:
    """Return a value as a sentence has it; what a peer says may hold anything."""
    return forms.shown(value).strip('"')
