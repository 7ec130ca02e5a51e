"""The paper's second half, one small function per equation: Theorem 1, Corollary 1 and K̂(C, q).

Plain floats in the paper's letters: n nodes with J samples each, d parameters, K steps, G a bound on one sample's
gradient, and `Constants` for the rest. If a number exceeds floating point, its logarithm is returned.

`from_constants` is the plan that needs no configuration: the K at which Theorem 1's bound is smallest.
"""

from __future__ import annotations

import math
from dataclasses import asdict, astuple, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.optimize import minimize_scalar

from privsgp import plugins
from privsgp.accounting import calibration
from privsgp.accounting.counting import C2
from privsgp.accounting.mechanisms import Saga
from privsgp.accounting.shown import up
from privsgp.errors import Refused
from privsgp.files import finite
from privsgp.graph import constants as graph_constants

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from privsgp.graph import Graph


Budget = tuple[float, float]  # (ε_i, δ_i)
WIDEST = 4.0**10  # the K between 1 and this among which the bound's valley is looked for
REACHED = 1e9  # steps that no run takes


@dataclass(frozen=True)
class Constants:
    """The constants of the bound: L, F⁰ = f(x⁰) − f*, and the *squared* b² (Assumption 5) and ‖x⁰‖²."""

    smoothness: float
    gap: float
    heterogeneity: float
    norm: float

    def __post_init__(self) -> None:
        if not all(0 <= value < math.inf for value in astuple(self)) or not self.smoothness or not self.start:
            raise Refused(
                ", ".join(f"{name} = {value}" for name, value in asdict(self).items()),
                "take finite numbers: smoothness above 0, the others at least 0, one of them above 0",
            )

    @property
    def start(self) -> float:
        """13F⁰ + 6L‖x⁰‖² + 18Lb²: what the bound would be made of without noise."""
        return 13 * self.gap + 6 * self.smoothness * self.norm + 18 * self.smoothness * self.heterogeneity


def bound(constants: Constants, n: int, d: int, K: float, variances: Sequence[float]) -> float:
    """Theorem 1: (13F⁰ + 6L‖x⁰‖² + 18Lb² + 24L (d/n) Σσ_i²) / √(nK)."""
    noise = 24 * constants.smoothness * d * math.fsum(variances) / n
    return (constants.start + noise) / math.sqrt(n * K)


def hardness(budgets: Sequence[Budget], J: Sequence[float]) -> float:
    """Σ_i ln(1/δ_i) / (ε_i J_i)²: what all budgets together ask for. The paper has one J and takes it out."""
    return math.fsum(math.log(1 / delta) / (epsilon * j) ** 2 for (epsilon, delta), j in zip(budgets, J, strict=True))


def best_steps(
    constants: Constants, d: int, G: float, budgets: Sequence[Budget], J: Sequence[float], c2: float
) -> float:
    """Corollary 1: K = (13F⁰ + 6L‖x⁰‖² + 18Lb²) J² n / (216 L d c₂² G² Σ ln(1/δ_i)/ε_i²)."""
    return constants.start * len(budgets) / (216 * constants.smoothness * d * (c2 * G) ** 2 * hardness(budgets, J))


def minimise(value: Callable[[float], float], low: float, high: float, precision: float = 1e-4) -> float:
    """Return where a function with one valley in ln K is smallest."""
    ends = math.log(low), math.log(high)
    found = minimize_scalar(lambda log: value(math.exp(log)), bounds=ends, options={"xatol": precision})
    return math.exp(found.x)


def log_least_steps(L: float, n: int, J: float, log_c: float, log_one_minus_q: float) -> float:
    """Return ln K̂(C, q), below which Theorem 1 says nothing; infinite where the lemma gives no C."""
    c2 = 2 * (log_c - log_one_minus_q)  # ln C²/(1 − q)²
    l2 = 2 * math.log(L)
    terms = (
        math.log(4 * n) + l2 + float(np.logaddexp(math.log(J**2 * (1 + J) / n), math.log(12 * (1 + J)) + c2)),
        math.log(144) + 3 * math.log(n) + l2 + 2 * c2,
        2 * math.log(4 * (4 * J + 5)) + l2 - math.log(n),
        math.log(4 * (48 * J + 66) * n) + l2 + c2,
        math.log(64 * n / 9) + 4 * math.log(J) + 2 * math.log1p(J) + l2,
    )
    return max(terms)


