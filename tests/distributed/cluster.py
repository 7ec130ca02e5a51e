"""Several processes of one run, started as torchrun starts them, but forked from one that has torch loaded already."""

from __future__ import annotations

import importlib
import json
import os
import signal
import socket
import sys
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from torch.distributed import TCPStore

import runs

if TYPE_CHECKING:
    from pathlib import Path

runs.FORKS.set_forkserver_preload(["privsgp.cli", "privsgp.planner.planning", "sklearn.datasets", "torch._dynamo"])
PATIENCE = 20.0

# No two blocks of nodes are alike: sizes, noise, and who talks to whom differ, and w ≠ 1.
IRREGULAR = """
name = "irregular"
seed = 5
[data]
nodes = 11
sizes = [120, 90, 60, 130, 200, 40, 75, 33, 101, 64, 150]
[model]
name = "mlp"
hidden = 8
[graph]
name = "random"
degree = 2
[privacy]
sigma = [0.05, 0.04, 0.03, 0.05, 0.06, 0.05, 0.02, 0.05, 0.01, 0.05, 0.07]
[algorithm]
name = "privsgp-sag"
steps = 24
step_size = 0.3
[engine]
device = "cpu"
evaluate_every = 12
checkpoint_every = 5
"""


class Ended(NamedTuple):
    """How one process ended."""

    code: int
    out: str
    err: str
    seconds: float


def start(place: Path, arguments: list[list[object]], hook: str = "", restart: int = 0, **told: Any) -> list[Any]:
    """Start one process for each list of arguments; `hook`, "module.function", is called first, with rank and `told`.

    The meeting place is in this process, as torchrun's is in its agent: it outlives them. With `hosted` it is in
    process 0, as where nobody but `RANK` and the like was set; ranks in `absent` are not started.
    """
    hosted, absent = told.pop("hosted", False), told.pop("absent", ())
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    port = free_port() if hosted else store.port
    environment = {
        "WORLD_SIZE": str(len(arguments)),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_USE_AGENT_STORE": str(not hosted),
        "TORCHELASTIC_RESTART_COUNT": str(restart),
        "PRIVSGP_PATIENCE": str(told.pop("patience", PATIENCE)),
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
    }
    place.mkdir(exist_ok=True)
    processes = []
    for rank, words in enumerate(arguments):
        if rank in absent:
            continue
        own = environment | {"RANK": str(rank), "LOCAL_RANK": str(rank)}
        process = runs.FORKS.Process(target=_work, args=(list(map(str, words)), own, place / str(rank), hook, told))
        process.start()
        process.store = store
        processes.append(process)
    return processes


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def ended(place: Path, processes: list[Any]) -> list[Ended]:
    """Wait for all processes."""
    begun, seconds = time.monotonic(), {}
    while len(seconds) < len(processes):
        for rank, process in enumerate(processes):
            if rank not in seconds and process.exitcode is not None:
                seconds[rank] = time.monotonic() - begun
        assert time.monotonic() - begun < 120, "the processes hang"
        time.sleep(0.01)
    said = [[(place / f"{rank}.{name}") for name in ("out", "err")] for rank in range(len(processes))]
    texts = [[path.read_text() if path.exists() else "" for path in paths] for paths in said]
    return [Ended(p.exitcode, *texts[rank], seconds[rank]) for rank, p in enumerate(processes)]


def train(folder: Path, config: Path, out: Path, processes: int, *options: str, **kwargs: Any) -> dict[str, Any]:
    """Train in several processes that share a run folder, and return the summary."""
    words: list[list[object]] = [["train", config, "--out", out, "--json", *options]] * processes
    all_ended = ended(folder, start(folder, words, **kwargs))
    assert [one.code for one in all_ended] == [0] * processes, "\n".join(one.err for one in all_ended)
    return json.loads(all_ended[0].out)


