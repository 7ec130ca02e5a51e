"""Small consortia for tests: homes, data, a study, and sites that are real processes on this machine."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import faulthandler
import json
import os
import random
import shutil
import signal
import socket
import sqlite3
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from wires import enter

from privsgp import data
from privsgp.accounting import ledger
from privsgp.runs import config as configs
from privsgp.sites.agreement import Agreement, propose
from privsgp.sites.identity import Site
from privsgp.sites.study import Limits
from privsgp.sites.trainer import SiteDriver
from runs import FORKS

if TYPE_CHECKING:
    from torch import Tensor

    from privsgp.sites.transport import SitesTransport

FORKS.set_forkserver_preload(["privsgp.sites.run", "torch._dynamo", "sklearn.datasets"])  # torch is imported once
PATIENCE = 120.0  # seconds to wait for what a loaded machine may do late; a test that passes waits for less
NAMES = ("aachen", "basel", "cork", "delft", "essen", "fano", "ghent", "hull")
RUN = {
    "data": {"classes": 10},
    "model": {"name": "logistic"},
    "graph": {"name": "complete"},
    "privacy": {"sigma": 0.05},
    "algorithm": {"name": "privsgp", "steps": 20, "step_size": 0.5, "final_mixing": 2},
}


def free_ports(count: int) -> list[int]:
    """Return ports that nobody listens at, and that no outgoing connection is given while a site is away."""
    with contextlib.ExitStack() as opened:
        found = []
        for port in random.SystemRandom().sample(range(12000, 32000), 1000):
            with contextlib.suppress(OSError):
                opened.enter_context(socket.socket()).bind(("127.0.0.1", port))
                found.append(port)
            if len(found) == count:
                break
        return found


def digits(folder: Path, sizes: list[int]) -> list[Path]:
    """Give each site its own share of the digits."""
    d, at = data.load("digits"), 0
    order, files = np.random.default_rng(0).permutation(len(d.y)), []
    for name, J in zip(NAMES, sizes, strict=False):
        rows = order[at : (at := at + J)]
        files.append(folder / f"{name}.npz")
        np.savez(files[-1], x=d.x[rows], y=d.y[rows], x_test=d.x_test, y_test=d.y_test, classes=10)
    return files


def mixed(transport: SitesTransport, k: int, x: Tensor, w: Tensor, commit: Any = lambda *_: None) -> Any:
    """Take a round of mixing as a site does, with a commit of one's own."""
    return SiteDriver(transport, None, commit).send(k, x, w, paid=False)


def copied(place: Path, copy: Path) -> None:
    """Copy a folder that others may be writing to; again where a file was replaced meanwhile."""
    done = False
    while not done:
        shutil.rmtree(copy, ignore_errors=True)
        with contextlib.suppress(shutil.Error, FileNotFoundError):
            shutil.copytree(place, copy, ignore=shutil.ignore_patterns("*.privsgp-tmp"))
            done = True


STEP = ("step", "sent", "taken", "anew", "returned")  # of a step in the log for developers


@dataclass(frozen=True)
class Faults:
    """What is wrong with a site's machine, and where it stands."""

    moments: int | None = None  # it kills itself after so many writes and messages
    full: bool = False  # or its disk is full from then on
    loss: float = 0.0  # the share of messages that are lost there
    twice: float = 0.0  # the share that comes twice
    late: float = 0.0  # the share that comes after the next one
    hours: float = 0.0  # its clock is ahead by so many
    lie: float | None = None  # from the fifth step on it sends this number in the place of each weight of its model
    space: str | None = None  # its network namespace
    release: str | None = None  # of privsgp, if another one is installed there
    protocol: int | None = None  # which it has


