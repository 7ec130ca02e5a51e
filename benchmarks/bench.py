"""`make bench`: time per iteration of n private nodes against what else could be run, all in this one process.

Contestants take turns, so that whatever else the machine does hits all of them; figures are medians over the turns.
Prints tables and whether the machine was busy, and writes build/bench.json, a list of flat rows.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import resource
import statistics
import sys
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import busy
import ours
import rivals
import scale
import shown
import torch
from workloads import Workload

import sites
from privsgp.randomness.pair_streams import PairStreams

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Row = dict[str, Any]

MLP = Workload()
RESNET = Workload("resnet18", 16, 25, 3125, "resnet18", 0, (3, 32, 32), table_dtype="bfloat16")
CNN = Workload("cnn", 2, 25, 500, "cnn", 0, (3, 32, 32))
LOOPS = {
    "opacus": rivals.opacus_loop,
    "ghost": rivals.ghost_loop,
    "sgd": rivals.sgd_loop,
    "floor": rivals.floor,
}


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--only", choices=list(TABLES), help="one of the tables")
    parser.add_argument("--out", type=Path, default=Path("build/bench.json"))
    chosen = parser.parse_args()
    warnings.filterwarnings("ignore", message="Full backward hook|Secure RNG|Optimal order", category=UserWarning)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    rows: list[Row] = []
    watch = busy.Watch()
    for name, table in TABLES.items():
        if chosen.only in (None, name):
            for row in table(chosen.device, chosen.turns):
                rows.append(row | watch.lap())
                print("  ".join(f"{k} {_short(v)}" for k, v in rows[-1].items()), file=sys.stderr, flush=True)
    print(f"\n{shown.page(rows)}\n\n{busy.words(watch.load, rows)}")
    chosen.out.parent.mkdir(parents=True, exist_ok=True)
    chosen.out.write_text(json.dumps(rows, indent=1) + "\n")


def _against(device: str, turns: int) -> Iterator[Row]:
    """Us against the loops and the floor."""
    yield against(MLP.but(device=device), turns)
    yield against(MLP.but(device=device, nodes=256, samples=240), max(3, turns // 2))
    if device != "cpu":
        yield against(RESNET.but(device=device), 3)
        yield against(RESNET.but(device=device, batch=125), 3)


def against(work: Workload, turns: int) -> Row:
    """Return one row of the table."""
    _forget()
    inputs, targets = work.data()
    with ours.engine(work) as training:
        steps = {"ours": ours.stepper(training)} | {name: make(work, inputs, targets) for name, make in LOOPS.items()}
        took = interleaved(steps, turns, work.device)
    row = _row(work, took["ours"]) | {"opacus_ms": took["opacus"]}
    return row | {f"{name}_ratio": took[name] / took["ours"] for name in LOOPS}


def _forget() -> None:
    """Give the memory of the row before back: the next one's table may not fit beside it."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def _growth(device: str, turns: int) -> Iterator[Row]:
    """How one iteration grows with n, d, J and b, one at a time."""
    base = MLP.but(device=device, nodes=32, samples=240)
    changes: list[Row] = [{"nodes": n} for n in (8, 32, 128, 512, 1024)]
    changes += [{"hidden": h} for h in (25, 400)] + [{"samples": J} for J in (960, 3840)]
    changes += [{"batch": b} for b in (12, 24, 96)]
    for change in changes:
        work = base.but(**change)
        yield _row(work.but(name=f"growth, {next(iter(change))}"), _alone(work, 0, turns))


def _parts(device: str, turns: int) -> Iterator[Row]:
    """Where the time of an iteration goes, line by line of the algorithm."""
    with ours.engine(MLP.but(device=device), kind=ours.OneGroup) as training:
        for part, took in ours.parts(training, 5 * turns).items():
            yield _row(MLP.but(name=f"part, {part}"), took)


def _secret(device: str, turns: int) -> Iterator[Row]:
    """What secret noise costs, and sums in float64: the same steps with a seed and without."""
    for work in (MLP, CNN) if device == "cpu" else (MLP, RESNET):
        took = _both(work.but(device=device), turns)
        row = _row(work.but(name=f"secret, {work.name}", device=device), took["secret"])
        yield row | {"seeded_ms": took["seeded"]}


