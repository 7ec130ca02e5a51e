"""Sites of one process that take turns: every wait, call and commit is a moment at which another may go on, or die.

The code is the sites' own (members, mailbox, links, journals, client, server); what it waits with is not. Threads run
one at a time, the clock is made up, and a seed decides who is next, who is killed, which call is lost on its way there
or back, and who is not given the processor for seconds. So a run can be had again, and one that would stand forever
stands here after moments.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import threading
import time
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import grpc
import numpy as np
import torch
from consortium import mixed

from privsgp.sites import run as join
from privsgp.sites import store, transport
from privsgp.sites.net import client, relay, server
from privsgp.sites.protocol import gossip, mailbox, peers
from privsgp.sites.run import Network, wire
from privsgp.transport.rounding import Rounding

if TYPE_CHECKING:
    from pathlib import Path

PATCHED = (client, gossip, join, mailbox, peers, relay, server, transport)


class Killed(BaseException):
    """Ends a thread of a process that was killed."""


class Broken(grpc.RpcError):
    """A call that failed."""

    def __init__(self, code: grpc.StatusCode, details: str = "") -> None:
        super().__init__()
        self._code, self._details = code, details

    def code(self) -> grpc.StatusCode:
        return self._code

    def details(self) -> str:
        return self._details


class Process:
    """One life of a site."""

    def __init__(self, world: World, node: int) -> None:
        self.world, self.node = world, node
        self.alive, self.over = True, False
        self.network: Network | None = None
        self.transport: Any = None
        self.store: Any = None

    def check(self) -> None:
        if not self.alive:
            raise Killed


class Task:
    """A thread of a process; it runs when it is let, up to where it waits."""

    def __init__(self, world: World, process: Process, body: Any) -> None:
        self.world, self.body = world, body
        self.processes = [process]  # its own, and those that answer its calls
        self.wake, self.frozen, self.on, self.failure = world.now, 0.0, None, None
        self.over, self._go = False, threading.Semaphore(0)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        world.tasks.append(self)

    def _run(self) -> None:
        self._go.acquire()
        try:
            self.processes[0].check()
            self.body()
        except Killed:
            pass
        except BaseException as error:  # noqa: BLE001 - told by who lets it run
            self.failure = error
        self.over = True
        self.world.back.release()

    def resume(self) -> None:
        """Let it run up to where it waits next."""
        self.world.current = self
        self._go.release()
        self.world.back.acquire()
        if self.over:
            self._thread.join()
            self.world.tasks.remove(self)
        if self.failure is not None:
            raise self.failure

    def pause(self, seconds: float, on: object = None) -> None:
        """Wait, for so long or until somebody says that something has changed."""
        self.processes[0].check()
        self.wake, self.on = self.world.now + seconds, on
        self.world.back.release()
        self._go.acquire()
        self.on = None
        self.processes[0].check()
        if not all(process.alive for process in self.processes):
            raise Broken(grpc.StatusCode.UNAVAILABLE, "the peer died")


class Changed:
    """A condition, or a lock: whoever runs, runs alone."""

    def __init__(self, world: World) -> None:
        self.world = world

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        pass

    def wait(self, seconds: float) -> None:
        self.world.current.pause(seconds, self)

    def notify_all(self) -> None:
        for task in self.world.tasks:
            if task.on is self:
                task.wake = self.world.now


class Event:
    def __init__(self, world: World) -> None:
        self.world, self._is_set = world, False

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True
        for task in self.world.tasks:
            if task.on is self:
                task.wake = self.world.now

    def wait(self, seconds: float) -> bool:
        if not self._is_set:
            self.world.current.pause(seconds, self)
        return self._is_set


class Context:
    """What a server's handler is given of a call."""

    def __init__(self, peer: int) -> None:
        self.peer, self.over = peer, False

    def abort(self, code: grpc.StatusCode, details: str) -> None:
        raise Broken(code, details)

    def cancel(self) -> None:
        self.over = True

    def is_active(self) -> bool:
        return not self.over

    def add_callback(self, _callback: Any) -> bool:
        return not self.over


