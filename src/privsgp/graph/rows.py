"""What `privsgp graph` prints: the constants of a graph as rows of words and numbers."""

from __future__ import annotations

from math import inf, log
from typing import TYPE_CHECKING

from privsgp.graph.assumptions import constants

if TYPE_CHECKING:
    from privsgp.graph.sequences import Graph


def table(graph: Graph, dim: int = 1) -> list[tuple[str, str]]:
    """Rows (label, value) on `graph` for a model of `dim` parameters; refuses a graph that fails `check`."""
    of = constants(graph, dim)
    seen = f" (first {of.horizon} steps)" if of.period is None else ""
    exact = ": agreement becomes exact" if of.spectral_gap == 1 else ""
    return [
        ("graph", graph.name),
        ("nodes", str(graph.nodes)),
        ("period", f"{of.period} step{'s' if of.period != 1 else ''}" if of.period else "none: every step differs"),
        ("messages a node sends per step, at most", str(of.max_out_degree)),
        ("doubly stochastic", "yes: push-sum weights stay 1" if of.doubly_stochastic else "no: push-sum at work"),
        ("B: steps until strongly connected", f"{of.B}{seen}"),
        ("Δ: diameter of those steps together", f"{of.diameter}{seen}"),
        ("ε: smallest share", f"{of.min_share:.4g}"),
        ("λ = 1 − nε^(ΔB)", _below_one(of.lemma.lam, of.lemma.log_one_minus_lam)),
        ("q = λ^(1/(ΔB+1))", _below_one(of.lemma.q, of.lemma.log_one_minus_q)),
        (
            f"bound on C (d = {dim})",
            "none: the lemma needs λ > 0" if of.lemma.log_c == inf else _power_of_ten(of.lemma.log_c),
        ),
        ("spectral gap per step", f"{of.spectral_gap:.4f}{exact}{seen}"),
    ]


def _below_one(value: float, log_rest: float) -> str:
    return f"{value:.4g}" if value < 0.999 else f"1 − {_power_of_ten(log_rest)}"


def _power_of_ten(log_value: float) -> str:
    """A number from its natural logarithm, also where it is beyond floating point."""
    exponent, rest = divmod(log_value / log(10), 1)
    digits = round(10**rest, 2)
    return f"{digits:.3g}e{exponent:+03.0f}" if digits < 10 else f"1e{exponent + 1:+03.0f}"
