"""What a run costs besides privacy: messages, the table's memory, and time on this machine."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import torch

from privsgp.algorithms import ALGORITHMS, Block, Drawn, State
from privsgp.randomness.noise import Keyed, add_noise_

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from privsgp.graph import Graph
    from privsgp.planner.choose import Method
    from privsgp.planner.rehearsal import Rehearsal

BYTES = 4  # float32


def bytes_sent_per_node(graph: Graph, dim: int, steps: int) -> int:
    """Return what a node sends on average: x and its float64 weight w, to every out-neighbour at every step."""
    period = graph.period or min(steps, 64)
    messages = sum(len(graph.out_neighbours(k, i)) for k in range(period) for i in range(graph.nodes))
    return round(messages / period / graph.nodes * steps * (dim * BYTES + 8))


def table_bytes(rehearsal: Rehearsal, method: Method, samples: Sequence[int]) -> int:
    """Return the memory of all nodes' tables together; 0 for a method without one."""
    block = _block(rehearsal, method, nodes=1, batch=1)
    algorithm = ALGORITHMS[method.algorithm](block, method.settings)
    algorithm.begin(State.start(rehearsal.x0, 1).z)
    table = getattr(algorithm, "table", None)
    return 0 if table is None else round(table.entry_bytes * sum(samples))


def memory_bytes() -> int:
    """Return how much memory this machine has."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def seconds_per_step(rehearsal: Rehearsal, method: Method, nodes: int, batch: float, tries: int = 3) -> float:
    """Take a few steps with all nodes in this process, on stand-in data, and return the fastest."""
    block = _block(rehearsal, method, nodes, batch=max(1, round(batch)))
    algorithm = ALGORITHMS[method.algorithm](block, method.settings)
    state = State.start(rehearsal.x0, nodes)
    algorithm.begin(state.z)
    took = []
    for k in range(tries):
        started = time.perf_counter()
        state = algorithm.step(k, state)
        took.append(time.perf_counter() - started)
    return min(took)


def _block(rehearsal: Rehearsal, method: Method, nodes: int, batch: int) -> Block:
    """Return nodes that draw the same rows of a few stand-in samples at every step, and mix with one neighbour."""
    rows = min(batch, len(rehearsal.samples.y))
    mechanism = ALGORITHMS[method.algorithm].mechanism(
        method.settings, sigma=1e-9, batch=float(rows), samples=rows, kappa=0.0
    )
    index = torch.arange(batch) % rows
    source = Keyed(0)

    def place(t: Tensor) -> Tensor:
        return torch.cat([t[:rows], torch.zeros_like(t[:1])]).expand(nodes, -1, *t.shape[1:]).contiguous()

    def noise(k: int, g: Tensor) -> None:
        add_noise_(g, source, range(nodes), k, sigma=[1e-9] * nodes)

    return Block(
        mechanisms=[mechanism] * nodes,
        inputs=place(rehearsal.samples.x),
        targets=place(rehearsal.samples.y),
        gradient=rehearsal.gradient,
        sample=lambda _k: [Drawn(index.expand(nodes, -1), torch.ones(nodes, len(index), dtype=torch.bool))],
        noise=noise,
        mix=lambda _k, x, w: ((x + x.roll(1, 0)) / 2, w),
        release=lambda _k, _x: None,
        step_size=lambda _k: 0.0,
    )
