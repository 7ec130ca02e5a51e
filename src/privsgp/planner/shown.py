"""A plan's plain values, as plan.json has them, in words: what `privsgp plan`, `train` and the report show."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from privsgp.accounting.mechanisms import nominal
from privsgp.accounting.shown import guess, percent_up, small, span_up, up
from privsgp.runs.config import AUTO
from privsgp.runs.views import span

if TYPE_CHECKING:
    from collections.abc import Mapping

METHODS = ("method", "batch", "steps", "step size", "σ", "noise in the average", "score in rehearsal")
SITES = ("site", "records", "ε", "δ", "a guess is right at most", "share of the noise")


def formula_rows(found: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the rows of a plan made of the bound alone."""
    log_least, sigma = found["least_steps_log10"], found["sigma"]
    least = "none: the lemma gives no C for this graph"
    if log_least is not None:
        power, rest = divmod(log_least, 1)
        least = f"{10**rest:.2g}e{power:.0f}: the bound holds from there on"
    return [
        ("steps K*", f"{found['steps']} (the bound's minimum, {found['accountant']} noise)"),
        ("noise σ", span(sigma if isinstance(sigma, list) else [sigma])),
        ("budget ε", span_up(found["epsilon"])),
        ("bound on E‖∇f‖²", f"{found['bound']:.4g}"),
        ("published K*", f"{found['published_steps']:.4g}"),
        ("K̂ of Theorem 1", least),
    ]


def plan_rows(plan: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the rows of a plan to act on."""
    n, weights, shared = len(plan["samples"]), plan["weights"], plan["pairwise"]
    deviation = f"{plan['noise_in_average']:.3g} per coordinate"
    trust: list[tuple[str, str]] = []
    if shared is not None:
        deviation += f"; independent noise would leave {shared['independent_noise_in_average']:.3g}"
        curve = ", ".join(f"{h}: {'no bound' if e is None else up(e, 3)}" for h, e in shared["curve"])
        trust = [("trust", f"{shared['honest']} of {n} nodes are honest"), ("ε if so many are honest", curve)]
    theta = [("weight θ of differences", f"{plan['difference_scale']:.4g}")]
    return [
        ("algorithm", plan["method"]),
        ("why", plan["why"]),
        ("steps K*", str(plan["steps"])),
        ("batch", f"{plan['batch']:g} of {sum(plan['samples']) / n:g} samples a node"),
        ("step size γ", f"{plan['step_size']:.4g}"),
        *(theta if plan["algorithm"] == "privsgp-vr" else []),
        ("gradients of a node", f"{plan['evaluations']:,.0f}"),
        ("noise σ", span(plan["sigma"])),
        ("budget ε", span_up(plan["epsilon"])),
        ("weights of nodes", "all alike" if weights is None else f"{span([n * p for p in weights])} times 1/n"),
        ("noise in the average model", deviation),
        *trust,
        ("score in rehearsal", f"{plan['rehearsal_score']:.3g} on {plan['estimated_on']['words']}"),
        ("sent by a node", f"{plan['bytes_sent_per_node'] / 1e6:.1f} MB"),
    ]


def method_rows(plan: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Return one row for every method that was looked at, with the columns `METHODS`."""
    keys = {"batch": "g", "steps": "", "step_size": ".3g", "sigma": ".4g", "noise_in_average": ".3g", "score": ".3g"}
    return [
        (m["method"], *("–" if m.get(key) is None else format(m[key], how) for key, how in keys.items()))
        for m in plan["methods"]
    ]


def site_rows(plan: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Return a row for every site, with the columns `SITES`."""
    n = len(plan["samples"])
    noise = [(p * sigma) ** 2 for p, sigma in zip(plan["weights"] or [1 / n] * n, plan["sigma"], strict=True)]
    each = zip(plan["sites"], plan["samples"], plan["epsilon"], plan["delta"], noise, strict=True)
    right = "nominal: no guarantee" if nominal(plan["accountant"]) else ""
    return [
        (
            name, f"{records:,}", up(epsilon), small(delta), right or percent_up(guess(epsilon, delta)),
            f"{own / math.fsum(noise):.0%}",
        )
        for name, records, epsilon, delta, own in each
    ]  # fmt: skip


def described(plan: Mapping[str, Any]) -> str:
    """Say in a line what was chosen, what the configuration gave, and why this method where it was chosen too."""
    said = {
        "name": plan["algorithm"],
        "steps": f"{plan['steps']:,} steps",
        "step_size": f"step size {plan['step_size']:.3g}",
        "batch": f"batch {plan['batch']:g}",
        "weights": "equal weights" if plan["weights"] is None else "weights by noise",
    }
    asked = plan["asked"]
    said["step_size"] += {"theory": " = √(n/K)", "schedule": " on average"}.get(asked["step_size"], "")
    planned = ", ".join(said[key] for key in AUTO if asked[key] == "auto")
    given = ", ".join(said[key] for key in AUTO[:-1] if asked[key] != "auto")
    why = f"; {plan['why']}" if asked["name"] == "auto" else ""
    return f"{planned}{f'; given: {given}' if given else ''}{why}; estimated on {plan['estimated_on']['words']}"
