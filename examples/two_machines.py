"""Two machines, each with the data of its own sites, train together with torchrun.

    python examples/two_machines.py                                    # both machines simulated on this one
    python examples/two_machines.py --machine 0 --address 10.0.0.1     # for real: on machine 0, which has this address
    python examples/two_machines.py --machine 1 --address 10.0.0.1     # and on machine 1

Each machine makes up (in real life: has) the files of its own sites, opens no others, and writes a run folder of its
own with its sites' ledgers. Machine 0 also gets the average model. Messages travel without encryption: between real
sites put a VPN underneath, as docs/cluster.md says.
"""

from __future__ import annotations

import argparse
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

SITES = [range(2), range(2, 5)]  # machine 0 has two sites, machine 1 three: blocks in order, as torchrun deals them
FEATURES = 12

CONFIG = """
name = "two-machines"
[data]
nodes = 5
path = "site-{node}.npz"
test = "public"
[model]
name = "logistic"
[graph]
name = "exponential"
[privacy]
epsilon = 2.0
delta = 1e-6
clip = 1.0
[algorithm]
name = "privsgp-sag"
batch = 64
steps = STEPS
step_size = 0.5
[engine]
device = "cpu"
"""


def site(node: int, folder: Path) -> None:
    """Make up a site's records; the test set and the number of classes are public and the same everywhere."""
    effect = np.sin(1 + np.arange(FEATURES))

    def draw(count: int, key: int) -> tuple[np.ndarray, np.ndarray]:
        rng = np.random.default_rng(key)
        x = rng.standard_normal((count, FEATURES)).astype(np.float32)
        return x, (x @ effect + rng.logistic(size=count) > 0).astype(np.int64)

    (x, y), (x_test, y_test) = draw(1500 + 250 * node, key=1 + node), draw(2000, key=0)
    np.savez(folder / f"site-{node}.npz", x=x, y=y, x_test=x_test, y_test=y_test, classes=2)


def start(machine: int, address: str, port: int, folder: Path, steps: int) -> subprocess.Popen:
    """Prepare one machine's folder and start its share of the run there."""
    folder.mkdir(parents=True)
    for node in SITES[machine]:
        site(node, folder)
    (folder / "run.toml").write_text(CONFIG.replace("STEPS", str(steps)))
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--node-rank", str(machine)]
    torchrun += ["--nproc-per-node", "1", "--master-addr", address, "--master-port", str(port)]
    command = [*torchrun, "-m", "privsgp", "train", "run.toml", "--out", "run"]
    simulated = {"GLOO_SOCKET_IFNAME": "lo"} if address == "127.0.0.1" else {}
    return subprocess.Popen(command, cwd=folder, env={"OMP_NUM_THREADS": "1"} | os.environ | simulated)


def free_port() -> int:
    """Return a port nobody listens at."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--machine", type=int, choices=[0, 1], help="this machine's number; default: simulate both")
    parser.add_argument("--address", default="127.0.0.1", help="machine 0's address")
    parser.add_argument("--port", type=int, default=29500, help="a port of machine 0 that machine 1 can reach")
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--out", type=Path, help="where the machines' folders go; default: a temporary folder")
    options = parser.parse_args()
    out = options.out or Path(tempfile.mkdtemp(prefix="two-machines-"))

    simulated = options.machine is None
    machines = [0, 1] if simulated else [options.machine]
    port = free_port() if simulated else options.port
    folders = [out / f"machine-{machine}" for machine in machines]
    processes = [start(m, options.address, port, f, options.steps) for m, f in zip(machines, folders, strict=True)]
    ended = [process.wait() for process in processes]
    if any(ended):
        sys.exit("a machine stopped: see its words above")
    for folder in folders:
        ledgers = sorted(path.name for path in (folder / "run" / "ledger").iterdir())
        model = "the average model" if (folder / "run" / "model.safetensors").exists() else "no average model"
        print(f"{folder.name}: {', '.join(ledgers)}; {model}; {folder / 'run'}")


if __name__ == "__main__":
    main()
