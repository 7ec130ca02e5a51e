"""Who hears from whom, as the step on a GPU wants it: rows of senders, and cycles."""

from __future__ import annotations

import numpy as np
import pytest

from privsgp import graph
from privsgp.engine.step import cycles, peers

FAMILIES = ["exponential", "exponential-static", "ring", "ring-directed", "complete", "torus"]


@pytest.mark.parametrize("name", FAMILIES)
def test_rows_of_senders_are_the_graph_s_matrix(name):
    network, matrix = graph.make(name, 9), np.zeros((9, 9))
    source, share = peers(network, 1)
    for i, (senders, shares) in enumerate(zip(source, share, strict=True)):
        np.add.at(matrix[i], senders, shares)
    edges, wanted = network.edges(1), np.zeros((9, 9))
    wanted[edges.target, edges.source] = edges.shares(np.float32)
    np.testing.assert_array_equal(matrix, wanted)


@pytest.mark.parametrize("n", [2, 3, 6, 16, 50])
@pytest.mark.parametrize("name", ["exponential", "ring-directed"])
def test_everybody_is_on_one_cycle_behind_the_one_it_hears_from(name, n):
    network = graph.make(name, n)
    for k in range(network.period):
        order, own, heard = cycles(network, k)
        edges = network.edges(k)
        hears = {int(t): int(s) for t, s in zip(edges.target, edges.source, strict=True) if t != s}
        assert sorted(order.ravel()) == list(range(n))
        assert {int(b): int(a) for row in order for a, b in zip(np.roll(row, 1), row, strict=True)} == hears
        assert (own == 0.5).all()
        assert (heard == 0.5).all()


@pytest.mark.parametrize("name", ["exponential-static", "ring", "complete", "torus"])
def test_a_graph_of_more_senders_has_no_cycles_to_walk(name):
    assert cycles(graph.make(name, 9), 0) is None


def test_weights_that_change_and_cycles_of_different_lengths_are_not_walked():
    def network(shares, successors):
        matrix = np.zeros((len(successors), len(successors)))
        for j, (share, i) in enumerate(zip(shares, successors, strict=True)):
            matrix[j, j], matrix[i, j] = 1 - share, share
        return _Fixed(matrix)

    assert cycles(network([0.5] * 4, [1, 0, 3, 2]), 0) is not None
    assert cycles(network([0.5, 0.25, 0.5, 0.5], [1, 0, 3, 2]), 0) is None
    assert cycles(network([0.5] * 5, [1, 0, 3, 4, 2]), 0) is None


class _Fixed:
    """A graph with the same matrix at every step."""

    def __init__(self, matrix):
        target, source = np.nonzero(matrix)
        self.nodes = len(matrix)
        self._edges = graph.Edges(source, target, matrix[target, source])

    def edges(self, _k):
        return self._edges
