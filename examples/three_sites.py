"""Three hospitals on this machine, each with its own keys, data and folder, learn together; one has a power cut.

    python examples/three_sites.py

They share nothing but a study file that each of them signs by joining. Cork cannot be dialled: it dials the others.
Basel is killed in the middle (kill -9), the others go on, basel joins again and nothing is charged twice. In real life
each of these commands is typed at another place: docs/sites.md has them.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from privsgp import data
from privsgp.accounting.shown import up

SITES = {"aachen": 400, "basel": 450, "cork": 500}  # records
CONFIG = """
[data]
nodes = 3
sizes = [400, 450, 500]
classes = 10
[model]
name = "logistic"
[graph]
name = "complete"
[privacy]
epsilon = 3.0
delta = 1e-5
[algorithm]
name = "privsgp-sag"
batch = 64
steps = STEPS
step_size = 0.5
final_mixing = 10
"""


def privsgp(folder: Path, *words: object) -> subprocess.Popen[str]:
    """Start a command at a site, whose folder it sees and no other; what it says goes into log.txt."""
    environment = os.environ | {"PRIVSGP_SITE": str(folder / "keys"), "PRIVSGP_STATE": str(folder / "state")}
    command = [sys.executable, "-m", "privsgp", *map(str, words)]
    with (folder / "log.txt").open("a") as log:
        return subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=log, text=True)


def done(process: subprocess.Popen[str], folder: Path) -> None:
    if process.wait() != 0:
        sys.exit(f"{folder.name}: {(folder / 'log.txt').read_text()}")


def prepare(folder: Path, steps: int) -> dict[str, Path]:
    """Give each hospital a folder with its records and its keys, and all of them the study that aachen proposes."""
    digits, at = data.load("digits"), 0
    order = np.random.default_rng(0).permutation(len(digits.y))
    homes = {name: folder / name for name in SITES}
    for (name, home), records in zip(homes.items(), SITES.values(), strict=True):
        home.mkdir(parents=True)
        rows = order[at : at + records]
        at += records
        np.savez(home / "my.npz", x=digits.x[rows], y=digits.y[rows], x_test=digits.x_test, y_test=digits.y_test)
        reach = ["--outbound-only"] if name == "cork" else ["--address", f"127.0.0.1:{free_port()}"]
        done(privsgp(home, "site", "init", "--name", name, *reach), home)
    (homes["aachen"] / "run.toml").write_text(CONFIG.replace("STEPS", str(steps)))
    cards = [f"--site={home / name}.card" for name, home in homes.items()]
    limits = ["--deadline", 2, "--staleness", 20]
    proposed = privsgp(
        homes["aachen"], "agree", "propose", "run.toml", *cards, "--data=my.npz", *limits, "-o", "lung.study"
    )
    done(proposed, homes["aachen"])
    for home in homes.values():  # by e-mail
        (home / "lung.study").write_bytes((homes["aachen"] / "lung.study").read_bytes())
    return homes


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def join(home: Path) -> subprocess.Popen[str]:
    return privsgp(home, "join", "lung.study", "--data", "my.npz", "--out", "run", "--json")


def step(home: Path) -> int:
    try:
        return int(json.loads((home / "run" / "status.json").read_text())["own"]["step"])
    except FileNotFoundError:
        return 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    homes = prepare(options.out or Path(tempfile.mkdtemp(prefix="three-sites-")), options.steps)
    sites = {name: join(home) for name, home in homes.items()}
    while step(homes["basel"]) < options.steps // 4:
        time.sleep(0.05)
    sites["basel"].send_signal(signal.SIGKILL)
    sites["basel"].wait()
    killed = step(homes["basel"])
    while step(homes["aachen"]) < killed + 2:
        time.sleep(0.05)
    print(f"basel was killed at step {killed} of {options.steps}; aachen and cork went on without it; it joins again")
    sites["basel"] = join(homes["basel"])
    for name, process in sites.items():
        done(process, homes[name])
    for node, (name, home) in enumerate(homes.items()):
        s = json.loads((home / "run" / "summary.json").read_text())
        private = [json.loads(line) for line in (home / "run" / "private" / f"metrics-{node}-{node}.jsonl").open()]
        accuracy = [row["test_accuracy"] for row in private if "test_accuracy" in row][-1]
        print(
            f"{name:7}{accuracy:.1%}, {s['releases'][node]} releases, "
            f"ε = {up(s['epsilon_spent'][node])} of {up(s['epsilon_budget'][node])}, process {s['site']['incarnation']}"
        )
    print(f"in {homes['aachen'].parent}")


if __name__ == "__main__":
    main()