class Channel:
    """Calls that a site makes: on the way there, and back, anything may happen to both ends."""

    def __init__(self, world: World, own: Process, peer: int) -> None:
        self.world, self.own, self.peer = world, own, peer

    def close(self) -> None:
        pass

    def unary_unary(self, path: str) -> Any:
        return lambda asked, timeout: self._answer(path, [asked])

    def stream_unary(self, path: str) -> Any:
        return lambda parts, timeout: self._answer(path, list(parts))

    def unary_stream(self, path: str) -> Any:
        return lambda asked, timeout: self._answer(path, [asked])

    def _answer(self, path: str, parts: list[bytes]) -> Any:
        task, world = self.world.current, self.world
        context = Context(self.own.node)
        try:
            task.pause(world.moment())
        except Killed:
            if world.happens("orphan"):  # it was on its way already
                context.cancel()
                world.later(self.peer, lambda: self._handle(path, parts, context))
            raise
        if world.happens("lost"):
            raise Broken(grpc.StatusCode.UNAVAILABLE, "lost")
        found = self._handle(path, parts, context)
        with contextlib.suppress(Broken):  # the peer died, and its answer was on its way already
            task.pause(world.moment())
        if world.happens("lost") or context.over:
            raise Broken(grpc.StatusCode.UNAVAILABLE, "lost on its way back")
        return found

    def _handle(self, path: str, parts: list[bytes], context: Context) -> Any:
        there = self.world.there(self.peer)
        if there is None:
            raise Broken(grpc.StatusCode.UNAVAILABLE, "nobody listens")
        name = path.rsplit("/", 1)[1].lower()
        task = self.world.current
        task.processes.append(there)
        try:
            server = there.network.server
            kept = (server.relay,) if name == "drop" else ()
            found = getattr(server, f"_{name}")(*kept, iter(parts), context)
            return found if isinstance(found, bytes) else iter(list(found))
        finally:
            task.processes.remove(there)


@dataclass
class Life:
    """What a site has on its disk."""

    folder: Path
    commit: dict[str, Any] | None = None
    finished: bool = False


