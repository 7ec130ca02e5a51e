"""Sites against torch.distributed: two processes mix the same d weights by both, in turns; and sites over slow wires.

A step of sites is what a run does between a gradient and the next: sums, commit, hashes and signatures, TLS, the checks
at the border. torch.distributed is gloo, without TLS and without a commit. The wire is a TCP proxy of this program, one
for each direction, that lets so many bits a second through, and each of them so much later.

    python benchmarks/sites.py [--turns 2] [--only loopback slow three] [--bits 32 8 4] [--dim 11173962]
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import multiprocessing
import os
import socket
import statistics
import tempfile
import threading
import time
from collections import deque
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from privsgp.algorithms import State
from privsgp.data import Dataset
from privsgp.devices import keep_memory
from privsgp.engine import checkpoint
from privsgp.engine.checkpoint import Progress
from privsgp.engine.folder import Folder
from privsgp.files import sync_names
from privsgp.runs import config as configs
from privsgp.sites import run as sites_run
from privsgp.sites.agreement import Agreement, propose
from privsgp.sites.identity import Site
from privsgp.sites.study import Limits
from privsgp.sites.trainer import SiteDriver
from privsgp.transport.rounding import Rounding

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from multiprocessing.context import SpawnProcess

    from torch import Tensor

    from privsgp.sites.transport import SitesTransport

    Row = dict[str, Any]
    Mix = Callable[[], object]

NAMES = ("aachen", "basel", "cork")
SPEED, DELAY = 100e6, 0.020  # bits a second, and seconds each way
SLOW = 20e6  # of a site's line among three
WIDTHS = (32, 8, 4)


class Size(NamedTuple):
    """A model by its number of weights, and how many steps are timed in a turn."""

    dim: int
    model: dict[str, Any]
    shape: tuple[int, ...]
    steps: int


SIZES = (
    Size(650, {"name": "logistic"}, (64,), 40),
    Size(50_890, {"name": "mlp", "hidden": 64}, (784,), 20),
    Size(11_173_962, {"name": "resnet18"}, (3, 32, 32), 2),
)


def rows(turns: int) -> Iterator[Row]:
    """Time all sizes on this machine's loopback, the larger ones over a slow wire, the largest between three sites."""
    for size in SIZES:
        yield loopback(size, turns, 32)
    for bits in WIDTHS[1:]:
        yield loopback(SIZES[-1], turns, bits)
    for size in SIZES[1:]:
        yield slow(size, turns, 32)
    for bits in WIDTHS[1:]:
        yield slow(SIZES[-1], turns, bits)
    for bits in WIDTHS:
        yield three(SIZES[-1], bits)


def loopback(size: Size, turns: int, bits: int) -> Row:
    """Time two sites and gloo on this machine's loopback."""
    took, cpu, sent = _several(size, turns, ("committed", "sent", "gloo"), bits)
    row = _row(f"sites, d = {size.dim:,}", size, bits) | {"message_bytes": sent["committed"]}
    times = {"ours_ms": took["committed"], "uncommitted_ms": took["sent"], "gloo_ms": took["gloo"]}
    times["message_ms"] = took["message"]
    costs = {f"{key}_cpu_s_per_gb": 1e9 * cpu[key] / (2 * sent[key]) for key in ("committed", "sent", "gloo")}
    return row | times | {"gloo_ratio": took["gloo"] / took["committed"]} | costs


def slow(size: Size, turns: int, bits: int) -> Row:
    """Time two sites over a slow wire."""
    with wire(SPEED, DELAY) as there, wire(SPEED, DELAY) as back:
        took, _, sent = _several(size, turns, ("committed",), bits, (there, back))
    row = _row(f"sites over {SPEED / 1e6:g} Mbit/s, {1e3 * DELAY:g} ms, d = {size.dim:,}", size, bits)
    ideal = 8e3 * sent["committed"] / SPEED  # milliseconds
    times = {"ours_ms": took["committed"], "message_ms": took["message"], "wire_ms": ideal}
    return row | times | {"of_the_wire": ideal / took["message"], "of_the_wire_in_steps": ideal / took["committed"]}


