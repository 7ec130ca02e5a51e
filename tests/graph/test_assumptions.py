from __future__ import annotations

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from networks import irregular, named

from networkx_graphs import from_networkx
from privsgp.errors import Refused
from privsgp.graph import Edges, check
from privsgp.graph.sequences import cyclic


@given(graph=named() | irregular())
def test_every_network_here_passes(graph):
    check(graph)


def test_a_sink_is_named_with_those_it_cuts_off():
    digraph = nx.DiGraph([(0, 1), (1, 2), (2, 0), (3, 0)])
    with pytest.raises(Refused, match="node 3 is never reached from node 0") as refusal:
        check(from_networkx([digraph]))
    assert refusal.value.what.count("never") == 1


def test_two_islands_are_refused():
    islands = nx.disjoint_union(nx.path_graph(2), nx.path_graph(3))
    with pytest.raises(Refused, match="node 0 is never reached from node 2"):
        check(from_networkx([islands, islands]))


@pytest.mark.parametrize(
    ("share", "says"),
    [
        ([0.5, 0.4, 1.0], "node 0 sends shares that sum to 0.9 at step 0"),
        ([1.5, -0.5, 1.0], "node 0 sends"),
        ([0.5, 0.5, np.nan], "node 1 sends shares that sum to nan"),
        ([0.0, 1.0, 1.0], "node 0 .* keeps 0"),
    ],
)
def test_wrong_columns_are_refused_with_node_and_sum(share, says):
    edges = Edges(np.array([0, 0, 1]), np.array([0, 1, 1]), np.array(share))
    with pytest.raises(Refused, match=says):
        check(cyclic("mine", 2, (edges,)))