@dataclass
class World:
    """Sites, their disks, the clock, and what goes wrong until it does no more."""

    consortium: Any
    folder: Path
    seed: int
    until: float  # nothing goes wrong after this
    shares: dict[str, float] = field(default_factory=dict)
    now: float = 1000.0
    tasks: list[Task] = field(default_factory=list)
    current: Any = None

    def __post_init__(self) -> None:
        self.rng, self.back = random.Random(self.seed), threading.Semaphore(0)
        self.until += self.now
        self.restarts: dict[int, float] = {}
        self.processes: dict[int, Process] = {}
        self.held: dict[int, tuple[Any, dict[int, Any], dict[int, Any]]] = {}  # x and w; sums sent to, arrived from
        self.kills = 0
        shutil.rmtree(self.folder, ignore_errors=True)
        nodes = range(len(self.consortium.sites))
        self.lives = {i: Life(self.folder / str(i)) for i in nodes}
        for life in self.lives.values():
            (life.folder / "private").mkdir(parents=True)

    @property
    def is_bad(self) -> bool:
        return self.now < self.until

    def happens(self, what: str) -> bool:
        return self.is_bad and self.rng.random() < self.shares.get(what, 0.0)

    def moment(self) -> float:
        return self.rng.uniform(0.0, 0.02)

    def there(self, node: int) -> Process | None:
        found = self.processes.get(node)
        return found if found is not None and found.alive and found.network is not None else None

    def later(self, node: int, work: Any) -> None:
        """Let a call of somebody who is dead arrive after all."""

        def arrive() -> None:
            with contextlib.suppress(grpc.RpcError):
                work()

        task = Task(self, Process(self, node), arrive)
        task.wake = self.now + self.rng.uniform(0.0, 4.0)

    def start(self, node: int) -> None:
        process = self.processes[node] = Process(self, node)
        Task(self, process, lambda: self._live(process))

    def kill(self, node: int) -> None:
        process = self.processes[node]
        process.alive = False
        self.kills += 1
        self._end(process)
        self.restarts[node] = self.now + self.rng.choice([0.1, 1.0, 3.0, 8.0])

    def run(self, seconds: float) -> None:
        """Let all of it happen, until all sites are done; so many seconds after the last fault they must be."""
        with self._patched():
            for node in self.lives:
                self.start(node)
            try:
                while not all(life.finished for life in self.lives.values()):
                    assert self.now < self.until + seconds, self.told()
                    self._turn()
            finally:
                for process in self.processes.values():
                    process.alive = False
                for task in list(self.tasks):
                    with contextlib.suppress(BaseException):
                        task.processes[0].alive = False
                        task.resume()

    def _turn(self) -> None:
        for node, when in list(self.restarts.items()):
            if when <= self.now or not self.is_bad:
                del self.restarts[node]
                self.start(node)
        for node, process in list(self.processes.items()):
            if process.over and process.alive:  # all it had to do; it goes
                self._end(process)
                self.restarts[node] = self.now + 3.0  # the administrator joins again: others may need it
        if self.happens("kill"):
            living = [node for node, process in self.processes.items() if process.alive and not process.over]
            if living:
                self.kill(self.rng.choice(living))
        ready = [t for t in self.tasks if t.wake <= self.now and (t.frozen <= self.now or not self.is_bad)]
        if not ready:
            soon = [max(t.wake, t.frozen if self.is_bad else 0.0) for t in self.tasks] + list(self.restarts.values())
            self.now = max(self.now + 1e-4, min(soon))
            return
        task = self.rng.choice(ready)
        task.resume()
        self.now += self.rng.uniform(0.0, 0.004)
        if self.happens("frozen"):
            task.frozen = self.now + self.rng.choice([0.5, 2.0, 6.0, 12.0])

    def _end(self, process: Process) -> None:
        process.alive = False
        for task in [t for t in self.tasks if t.processes[0] is process]:
            task.resume()
        if process.store is not None:
            process.store.close()  # the next process opens the file

    def told(self) -> str:
        """Return where everybody stands."""
        lines = [f"seed {self.seed}: it stands"]
        for node, process in self.processes.items():
            if process.network is None:
                lines.append(f"{node}: starting, or away")
                continue
            m, t = process.network.members, process.transport
            lines.append(
                f"{node}: alive {process.alive}, incarnation {m.incarnation}, step {m.step}, {m.phase}, "
                f"last {t.last.tolist()}, believes "
                f"{ {i: (o.incarnation, o.have, o.answered) for i, o in m.others.items()} }, "
                f"failures {process.network.client.failures}"
            )
        return "\n".join(lines)

    def audited(self) -> list[dict[str, Any]]:
        paths = [life.folder / "audit.jsonl" for life in self.lives.values()]
        return [json.loads(line) for path in paths if path.exists() for line in path.read_text().splitlines()]

    @contextlib.contextmanager
    def _patched(self) -> Any:
        clock = SimpleNamespace(
            monotonic=lambda: self.now, sleep=self._sleep, strftime=time.strftime, gmtime=time.gmtime, time=time.time
        )
        threads = SimpleNamespace(
            Condition=lambda: Changed(self), Lock=lambda: Changed(self), RLock=lambda: Changed(self),
            Event=lambda: Event(self),
            Thread=self._thread, Timer=lambda *_: SimpleNamespace(start=lambda: None, cancel=lambda: None, daemon=True),
        )  # fmt: skip
        whole, sync, chance = client.Client._channel, os.fsync, random.getstate()
        who = server.Server._who
        client.Client._channel = lambda one, peer: Channel(self, one.process, self._node(peer))
        server.Server._who = lambda _server, context: context.peer
        os.fsync, store.SYNC = (lambda _descriptor: None), "OFF"
        random.seed(self.seed)
        for module in PATCHED:
            module.time = clock
            if hasattr(module, "threading"):
                module.threading = threads
        try:
            yield
        finally:
            client.Client._channel, server.Server._who, os.fsync, store.SYNC = whole, who, sync, "FULL"
            random.setstate(chance)
            for module in PATCHED:
                module.time = time
                if hasattr(module, "threading"):
                    module.threading = threading

    def _sleep(self, seconds: float) -> None:
        self.current.pause(seconds)

    def _node(self, peer: int) -> int:
        if peer >= 0:
            return peer
        names = [card.identity for card in self.consortium.agreement.roster]
        return names.index(self.consortium.agreement.relay.identity)

    def _thread(self, target: Any, args: tuple[Any, ...] = (), daemon: bool = True) -> Any:
        del daemon
        process = self.current.processes[0]

        def start() -> None:
            Task(self, process, lambda: target(*args))

        return SimpleNamespace(start=start, join=lambda *_: None)

    def _live(self, process: Process) -> None:
        """Do what `join` does: take up the last commit, open the door, dial, and go on to the last round."""
        agreement, life = self.consortium.agreement, self.lives[process.node]
        folder = SimpleNamespace(path=life.folder)
        bits, here = agreement.config.transport.bits, range(process.node, process.node + 1)
        start = torch.zeros(1, agreement.weights)
        rounding = None if bits == 32 else Rounding(bits, 1, agreement.graph, start, here)
        network = wire(self.consortium.sites[process.node], agreement, folder, rounding)
        network.client.process = process
        process.store = network.members.store
        process.transport = made = network.transport
        if life.commit is not None:
            for name, value in made.arrays().items():
                value.copy_(life.commit["arrays"][name])
            made.restored(life.commit["step"])
        made.members.enter("training")
        process.network = network
        network.client.start()
        if life.finished:
            made.members.enter("finished")
            made.serve()
        else:
            self._train(process, life)
        join._see_off(network, lambda _text: None)
        process.over = True

    def _train(self, process: Process, life: Life) -> None:
        made, agreement = process.transport, self.consortium.agreement
        x, w, done = torch.zeros(1, agreement.weights), torch.ones(1, dtype=torch.float64), -1
        added, every = 0.0, agreement.config.algorithm.local_steps
        if life.commit is None:
            made.greet(0)
        else:
            done, (x, w), added = life.commit["step"], life.commit["state"], life.commit["added"]
            x, w = made.resume(done, x, w)
        for k in range(done + 1, agreement.rounds):
            step = self.rng.random()
            x, added = x + step, added + step
            if (k + 1) % every == 0:
                x, w = mixed(made, k, x, w, partial(self._commit, process, added))
                assert float(w[0]) > 0
        made.members.enter("finished")
        life.finished = True
        sent, arrived = (dict(zip(*one, strict=True)) for one in _links(made))
        self.held[process.node] = np.append(x[0].double(), float(w[0])), sent, arrived

    def mass(self) -> Any:
        """Return Σx and Σw of what all sites hold in the end, and of what is on its way."""
        links = [(held[1][i], self.held[i][2][j]) for j, held in self.held.items() for i in held[1]]
        assert all(sent[-1] >= arrived[-1] for sent, arrived in links)
        return sum(held[0] for held in self.held.values()) + sum(sent - arrived for sent, arrived in links)

    def added(self) -> float:
        """Return what steps that were committed have added to each number of Σx."""
        return sum(life.commit["added"] for life in self.lives.values() if life.commit)

    def _commit(self, process: Process, added: float, k: int, x: torch.Tensor, w: torch.Tensor) -> None:
        """Make a step durable at one of the moments in which others go on, or this process dies."""
        self.current.pause(self.moment())
        arrays = {name: value.clone() for name, value in process.transport.arrays().items()}
        commit = {"step": k, "state": (x.clone(), w.clone()), "arrays": arrays, "added": added}
        self.lives[process.node].commit = commit
        self.current.pause(self.moment())


def _links(made: Any) -> Any:
    """Return targets and what was sent to them, and sources and what was taken of them."""
    return (made.targets, [one.copy() for one in made.sums]), (made.sources, [one.copy() for one in made.arrived])
