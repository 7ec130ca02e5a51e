from __future__ import annotations

from privsgp import graph as graphs
from privsgp.planner import estimates


def test_bytes_of_one_peer_and_of_all():
    assert estimates.bytes_sent_per_node(graphs.make("exponential", 16), 100, 10) == 10 * 408
    assert estimates.bytes_sent_per_node(graphs.make("complete", 16), 100, 10) == 15 * 10 * 408
