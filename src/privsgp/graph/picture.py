"""A picture of a graph as SVG: nodes on a circle, the messages of a period as arrows.

What `privsgp graph` prints: the constants of a graph as rows of words and numbers.
"""

from __future__ import annotations

from cmath import exp
from math import ceil, inf, log, pi
from pathlib import Path
from typing import TYPE_CHECKING

from privsgp.errors import Refused
from privsgp.files import write
from privsgp.graph.assumptions import constants

if TYPE_CHECKING:
    from collections.abc import Iterator

    from privsgp.graph.sequences import Graph

_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#8a6d00", "#56b4e9")  # of Okabe and Ito
_MOST = 8  # steps in a picture
_SIZE = 300


def draw(graph: Graph, path: str | Path) -> None:
    """Write the first steps of a graph to an .svg file, each step in its colour."""
    if Path(path).suffix != ".svg":
        raise Refused(f"the picture {str(path)!r} is no .svg file", "give it a name that ends in .svg")
    try:
        write(Path(path), _circle(graph) + "\n")
    except OSError as error:
        raise Refused(f"the picture {str(path)!r} cannot be written: {error}", "name a folder that exists") from error


def _circle(graph: Graph) -> str:
    """Return a drawing of a period, of eight steps of a longer one, or of four if the graph never repeats."""
    named = 'role="img" aria-label="Sites on a circle, an arrow for each message"'
    frame = f'xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_SIZE} {_SIZE}" {named}'
    parts = [line for k in range(min(graph.period or 4, _MOST)) for line in _step(graph, k)]
    for i in range(graph.nodes):
        at, label = _place(graph, i), _place(graph, i, 1.13)
        parts.append(f'<circle cx="{at.real:.1f}" cy="{at.imag:.1f}" r="{min(5, 120 / graph.nodes + 1):.1f}"/>')
        if i % ceil(graph.nodes / 64) == 0:
            parts.append(f'<text x="{label.real:.1f}" y="{label.imag + 4:.1f}" text-anchor="middle">{i}</text>')
    return f'<svg {frame} font-size="11" fill="currentColor">{"".join(parts)}</svg>'


def _step(graph: Graph, k: int) -> Iterator[str]:
    """Draw the messages of a step; a line without a head goes both ways."""
    edges, colour = graph.edges(k), _COLOURS[k % len(_COLOURS)]
    sent = {(i, j) for i, j in zip(edges.source.tolist(), edges.target.tolist(), strict=True) if i != j}
    lines = [(i, j) for i, j in sorted(sent) if i < j or (j, i) not in sent]
    wide = min(1.4, max(0.3, 60 / max(len(lines), 1)))
    for i, j in lines:
        start, end = _place(graph, i), _place(graph, j)
        yield f'<path d="{_outline(start, end)}" fill="none" stroke="{colour}" stroke-width="{wide:.1f}"/>'
        if (j, i) not in sent:
            along = (end - start) / abs(end - start)
            head = [end - along * corner for corner in (5, 13 + 4j, 13 - 4j)]  # it stops before the node
            yield f'<path d="{_outline(*head)}Z" fill="{colour}"/>'


def _place(graph: Graph, node: int, radius: float = 1.0) -> complex:
    """Return where a node is, x + iy downwards: node 0 on top, then clockwise."""
    return _SIZE / 2 + 1j * _SIZE / 2 - 120j * radius * exp(2j * pi * node / graph.nodes)


def _outline(*points: complex) -> str:
    return "M" + "L".join(f"{point.real:.1f} {point.imag:.1f}" for point in points)


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
