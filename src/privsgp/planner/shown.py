"""What `privsgp plan` prints: a plan as rows of words and numbers.

A picture of a plan: the bound and the noise in the average model against K, one curve per method, K* marked.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from privsgp import metrics
from privsgp.accounting.shown import span_up, up
from privsgp.pictures import COLOURS, INK, panes, save
from privsgp.planner import estimates
from privsgp.planner.record import SHOWN
from privsgp.runs.shown import LABELS, span

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.axes import Axes

    from privsgp.planner.choose import Choice, NoiseNeeded
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


THEORY = ("bound on E‖∇f‖²", "K̂ of Theorem 1", "noise between nodes")  # rows that the paper has a use for


def plan_rows(plan: Plan) -> list[tuple[str, str]]:
    """Return the rows of a plan to act on."""
    c, n, f = plan.chosen, plan.network, plan.formula
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
        ("noise between nodes", f"{plan.spread():.3g} per coordinate"),
        ("score in rehearsal", f"{_score(plan, c)} on {plan.source.text}"),
        *_metrics(plan),
        (
            "bound on E‖∇f‖²",
            f"{f.bound(c.steps):.4g} at K*; smallest at K = {f.steps}, published K = {f.published_steps:.4g}",
        ),
        ("K̂ of Theorem 1", _least(f.log_least_steps)),
        ("sent by a node", f"{estimates.bytes_sent_per_node(f.graph, f.dim, c.steps) / 1e6:.1f} MB"),
        ("time on this machine", f"about {plan.seconds:.0f} s"),
        ("table", f"{plan.table_bytes / 2**20:.1f} MiB for all nodes"),
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
            f"{plan.deviation(c):.3g}", _score(plan, c),
        )
        for c in plan.choices
    ]  # fmt: skip


def _score(plan: Plan, choice: Choice) -> str:
    return f"{choice.score:.3g}" if plan.rehearsed else "not rehearsed"


def _least(log_least: float) -> str:
    if math.isinf(log_least):
        return "none: the lemma gives no C for this graph"
    power, rest = divmod(log_least / math.log(10), 1)
    return f"{10**rest:.2g}e{power:.0f}: the bound holds from there on"


_POINTS = 33


def draw(formula: Formula, path: str | Path, plan: Plan | None = None) -> None:
    """Draw to `path` (.png, .pdf or .svg); without a `plan` the bound alone. Needs no display."""
    figure, axes = panes(2 if plan else 1, 10.5 if plan else 6, 4.4)
    noises: dict[str, NoiseNeeded] = {formula.network.accountant: formula.noise}
    if plan:
        noises = {c.method.label: c.noise for c in plan.choices}
    _bound(axes[0], formula, noises, plan)
    if plan:
        _noise(axes[1], plan)
    save(figure, path)


def _bound(axis: Axes, formula: Formula, noises: dict[str, NoiseNeeded], plan: Plan | None) -> None:
    """Theorem 1's bound over the K that a plan chooses from, or around K* of the bound."""
    steps = SHOWN if plan else _steps(max(1, formula.steps / 16), formula.steps * 16)
    for colour, (label, noise) in zip(COLOURS, noises.items(), strict=False):
        axis.plot(steps, [formula.bound(K, noise) for K in steps], color=colour, label=label, linewidth=1.8)
    _dress(axis, "bound on E‖∇f‖² (Theorem 1)", plan.chosen.steps if plan else formula.steps)


def _noise(axis: Axes, plan: Plan) -> None:
    for colour, c in zip(COLOURS, plan.choices, strict=False):
        axis.plot(SHOWN, plan.noise_curve(c), color=colour, label=c.method.label, linewidth=1.8)
        axis.plot([c.steps], [plan.deviation(c)], "o", color=colour, markersize=6)
    _dress(axis, "noise in the average model, per coordinate", plan.chosen.steps)
    axis.set(yscale="linear", ylim=(0, None))


def _dress(axis: Axes, title: str, best: int) -> None:
    axis.axvline(best, color=INK, linestyle=":", linewidth=1.2, label=f"K* = {best}")
    axis.set(xscale="log", yscale="log", xlabel="steps K", title=title)
    axis.title.set_color(INK)
    axis.grid(visible=True, which="major", alpha=0.25)
    axis.legend(frameon=False, fontsize=8)


def _steps(low: float, high: float) -> list[float]:
    return [low * (high / low) ** (i / (_POINTS - 1)) for i in range(_POINTS)]