@dataclass
class Consortium:
    """n sites, their data and their study."""

    folder: Path
    sites: list[Site]
    files: list[Path]
    agreement: Agreement
    study: Path
    spaces: list[str] | None = None  # the network namespace of each site
    state: Path | None = None  # where the sites keep what is known outside run folders; None: where this test does
    test: Path | None = None  # public test data of all sites
    processes: dict[int, Any] = field(default_factory=dict)
    before: dict[int, Path] = field(default_factory=dict)  # each site's folder of the run that this one continues

    @classmethod
    def make(
        cls, folder: Path, sizes=(100, 120, 140), closed=(), limits=None, relay=None, wires=None, proxies=(),
        **changes: Any,
    ) -> Consortium:  # fmt: skip
        """Make a consortium whose run differs from `RUN` in sections; `closed` sites only dial out.

        With `wires` each site is in the namespace of its number, and a rented relay in the next.
        """
        folder.mkdir(exist_ok=True)
        ports = free_ports(len(sizes))
        hosts = ["127.0.0.1"] * (len(sizes) + 1) if wires is None else wires.hosts
        sites = [
            Site.create(
                folder / f"home-{name}", name, address=None if i in closed else f"{hosts[i]}:{port}",
                proxy=dict(proxies).get(i),
            )
            for i, (name, port) in enumerate(zip(NAMES, ports, strict=False))
        ]  # fmt: skip
        files = digits(folder, list(sizes))
        values = {key: RUN.get(key, {}) | changes.get(key, {}) for key in RUN.keys() | changes.keys() - {"seed"}}
        values["data"] |= {"nodes": len(sizes), "sizes": list(sizes)}
        if "seed" in changes:
            values["seed"] = changes["seed"]
        like = data.load(str(files[0]), classes=10)
        cards = [site.card for site in sites]
        if relay == "rented":
            (port,) = free_ports(1)
            address = f"{hosts[len(sizes)]}:{port}"
            cards.append(Site.create(folder / "home-relay", "relay", address=address).card)
        card = {None: None, "rented": cards[-1]}.get(relay, cards[relay] if isinstance(relay, int) else None)
        limits = limits or Limits(deadline=30.0)
        made = propose(configs.parse(values), cards[: len(sites)], like, name="study", limits=limits, relay=card)
        study = folder / "a.study"
        made.write(study)
        return cls(folder, sites, files, made, study, None if wires is None else wires.spaces)

    def start_relay(self, tampers: tuple[int, ...] = ()) -> None:
        """Start a relay that is no member; it changes a bit of the messages of some steps."""
        space = self.spaces and self.spaces[len(self.sites)]
        args = (self.study, self.folder / "home-relay", self.folder / "relay-audit.jsonl", space, tampers)
        self.processes[-1] = FORKS.Process(target=_relay, args=args)
        self.processes[-1].start()

    def out(self, i: int) -> Path:
        return self.folder / f"run-{self.sites[i].name}"

    def start(self, *which: int, **faults: Any) -> None:
        """Start sites as processes, with `Faults`."""
        for i in which or range(len(self.sites)):
            args = (self.study, self.files[i], self.sites[i].home, self.out(i), str(self.state or _state()), self.test)
            bad = Faults(space=self.spaces and self.spaces[i], **faults)
            self.processes[i] = FORKS.Process(target=_site, args=(*args, self.before.get(i), bad))
            self.processes[i].start()

    def copy_machine(self, i: int) -> Consortium:
        """Copy all that a site has, as who copies its virtual machine does; the copy is that site of what is returned.

        A copied machine has the same paths: in the copy's budget book the run is in the copied folder.
        """
        place = self.folder / "machine"
        for found, copy in ((self.out(i), self.out(i).name), (self.sites[i].home, "home"), (_state(), "state")):
            copied(found, place / copy)
        with sqlite3.connect(place / "state" / "budget.sqlite") as book:
            moved = (str((place / self.out(i).name).resolve()), str(self.out(i).resolve()))
            book.execute("UPDATE entries SET folder = ? WHERE folder = ?", moved)
        sites = [*self.sites[:i], Site.open(place / "home"), *self.sites[i + 1 :]]
        return dataclasses.replace(
            self, folder=place, study=self.study, state=place / "state", sites=sites, processes={}
        )

    def ask_to_stop(self, i: int) -> int:
        """Stop a site as an administrator would; return its exit status."""
        os.kill(self.processes[i].pid, signal.SIGTERM)
        self.processes[i].join(PATIENCE)
        return self.processes[i].exitcode

    def kill(self, i: int) -> None:
        """Kill a site as a power cut would."""
        os.kill(self.processes[i].pid, signal.SIGKILL)
        self.processes[i].join()

    def told(self) -> str:
        """Return what every site said and refused, and where its threads are: why one stands, another may know."""
        for i, process in self.processes.items():
            if i >= 0 and process.exitcode is None:
                os.kill(process.pid, signal.SIGUSR1)  # faulthandler writes into its log
        time.sleep(1.0)
        told = []
        for i, process in sorted(self.processes.items()):
            refused = [{**line, "evidence": "…"} for line in self.audited(i)] if i >= 0 else []
            told.append(f"site {i}: {process.exitcode}, refused {refused}\n{self.log(i)}")
        return "\n".join(told)

    def end(self, *which: int, seconds: float = 150.0) -> list[dict[str, Any]]:
        """Wait for sites to end well, and return their summaries."""
        until = time.monotonic() + seconds
        for i in which or range(len(self.sites)):
            self.processes[i].join(max(0.0, until - time.monotonic()))
            assert self.processes[i].exitcode == 0, self.told()
        return [self.summary(i) for i in which or range(len(self.sites))]

    def stop(self) -> None:
        for process in self.processes.values():
            if process.exitcode is None:
                process.kill()
                process.join()

    def log(self, i: int) -> str:
        path = Path(f"{self.out(i)}.log")
        return path.read_text() if path.exists() else ""

    def summary(self, i: int) -> dict[str, Any]:
        return json.loads((self.out(i) / "summary.json").read_text())

    def steps(self, i: int) -> dict[int, dict[str, Any]]:
        """Return what a site sent and took at each step; of steps made again the last."""
        path = self.out(i) / "private" / "taken.jsonl"
        lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        return {line["step"]: line for line in lines}

    def taken(self, i: int) -> dict[int, list[list[int]]]:
        """Return what a site took at each step."""
        return {k: line["taken"] for k, line in self.steps(i).items()}

    def until_step(self, i: int, k: int, seconds: float = PATIENCE) -> None:
        """Wait until a site has made a step."""
        until = time.monotonic() + seconds
        while max(self.taken(i), default=-1) < k:
            assert time.monotonic() < until, f"site {i} never made step {k}\n{self.log(i)}"
            assert self.processes[i].exitcode is None, self.log(i)
            time.sleep(0.01)

    def ledger(self, i: int) -> ledger.Segment:
        (segment,) = ledger.read(self.out(i) / "ledger" / f"node-{i}.jsonl")
        return segment

    def sent(self, i: int) -> int:
        """Count the messages that a site's ledger notes."""
        lines = [json.loads(t) for t in (self.out(i) / "ledger" / f"node-{i}.jsonl").read_text().splitlines()]
        return sum(isinstance(line, str) or line["kind"] == "sent" for line in lines)

    def faults(self) -> Counter[str]:
        """Count what became of messages on their way."""
        logs = [Path(f"{self.out(i)}.faults") for i in range(len(self.sites))]
        return Counter(line for log in logs if log.exists() for line in log.read_text().splitlines())

    def audited(self, i: int) -> list[dict[str, Any]]:
        path = self.out(i) / "audit.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def flat(self, i: int) -> np.ndarray:
        """Return a site's model as the vector that messages carry."""
        from safetensors.numpy import load_file

        from privsgp.gradients import Layout
        from privsgp.runs.problem import first_model

        sample = self.agreement.values["sample"]
        shapes = tuple(sample["shape"]), tuple(sample["target"]), sample["classes"]
        layout = Layout.of(first_model(self.agreement.config, *shapes)[0])
        tensors = load_file(self.out(i) / "nodes" / f"{i}.safetensors")
        return np.concatenate([tensors[name].ravel() for name in layout.names])

    def model(self, i: int) -> np.ndarray:
        from safetensors.numpy import load_file

        tensors = load_file(self.out(i) / "nodes" / f"{i}.safetensors")
        return np.concatenate([tensors[name].ravel() for name in sorted(tensors)])


