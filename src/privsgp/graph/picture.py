"""A picture of a graph as SVG: nodes on a circle, the messages of a period as arrows.

What `privsgp graph` prints: the constants of a graph as rows of words and numbers.
"""

from __future__ import annotations

from math import acos, ceil, cos, hypot, inf, log, pi, sin, sqrt
from pathlib import Path
from typing import TYPE_CHECKING

from privsgp.errors import Refused
from privsgp.files import write
from privsgp.graph.convergence import constants

if TYPE_CHECKING:
    from collections.abc import Sequence

    from privsgp.graph.sequences import Graph

    Point = tuple[float, float]

_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#8a6d00", "#56b4e9")  # of Okabe and Ito
_MOST = 8  # steps in a picture
_SIZE, _RADIUS = 300, 120


def draw(graph: Graph, path: str | Path) -> None:
    """Write the first steps of a graph to an .svg file, each step in its colour."""
    if Path(path).suffix != ".svg":
        raise Refused(f"the picture {str(path)!r} is no .svg file", "give it a name that ends in .svg")
    drawn = circle(graph, range(first_steps(graph))).replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1)
    try:
        write(Path(path), drawn + "\n")
    except OSError as error:
        raise Refused(f"the picture {str(path)!r} cannot be written: {error}", "name a folder that exists") from error


def first_steps(graph: Graph) -> int:
    """Return how many steps a picture shows: a period, if that is short, and four if the graph never repeats."""
    return min(graph.period or 4, _MOST)


def circle(graph: Graph, steps: Sequence[int]) -> str:
    """Return one drawing of some steps together, in the colour of the text around it."""
    frame = f'viewBox="0 0 {_SIZE} {_SIZE}" role="img" aria-label="Sites on a circle, an arrow for each message"'
    return f'<svg {frame} font-size="11" fill="currentColor">{_links(graph, steps)}</svg>'


def _links(graph: Graph, steps: Sequence[int]) -> str:
    angles = [pi / 2 - 2 * pi * i / graph.nodes for i in range(graph.nodes)]  # node 0 on top, then clockwise
    places = [(cos(angle), sin(angle)) for angle in angles]
    parts = [arrow for k in steps for arrow in _step(graph, k, places)]
    for i, (x, y) in enumerate(places):
        parts.append(f'<circle cx="{_across(x)}" cy="{_down(y)}" r="{min(5, 120 / graph.nodes + 1):.1f}"/>')
        if i % ceil(graph.nodes / 64) == 0:
            parts.append(f'<text x="{_across(1.13 * x)}" y="{_down(1.13 * y - 0.03)}" text-anchor="middle">{i}</text>')
    return "".join(parts)


def _step(graph: Graph, k: int, places: Sequence[Point]) -> list[str]:
    """Draw the messages of a step; a line without a head goes both ways."""
    edges, colour = graph.edges(k), _COLOURS[k % len(_COLOURS)]
    sent = {(int(i), int(j)) for i, j in zip(edges.source, edges.target, strict=True) if i != j}
    lines = [(i, j) for i, j in sorted(sent) if i < j or (j, i) not in sent]
    wide = min(1.4, max(0.3, 60 / max(len(lines), 1)))
    drawn = []
    for i, j in lines:
        (x, y), (u, v), bend = places[i], places[j], _bend(places[i], places[j])
        ends = f"M{_across(x)} {_down(y)}Q{_across(bend[0])} {_down(bend[1])} {_across(u)} {_down(v)}"
        drawn.append(f'<path d="{ends}" fill="none" stroke="{colour}" stroke-width="{wide:.1f}"/>')
        if (j, i) not in sent:
            drawn.append(f'<path d="{_head(bend, places[j])}" fill="{colour}"/>')
    return drawn


def _head(start: Point, end: Point) -> str:
    """Return the outline of an arrow's head that stops before the node."""
    far = hypot(end[0] - start[0], end[1] - start[1]) or 1.0
    u, v = (end[0] - start[0]) / far, (end[1] - start[1]) / far
    corners = [(end[0] - a * u - b * v, end[1] - a * v + b * u) for a, b in ((0.04, 0), (0.11, 0.03), (0.11, -0.03))]
    return "M" + "L".join(f"{_across(x)} {_down(y)}" for x, y in corners) + "Z"


def _bend(start: Point, end: Point) -> Point:
    """Return a control point nearer to the centre the further the hop, so that hops of different length stay apart."""
    middle = (start[0] + end[0]) / 2, (start[1] + end[1]) / 2
    radius = hypot(*middle)
    inward = 0.4 * radius + 0.6 * (1 - sqrt(2 * acos(min(radius, 1.0)) / pi))
    return middle[0] * inward / max(radius, 1e-9), middle[1] * inward / max(radius, 1e-9)


def _across(x: float) -> str:
    return f"{_SIZE / 2 + _RADIUS * x:.1f}"


def _down(y: float) -> str:
    return f"{_SIZE / 2 + 10 - _RADIUS * y:.1f}"


def table(graph: Graph, dim: int = 1) -> list[tuple[str, str]]:
    """Rows (label, value) on `graph` for a model of `dim` parameters; refuses a graph that fails `check`."""
    of = constants(graph, dim)
    seen = f" (first {of.horizon} steps)" if of.estimated else ""
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
