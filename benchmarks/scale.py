"""How a step's time grows with the number of nodes, and a ledger's with the number of releases."""

from __future__ import annotations

import hashlib
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import ours

from privsgp.accounting.ledger import MOST_AHEAD, Header, Ledger
from privsgp.accounting.mechanisms import SampledMean
from privsgp.accounting.statements import statements

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from workloads import Workload

    Row = dict[str, Any]
    Timed = Callable[[dict[str, Callable[[], None]]], dict[str, float]]

NODES = {"cpu": (16, 64, 256, 1024), "cud": (16, 64, 256, 1024, 4096)}
SAMPLES = 60
EACH = {"cpu": 256, "cud": 4096}  # steps of nodes in a turn, or one step of more
WARM_UP = {"cpu": 0, "cud": 12}  # steps until kernels are chosen and launches recorded
RELEASES = 1_000_000


def nodes(base: Workload, timed: Timed, row: Callable[[Workload, float], Row]) -> Iterator[Row]:
    """Yield the row of each n with the microseconds of a node's step; all n take turns, each with about as many nodes.

    `timed` gives the milliseconds of each of several functions that take turns.
    """
    with ExitStack() as engines:
        kind = base.device[:3]
        works = [base.but(nodes=n, samples=SAMPLES, name=f"scale, {base.name}") for n in NODES[kind]]
        turns = {work.nodes: max(1, EACH[kind] // work.nodes) for work in works}
        steps = {work.nodes: ours.stepper(engines.enter_context(ours.engine(work))) for work in works}
        for step in steps.values():
            _repeated(step, WARM_UP[kind])()
        took = timed({str(n): _repeated(step, turns[n]) for n, step in steps.items()})
        for work in works:
            ms = took[str(work.nodes)] / turns[work.nodes]
            yield row(work, ms) | {"node_step_us": 1e3 * ms / work.nodes}


def _repeated(step: Callable[[], None], times: int) -> Callable[[], None]:
    def several() -> None:
        for _ in range(times):
            step()

    return several


def ledger(releases: int = RELEASES) -> Row:
    """Time what `privsgp ledger` does with the ledger of a secret run: every line checked, ε recomputed."""
    with tempfile.TemporaryDirectory() as place, mock.patch("os.fsync"):
        path = Path(place) / "node-0.jsonl"
        _write(path, releases)
        started, processor = time.perf_counter(), time.process_time()
        statements(path)
        took, processor = time.perf_counter() - started, time.process_time() - processor
        size = path.stat().st_size
    return {
        "workload": f"ledger, {releases:,} releases", "device": "cpu", "n": 1, "ours_ms": 1e3 * took,
        "processor_ms": 1e3 * processor, "bytes_per_release": size / releases,
    }  # fmt: skip


def _write(path: Path, releases: int) -> None:
    mechanism = SampledMean(sigma=20.0, clip=1.0, batch=16, samples=1000, kappa=1e-6)
    header = Header(
        node=0, run="benchmark", mechanism=mechanism.describe(), budget={"epsilon": 3.0, "delta": 1e-5},
        relation="zero-out", steps=releases, spare=0, simulation=False,
    )  # fmt: skip
    with Ledger.open(path, header) as ledger:
        for k in range(releases):
            if not ledger.holds(k):
                ledger.reserve(k, min(MOST_AHEAD, releases - k))
            ledger.sent(k, hashlib.sha256(b"%d" % k).hexdigest())
        ledger.close()