def _state() -> Path:
    return Path(os.environ["PRIVSGP_STATE"])


def _site(
    study: Path, file: Path, home: Path, out: Path, state: str, test: Path | None, before: Path | None, faults: Faults
) -> None:
    import logging

    import torch

    from privsgp.errors import Interrupted, Refused
    from privsgp.sites.run import join

    torch.set_num_threads(1)
    os.environ["PRIVSGP_STATE"] = state
    sys.stdout = sys.stderr = Path(f"{out}.log").open("a", buffering=1)  # noqa: SIM115 - to the end
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(message)s")
    faulthandler.register(signal.SIGUSR1, sys.stderr)
    _keep_steps(out / "private" / "taken.jsonl")
    _afflict(faults, Path(f"{out}.faults"))
    _note_first(Path(f"{out}.first.npy"))
    try:
        join(study, file, home=home, out=out, say=print, test=test, ended=before)
    except (Refused, Interrupted) as error:
        print(repr(error))
        sys.exit(2 if isinstance(error, Refused) else 130)
    except OSError as error:
        print(repr(error))
        sys.exit(1)


def _keep_steps(path: Path) -> None:
    """Write down what this site's log for developers says of each step."""
    import logging

    def keep(record: logging.LogRecord) -> bool:
        if hasattr(record, "taken"):
            path.touch(0o600)
            with path.open("a") as file:
                file.write(json.dumps({key: getattr(record, key) for key in STEP}) + "\n")
        return record.levelno >= logging.INFO

    logger = logging.getLogger("privsgp.sites.transport")
    logger.setLevel(logging.DEBUG)
    logger.addFilter(keep)


