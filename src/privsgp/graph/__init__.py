"""Networks: the shares that nodes send at step `k`, the paper's assumptions, and the traffic."""

from privsgp.graph.assumptions import check, check_symmetric
from privsgp.graph.sequences import GRAPHS, NAMES, Edges, Graph, described, every_few, make, unconnected

__all__ = [
    "GRAPHS", "NAMES", "Edges", "Graph", "check", "check_symmetric", "described", "every_few", "make", "unconnected",
]  # fmt: skip
