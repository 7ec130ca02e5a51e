"""Two machines with folders, data and addresses of their own train together, started as docs/cluster.md says."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import cluster
import numpy as np
import pytest

import runs
from privsgp import data, metrics
from privsgp.accounting import ledger

SITES = """
name = "sites"
seed = 3
[data]
nodes = 5
path = "site-{node}.npz"
[model]
name = "logistic"
[privacy]
sigma = 0.05
[algorithm]
name = "privsgp-sag"
steps = 20
step_size = 0.3
[engine]
device = "cpu"
"""


class Machine(NamedTuple):
    """How to start a command on it, and its network."""

    prefix: list[str]
    address: str
    interface: str


def _ip(*words):
    subprocess.run(["ip", *words], check=True, capture_output=True)


@contextlib.contextmanager
def _namespaces():
    """Two network namespaces with a wire between them."""
    names = [f"privsgp-{os.getpid()}-{end}" for end in "ab"]
    with contextlib.ExitStack() as stack:
        for name in names:
            _ip("netns", "add", name)
            stack.callback(_ip, "netns", "delete", name)
        _ip("link", "add", "wire0", "netns", names[0], "type", "veth", "peer", "name", "wire0", "netns", names[1])
        machines = []
        for name, address in zip(names, ("10.213.7.1", "10.213.7.2"), strict=True):
            _ip("-n", name, "address", "add", f"{address}/24", "dev", "wire0")
            _ip("-n", name, "link", "set", "wire0", "up")
            _ip("-n", name, "link", "set", "lo", "up")
            machines.append(Machine(["ip", "netns", "exec", name], address, "wire0"))
        yield machines


@pytest.fixture(scope="module")
def machines():
    """Namespaces where this user may make them, else two loopback addresses."""
    with contextlib.ExitStack() as stack:
        try:
            yield stack.enter_context(_namespaces())
        except (subprocess.CalledProcessError, FileNotFoundError):
            yield [Machine([], f"127.0.0.{number}", "lo") for number in (1, 2)]


def _sites(folders):
    d = data.load("digits")
    for node in range(5):
        rows = slice(200 * node, 200 * node + 90 + 10 * node)
        arrays = {"x": d.x[rows], "y": d.y[rows], "x_test": d.x_test, "y_test": d.y_test, "classes": 10}
        for folder in folders(node):
            folder.mkdir(exist_ok=True)
            np.savez(folder / f"site-{node}.npz", **arrays)


def test_two_machines_train_together(tmp_path, machines, monkeypatch):
    places = [tmp_path / "a", tmp_path / "b"]
    _sites(lambda node: [places[node >= 2], tmp_path / "all"])
    for place in (*places, tmp_path / "all"):
        (place / "run.toml").write_text(SITES)
    torchrun, port, started = (sys.executable, "-m", "torch.distributed.run"), cluster.free_port(), []
    for number, (machine, place) in enumerate(zip(machines, places, strict=True)):
        words = [
            *torchrun, "--nnodes", "2", "--node-rank", number, "--nproc-per-node", "1",
            "--master-addr", machines[0].address, "--master-port", port, "-m", "privsgp", "train", "run.toml",
        ]  # fmt: skip
        environment = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": machine.interface}
        started.append(
            subprocess.Popen(
                [*machine.prefix, *map(str, words)],
                cwd=place,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        )
    said = [process.communicate(timeout=120)[0] for process in started]
    assert [process.returncode for process in started] == [0, 0], "\n".join(said)

    a, b = (place / "runs" / "sites" for place in places)
    assert {path.name for path in (a / "ledger").iterdir()} == {"node-0.jsonl", "node-1.jsonl"}
    assert {path.name for path in (b / "ledger").iterdir()} == {f"node-{i}.jsonl" for i in (2, 3, 4)}
    assert {path.name for path in (b / "nodes").iterdir()} == {f"{i}.safetensors" for i in (2, 3, 4)}
    assert not (b / "model.safetensors").exists()
    first, second = (json.loads((place / "summary.json").read_text()) for place in (a, b))
    assert (first.pop("reported"), second.pop("reported")) == ([2, 3, 4], [0, 1])
    drawn = {
        key: first.pop(key) for key in metrics.PICTURES if key in first
    }  # only the first sees the average model's outputs
    assert drawn.keys() == {"confusion", "roc", "calibration"}
    assert first == second
    headers = [ledger.read(path)[-1].header for path in (a / "ledger" / "node-0.jsonl", b / "ledger" / "node-2.jsonl")]
    assert headers[0].run == headers[1].run

    monkeypatch.chdir(tmp_path / "all")
    runs.train(Path("run.toml"), Path("out"))
    assert (a / "model.safetensors").read_bytes() == Path("out/model.safetensors").read_bytes()
    assert (b / "nodes" / "4.safetensors").read_bytes() == Path("out/nodes/4.safetensors").read_bytes()
