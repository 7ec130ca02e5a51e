"""Who sends which share to whom at step `k`: the networks, the paper's assumptions on them, and what they cost."""

from privsgp.graph.assumptions import Constants, Lemma, check, check_symmetric, constants
from privsgp.graph.families import GRAPHS, NAMES, make, unconnected
from privsgp.graph.rows import table
from privsgp.graph.sequences import Edges, Graph, from_networkx

__all__ = [
    "GRAPHS", "NAMES", "Constants", "Edges", "Graph", "Lemma", "check", "check_symmetric", "constants",
    "from_networkx", "make", "table", "unconnected",
]  # fmt: skip
