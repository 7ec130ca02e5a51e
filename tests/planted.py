"""Planted bugs: each is a patch to the shipped code path that breaks a promise, and the audit has to notice.

`python tests/planted.py` (make audit) audits every bug with 20 seeds, and the unpatched code too, prints
a table, and fails unless each bug is caught with every seed and the unpatched code gives no alarm.
"""

from __future__ import annotations

import argparse
import functools
import math
import sys
import tempfile
import time
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from multiprocessing import get_context
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import numpy as np
import torch
from sklearn.datasets import load_digits

from privsgp.algorithms import Block, Drawn, Exchange, PushSum, Release, State, Step
from privsgp.algorithms.block import clipped_mean
from privsgp.audit import attack as attacks
from privsgp.audit.attack import _Overheard, worst
from privsgp.audit.audit import AuditReport, audit
from privsgp.data.dataset import Dataset
from privsgp.engine import node_randomness
from privsgp.engine.node_randomness import NodeRandomness
from privsgp.engine.spec import RunSpec
from privsgp.errors import Refused
from privsgp.gradients import persons
from privsgp.gradients.per_sample import PerSample
from privsgp.gradients.persons import Persons, is_row
from privsgp.gradients.table import Table
from privsgp.randomness import noise as noises
from privsgp.randomness import pairwise
from privsgp.randomness.coins import draw_all
from privsgp.randomness.noise import add_noise_
from privsgp.research.gossip import DP2SGD
from privsgp.runs import config
from privsgp.runs.problem import Problem

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from torch import Tensor

    from privsgp.accounting.mechanisms import Mechanism
    from privsgp.accounting.pairwise import Pair, PairwiseCovariance
    from privsgp.gradients.per_sample import Piece
    from privsgp.randomness.noise import Source

    Draws = list[np.ndarray[Any, Any]]

CANARIES = 24
TAU = 5
LOCAL = {"local_steps": TAU}
LATER = 75  # steps, of 150
BARE = 10  # every tenth message carries the bare table mean
OWN_SHARE = 1 / 3  # of a node in a ring
WEIGHTED = {"difference_scale": 0.1, "batch": 2}  # few samples a step: a difference of full weight stands out
CLIPPED = {"difference_scale": 0.9, "difference_clip": 0.05, "batch": 2}  # so does one of full length


@dataclass(frozen=True)
class Bug:
    """A patch, the algorithms whose code path it breaks, and options of theirs that bring it out."""

    name: str
    patch: Callable[[], AbstractContextManager[object]]
    algorithms: tuple[str, ...] = ("privsgp", "privsgp-vr")
    options: dict[str, Any] = field(default_factory=dict)
    shared: bool = False  # of noise that nodes share
    persons: bool = False  # of samples that are persons with up to four rows


def no_noise(g: Tensor, source: Source, nodes: Sequence[int], step: int, **kept: Any) -> None:
    """Leave line 8 out."""
    del g, source, nodes, step, kept


def half_noise(g: Tensor, source: Source, nodes: Sequence[int], step: int, *, sigma: Sequence[float]) -> None:
    """Take σ/2."""
    add_noise_(g, source, nodes, step, sigma=[s / 2 for s in sigma])


def same_noise(g: Tensor, source: Source, nodes: Sequence[int], step: int, *, sigma: Sequence[float]) -> None:
    """Use the noise of an even step again at the odd one that follows."""
    add_noise_(g, source, nodes, step - step % 2, sigma=sigma)


def no_clip(self: PerSample, radius: float, mask: Tensor | None = None, *, exact: bool | None = None) -> None:
    """Mask, but do not clip."""
    del radius
    self.exact = self.exact if exact is None else exact
    for piece in self.pieces:
        if mask is not None:
            piece.scale_(mask.to(torch.float64))


def bare_mean(self: PushSum, k: int, s: State) -> Step:
    """Send the table's mean as it is, now and then."""
    bare = patch.object(self.block.random, "noise", lambda _k, g: g.copy_(self.arrays()["mean"]))
    with bare if k % BARE == BARE - 1 else nullcontext():
        return (yield from _step(self, k, s))


def once_a_message(g: Tensor, source: Source, nodes: Sequence[int], step: int, *, sigma: Sequence[float]) -> None:
    """Add noise to the last step of a message alone, as much as all of its steps would."""
    if step % TAU == TAU - 1:
        add_noise_(g, source, nodes, step, sigma=[s * math.sqrt(TAU) for s in sigma])


def shared_once_a_message(self: pairwise._OfNodes, out: Tensor, step: int) -> None:
    """Let pairs share noise at the last step of a message alone."""
    _fill_shared(self, out, step)
    out.mul_(math.sqrt(TAU) * (step % TAU == TAU - 1))