def from_constants(
    constants: Constants,
    graph: Graph,
    dim: int,
    clip: float,
    *,
    samples: int,
    batch: float,
    budget: Budget,
    published_c2: float | None = None,
) -> dict[str, Any]:
    """Plan PrivSGP-VR from the paper's constants alone; with `published_c2` its noise is the paper's too."""
    (epsilon, delta), n = budget, graph.nodes
    if dim < 1 or not 0 < epsilon < math.inf or not 0 < delta < 1:
        raise Refused(
            f"dim = {dim}, epsilon = {epsilon}, delta = {delta}",
            "take a model of at least one parameter, a finite epsilon above 0, and 0 < delta < 1 / samples",
        )
    mechanism = Saga(sigma=0.0, clip=clip, batch=batch, samples=samples)

    def sigma(K: float) -> float:
        if published_c2 is None:
            return calibration.rough_sigma(mechanism, round(K), epsilon, delta, "zero-out")
        return float(plugins.formula("published").sigma(mechanism, round(K), epsilon, delta, published_c2))

    def value(K: float) -> float:
        return bound(constants, n, dim, K, [sigma(K) ** 2] * n)

    published = best_steps(constants, dim, clip, [budget] * n, [samples] * n, published_c2 or C2)
    steps = max(1, round(published if published_c2 is not None else minimise(value, 1.0, WIDEST, 1e-2)))
    lemma = graph_constants(graph, dim).lemma
    log_least = log_least_steps(constants.smoothness, n, samples, lemma.log_c, lemma.log_one_minus_q)
    warnings = below_theorem(steps, log_least) + careless_delta([samples], [budget])
    return {
        "steps": steps,
        "sigma": sigma(steps),
        "bound": value(steps),
        "accountant": "certified" if published_c2 is None else "published",
        "nodes": n,
        "epsilon": epsilon,
        "delta": delta,
        "published_steps": published,
        "least_steps_log10": finite(log_least / math.log(10)),
        "constants": asdict(constants),
        "warnings": warnings + ([] if published_c2 is None else outside_theorem_3(steps, samples, epsilon)),
    }


def below_theorem(steps: float, log_least: float) -> list[str]:
    """K below K̂(C, q): Theorem 1 says nothing here."""
    if math.log(steps) >= log_least:
        return []
    least = f"K̂ = {math.exp(log_least):.2g}" if log_least < math.log(REACHED) else "K̂, which no run reaches"
    return [f"K = {steps:.0f} is below {least}: Theorem 1 says nothing here; its bound only compares plans"]


def outside_theorem_3(steps: float, samples: int, epsilon: float) -> list[str]:
    """ε ≥ c₁K/J²: the paper leaves c₁ open, so say how large it would have to be."""
    factor = epsilon * samples**2 / steps
    words = f"Theorem 2 holds for ε < c₁K/J² only. The paper does not give c₁, which would have to exceed {factor:.3g}"
    return [f"{words} here: the published noise is nominal"] if factor >= 1 else []


def careless_delta(
    samples: Sequence[int], budgets: Sequence[Budget], named: Callable[[int], str] = "node {}".format
) -> list[str]:
    """δ_i ≥ 1/J_i would allow to publish a sample outright."""
    bad = [i for i, ((_, delta), j) in enumerate(zip(budgets, samples, strict=True)) if delta * j >= 1]
    return [f"δ of {named(bad[0])} is not below 1/J = {1 / samples[bad[0]]:.2g}: it should be, by far"] if bad else []


def formula_rows(found: dict[str, Any]) -> list[tuple[str, str]]:
    """Return what `privsgp plan` prints of a plan made of the bound alone."""
    least = found["least_steps_log10"]
    power, rest = divmod(least or 0.0, 1)
    holds = f"{10**rest:.2g}e{power:.0f}: the bound holds from there on"
    return [
        ("steps K*", f"{found['steps']} (the bound's minimum, {found['accountant']} noise)"),
        ("noise σ", f"{found['sigma']:.4g}"),
        ("budget ε", up(found["epsilon"])),
        ("bound on E‖∇f‖²", f"{found['bound']:.4g}"),
        ("published K*", f"{found['published_steps']:.4g}"),
        ("K̂ of Theorem 1", "none: the lemma gives no C for this graph" if least is None else holds),
    ]
