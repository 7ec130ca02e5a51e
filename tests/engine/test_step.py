"""Who hears from whom, as the step on a GPU wants it: rows of senders."""

from __future__ import annotations

import numpy as np
import pytest

from privsgp import graph
from privsgp.engine.step import peers

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
