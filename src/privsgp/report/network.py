"""The network over time: who sent to whom at a step, what got lost, and the push-sum weights.

All of it is public and follows from the configuration: the graph and, on a simulated network, its faults. Weights are
those of the run because the engine's own mixing computes them, on models without parameters to speak of.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from privsgp.runs import build
from privsgp.transport.connect import connect
from privsgp.transport.rendezvous import World

if TYPE_CHECKING:
    from collections.abc import Iterator

    from privsgp.graph import Graph
    from privsgp.report.reading import Run

MOST_NUMBERS = 120_000  # of links and weights on a page: a few hundred kB
NODES = 128  # above this a circle shows nothing


def moving(run: Run, room: int = MOST_NUMBERS) -> dict[str, Any] | None:
    """Return what the page's script draws: the steps it can show, links by step, lost ones, absent nodes, weights.

    About `room` numbers at most: a run of many steps is shown at some of them.
    `links` has one list [source, target, source, target, …] for each phase, and `phase` says which one a step has.
    """
    graph = build.make_graph(run.config)
    if graph.nodes > NODES or run.steps == 0 or graph.name in ("server", "alone"):
        return None
    repeats = graph.period is not None and run.faults is None
    shown = _shown(graph, run.steps, room, repeats=repeats)
    phases = range(graph.period or 0) if repeats else shown
    return {
        "nodes": graph.nodes,
        "steps": shown,
        "links": [_links(run, graph, k) for k in phases],
        "phase": [k % len(phases) for k in shown] if repeats else list(range(len(shown))),
        "lost": [] if repeats else [_lost(run, graph, k) for k in shown],
        "absent": [] if run.faults is None else [[*run.faults.down(k), *run.faults.left(k)] for k in shown],
        "weights": _weights(run, graph, shown),
    }


def _shown(graph: Graph, steps: int, room: int, *, repeats: bool) -> list[int]:
    """Return the steps of the slider: all of them, or as many as a page has room for."""
    links = 0 if repeats else len(graph.edges(0).source)
    most = max(2, room // (2 * links + graph.nodes))
    return [int(k) for k in np.unique(np.linspace(0, steps - 1, min(steps, most)).round())]


def _links(run: Run, graph: Graph, k: int) -> list[int]:
    source, target, _ = _messages(run, graph, k)
    return [int(i) for pair in zip(source, target, strict=True) for i in pair]


def _lost(run: Run, graph: Graph, k: int) -> list[int]:
    """Return the places of lost messages among the links of step k."""
    return [int(i) for i in np.flatnonzero(_messages(run, graph, k)[2])]


def _messages(run: Run, graph: Graph, k: int) -> tuple[np.ndarray[Any, Any], ...]:
    """Return source, target and whether it was lost, of the messages that were sent at step k."""
    edges = graph.edges(k)
    away = edges.source != edges.target
    source, target = edges.source[away], edges.target[away]
    if run.faults is None:
        return source, target, np.zeros(len(source), dtype=bool)
    lost, _ = run.faults.weather(k, len(source))
    there = ~np.isin(source, [*run.faults.down(k), *run.faults.left(k)]) & ~np.isin(target, run.faults.left(k))
    return source[there], target[there], lost[there]


def _weights(run: Run, graph: Graph, shown: list[int]) -> list[list[float]] | None:
    """Return the weights w before each step that is shown; None where they are 1 throughout."""
    wanted = set(shown)
    kept = [[round(float(v), 4) for v in w] for k, w in enumerate(_walk(run, graph, shown[-1] + 1)) if k in wanted]
    return None if all(v == 1 for w in kept for v in w) else kept


def _walk(run: Run, graph: Graph, steps: int) -> Iterator[torch.Tensor]:
    x, w = torch.zeros(graph.nodes, 1, dtype=torch.float64), torch.ones(graph.nodes, dtype=torch.float64)
    transport = connect(graph, x, World(), run.faults)
    for k in range(steps):
        yield w
        x, w = transport.mix(k, x, w)
