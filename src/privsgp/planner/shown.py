"""What `privsgp plan` prints: a plan as rows of words and numbers."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from privsgp import metrics
from privsgp.accounting.shown import guess, percent_up, small, span_up, up
from privsgp.runs.views import LABELS, span

if TYPE_CHECKING:
    from privsgp.planner.record import Formula, Plan


def formula_rows(formula: Formula) -> list[tuple[str, str]]:
    """Return the rows of a plan made of the bound alone."""
    n, K = formula.network, formula.steps
    return [
        ("steps K*", f"{K} (the bound's minimum, {n.accountant} noise)"),
        ("noise σ", span(formula.noise.each(K))),
        ("budget ε", span_up([epsilon for epsilon, _ in n.budgets])),
        ("bound on E‖∇f‖²", f"{formula.bound(K):.4g}"),
        ("published K*", f"{formula.published_steps:.4g}"),
        ("K̂ of Theorem 1", _least(formula.log_least_steps)),
    ]


def plan_rows(plan: Plan) -> list[tuple[str, str]]:
    """Return the rows of a plan to act on."""
    c, n = plan.chosen, plan.network
    return [
        ("algorithm", c.method.label),
        ("why", plan.why),
        ("steps K*", str(c.steps)),
        ("batch", f"{c.batch:g} of {n.mean_samples:g} samples a node"),
        ("step size γ", f"{c.step_size:.4g}"),
        *([("weight θ of differences", f"{c.scale:.4g}")] if c.method.algorithm == "privsgp-vr" else []),
        ("gradients of a node", f"{c.evaluations:,.0f}"),
        ("noise σ", span(plan.sigmas)),
        ("budget ε", span_up([epsilon for epsilon, _ in n.budgets])),
        (
            "weights of nodes",
            "all alike" if n.weights is None else f"{span([n.nodes * p for p in n.weights])} times 1/n",
        ),
        ("noise in the average model", f"{plan.deviation(c):.3g} per coordinate{_instead(plan)}"),
        *_trust(plan),
        ("score in rehearsal", f"{c.score:.3g} on {plan.source.text}"),
        *_metrics(plan),
        ("sent by a node", f"{plan.bytes_sent / 1e6:.1f} MB"),
    ]


def _metrics(plan: Plan) -> list[tuple[str, str]]:
    """Return what the metrics of a rehearsal are, and what a guess gets on the same samples."""
    found, guess = plan.metrics, plan.metrics.get(metrics.BASELINE, {})
    said = [
        f"{LABELS.get(name, name)} {metrics.shown(name, found[name])} ({metrics.shown(name, guess.get(name))})"
        for name in ("accuracy", "balanced_accuracy", "f1", "auc", "r2", "mae", "rmse")
        if found.get(name) is not None
    ]
    return [("there, and of a guess", ", ".join(said))] if said else []


def _instead(plan: Plan) -> str:
    shared = plan.shared
    return "" if shared is None else f"; independent noise would leave {shared['independent_noise_in_average']:.3g}"


def _trust(plan: Plan) -> list[tuple[str, str]]:
    """Return what shared noise asks one to trust: ε by how many nodes are honest."""
    if plan.shared is None:
        return []
    h, nodes = plan.shared["honest"], plan.shared["nodes"]
    known = {k: "no bound" if epsilon is None else up(epsilon, 3) for k, epsilon in plan.shared["curve"]}
    said = ", ".join(f"{k}: {epsilon}" for k, epsilon in known.items())
    return [("trust", f"{h} of {nodes} nodes are honest"), ("ε if so many are honest", said)]


def method_rows(plan: Plan) -> list[tuple[str, ...]]:
    """Return one row for every method that was looked at: label, batch, K, γ, σ, noise in the average, score."""
    return [
        (
            c.method.label, f"{c.batch:g}", str(c.steps), f"{c.step_size:.3g}", f"{c.noise.at(c.steps):.4g}",
            f"{plan.deviation(c):.3g}", f"{c.score:.3g}",
        )
        for c in plan.choices
    ]  # fmt: skip


def _least(log_least: float) -> str:
    if math.isinf(log_least):
        return "none: the lemma gives no C for this graph"
    power, rest = divmod(log_least / math.log(10), 1)
    return f"{10**rest:.2g}e{power:.0f}: the bound holds from there on"


def site_rows(plan: Plan) -> list[tuple[str, ...]]:
    """Return a row for every site: name, records, ε, δ, how often a guess is right at most, share of the noise."""
    n = plan.network
    weights = n.weights or [1 / n.nodes] * n.nodes
    noise = [(p * sigma) ** 2 for p, sigma in zip(weights, plan.sigmas, strict=True)]
    return [
        (
            n.sites[i] if n.sites else f"site {i}", f"{n.samples[i]:,}", up(epsilon), small(delta),
            "nominal: no guarantee" if n.nominal else percent_up(guess(epsilon, delta)),
            f"{noise[i] / math.fsum(noise):.0%}",
        )
        for i, (epsilon, delta) in enumerate(n.budgets)
    ]  # fmt: skip