def three(size: Size, bits: int) -> Row:
    """Time three sites, each behind a line of its own: two messages arrive over it in a step."""
    with contextlib.ExitStack() as lines:
        wires = tuple(lines.enter_context(wire(SLOW, DELAY)) for _ in NAMES)
        took, _, sent = _several(size._replace(steps=1), 1, ("committed",), bits, wires)
    row = _row(f"three sites behind {SLOW / 1e6:g} Mbit/s, d = {size.dim:,}", size, bits)
    return row | {"step_s": took["committed"] / 1e3, "wire_s": 8 * sent["committed"] / SLOW}


def _row(words: str, size: Size, bits: int) -> Row:
    return {"workload": words + (f", {bits} bits" if bits < 32 else ""), "dim": size.dim, "bits": bits}


def _several(
    size: Size, turns: int, kinds: tuple[str, ...], bits: int, wires: tuple[Wire, ...] = ()
) -> tuple[Row, Row, Row]:
    """Return of each kind of step its median milliseconds, CPU seconds of all processes, and a site's bytes."""
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as place:
        folder, rendezvous, nodes = Path(place), _free_port(), range(len(wires) or 2)
        _study(folder, size, len(kinds) * (turns + 1) * size.steps + 1, bits, len(nodes), wires)
        told, ended = context.SimpleQueue(), context.Event()
        all_of_them: list[SpawnProcess] = [
            context.Process(target=_process, args=(folder, node, size.steps, turns, kinds, rendezvous, told, ended))
            for node in nodes
        ]
        for one in all_of_them:
            one.start()
        found = [told.get() for _ in nodes]
        ended.set()
        for one in all_of_them:
            one.join()
    took, cpu, sent = ([one[part] for one in found] for part in range(3))
    return (
        {kind: statistics.median([ms for one in took for ms in one[kind]]) for kind in (*kinds, "message")},
        {kind: sum(one[kind] for one in cpu) for kind in kinds},
        {kind: statistics.mean(one[kind] for one in sent) for kind in kinds},
    )


def _study(folder: Path, size: Size, rounds: int, bits: int, count: int, wires: tuple[Wire, ...]) -> None:
    """Write the sites' homes, and the agreement between them."""
    ports = [_free_port() for _ in range(count)]
    for one, port in zip(wires, ports, strict=False):
        one.target = port
    dialled = [one.port for one in wires] or ports
    sites = [
        Site.create(folder / name, name, address=f"127.0.0.1:{port}", listen=f"127.0.0.1:{door}")
        for name, port, door in zip(NAMES, dialled, ports, strict=False)
    ]
    config = configs.parse(
        {
            "data": {"nodes": count, "sizes": [16] * count, "classes": 10}, "model": size.model,
            "graph": {"name": "complete"}, "privacy": {"sigma": 1.0}, "transport": {"bits": bits},
            "algorithm": {"name": "privsgp", "steps": 1, "step_size": 0.1, "final_mixing": rounds},
        }
    )  # fmt: skip
    like = Dataset("blank", np.zeros((16, *size.shape), np.float32), np.zeros(16, np.int64), None, None, 10)
    limits = Limits(deadline=600.0, transfer=600.0)
    made = propose(config, [site.card for site in sites], like, name="bench", limits=limits)
    made.write(folder / "bench.study")


