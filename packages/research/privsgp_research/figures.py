"""The paper's ten figures, five for each of two data sets: what is run, what is drawn, what is claimed.

The paper leaves much open. Its settings are used unchanged. Settings that it does not state are chosen once per data
set, in `SETTINGS`, with the reason. Scale "small" is the same experiment on a part of the data: K divided by r, and J
by √r, so that the paper's noise σ = 3 c₂ G √(K ln(1/δ)) / (J ε) is what it is at full scale.

PrivSGP-VR is the paper's own everywhere, θ = 1. Figures about variance reduction also have a curve with scaled
differences, and two verdicts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from privsgp.accounting.mechanisms import Accountant, nominal
from privsgp.accounting.shown import up
from privsgp.algorithms import ALGORITHMS
from privsgp.errors import Refused
from privsgp_research import claims

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from privsgp_research.claims import Found, Verdict

MODES: tuple[Accountant, ...] = ("published", "certified")  # the paper's own first
SCALES = ("small", "full")


@dataclass(frozen=True)
class Setting:
    """A data set with the numbers of its five figures."""

    data: str
    samples: int | None  # None: all there are; else a small copy is made
    nodes: int  # in all figures but `speedup`
    model: dict[str, Any]
    clip: float
    batch: float
    epsilon: float  # of `best-k` and `methods`; in certified mode of all figures but `tradeoff`
    variance: float  # σ² of `speedup` and `variance-reduction` in published mode
    best: int  # the paper's K* for `epsilon`
    others: tuple[int, ...]  # the K it is compared with
    epsilons: tuple[float, ...]  # of `tradeoff`
    networks: tuple[int, ...]  # the n of `speedup`
    steps: int  # of `variance-reduction`, and of `speedup` with `nodes` nodes
    factor: float  # of Theorem 1's step size √(n/K)
    points: int = 20  # of a curve
    jobs: int | None = None  # runs at a time; None: as many as there are cores
    tuned: bool = True  # whether `methods` looks for each curve's best step size
    algorithm: dict[str, Any] = field(default_factory=dict)
    engine: dict[str, Any] = field(default_factory=dict)

    @property
    def file(self) -> str:
        """The name of the data in a configuration."""
        return self.data if self.samples is None else f"{self.data}-{self.samples}.npz"

    def values(
        self,
        privacy: dict[str, Any],
        steps: int,
        *,
        nodes: int = 0,
        algorithm: str = "privsgp-vr",
        graph: str = "",
        scale: float | str = 1.0,
    ) -> dict[str, Any]:
        """Return the values of one run's configuration; `scale` is θ where the algorithm has one."""
        n = nodes or self.nodes
        own = ALGORITHMS[algorithm].Options.model_fields
        section = {"name": algorithm, "batch": self.batch, "steps": steps, "step_size": self.step_size(n, steps)}
        given = self.algorithm | {"difference_scale": scale}
        return {
            "seed": 0,
            "data": {"name": self.file, "nodes": n},
            "model": self.model,
            "graph": {"name": graph or "exponential"},
            "privacy": {"delta": 1e-5, "clip": self.clip} | privacy,
            "algorithm": section | {key: value for key, value in given.items() if key in own},
            "engine": {"evaluate_every": max(1, steps // self.points)} | self.engine,
        }

    def step_size(self, nodes: int, steps: int) -> float:
        """Theorem 1's γ = √(n/K), times the setting's factor."""
        return self.factor * math.sqrt(nodes / steps)

    def noise(self, mode: Accountant) -> dict[str, Any]:
        """Return [privacy] of the figures with the same σ for all, or the same certified budget."""
        return {"sigma": math.sqrt(self.variance)} if nominal(mode) else {"epsilon": self.epsilon, "accountant": mode}


@dataclass(frozen=True)
class Curve:
    """One setting, to be run with several seeds; in `tradeoff` it is the point of a `line` at `x`."""

    key: str  # names its folder
    label: str
    values: dict[str, Any]
    line: str = ""
    x: float = 0.0
    instead_of: str = ""  # the key of the paper's curve that this one of ours stands beside


@dataclass(frozen=True)
class Figure:
    """What is run, for a setting and a mode, and what the paper says about it."""

    says: str
    curves: Callable[[Setting, Accountant], list[Curve]]
    claim: Callable[[Any, Mapping[str, Found]], Verdict]
    subject: Callable[[Setting], Any]  # the curves that the claim is about
    tuned: bool = False  # every curve at its own best step size, by the rule of `compare`


def speedup(s: Setting, mode: Accountant) -> list[Curve]:
    """Half the iterations for twice the nodes, so that γ = √(n/K) doubles; all of the data in every network."""
    found = []
    for n in s.networks:
        K = round(s.steps * s.nodes / n)
        found.append(Curve(f"nodes-{n}", f"{n} nodes, {K} steps", s.values(s.noise(mode), K, nodes=n)))
    return found


def best_k(s: Setting, mode: Accountant) -> list[Curve]:
    """The same budget spent in few steps or in many."""
    steps = sorted((s.best, *s.others))
    return [Curve(f"steps-{K}", f"K = {K}", s.values({"epsilon": s.epsilon, "accountant": mode}, K)) for K in steps]


def tradeoff(s: Setting, mode: Accountant) -> list[Curve]:
    """K* ∝ ε². The paper does not name its two other K: half and twice K*."""
    found = []
    for line, factor in (("K*/2", 0.5), ("K*", 1.0), ("2K*", 2.0)):
        for epsilon in s.epsilons:
            K = max(1, round(factor * s.best * (epsilon / s.epsilon) ** 2))
            key, label = f"epsilon-{up(epsilon)}-steps-{K}", f"{line}, ε = {up(epsilon)}"
            found.append(Curve(key, label, s.values({"epsilon": epsilon, "accountant": mode}, K), line, epsilon))
    return found


def variance_reduction(s: Setting, mode: Accountant) -> list[Curve]:
    """Algorithm 1 against Algorithm 2, and beside Algorithm 1 the weight θ that costs hardly any noise."""
    printed = [
        Curve(name, name, s.values(s.noise(mode), s.steps, algorithm=name)) for name in ("privsgp-vr", "privsgp")
    ]  # fmt: skip
    ours = s.values(s.noise(mode), s.steps, scale="auto")
    return [*printed, Curve("scaled", "privsgp-vr, scaled differences", ours, instead_of="privsgp-vr")]


def methods(s: Setting, mode: Accountant) -> list[Curve]:
    """All three on an undirected ring for K* steps. No published noise of A(DP)²SGD is known to hold for one node."""
    found = []
    for name in ("privsgp-vr", "dp2-sgd", "adp2-sgd"):
        budget = {"epsilon": s.epsilon, "accountant": "certified" if name == "adp2-sgd" else mode}
        found.append(Curve(name, name, s.values(budget, s.best, algorithm=name, graph="ring")))
    return found


FIGURES: dict[str, Figure] = {
    "speedup": Figure(
        "twice the nodes reach a comparable loss and accuracy in half the iterations",
        speedup, claims.comparable, lambda s: [f"nodes-{n}" for n in s.networks],
    ),
    "best-k": Figure(
        "the planned K* gives the lowest loss and the highest accuracy of all K at the same budget",
        best_k, claims.best, lambda s: f"steps-{s.best}",
    ),
    "tradeoff": Figure("accuracy at K* falls with the privacy budget ε", tradeoff, claims.rising, lambda _: "K*"),
    "variance-reduction": Figure(
        "PrivSGP-VR has a lower loss and a higher accuracy than PrivSGP",
        variance_reduction, claims.ahead, lambda _: "privsgp-vr",
    ),
    "methods": Figure(
        "PrivSGP-VR beats DP²-SGD and A(DP)²SGD on a ring at the same budget",
        methods, claims.ahead, lambda _: "privsgp-vr", tuned=True,
    ),
}  # fmt: skip

# MNIST. Batch: 4 % of J, where the paper draws one sample and its noise is worth ε = 1997 (docs/paper.md). Clip: at
# G = 1 its formula asks for σ² = 0.0057 at K*, the size of the 0.01 it fixes elsewhere. Width 64: not stated. Step
# size: Theorem 1's as it stands. Steps of `speedup` and `variance-reduction`: not stated; about K*. K* = 575ε²: the
# best of its K at ε = 1, and K* grows as ε². c₂ = 0.3724 (`calibration.C2`) is not stated: with it the closed
# form gives the paper's own K* = 3120 on CIFAR-10.
_MNIST = Setting(
    data="mnist", samples=None, nodes=50, model={"name": "mlp", "hidden": 64}, clip=1.0, batch=48, epsilon=1.0,
    variance=0.01, best=575, others=(125, 270, 1200, 2075), epsilons=(0.4, 0.6, 0.8, 1.0, 1.2, 1.4, 1.6),
    networks=(25, 50, 100), steps=600, factor=1.0,
)  # fmt: skip
# r = 4: J = 600. Twenty nodes, half the width, fewer budgets.
_MNIST_SMALL = Setting(
    data="mnist", samples=12_000, nodes=20, model={"name": "mlp", "hidden": 32}, clip=1.0, batch=24, epsilon=1.0,
    variance=0.01, best=144, others=(31, 68, 300, 519), epsilons=(0.4, 0.8, 1.2, 1.6), networks=(10, 20, 40),
    steps=150, factor=1.0, points=4,
)  # fmt: skip
# CIFAR-10. Clip: G² = 100 is stated. Batch: 25 of 3125, what a GPU does in an hour or two for a figure; 125 would take
# three times as long and half of the certified noise. GroupNorm, because BatchNorm mixes samples. Step size: noise in
# the average model is γσ√(K/n) = factor · σ a coordinate; at a factor of 1 that is 0.23 where the weights of a 3 × 3
# convolution with 512 channels begin below 0.015. The table of all samples takes 72 GB in bfloat16: one run at
# a time, and no checkpoint of it. Steps of `variance-reduction`: stated. `methods` has the step size of the other
# figures: to look for each curve's best would take a GPU forty minutes more, at least.
_CIFAR = Setting(
    data="cifar10", samples=None, nodes=16, model={"name": "resnet18"}, clip=10.0, batch=25, epsilon=3.0,
    variance=0.03, best=3120, others=(500, 1125, 6250, 12500), epsilons=(1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0),
    networks=(8, 16, 32, 64), steps=3000, factor=0.05, points=5, algorithm={"table_dtype": "bfloat16"}, jobs=1,
    tuned=False, engine={"checkpoint_every": 0},
)  # fmt: skip
# r = 32: J = 552. Images of 16 × 16 pixels, the small tanh CNN. Of the factors 0.3, 1 and 3 the first was best at K*.
_CIFAR_SMALL = Setting(
    data="cifar10", samples=8_832, nodes=16, model={"name": "cnn"}, clip=10.0, batch=22, epsilon=3.0,
    variance=0.03, best=97, others=(16, 35, 195, 391), epsilons=(1.0, 2.0, 3.0, 4.0), networks=(8, 16, 32, 64),
    steps=94, factor=0.3, points=4,
)  # fmt: skip
SETTINGS: dict[tuple[str, str], Setting] = {
    ("mnist", "full"): _MNIST, ("mnist", "small"): _MNIST_SMALL,
    ("cifar", "full"): _CIFAR, ("cifar", "small"): _CIFAR_SMALL,
}  # fmt: skip

NAMES: Sequence[str] = [f"{data}-{kind}" for data in ("mnist", "cifar") for kind in FIGURES]


def known(name: str) -> Figure:
    """Return a figure by its name."""
    if name not in NAMES:
        what = f"no figure {name!r}" if name else "no figure is named"
        raise Refused(what, f"take one of {', '.join(NAMES)}, or all; --list shows the paper's claims")
    return FIGURES[name.partition("-")[2]]


def listing() -> list[tuple[str, str]]:
    """Return the names of all figures with what the paper claims."""
    return [(name, known(name).says) for name in NAMES]
