"""Who sends which share to whom at step `k`: the networks, the paper's assumptions on them, and what they cost."""

from privsgp.graph.assumptions import Constants, Lemma, check, check_symmetric, constants, table
from privsgp.graph.sequences import GRAPHS, NAMES, Edges, Graph, make, unconnected

__all__ = [
    "GRAPHS", "NAMES", "Constants", "Edges", "Graph", "Lemma", "check", "check_symmetric", "constants",
    "make", "table", "unconnected",
]  # fmt: skip