def _process(
    folder: Path, node: int, steps: int, turns: int, kinds: tuple[str, ...], rendezvous: int, told: Any,  # noqa: ANN401
    ended: Any,  # noqa: ANN401
) -> None:  # fmt: skip
    """Mix by each kind in turns; tell milliseconds of steps, CPU seconds and bytes sent."""
    torch.set_num_threads(1)
    keep_memory()  # as a Trainer does
    site, agreement = Site.open(folder / NAMES[node]), Agreement.read(folder / "bench.study")
    run = Folder(folder / f"run-{node}", f"-{node}-{node}")
    run.path.mkdir()
    run.prepare()
    bits, start = agreement.config.transport.bits, torch.zeros(1, agreement.weights)
    rounding = None if bits == 32 else Rounding(bits, 1, agreement.graph, start, range(node, node + 1))
    network = sites_run.wire(site, agreement, run, rounding)
    transport, others = network.transport, [i for i in range(len(agreement.roster)) if i != node]
    x = torch.randn(1, agreement.weights, generator=torch.Generator().manual_seed(node))
    w = torch.ones(1, dtype=torch.float64)
    with network.opened():
        network.members.phase = "training"
        while not all(map(network.members.is_there, others)):
            time.sleep(0.01)
        network.inbox.open()
        mixes = _mixes(transport, run, x, w)
        pushes = _watched(network)
        if "gloo" in kinds:
            mixes["gloo"] = _gloo(agreement, node, rendezvous, x, w)
        took, cpu, sent = _timed({kind: mixes[kind] for kind in kinds}, steps, turns, network)
        while any(network.members.have_of(i) < int(transport.last[0]) for i in others):  # they may still need the last
            time.sleep(0.01)
        told.put((took | {"message": pushes[len(pushes) // (turns + 1) :]}, cpu, sent))
        ended.wait()  # others may still wait for an answer


def _timed(mixes: dict[str, Mix], steps: int, turns: int, network: sites_run.Network) -> tuple[Row, Row, Row]:
    took: Row = {kind: [] for kind in mixes}
    cpu: Row = dict.fromkeys(mixes, 0.0)
    sent: Row = dict.fromkeys(mixes, 0)
    for turn in range(turns + 1):  # the first to warm up
        for kind, mix in mixes.items():
            began, bytes_before, cpu_before = time.perf_counter(), network.outbox.bytes_to.total(), time.process_time()
            for _ in range(steps):
                mix()
            if turn:
                took[kind].append(1e3 * (time.perf_counter() - began) / steps)
                cpu[kind] += (time.process_time() - cpu_before) / (turns * steps)
                sent[kind] += (network.outbox.bytes_to.total() - bytes_before) / (turns * steps)
    d = network.agreement.weights
    return took, cpu, sent | {kind: 4 * d + 8 for kind in mixes if kind == "gloo"}


def _watched(network: sites_run.Network) -> list[float]:
    """Note how many milliseconds a message takes, from its first byte to the answer that it was let in."""
    took, push = list[float](), network.client._push

    def timed(*args: Any, **options: Any) -> None:  # noqa: ANN401
        began = time.perf_counter()
        push(*args, **options)
        took.append(1e3 * (time.perf_counter() - began))

    network.client._push = timed  # type: ignore[method-assign]
    return took


def _mixes(transport: SitesTransport, run: Folder, x: Tensor, w: Tensor) -> dict[str, Mix]:
    """Return a step of sites, and one that is not committed."""
    counter = iter(range(transport.agreement.rounds))

    def commit(k: int, x: Tensor, w: Tensor) -> None:  # as SiteTrainer does
        memory = {f"links.{name}": [value] for name, value in transport.arrays().items()}
        checkpoint.save(run.checkpoint, Progress(k, 0, 0.0, 0, "", {}), State(x, w, x), memory, transport.agreement.run)
        sync_names(run.checkpoint.parent)

    def mix(make: Callable[[int, Tensor, Tensor], None]) -> object:
        return SiteDriver(transport, None, make).send(next(counter), x, w, paid=False)  # type: ignore[arg-type]

    return {"committed": lambda: mix(commit), "sent": lambda: mix(lambda _k, _x, _w: None)}


def _gloo(agreement: Agreement, node: int, port: int, x: Tensor, w: Tensor) -> Mix:
    """Return the same step by torch.distributed."""
    from privsgp.transport import rendezvous
    from privsgp.transport.torch_distributed import TorchDistributed

    os.environ |= {"RANK": str(node), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    world = rendezvous.join()
    world.run = agreement.run
    transport, counter = TorchDistributed(agreement.graph, x, world), iter(range(10**9))
    return lambda: transport.mix(next(counter), x, w)


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


class Wire:
    """A TCP proxy that carries so many bits a second in each direction, all connections together, and delays them."""

    def __init__(self, bits: float, delay: float) -> None:
        self.bits, self.delay, self.target, self.port = bits, delay, 0, 0
        self._free: dict[str, float] = {"there": 0.0, "back": 0.0}  # when the wire has sent what was given to it

    async def serve(self, ready: threading.Event, ended: asyncio.Event) -> None:
        """Carry until the end."""
        server = await asyncio.start_server(self._carry, "127.0.0.1", 0, limit=1 << 16)
        self.port = server.sockets[0].getsockname()[1]
        ready.set()
        async with server:
            await ended.wait()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError), contextlib.closing(writer):  # also where nobody listens there yet
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self.target, limit=1 << 16)
            await asyncio.gather(self._flow(reader, far_writer, "there"), self._flow(far_reader, writer, "back"))

    async def _flow(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, way: str) -> None:
        """Take what comes as fast as the wire sends; hand it over when it is through, and that much later."""
        late: deque[tuple[float, bytes]] = deque()
        more = asyncio.Event()
        handing = asyncio.ensure_future(self._hand_over(late, more, writer))
        with contextlib.suppress(OSError):
            while part := await reader.read(1 << 14):
                now = time.monotonic()
                self._free[way] = max(now, self._free[way]) + 8 * len(part) / self.bits
                late.append((self._free[way] + self.delay, part))
                more.set()
                if (ahead := self._free[way] - now) > 0.005:  # what waits at the near end: 5 ms, 62 kB
                    await asyncio.sleep(ahead - 0.005)
        late.append((0.0, b""))
        more.set()
        await handing

    @staticmethod
    async def _hand_over(late: deque[tuple[float, bytes]], more: asyncio.Event, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while True:
                while not late:
                    more.clear()
                    await more.wait()
                due, part = late.popleft()
                if not part:
                    break
                await asyncio.sleep(max(0.0, due - time.monotonic()))
                writer.write(part)
                await writer.drain()
        writer.close()


@contextlib.contextmanager
def wire(bits: float, delay: float) -> Iterator[Wire]:
    """Run a wire in a thread of its own; its target is set before it is used."""
    one, ready, loops = Wire(bits, delay), threading.Event(), list[tuple[asyncio.AbstractEventLoop, asyncio.Event]]()

    async def main() -> None:
        loops.append((asyncio.get_running_loop(), asyncio.Event()))
        await one.serve(ready, loops[0][1])

    thread = threading.Thread(target=asyncio.run, args=(main(),), daemon=True)
    thread.start()
    ready.wait()
    try:
        yield one
    finally:
        loop, ended = loops[0]
        loop.call_soon_threadsafe(ended.set)
        thread.join(5.0)


def main() -> None:
    """Print rows of some kinds, widths and sizes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument(
        "--only", nargs="+", default=["loopback", "slow", "three"], choices=["loopback", "slow", "three"]
    )
    parser.add_argument("--bits", type=int, nargs="+", default=list(WIDTHS))
    parser.add_argument("--dim", type=int, default=SIZES[-1].dim, choices=[size.dim for size in SIZES])
    asked = parser.parse_args()
    size = next(one for one in SIZES if one.dim == asked.dim)
    kinds = {"loopback": partial(loopback, size, asked.turns), "slow": partial(slow, size, asked.turns)}
    for kind in asked.only:
        for bits in asked.bits:
            print(json.dumps((kinds | {"three": partial(three, size)})[kind](bits)), flush=True)


if __name__ == "__main__":
    main()