def _work(arguments: list[str], environment: dict[str, str], say: Path, hook: str, told: dict[str, Any]) -> None:
    os.environ.update(environment)
    if hook:
        module, _, function = hook.rpartition(".")
        getattr(importlib.import_module(module), function)(int(environment["RANK"]), **told)
    ran = runs.command(*arguments)
    say.with_suffix(".out").write_text(ran.out)
    say.with_suffix(".err").write_text(ran.err)
    sys.exit(ran.code)


def die(rank: int, *, victim: int, moments: int) -> None:
    """Let one process SIGKILL itself after so many steps and writes, wherever that is."""
    from privsgp.engine.budget_guard import BudgetGuard

    left = iter(range(moments))

    def dying(function):
        def call(*args, **kwargs):
            if next(left, None) is None:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*args, **kwargs)

        return call

    for holder, name in ((BudgetGuard, "record"), (os, "write"), (os, "fsync"), (os, "replace")):
        if rank == victim:
            setattr(holder, name, dying(getattr(holder, name)))


def sleep(rank: int, *, victim: int, step: int) -> None:
    """Let one process stand still at a step, as a machine that has lost its network."""
    _signalled(signal.SIGSTOP, step if rank == victim else None)


def interrupt(rank: int, *, victim: int, step: int) -> None:
    """Let one process get a SIGTERM at a step."""
    _signalled(signal.SIGTERM, step if rank == victim else None)


def _signalled(number: int, step: int | None) -> None:
    from privsgp.transport.torch_distributed import TorchDistributed

    mix = TorchDistributed.mix

    def signalled(self, k, *given):
        if k == step:
            os.kill(os.getpid(), number)
        return mix(self, k, *given)

    TorchDistributed.mix = signalled


def watch(rank: int, *, where: str) -> None:
    """Note whatever a process hands to torch.distributed or to the store."""
    import torch.distributed as dist

    from privsgp.transport import rendezvous
    from privsgp.transport import torch_distributed as distributed

    notes = open(f"{where}/{rank}.jsonl", "w", buffering=1)  # noqa: SIM115, PTH123 - open until the process ends

    def note(**values):
        notes.write(json.dumps(values) + "\n")

    batch = dist.batch_isend_irecv

    def batched(operations):
        sends = [(op.peer, op.tensor.nbytes) for op in operations if op.op is dist.isend]
        note(messages=sends)
        return batch(operations)

    def watched(name, function):
        def call(tensor, *to, **kwargs):
            note(other=name, to=to[0] if to else None, bytes=tensor.nbytes)
            return function(tensor, *to, **kwargs)

        return call

    distributed.dist.batch_isend_irecv = batched
    for name in ("send", "broadcast", "all_reduce", "all_gather", "gather", "scatter", "reduce", "all_to_all"):
        setattr(distributed.dist, name, watched(name, getattr(dist, name)))
    join = rendezvous.Processes.__init__

    def joined(self, *args, **kwargs):
        join(self, *args, **kwargs)
        store = self.store

        class Watched:
            def __getattr__(self, name):
                return getattr(store, name)

            def set(self, key, value):
                note(said=value or "null")
                store.set(key, value)

        self.store = Watched()
        self._real = store

    rendezvous.Processes.__init__ = joined
    connect = distributed._connect

    def connected(world, device):
        watching, world.store = world.store, world._real
        connect(world, device)
        world.store = watching

    distributed._connect = connected


def settles(rank: int, *, victim: int, scale: float | None = None, clip: float | None = None) -> None:
    """Let one process settle on another θ or C, as with another library."""
    from privsgp.accounting import calibration
    from privsgp.runs import budgets

    if rank == victim and scale is not None:
        calibration.largest = calibration.largest_at = lambda *_: scale
    if rank == victim and clip is not None:
        budgets.difference_clip = lambda _config: clip


def older(rank: int, *, victim: int) -> None:
    """Let one process be of another release."""
    from privsgp.transport import rendezvous

    if rank == victim:
        rendezvous.__version__ = "0.0.9"
