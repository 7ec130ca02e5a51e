"""Many sites for a long time, with kills, stops and frozen processes: what grows, and how long a restart takes.

Each site is a process of `privsgp join` on this machine, with pairwise noise. Every few seconds a random site is killed
(SIGKILL), stopped (SIGTERM) or frozen (SIGSTOP, for some deadlines). The first site lives on: what grows grows there.
Prints a line of JSON a minute, then a table. `--cpu N …` measures the CPU time of a step and site, without faults.

    python benchmarks/soak.py [--sites 8] [--seconds 7200] [--cpu 3 8 16]
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from privsgp import data
from privsgp.accounting import ledger
from privsgp.runs import config as configs
from privsgp.sites.agreement import propose
from privsgp.sites.identity import Site
from privsgp.sites.study import Limits

DEADLINE = 5.0
EVERY = 60.0  # seconds between two rows
CPU_STEPS, WARM, STARTS = 40, 10, 5
FIXED = {"sigma": 1.0}
TICK = 1 / os.sysconf("SC_CLK_TCK")


class Sites:
    """Sites of one run, as processes."""

    def __init__(self, place: Path, count: int, privacy: dict[str, Any] = FIXED) -> None:
        self.place, self.count, self.running = place, count, dict[int, subprocess.Popen[bytes]]()
        names = [f"site{i}" for i in range(count)]
        homes = [Site.create(place / name, name, address=f"127.0.0.1:{_free_port()}") for name in names]
        digits = data.load("digits")
        size = len(digits.y) // count
        for i, name in enumerate(names):
            rows = slice(i * size, (i + 1) * size)
            np.savez(place / f"{name}.npz", x=digits.x[rows], y=digits.y[rows], classes=10)
        values = {
            "data": {"nodes": count, "sizes": [size] * count, "classes": 10}, "model": {"name": "logistic"},
            "graph": {"name": "complete"}, "privacy": {"noise": "pairwise"} | privacy,
            "algorithm": {"name": "privsgp-vr", "steps": 10**6 if privacy is FIXED else 1000, "step_size": 0.2},
        }  # fmt: skip
        limits = Limits(deadline=DEADLINE, staleness=8)
        like = data.load(str(place / "site0.npz"), classes=10)
        made = propose(configs.parse(values), [one.card for one in homes], like, name="soak", limits=limits)
        made.write(place / "soak.study")
        self.names = names

    def start(self, i: int) -> None:
        """Start a site, or start it again."""
        name = self.names[i]
        command = [
            sys.executable, "-m", "privsgp", "join", "soak.study", "--data", f"{name}.npz", "--home", name, "--out",
            f"run-{name}",
        ]  # fmt: skip
        log = (self.place / f"{name}.log").open("ab")
        own = os.environ | {"OMP_NUM_THREADS": "1", "PRIVSGP_STATE": str(self.place / "state" / name)}
        self.running[i] = subprocess.Popen(command, cwd=self.place, env=own, stdout=log, stderr=log)  # noqa: S603

    def signal(self, i: int, number: int) -> None:
        """Send a signal to a site; wait for its end where that ends it."""
        self.running[i].send_signal(number)
        if number in (signal.SIGKILL, signal.SIGTERM):
            self.running[i].wait(120)

    def status(self, i: int) -> dict[str, Any]:
        """Return what a site says of itself; an empty step while it says nothing."""
        path = self.place / f"run-{self.names[i]}" / "status.json"
        try:
            found: dict[str, Any] = json.loads(path.read_text())["own"]
        except (OSError, ValueError):
            return {"step": 0, "pid": 0}
        return found

    def until(self, i: int, step: int, seconds: float = 600.0) -> float:
        """Wait until the present process of a site has made a step; return how long that took."""
        began = time.monotonic()
        while (told := self.status(i))["pid"] != self.running[i].pid or told["step"] < step:
            ended = [j for j, one in self.running.items() if one.poll() is not None]
            if ended or time.monotonic() - began > seconds:
                log = (self.place / f"{self.names[(*ended, i)[0]]}.log").read_text()[-3000:]
                raise SystemExit(f"sites {ended} ended, or site {i} stood:\n{log}")
            time.sleep(0.05)
        return time.monotonic() - began

    def size(self, i: int) -> dict[str, float]:
        """Return megabytes of memory and disk, threads and descriptors of a site."""
        proc = Path(f"/proc/{self.running[i].pid}")
        told = dict(line.split(":", 1) for line in (proc / "status").read_text().splitlines())
        kept = sum(path.stat().st_size for path in (self.place / f"run-{self.names[i]}").rglob("*") if path.is_file())
        return {
            "memory_mb": int(told["VmRSS"].split()[0]) // 1024, "threads": int(told["Threads"]),
            "descriptors": len(list((proc / "fd").iterdir())), "disk_mb": round(kept / 1e6, 1),
        }  # fmt: skip

    def cpu(self) -> float:
        """Return the CPU seconds of all processes so far."""
        stats = [Path(f"/proc/{one.pid}/stat").read_text().rpartition(")")[2].split() for one in self.running.values()]
        return sum(TICK * (int(stat[11]) + int(stat[12])) for stat in stats)

    def stop(self) -> None:
        """End all processes."""
        for one in self.running.values():
            if one.poll() is None:
                one.send_signal(signal.SIGCONT)
                one.terminate()
        for one in self.running.values():
            try:
                one.wait(60)
            except subprocess.TimeoutExpired:
                one.kill()

    def charged(self, i: int) -> tuple[int, int]:
        """Return how many releases a site's ledger counts, and how many messages it notes."""
        (segment,) = ledger.read(self.place / f"run-{self.names[i]}" / "ledger" / f"node-{i}.jsonl")
        return segment.charged, segment.sent


