"""Networks: the shares that nodes send at step `k`, the paper's assumptions, and the traffic."""

from privsgp.graph.assumptions import Constants, Lemma, check, check_symmetric, constants, table
from privsgp.graph.sequences import GRAPHS, NAMES, Edges, EveryFew, Graph, make, unconnected

__all__ = [
    "GRAPHS", "NAMES", "Constants", "Edges", "EveryFew", "Graph", "Lemma", "check", "check_symmetric", "constants",
    "make", "table", "unconnected",
]  # fmt: skip
