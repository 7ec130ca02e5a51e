"""What crosses between processes: parameters to out-neighbours alone, and small public words; never data."""

from __future__ import annotations

import json

import cluster
import numpy as np
import pytest

import runs
from privsgp import data
from privsgp.runs import config as configs
from privsgp.runs.resolve import make_graph
from privsgp.transport.world import blocks

PROCESSES, NODES, STEPS, DIM = 3, 11, 24, 64 * 8 + 8 + 8 * 10 + 10


@pytest.fixture(scope="module")
def watched(tmp_path_factory):
    """Run in three processes, each of which notes what it hands to torch.distributed and to the store."""
    folder = tmp_path_factory.mktemp("watched")
    config = runs.small(folder, cluster.IRREGULAR)
    cluster.train(folder / "said", config, folder / "out", PROCESSES, hook="cluster.watch", where=str(folder))
    notes = [[json.loads(line) for line in (folder / f"{r}.jsonl").read_text().splitlines()] for r in range(PROCESSES)]
    return make_graph(configs.read(config)), notes


def _crossing(graph, k):
    """Count the nodes of each process that send to each other one at step k."""
    owner = np.repeat(np.arange(PROCESSES), [len(block) for block in blocks(NODES, PROCESSES)])
    edges, counts = graph.edges(k), np.zeros((PROCESSES, PROCESSES), int)
    for source, process in set(zip(edges.source.tolist(), owner[edges.target].tolist(), strict=True)):
        counts[owner[source], process] += 1
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


def test_the_payload_is_that_of_nodes_with_out_neighbours_there(watched):
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


def _accuracies(notes):
    """Return what was told that is a share of 97 test records, by each process."""
    said = [[json.loads(note["said"]) for note in own if "said" in note] for own in notes]
    told = [[n for word in own if isinstance(word, list) for n in word if isinstance(n, float)] for own in said]
    return [[n for n in own if 0 < n < 1 and abs(97 * n - round(97 * n)) < 1e-9] for own in told]


@pytest.mark.parametrize("declared", [None, "public"])
def test_accuracy_on_a_sites_own_test_records_is_told_only_if_they_are_declared_public(tmp_path, declared):
    d, rows = data.load("digits"), np.random.default_rng(0).permutation(300)[:97]
    for node in range(4):
        mine = slice(200 * node, 200 * node + 200)
        arrays = {"x": d.x[mine], "y": d.y[mine], "x_test": d.x_test[rows], "y_test": d.y_test[rows], "classes": 10}
        np.savez(tmp_path / f"site-{node}.npz", **arrays)
    own = f'path = "{tmp_path}/site-{{node}}.npz"' + (f'\ntest = "{declared}"' if declared else "")
    text = runs.SMALL.replace("seed = 7\n", "").replace("sizes = [300, 300, 300, 300]", own)
    config = runs.small(tmp_path, text.replace("steps = 30", "steps = 12"))
    summary = cluster.train(tmp_path / "said", config, tmp_path / "out", 2, hook="cluster.watch", where=str(tmp_path))
    notes = [[json.loads(line) for line in (tmp_path / f"{r}.jsonl").read_text().splitlines()] for r in range(2)]
    assert [bool(told) for told in _accuracies(notes)] == [declared is not None] * 2
    assert (summary["test_accuracy"] is None) == (declared is None)
    words = [(tmp_path / "said" / f"{rank}.err").read_text() for rank in range(2)]
    assert all(f"data.test = '{declared or 'private'}'" in said for said in words)
    kept = sorted(path.name for path in (tmp_path / "out" / "private").glob("metrics*"))
    assert kept == ([] if declared else ["metrics-0-1.jsonl", "metrics-2-3.jsonl"])
