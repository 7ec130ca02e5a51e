"""The coalition that an audit attacks with: as bad as brute force finds."""

from __future__ import annotations

from itertools import combinations

import pytest

from privsgp.accounting.pairwise import conditional
from privsgp.accounting.sharing import solve
from privsgp.audit import attack


@pytest.mark.parametrize(("nodes", "honest"), [(6, 4), (8, 6), (12, 9)])
def test_no_coalition_leaves_a_node_less(nodes, honest):
    """And σ_eff as it is counted is below what is left."""
    covariance = solve([1.0 + 0.01 * i for i in range(nodes)], honest, 2.0)
    for node in (0, nodes - 1):
        found = attack.worst(covariance, node, honest)
        assert found[0] == node
        assert len(set(found)) == honest
        others = [j for j in range(nodes) if j != node]
        least = min(conditional(covariance, [node, *H]) for H in combinations(others, honest - 1))
        assert conditional(covariance, found) == pytest.approx(least, rel=1e-9)
        assert covariance.effective(honest)[node] ** 2 <= least