def _both(work: Workload, turns: int) -> dict[str, float]:
    """Return the milliseconds of a step with a seed and of one without, which take turns where both fit."""
    seeds = {"seeded": 0, "secret": None}
    if work.model == "resnet18":
        return {name: _alone(work, seed, max(3, turns // 2)) for name, seed in seeds.items()}
    _forget()
    with contextlib.ExitStack() as engines:
        steps = {name: ours.stepper(engines.enter_context(ours.engine(work, seed=s))) for name, s in seeds.items()}
        return interleaved(steps, turns, work.device)


def _alone(work: Workload, seed: int | None, turns: int) -> float:
    """Return the milliseconds of a step where nothing else holds memory."""
    _forget()
    with ours.engine(work, seed=seed) as training:
        return interleaved({"ours": ours.stepper(training)}, turns, work.device)["ours"]


def _scale(device: str, turns: int) -> Iterator[Row]:
    """From few nodes to thousands, and a ledger of a million releases."""
    _forget()
    yield from scale.nodes(MLP.but(device=device), lambda steps: interleaved(steps, turns, device), _row)
    if device == "cpu":
        yield scale.ledger()


def _pairwise(device: str, turns: int) -> Iterator[Row]:
    """What noise that pairs share costs: the same steps with independent noise; and the streams of one site."""
    for work in (MLP.but(hidden=64),) if device == "cpu" else (MLP.but(hidden=64), RESNET):
        for seed in (0, None):
            one = work.but(device=device, name=f"{'secret ' if seed is None else ''}pairwise, {work.name}")
            _forget()
            # Two tables of ResNet-18 do not fit one GPU, and noise is the same without.
            kind, bare = ("privsgp", one.but(table_dtype=None)) if work is RESNET else ("privsgp-vr", one)
            pair = (ours.engine(w, kind, seed=seed) for w in (bare.but(shared=True), bare))
            with next(pair) as shared, next(pair) as alone:
                steps = {"ours": ours.stepper(shared), "floor": ours.stepper(alone)}
                took = interleaved(steps, max(3, turns // 2), device)
            ratio = took["ours"] / took["floor"]
            yield _row(one, took["ours"]) | {"independent_ms": took["floor"], "pairwise_ratio": ratio}
    yield _streams(MLP.but(hidden=64, name="streams of one site"), turns)


def _persons(device: str, turns: int) -> Iterator[Row]:
    """What four rows a person cost: the same number of rows a step as those of persons with one."""
    if device != "cpu":
        return
    for algorithm in ("privsgp", "privsgp-vr"):
        whole = MLP.but(name=f"persons, {algorithm}", batch=12, samples=300, rows=4)
        with ours.engine(whole, algorithm) as persons, ours.engine(MLP, algorithm) as records:
            took = interleaved({"ours": ours.stepper(persons), "floor": ours.stepper(records)}, turns, device)
        yield _row(whole, took["ours"]) | {"records_ms": took["floor"], "persons_ratio": took["ours"] / took["floor"]}


def _streams(work: Workload, turns: int) -> Row:
    """Time what a site of its own draws each step: n − 1 streams of pairs, beside its own."""
    row = _row(work, 0.0)
    streams = PairStreams({pair: bytes(32) for pair in range(work.nodes - 1)})
    out = torch.empty(work.nodes - 1, row["dim"], dtype=torch.float64)
    counter = iter(range(10**6))
    drawn = {"ours": lambda: streams.fill_normal(out, range(work.nodes - 1), next(counter))}
    return row | {"ours_ms": interleaved(drawn, turns, "cpu")["ours"]}


def _sites(device: str, turns: int) -> Iterator[Row]:
    """Two sites against two processes of torch.distributed, and over a slow wire: nothing that a GPU takes part in."""
    if device == "cpu":
        yield from sites.rows(max(2, turns // 2))


TABLES = {
    "against": _against, "growth": _growth, "parts": _parts, "secret": _secret, "pairwise": _pairwise, "scale": _scale,
    "sites": _sites, "persons": _persons,
}  # fmt: skip


def _row(work: Workload, took: float) -> Row:
    d = sum(p.numel() for p in work.make_model().parameters())
    place = {"workload": work.name, "device": work.device, "n": work.nodes, "batch": work.batch}
    return place | {"samples": work.samples, "dim": d, "ours_ms": took, "memory_mb": _memory(work.device)}


_SHORT = ("ours", "floor", "seeded", "secret")
_FIRST = {"cpu": 5, "cud": 20}  # steps of a short contestant to warm up: on a GPU the first record launches
_TURN = 0.5  # seconds that each contestant has in a turn: what others left in the caches counts for little then


def interleaved(steps: dict[str, Callable[[], None]], turns: int, device: str) -> dict[str, float]:
    """Return the median milliseconds of each contestant's step; they take turns, after two turns to warm up."""
    took: dict[str, list[float]] = {name: [] for name in steps}
    counts = {name: _FIRST[device[:3]] if name in _SHORT else 1 for name in steps}
    for turn in range(-2, turns):
        for name, step in steps.items():
            started = time.perf_counter()
            for _ in range(counts[name]):
                step()
            if device != "cpu":
                torch.cuda.synchronize()
            each = (time.perf_counter() - started) / counts[name]
            if turn >= 0:
                took[name].append(1e3 * each)
            elif turn == -1:
                counts[name] = max(1, round(_TURN / each))
    return {name: statistics.median(times) for name, times in took.items()}


def _memory(device: str) -> float:
    """The most that was held so far, in megabytes."""
    if device != "cpu":
        return torch.cuda.max_memory_allocated() / 1e6
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3


def _short(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    main()
