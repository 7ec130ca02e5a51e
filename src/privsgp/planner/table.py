"""What `privsgp plan` prints: a plan as rows of words and numbers."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from privsgp.planner import costs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from privsgp.planner.record import Formula, Plan


def formula_rows(formula: Formula) -> list[tuple[str, str]]:
    """Return the rows of a plan made of the bound alone."""
    n, K = formula.network, formula.steps
    return [
        ("steps K*", f"{K} (the bound's minimum, {n.accountant} noise)"),
        ("noise σ", span(formula.noise.each(K))),
        ("budget ε", span([epsilon for epsilon, _ in n.budgets])),
        ("bound on E‖∇f‖²", f"{formula.bound(K):.4g}"),
        ("published K*", f"{formula.published_steps:.4g}"),
        ("K̂ of Theorem 1", _least(formula.log_least_steps)),
    ]


def plan_rows(plan: Plan) -> list[tuple[str, str]]:
    """Return the rows of a plan to act on."""
    c, n, f = plan.chosen, plan.network, plan.formula
    return [
        ("algorithm", c.method.label),
        ("why", plan.why),
        ("steps K*", str(c.steps)),
        ("batch", f"{c.batch:g} of {n.mean_samples:g} samples a node"),
        ("step size γ", f"{c.step_size:.4g}"),
        ("noise σ", span(plan.sigmas)),
        ("budget ε", span([epsilon for epsilon, _ in n.budgets])),
        (
            "weights of nodes",
            "all alike" if n.weights is None else f"{span([n.nodes * p for p in n.weights])} times 1/n",
        ),
        ("noise in the average model", f"{plan.deviation(c):.3g} per coordinate{_instead(plan)}"),
        *_trust(plan),
        ("noise between nodes", f"{plan.spread():.3g} per coordinate"),
        ("score in rehearsal", f"{c.score:.3g} on {plan.source.words}"),
        ("bound on E‖∇f‖²", f"{f.bound(c.steps):.4g} at K*; smallest at K = {f.steps}, published K = {_count(f)}"),
        ("K̂ of Theorem 1", _least(f.log_least_steps)),
        ("sent by a node", f"{costs.bytes_sent_per_node(f.graph, f.dim, c.steps) / 1e6:.1f} MB"),
        ("time on this machine", f"about {plan.seconds:.0f} s"),
        ("table", f"{plan.table_bytes / 2**20:.1f} MiB for all nodes"),
    ]


def _instead(plan: Plan) -> str:
    shared = plan.shared
    return "" if shared is None else f"; independent noise would leave {shared['independent_noise_in_average']:.3g}"


def _trust(plan: Plan) -> list[tuple[str, str]]:
    """Return what shared noise asks one to trust: ε by how many nodes are honest."""
    if plan.shared is None:
        return []
    h, nodes = plan.shared["honest"], plan.shared["nodes"]
    known = {k: "no bound" if epsilon is None else f"{epsilon:.3g}" for k, epsilon in plan.shared["curve"]}
    said = ", ".join(f"{k}: {epsilon}" for k, epsilon in known.items())
    return [("trust", f"{h} of {nodes} nodes are honest"), ("ε if so many are honest", said)]


def method_rows(plan: Plan) -> list[tuple[str, ...]]:
    """Return one row for every method that was looked at: label, K, γ, σ, noise in the average, score."""
    return [
        (
            c.method.label, str(c.steps), f"{c.step_size:.3g}", f"{c.noise.at(c.steps):.4g}",
            f"{plan.deviation(c):.3g}", f"{c.score:.3g}",
        )
        for c in plan.choices
    ]  # fmt: skip


def span(values: Sequence[float]) -> str:
    """One number, or the smallest and the largest."""
    low, high = min(values), max(values)
    return f"{low:.4g}" if high <= low * (1 + 1e-9) else f"{low:.4g} … {high:.4g}"


def _count(formula: Formula) -> str:
    return f"{formula.published_steps:.4g}"


def _least(log_least: float) -> str:
    if math.isinf(log_least):
        return "none: the lemma gives no C for this graph"
    power, rest = divmod(log_least / math.log(10), 1)
    return f"{10**rest:.2g}e{power:.0f}: the bound holds from there on"
