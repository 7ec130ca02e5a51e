"""Measure on this machine what docs/scaling.md shows: python tests/distributed/measure.py [--whole].

One node per process on the exponential graph; timed are `TorchDistributed.mix` and `World.all_gather` alone. With
`--whole`: steps of `privsgp train` as torchrun starts it, 16 nodes, one thread a process.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import timedelta
from pathlib import Path

import torch
from torch.distributed import TCPStore

from privsgp import graph
from privsgp.outside import Whole
from privsgp.transport.in_process import InProcess
from privsgp.transport.rendezvous import Processes
from privsgp.transport.torch_distributed import TorchDistributed
from privsgp.transport.world import World

STEPS = 60
SIZES = (650, 50_890, 1_000_000, 11_173_962)
WHOLE = 400  # steps
MODELS = {"logistic, d = 650": ["model.name=logistic"], "MLP, d = 45,010": ["model.name=mlp", "model.hidden=600"]}


def main() -> None:
    """Print a row for each number of processes and each number of weights."""
    context = multiprocessing.get_context("spawn")
    sys.stdout.write("processes  weights  ms/step  MB/s/process  ms/exchange\n")
    for processes in (1, 2, 4, 8):
        for dim in SIZES:
            if processes * dim > 50_000_000:
                continue
            store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
            answers = context.Queue()
            started = [
                context.Process(target=_one, args=(rank, processes, dim, store.port, answers))
                for rank in range(processes)
            ]
            for process in started:
                process.start()
            steps, exchanges = zip(*(answers.get() for _ in started), strict=True)
            for process in started:
                process.join()
            step, all_gather = statistics.median(steps), statistics.median(exchanges)
            rate = dim * 4 / step / 1e6 if processes > 1 else 0.0
            sys.stdout.write(f"{processes:9d} {dim:8d} {1e3 * step:8.3f} {rate:13.0f} {1e3 * all_gather:12.3f}\n")
            sys.stdout.flush()


def whole() -> None:
    """Print the steps a second of a whole run, for each number of processes and each model: the median of three."""
    for processes in (1, 2, 4, 8):
        for words, model in MODELS.items():
            rates = sorted(_rate(processes, model) for _ in range(3))
            sys.stdout.write(f"{processes:9d}  {words}  {rates[1]:.0f} steps/s ({rates[0]:.0f} to {rates[2]:.0f})\n")
            sys.stdout.flush()


def _rate(processes: int, model: list[str]) -> float:
    root = Path(__file__).parent.parent.parent
    launcher = ["-m", "torch.distributed.run", f"--nproc-per-node={processes}"] if processes > 1 else []
    changes = ["algorithm.name=privsgp-sag", f"algorithm.steps={WHOLE}", f"engine.evaluate_every={WHOLE}", *model]
    with tempfile.TemporaryDirectory() as place:
        out = Path(place) / "run"
        command = [sys.executable, *launcher, "-m", "privsgp", "train", str(root / "examples" / "digits.toml")]
        command += ["--out", str(out), *(part for change in changes for part in ("--set", change))]
        env = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
        subprocess.run(command, check=True, capture_output=True, env=env)
        return WHOLE / float(json.loads((out / "summary.json").read_text())["seconds"])


def _one(rank: int, processes: int, dim: int, port: int, answers: multiprocessing.Queue[tuple[float, float]]) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    x, w = torch.randn(1, dim), torch.ones(1, dtype=torch.float64)
    if processes == 1:
        network = graph.make("exponential", 2)
        transport, world = InProcess(network, x), World()
        x, w = x.repeat(2, 1), w.repeat(2)
    else:
        store = TCPStore("127.0.0.1", port, timeout=timedelta(seconds=60))
        world = Processes(rank, processes, store)
        transport = TorchDistributed(graph.make("exponential", processes), x, world)
    times = _timed(lambda k: transport.mix(k, x, w), STEPS if dim < 5_000_000 else 12)
    talks = _timed(lambda k: world.all_gather(k, Whole), 30)
    answers.put((times, talks))
    world.all_gather(None, None)
    if processes > 1:
        torch.distributed.destroy_process_group()
    world._die()


def _timed(action, count: int) -> float:
    """Return the time that a tenth of the calls stay below, after a few for practice: others use this machine too."""
    taken = []
    for k in range(count + 3):
        begun = time.perf_counter()
        action(k)
        taken.append(time.perf_counter() - begun)
    return statistics.quantiles(taken[3:], n=10)[0]


if __name__ == "__main__":
    whole() if "--whole" in sys.argv[1:] else main()