def soak(place: Path, count: int, seconds: float) -> list[dict[str, Any]]:
    """Disturb sites for some time, and return a row a minute."""
    sites, rng = Sites(place, count), random.Random(1)  # noqa: S311
    done, restarts = Counter[str](), list[float]()
    rows, began = list[dict[str, Any]](), time.monotonic()
    try:
        for i in range(count):
            sites.start(i)
        for i in range(count):
            sites.until(i, 2)
        last, at = sites.status(0)["step"], time.monotonic()
        while time.monotonic() - began < seconds:
            time.sleep(rng.uniform(2.0, 10.0))
            _disturb(sites, rng, done, restarts)
            if (passed := time.monotonic() - at) >= EVERY:
                step = sites.status(0)["step"]
                rows.append(
                    {
                        "minute": round((time.monotonic() - began) / 60, 1), **done,
                        "steps_a_minute": round(60 * (step - last) / passed, 1), "step": step, **sites.size(0),
                        "restart_s": round(max(restarts, default=0.0), 1),
                    }
                )  # fmt: skip
                print(json.dumps(rows[-1]), flush=True)
                last, at = step, time.monotonic()
                restarts.clear()
    finally:
        sites.stop()
    for i in range(count):
        charged, sent = sites.charged(i)
        step = sites.status(i)["step"]
        assert charged == sent <= step + 1, (i, charged, sent, step)  # noqa: S101 - nobody is charged twice
    return rows


def _disturb(sites: Sites, rng: random.Random, done: Counter[str], restarts: list[float]) -> None:
    i, what = rng.randrange(1, sites.count), rng.choice(["kills", "stops", "freezes"])
    done[what] += 1
    if what == "freezes":
        sites.signal(i, signal.SIGSTOP)
        time.sleep(rng.uniform(1.0, 3.0) * DEADLINE)
        sites.signal(i, signal.SIGCONT)
        return
    sites.signal(i, signal.SIGKILL if what == "kills" else signal.SIGTERM)
    step = sites.status(i)["step"]
    sites.start(i)
    restarts.append(sites.until(i, step + 1))


def cpu(place: Path, count: int) -> dict[str, Any]:
    """Return the CPU milliseconds of a step and site, undisturbed."""
    sites = Sites(place, count)
    try:
        for i in range(count):
            sites.start(i)
        for i in range(count):
            sites.until(i, WARM)
        first, before, began = sites.status(0)["step"], sites.cpu(), time.monotonic()
        sites.until(0, first + CPU_STEPS)
        steps = sites.status(0)["step"] - first
        spent, took = sites.cpu() - before, time.monotonic() - began
        return {
            "sites": count, "steps": steps, "cpu_ms_a_step_and_site": round(1e3 * spent / (steps * count), 1),
            "seconds_a_step": round(took / steps, 2), **sites.size(0),
        }  # fmt: skip
    finally:
        sites.stop()


def start(place: Path, count: int) -> dict[str, Any]:
    """Return the seconds from the start of `privsgp join` to its first hello, with a budget to check."""
    sites, took = Sites(place, count, {"epsilon": 3.0, "delta": 1e-5, "noise": "independent"}), list[float]()
    try:
        for _ in range(STARTS):
            sites.start(0)
            took.append(sites.until(0, 0))
            used = sites.cpu()
            sites.signal(0, signal.SIGKILL)
    finally:
        sites.stop()
    return {"sites": count, "starts": STARTS, "seconds": [round(one, 2) for one in took], "cpu_seconds": round(used, 2)}


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


def main() -> None:
    """Run what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sites", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=7200.0)
    parser.add_argument("--cpu", type=int, nargs="+", default=[])
    parser.add_argument("--start", action="store_true", help="the time from the start of join to its first hello")
    asked = parser.parse_args()
    for count in asked.cpu:
        with tempfile.TemporaryDirectory() as place:
            print(json.dumps(cpu(Path(place), count)), flush=True)
    if asked.start:
        with tempfile.TemporaryDirectory() as place:
            print(json.dumps(start(Path(place), asked.sites)), flush=True)
    if not (asked.cpu or asked.start):
        with tempfile.TemporaryDirectory() as place:
            rows = soak(Path(place), asked.sites, asked.seconds)
        names = list(rows[-1]) if rows else []
        for line in (names, ["---"] * len(names), *([row.get(name, 0) for name in names] for row in rows)):
            print("| " + " | ".join(map(str, line)) + " |")


if __name__ == "__main__":
    main()