def eager_draw(*drawn: Any) -> list[np.ndarray[Any, Any]]:
    """Draw the canaries, which are the first samples of every node, at every step."""
    return [np.union1d(samples, np.arange(CANARIES)) for samples in draw_all(*drawn)]


def bare_self(self: DP2SGD, k: int, s: State) -> Step:
    """Keep an own model without noise beside the one that is sent, and average that with what arrives."""
    g = clipped_mean(self.block, s.z, self.block.random.sample(k))
    noised = g.clone()
    self.block.random.noise(k, noised)
    x, _ = yield Exchange(s.x, s.w)
    bare = getattr(self, "bare", s.x)
    x = x + OWN_SHARE * (bare - s.x)
    self.bare = x - self.block.step_size(k) * g  # type: ignore[attr-defined]
    x = x - self.block.step_size(k) * noised
    yield Release(x)
    return State(x, s.w, s.z.copy_(x))


def other_step(g: Tensor, source: Source, nodes: Sequence[int], step: int, *, sigma: Sequence[float]) -> None:
    """Use noise again 75 steps later."""
    add_noise_(g, source, nodes, step % LATER, sigma=sigma)


def one_noise(g: Tensor, source: Source, nodes: Sequence[int], step: int, *, sigma: Sequence[float]) -> None:
    """Add the first node's noise at all nodes."""
    for row in range(len(nodes)):
        add_noise_(g[row : row + 1], source, nodes[:1], step, sigma=sigma[row : row + 1])


def shuffled(source: Source, mechanisms: Sequence[Mechanism], nodes: Sequence[int], step: int) -> Draws:
    """Go through all samples in a random order, then again in another."""

    def of_node(node: int, samples: int, size: int) -> np.ndarray[Any, Any]:
        epochs, places = np.divmod(np.arange(step * size, (step + 1) * size), samples)
        orders = {e: np.argsort(source.coins([node], int(e), samples)[0]) for e in np.unique(epochs)}
        return np.unique([orders[e][place] for e, place in zip(epochs, places, strict=True)])

    return [of_node(i, m.samples, round(m.batch)) for i, m in zip(nodes, mechanisms, strict=True)]


def same_draw(source: Source, mechanisms: Sequence[Mechanism], nodes: Sequence[int], step: int) -> Draws:
    """Take the samples of the first step at every step."""
    del step
    return draw_all(source, mechanisms, nodes, 0)


def one_coin(source: Source, mechanisms: Sequence[Mechanism], nodes: Sequence[int], step: int) -> Draws:
    """Take all samples of a node, or none."""
    coins = source.coins(nodes, step, 1)[:, 0] / 2.0**64
    return [np.arange(m.samples if coin < m.rate else 0) for coin, m in zip(coins, mechanisms, strict=True)]


def drawn_size(self: PushSum, k: int, s: State) -> Step:
    """Divide by the number of drawn samples."""
    inner = self.block.random.sample

    def sample(k: int) -> list[Drawn]:
        batch = inner(k)
        size = sum(drawn.mask.sum(1, keepdim=True) for drawn in batch).clamp(min=1).double()  # type: ignore[union-attr]
        weight = self.block.column([getattr(m, "difference_scale", 1.0) for m in self.block.mechanisms])
        vars(self.block).update(b=size, b_over_scale=size / weight)
        return batch

    with patch.object(self.block.random, "sample", sample):
        return (yield from _step(self, k, s))


def no_weight(self: Block) -> Tensor:
    """Divide sums of differences by b where b/θ is counted."""
    return self.b


def unclipped(self: Table, old: Sequence[Piece], new: Sequence[Piece], C: float) -> list[Piece]:
    """Replace entries, however far that is."""
    del C
    return _towards(self, old, new, 2 * self.clip)


def own_left_out(self: pairwise._OfNodes, g: Tensor, nodes: Sequence[int], step: int) -> None:
    """Add what pairs share, and nothing of one's own."""
    del nodes
    self.begin(step, g)
    g.add_(self._shared)


def used_twice(self: pairwise._OfNodes, out: Tensor, step: int) -> None:
    """Use the pairs' numbers of an even step again at the odd one that follows."""
    _fill_shared(self, out, step - step % 2)
    told = self.pairs
    if isinstance(told, _Overheard):  # the attacker is told the numbers that serve, whatever they are called
        told.numbers |= {(pair, step): row for (pair, k), row in list(told.numbers.items()) if k == step - step % 2}


def same_sign(self: pairwise._OfNodes, out: Tensor, group: Sequence[Pair], u: Tensor) -> None:
    """Add a pair's numbers at both ends."""
    mirrored = u.clone()
    _share(self, out, group, u)
    for row, (_, j) in zip(mirrored, group, strict=True):
        if j in self.here.nodes:
            out[j - self.here.nodes.start].add_(row, alpha=2 * self._pair[j])


