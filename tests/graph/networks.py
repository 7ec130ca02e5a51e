"""Networks for the tests of this room."""

from __future__ import annotations

import networkx as nx
from hypothesis import strategies as st

from networkx_graphs import from_networkx
from privsgp.graph import NAMES, Graph, make
from privsgp.graph.sequences import _rows


@st.composite
def named(draw: st.DrawFn) -> Graph:
    name = draw(st.sampled_from(NAMES))
    nodes = draw(st.integers(1, 40).filter(lambda n: name != "torus" or n == 1 or _rows(n) > 1))
    degree = draw(st.integers(1, max(nodes - 1, 1)))
    return make(name, nodes, seed=draw(st.integers(0, 2**256 - 1)), degree=degree)


@st.composite
def irregular(draw: st.DrawFn) -> Graph:
    """A sequence of digraphs that is strongly connected over its period, though hardly ever in one step."""
    nodes, period = draw(st.integers(2, 7)), draw(st.integers(1, 4))
    order = draw(st.permutations(range(nodes)))
    node, step = st.integers(0, nodes - 1), st.integers(0, period - 1)
    graphs = [nx.DiGraph() for _ in range(period)]
    for graph in graphs:
        graph.add_nodes_from(range(nodes))
    for place in range(nodes):
        graphs[draw(step)].add_edge(order[place - 1], order[place])
    for k, i, j in draw(st.lists(st.tuples(step, node, node), max_size=12)):
        graphs[k].add_edge(i, j)
    return from_networkx(graphs)
