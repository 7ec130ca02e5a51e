"""The coalition that an audit attacks with: as bad as brute force finds, on complete and on sparse noise graphs."""

from __future__ import annotations

from itertools import combinations

import pytest

from privsgp.accounting.pairwise import NoiseGraph, PairwiseCovariance, conditional, solve
from privsgp.audit import collusion


@pytest.mark.parametrize("tried", [0, 10**6])
@pytest.mark.parametrize(("nodes", "degree", "honest"), [(6, None, 4), (8, 4, 6), (12, 6, 9), (14, 8, 10)])
def test_no_coalition_leaves_a_node_less(monkeypatch, nodes, degree, honest, tried):
    """Whether all are tried or nodes are taken in one by one; and σ_eff as it is counted is below what is left."""
    monkeypatch.setattr(collusion, "_TRIED", tried)
    covariance = solve([1.0] * nodes, honest, 2.0, NoiseGraph(nodes, degree))
    for node in (0, nodes - 1):
        found = collusion.worst(covariance, node, honest)
        assert found[0] == node
        assert len(set(found)) == honest
        others = [j for j in range(nodes) if j != node]
        least = min(conditional(covariance, [node, *H]) for H in combinations(others, honest - 1))
        assert conditional(covariance, found) == pytest.approx(least, rel=1e-9)
        assert covariance.effective(honest)[node] ** 2 <= least


def test_on_a_sparse_graph_partners_collude_first():
    """The nodes with the least noise of their own, which are the worst where all pairs share noise, leave more."""
    graph = NoiseGraph(12, 6)
    covariance = PairwiseCovariance(graph, tuple(1 + 0.001 * i for i in range(12)), 2.0)
    partners = {j for pair in graph.pairs for j in pair if 0 in pair} - {0}
    found = collusion.worst(covariance, 0, 9)
    assert set(range(12)) - set(found) <= partners
    assert conditional(covariance, found) < 0.95 * conditional(covariance, range(9))
