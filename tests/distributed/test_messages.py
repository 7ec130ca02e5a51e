"""What crosses between processes: parameters to out-neighbours alone, and small public words; never data."""

from __future__ import annotations

import json

import cluster
import numpy as np
import pytest

import runs
from privsgp import config as configs
from privsgp import jobs
from privsgp.engine.rendezvous import blocks

PROCESSES, NODES, STEPS, DIM = 3, 11, 24, 64 * 8 + 8 + 8 * 10 + 10


@pytest.fixture(scope="module")
def watched(tmp_path_factory):
    """Run in three processes, each of which notes what it hands to torch.distributed and to the store."""
    folder = tmp_path_factory.mktemp("watched")
    config = runs.small(folder, cluster.IRREGULAR)
    cluster.train(folder / "said", config, folder / "out", PROCESSES, hook="cluster.watch", where=str(folder))
    notes = [[json.loads(line) for line in (folder / f"{r}.jsonl").read_text().splitlines()] for r in range(PROCESSES)]
    return jobs.make_graph(configs.read(config)), notes


def _crossing(graph, k):
    """Count the edges from each process to each other one at step k."""
    owner = np.repeat(np.arange(PROCESSES), [len(block) for block in blocks(NODES, PROCESSES)])
    edges, counts = graph.edges(k), np.zeros((PROCESSES, PROCESSES), int)
    np.add.at(counts, (owner[edges.source], owner[edges.target]), 1)
    np.fill_diagonal(counts, 0)
    return counts


def test_one_message_per_pair_of_processes_and_step_to_out_neighbours_alone(watched):
    graph, notes = watched
    for rank in range(PROCESSES):
        steps = [note["messages"] for note in notes[rank] if "messages" in note]
        assert len(steps) == STEPS
        for k, sent in enumerate(steps):
            expected = _crossing(graph, k)[rank]
            assert sorted(to for to, _ in sent) == list(np.flatnonzero(expected))


def test_the_payload_is_that_of_the_edges_between_processes(watched):
    graph, notes = watched
    for k in range(STEPS):
        sent = [[note["messages"] for note in own if "messages" in note][k] for own in notes]
        on_the_wire = sum(size for own in sent for _, size in own)
        assert _crossing(graph, k).sum() * DIM * 4 <= on_the_wire <= 1.05 * _crossing(graph, k).sum() * DIM * 4


def test_there_is_one_gather_and_no_other_collective(watched):
    _, notes = watched
    others = [[note for note in own if "other" in note] for own in notes]
    sizes = [8 * (-(-len(block) * DIM * 4 // 8) + len(block) + 5) for block in blocks(NODES, PROCESSES)]  # and an end
    assert others == [[], *([{"other": "send", "to": 0, "bytes": size}] for size in sizes[1:])]


def test_what_goes_through_the_store_is_small_and_known(watched):
    """Numbers of steps, sizes, noise levels, test metrics, hashes of public things: nothing of the length of data."""
    _, notes = watched
    words = [json.loads(note["said"]) for own in notes for note in own if "said" in note]
    assert words
    for word in words:
        flat = json.dumps(word)
        assert len(flat) < 2500
        numbers = word if isinstance(word, list) else []
        assert len(numbers) <= 4  # one for each of a process's nodes, at most