def larger_coalition(covariance: PairwiseCovariance, node: int, honest: int) -> list[int]:
    """Leave half as many honest as were counted."""
    return worst(covariance, node, honest // 2)


def rows_clipped(self: Persons, z: Tensor, inputs: Tensor, targets: Tensor) -> PerSample:
    """Clip each row of a person by itself, and add them up."""
    real = is_row(targets)
    g = self.by_row(z, inputs.flatten(1, 2), targets.flatten(1, 2).clamp(min=0))
    g.clip_(1.0, real.flatten(1))
    found = PerSample([persons._joined(piece, inputs.shape[2]) for piece in g.pieces])
    found.clip_ = lambda radius, mask, *, exact=None: PerSample.clip_(found, math.inf, mask, exact=exact)
    return found


def in_halves(self: Dataset, rows: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Make two samples of a person with more than two rows."""
    first = _first_rows(self, rows)
    place = np.arange(len(rows)) - np.flatnonzero(first)[np.cumsum(first) - 1]
    return np.asarray(first | ((place == 2) & (self.persons is not None)))


@contextmanager
def rows_counted() -> Iterator[None]:
    """Count the rows of each node, and draw persons; the check of the run is off."""
    rows = property(lambda problem: [len(rows) for rows in problem.parts])

    def of_persons(self: NodeRandomness, k: int) -> list[Drawn]:
        counted = zip(self.spec.mechanisms, self._samples[:, 0].tolist(), strict=True)
        drawn = [SimpleNamespace(samples=J, batch=m.batch, rate=m.batch / J, sampling=m.sampling) for m, J in counted]
        with patch.object(
            node_randomness, "draw_all", lambda source, _, nodes, step: draw_all(source, drawn, nodes, step)
        ):
            return _sample(self, k)

    unchecked = patch.object(RunSpec, "__post_init__", lambda _: None)
    with patch.object(Problem, "samples", rows), unchecked, patch.object(NodeRandomness, "sample", of_persons):
        yield


_sample = NodeRandomness.sample
_first_rows = Dataset.first_rows
_step, _towards = PushSum.step, Table._towards  # patches call what they replace

_fill_shared, _share = pairwise._OfNodes._fill_shared, pairwise._OfNodes._share

NOTHING = Bug("nothing", nullcontext, ("privsgp", "privsgp-vr", "privsgp-sag", "dp2-sgd"))
QUIET = (
    NOTHING,
    Bug("nothing, weight θ = 0.1", nullcontext, ("privsgp-vr",), WEIGHTED),
    Bug("nothing, local steps", nullcontext, ("privsgp", "privsgp-vr"), LOCAL),
    Bug("nothing, weight θ = 0.9 and clip C = 0.05", nullcontext, ("privsgp-vr",), CLIPPED),
)
BUGS = (
    Bug("noise left out", lambda: patch.object(noises, "add_noise_", no_noise)),
    Bug("noise at half", lambda: patch.object(noises, "add_noise_", half_noise)),
    Bug("noise once a message", lambda: patch.object(noises, "add_noise_", once_a_message), options=LOCAL),
    Bug("noise used twice", lambda: patch.object(noises, "add_noise_", same_noise)),
    Bug("noise used again 75 steps later", lambda: patch.object(noises, "add_noise_", other_step)),
    Bug("one noise for all nodes", lambda: patch.object(noises, "add_noise_", one_noise)),
    Bug("clip left out", lambda: patch.object(PerSample, "clip_", no_clip), ("privsgp", "privsgp-vr", "privsgp-sag")),
    Bug("table mean without noise", lambda: patch.object(PushSum, "step", bare_mean), ("privsgp-vr",)),
    Bug(
        "weight θ counted, not applied",
        lambda: patch.object(Block, "b_over_scale", property(no_weight)),
        ("privsgp-vr",),
        WEIGHTED,
    ),
    Bug(
        "difference clip counted, not applied",
        lambda: patch.object(Table, "_towards", unclipped),
        ("privsgp-vr",),
        CLIPPED,
    ),
    Bug("canary always drawn", lambda: patch.object(node_randomness, "draw_all", eager_draw)),
    Bug("samples shuffled, not drawn", lambda: patch.object(node_randomness, "draw_all", shuffled)),
    Bug("same coins at every step", lambda: patch.object(node_randomness, "draw_all", same_draw)),
    Bug("one coin for all samples", lambda: patch.object(node_randomness, "draw_all", one_coin)),
    Bug("divided by the drawn size", lambda: patch.object(PushSum, "step", drawn_size)),
    Bug("own term without noise", lambda: patch.object(DP2SGD, "step", bare_self), ("dp2-sgd",)),
)
SHARED_NOTHING = Bug("nothing, pairwise", nullcontext, ("privsgp", "privsgp-vr", "privsgp-sag", "dp2-sgd"), shared=True)
SHARED_BUGS = (
    Bug("own noise left out", lambda: patch.object(pairwise._OfNodes, "add_", own_left_out), shared=True),
    Bug(
        "pairs' noise once a message",
        lambda: patch.object(pairwise._OfNodes, "_fill_shared", shared_once_a_message),
        options=LOCAL,
        shared=True,
    ),
    Bug("pair's numbers used twice", lambda: patch.object(pairwise._OfNodes, "_fill_shared", used_twice), shared=True),
    Bug("same sign at both ends", lambda: patch.object(pairwise._OfNodes, "_share", same_sign), shared=True),
    Bug("larger coalition", lambda: patch.object(attacks, "worst", larger_coalition), shared=True),
)
METHODS = ("privsgp", "privsgp-vr", "privsgp-sag", "dp2-sgd")
PERSONS_NOTHING = Bug("nothing, persons", nullcontext, METHODS, persons=True)
PERSON_BUGS = (
    Bug(
        "each row of a person clipped",
        lambda: patch.object(Persons, "__call__", rows_clipped),
        ("privsgp", "dp2-sgd"),
        persons=True,
    ),
    Bug("a person in two samples", lambda: patch.object(Dataset, "first_rows", in_halves), METHODS, persons=True),
    Bug("J counts rows", rows_counted, ("privsgp", "privsgp-vr", "dp2-sgd"), persons=True),  # SAG's ε counts no coins
)
ALL = (*QUIET, *BUGS, SHARED_NOTHING, *SHARED_BUGS, PERSONS_NOTHING, *PERSON_BUGS)


@functools.cache
def people() -> str:
    """Write digits of persons with one to six rows each, and return the file."""
    x, y = load_digits(return_X_y=True)
    whose = np.repeat(np.arange(700), np.random.default_rng(0).integers(1, 7, 700))[: len(y)]
    path = tempfile.mkdtemp() + "/persons.npz"
    np.savez(path, x=x / 16, y=y, person=whose, classes=10)
    return path


def attack(bug: Bug, algorithm: str, seed: int) -> AuditReport:
    """Audit a small standard run with the bug in place."""
    nodes = 6 if bug.shared else 4
    values = {
        "name": "planted",
        "seed": seed,
        "data": {"name": "digits", "nodes": nodes, "sizes": [1400 // nodes] * nodes},
        "model": {"name": "logistic"},
        "graph": {"name": "ring" if algorithm == "dp2-sgd" else "exponential"},
        "privacy": {"sigma": 0.05} | ({"noise": "pairwise", "honest": 4} if bug.shared else {}),
        "algorithm": {"name": algorithm, "batch": 32, "steps": 150} | bug.options,
    }
    if bug.persons:
        values["data"] = {"name": people(), "nodes": nodes, "person": "person", "rows_per_person": 4}
    with bug.patch():
        return audit(config.parse(values), canaries=CANARIES, seed=seed, observations=1)


def main(arguments: Sequence[str] | None = None) -> int:
    """Audit everything and print what was caught."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=20)
    seeds = parser.parse_args(arguments).seeds
    cases = [(index, algorithm) for index, bug in enumerate(ALL) for algorithm in bug.algorithms]
    started, good = time.perf_counter(), True
    with get_context("spawn").Pool(2) as pool:
        for (index, algorithm), alarms in zip(cases, pool.imap(_alarms, _jobs(cases, seeds)), strict=True):
            quiet = ALL[index] in (*QUIET, SHARED_NOTHING, PERSONS_NOTHING)
            right = sum(alarms) == (0 if quiet else seeds)
            good &= right
            verdict = "" if right else "   NOT AS IT SHOULD BE"
            print(
                f"{ALL[index].name:42} {algorithm:12} {sum(alarms):3} alarms in {seeds}{verdict}",
                flush=True,
            )
    print(f"{time.perf_counter() - started:.0f} s")
    return 0 if good else 1


def _jobs(cases: Sequence[tuple[int, str]], seeds: int) -> Iterator[tuple[int, str, int]]:
    return ((index, algorithm, seeds) for index, algorithm in cases)


def _alarms(spec: tuple[int, str, int]) -> list[bool]:
    index, algorithm, seeds = spec
    torch.set_num_threads(1)
    return [_alarm(ALL[index], algorithm, seed) for seed in range(seeds)]


def _alarm(bug: Bug, algorithm: str, seed: int) -> bool:
    """Tell whether a bug is noticed: by the audit, or because the engine refuses such a run before its first step."""
    try:
        return attack(bug, algorithm, seed).alarm
    except Refused as refusal:
        return "counted as if they held" in str(refusal)


if __name__ == "__main__":
    sys.exit(main())