def _relay(study: Path, home: Path, audit: Path, space: str | None, tampers: tuple[int, ...]) -> None:
    from privsgp.sites.net.relay import Relay
    from privsgp.sites.run import relay

    def noting(kept: Any, link: tuple[int, int], step: int, sealed: bytes) -> None:
        (audit.parent / f"relay-{link[0]}-{link[1]}-{step}").write_bytes(sealed)
        put(kept, link, step, sealed[:-1] + bytes([sealed[-1] ^ (step in tampers)]))

    put, Relay.put = Relay.put, noting
    if space is not None:
        enter(space)
    relay(study, home=home, audit=audit, ended=lambda: False)


def _afflict(faults: Faults, log: Path) -> None:
    if faults.space is not None:
        enter(faults.space)
    if faults.hours:
        _set_clock(faults.hours)
    if faults.moments is not None:
        _die_after(faults.moments, full=faults.full)
    if faults.loss or faults.twice or faults.late:
        _lose(faults, log)
    if faults.lie is not None:
        _lie(faults.lie)
    _install(__version__=faults.release, PROTOCOL=faults.protocol)


def _install(**values: Any) -> None:
    """Let this process be of another release."""
    for name, module in list(sys.modules.items()):
        for key, value in values.items():
            if value is not None and name.startswith("privsgp") and hasattr(module, key):
                setattr(module, key, value)


def _note_first(path: Path) -> None:
    """Keep what this site holds before the first mixing: the average of all sites' is what mixing must lead to."""
    from privsgp.sites.transport import SitesTransport

    def begin(transport: Any, k: int, x: Any, w: Any, *args: Any) -> Any:
        if k == 0:
            np.save(path, np.append(x.double().numpy(), w.numpy()))
        return prepare(transport, k, x, w, *args)

    prepare, SitesTransport.prepare = SitesTransport.prepare, begin


def _lie(value: float) -> None:
    """Let this site send another model than it has."""
    from privsgp.sites.transport import SitesTransport

    def begin(transport: Any, k: int, x: Any, *args: Any) -> Any:
        return prepare(transport, k, x.fill_(value) if k >= 4 else x, *args)

    prepare, SitesTransport.prepare = SitesTransport.prepare, begin


def _set_clock(hours: float) -> None:
    """Let this process's wall clock be wrong; what only measures how long things take stays as it is."""
    import datetime as dt

    class Wrong(dt.datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return right.now(tz) + dt.timedelta(hours=hours)

    right, dt.datetime = dt.datetime, Wrong  # not time.time: gRPC takes the ends of calls from it


def _die_after(moments: int, *, full: bool) -> None:
    """Let this process kill itself at a moment: before any write, or removal, or message that is about to be sent.

    With `full`, writes fail from that moment on, as on a full disk.
    """
    from privsgp.sites.protocol.mailbox import Outbox
    from privsgp.sites.transport import SitesTransport

    left = iter(range(moments))

    def dying(function: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            if next(left, None) is None:
                if full:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*args, **kwargs)

        return call

    def begin(transport: Any, k: int, *args: Any) -> Any:  # from the first step on
        if k == min(1, transport.agreement.rounds - 1):
            more = () if full else ((os, "pwrite"), (os, "unlink"), (Outbox, "post"))
            for holder, name in ((os, "write"), (os, "fsync"), (os, "replace"), *more):
                setattr(holder, name, dying(getattr(holder, name)))
        return prepare(transport, k, *args)

    prepare, SitesTransport.prepare = SitesTransport.prepare, begin


def _lose(faults: Faults, log: Path) -> None:
    from privsgp.sites.protocol.mailbox import Inbox

    rng, receive = random.Random(os.getpid()), Inbox.receive
    held: dict[int, list[Any]] = {}
    file = log.open("a", buffering=1)

    def happens(what: str) -> bool:
        happened = rng.random() < getattr(faults, what)
        file.write(f"{what}\n" * happened)
        return happened

    def sometimes(inbox: Any, peer: int, first: bytes, pieces: Any) -> None:
        here = [inbox, peer, first, list(pieces)]
        before = held.pop(peer, None)
        if before is None and happens("late"):
            held[peer] = here
            return
        for one in (here, before):
            if one is not None and not happens("loss"):
                for _ in range(1 + happens("twice")):
                    receive(*one[:-1], iter(one[-1]))

    Inbox.receive = sometimes
