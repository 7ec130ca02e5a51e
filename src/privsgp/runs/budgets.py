"""From budgets to noise: every node's mechanism, calibrated for its own J_i, b_i and (ε_i, δ_i)."""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, Any

from privsgp.accounting import accountant, calibration
from privsgp.accounting.compound import PersonLevel, Shared
from privsgp.accounting.mechanisms import Mechanism, Saga
from privsgp.accounting.pairwise import PairwiseCovariance, trust_curve
from privsgp.algorithms import ALGORITHMS, Settings
from privsgp.engine.spec import NodeBudgets
from privsgp.errors import Refused
from privsgp.runs import shared_noise

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from privsgp.runs.config import Config

    Earlier = Callable[[int, Mechanism, int], Mechanism]


_ROOM = 1 + 2.0**-17  # for what the sampler of shared noise costs where other nodes add less than a node expects


def settings(config: Config) -> Settings:
    """Return the algorithm's share of the configuration."""
    a = config.algorithm
    return Settings(
        clip=config.privacy.clip, batch=a.batch, nodes=config.data.nodes,
        trust=config.trust, spare=spare(config), local_steps=a.local_steps,
        options=ALGORITHMS[a.name].Options(**config.options("algorithm")),
    )  # fmt: skip


def declared(config: Config) -> Mechanism:
    """Return the kind of mechanism that the algorithm declares; its numbers are not known before the run is built."""
    made = ALGORITHMS[config.algorithm.name].mechanism
    return made(settings(config), sigma=1.0, batch=1.0, samples=1, kappa=0.0)


def with_scale(config: Config, samples: Sequence[int], started: Config | None = None) -> Config:
    """Put numbers where `algorithm.difference_scale` is "auto": one C and θ for all nodes, from public numbers alone.

    It is the weakest budget's (or the least noise's) node for which a weight costs most: its θ is good for the others.
    A run that goes on keeps what it was `started` with. The published formula is about the paper's estimator: there θ
    is 1.
    """
    a, p = config.algorithm, config.privacy
    if getattr(a, "difference_scale", None) != "auto":
        return config
    if started is not None:
        before, given = settings(started), getattr(a, "difference_clip", None)  # what is given is compared later
        clip = before.difference_clip if given is None else given
        return config.with_section("algorithm", difference_scale=before.difference_scale, difference_clip=clip)
    if p.nominal or p.without_noise:
        return config.with_section("algorithm", difference_scale=1.0)
    config = config.with_section("algorithm", difference_clip=difference_clip(config))
    bare = settings(config)
    nodes = range(len(samples))
    batches, deltas = batch_sizes(config, samples), per_node(p.delta, len(samples))
    mechanisms = [
        Saga(sigma=s, clip=bare.clip, batch=batches[i], samples=samples[i], difference_clip=bare.difference_clip)
        for i, s in zip(nodes, per_node(p.sigma or 0.0, len(samples)), strict=True)
    ]
    steps = a.steps + spare(config)
    if p.epsilon is None:
        i = min(nodes, key=lambda i: mechanisms[i].samples * mechanisms[i].sigma)
        remaining = _remaining(config, samples, [m.sigma for m in mechanisms])
        found = calibration.largest_at(mechanisms[i], steps, deltas[i], p.relation, remaining)
    else:
        budgets = list(zip(per_node(p.epsilon, len(samples)), deltas, strict=True))
        i = max(nodes, key=lambda i: budgets[i])
        remaining = _remaining(config, samples, calibration.relative_noise(budgets, samples))
        found = calibration.largest(mechanisms[i], steps, *budgets[i], p.relation, remaining)
    return config.with_section("algorithm", difference_scale=found)


def _remaining(config: Config, samples: Sequence[int], needed: Sequence[float]) -> float:
    """Return what sharing leaves of the noise in the average: 1 where it is not shared."""
    return shared_noise.solved(config, samples, needed).remaining(needed) if config.pairwise else 1.0


def difference_clip(config: Config) -> float | None:
    """Return C for "auto": the given value, else G if a clip costs only a norm, else none.

    A clipped entry is a mixture of two gradients: of a linear layer that sees a sample once it keeps its factors, of
    others it would not; nor can it be rounded.
    """
    a, G = config.algorithm, config.privacy.clip
    if (given := getattr(a, "difference_clip", None)) is not None:
        return float(given)
    plain = getattr(a, "table_dtype", None) != "bfloat16" and math.isfinite(G)
    return G if plain and config.model.name in ("logistic", "linear", "mlp") else None


def spare(config: Config) -> int:
    """Return how many steps may be made again after crashes."""
    return math.ceil(config.privacy.spare * config.algorithm.steps)


def alone(_node: int, mechanism: Mechanism, _honest: int) -> Mechanism:
    """Return the mechanism of a node that has released nothing in an earlier run."""
    return mechanism


def calibrate_nodes(
    config: Config,
    samples: Sequence[int],
    slack: float,
    releases: Sequence[int] = (),
    coordinates: int = 0,
    agreed: dict[str, Any] | None = None,
    earlier: Earlier = alone,
) -> NodeBudgets:
    """Give every node its mechanism: σ_i from its own J_i, b_i and budget, or as fixed by hand.

    All of it follows from public numbers: each of several processes does it for all nodes. `releases` are K_i where
    nodes release unequally often; else each does at every step. `coordinates` is the length of a message. `agreed` are
    the σ_i, and what shared noise is made of, where sites have settled them: each checks its own. `earlier` returns a
    node's mechanism counted together with what it released in runs that this one continues, if so many of this run's
    nodes are honest.
    """
    algorithm, p, n = ALGORITHMS[config.algorithm.name], config.privacy, len(samples)
    deltas = per_node(p.delta, n)
    budgets = per_node(p.epsilon if algorithm.private else None, n)
    sigmas = per_node(p.sigma if p.sigma is not None and algorithm.private else 0.0, n)
    releases = releases or [config.algorithm.steps] * n
    allowance = None if budgets[0] is None else [K + math.ceil(p.spare * K) for K in releases]
    batches = batch_sizes(config, samples)
    made = settings(config)
    bare = [
        algorithm.mechanism(made, sigma=sigmas[i], batch=batches[i], samples=samples[i], kappa=slack) for i in range(n)
    ]
    mechanisms = [m.changed(coordinates=coordinates) for m in bare]
    if config.pairwise:
        mechanisms = [Shared(m, config.honest, n - 1) for m in mechanisms]

    shown = shared_noise.correlation(config, samples) if config.pairwise else 1.0
    mechanisms = [by_person(config, earlier(i, m, config.trusted), samples, shown) for i, m in enumerate(mechanisms)]
    if allowance is not None:
        known = [] if agreed is None else agreed["sigma"]
        if config.pairwise and len(set(known)) > 1:  # some have more noise than they need: it follows from all needs
            known = []
        sigmas = known or _searched(config, mechanisms, allowance, budgets, deltas)
        mechanisms = [bare.with_sigma(sigma) for bare, sigma in zip(mechanisms, sigmas, strict=True)]

    covariance, curve = None, None
    if config.pairwise:
        noise = None if agreed is None else agreed["shared_noise"]
        covariance = shared_noise.share_noise(config, samples, [m.sigma for m in mechanisms], noise)
        least, effective = min(covariance.own_sigma), covariance.effective(config.honest)
        bases = [m.changed(coordinates=coordinates, sigma=sigma) for m, sigma in zip(bare, effective, strict=True)]
        shared = [Shared(m, config.honest, n - 1, least) for m in bases]
        shifts = [m.largest_shift for m in shared]
        shown = covariance.correlation(config.honest, shifts)
        mechanisms = [by_person(config, earlier(i, m, config.honest), samples, shown) for i, m in enumerate(shared)]
        curve = functools.partial(_curve, config, samples, covariance, shared, deltas, earlier)

    def epsilon(node: int, releases: int) -> float:
        return accountant.epsilon(mechanisms[node], releases, deltas[node], p.relation).epsilon

    return NodeBudgets(mechanisms, budgets, deltas, p.relation, p.accountant, allowance, epsilon, covariance, curve)


def _searched(
    config: Config, mechanisms: Sequence[Mechanism], allowance: Sequence[int], budgets: Sequence[Any],
    deltas: Sequence[float],
) -> list[float]:  # fmt: skip
    """Return the σ_i that budgets need."""
    p = config.privacy
    search = functools.cache(calibration.sigma)  # nodes that are alike need the same

    def calibrated(i: int) -> float:
        if p.nominal:  # for K steps: the spare releases are not part of it
            terms = config.algorithm.steps, budgets[i], deltas[i], calibration.C2, config.algorithm.name
            found = calibration.published(mechanisms[i], *terms)
        else:
            found = search(mechanisms[i], max(1, allowance[i]), budgets[i], deltas[i], p.relation)
        return found * _ROOM if config.pairwise else found

    sigmas = [calibrated(i) for i in range(len(mechanisms))]
    # Of a sum each node is counted as if all added as much noise as it does.
    return [max(sigmas)] * len(sigmas) if config.trust == "secure aggregation" else sigmas


def by_person(config: Config, mechanism: Mechanism, samples: Sequence[int], shown: float = 1.0) -> Mechanism:
    """Return the mechanism for persons, where a sample is one; `shown` is what messages show of each other."""
    rows, p = config.data.rows_per_person, config.privacy
    if rows is None:
        return mechanism
    unequal = len(set(samples)) > 1 and p.sigma is not None
    if p.sites_per_person > 1 and (unequal or any(isinstance(value, list) for value in (p.epsilon, p.delta, p.sigma))):
        what = f"privacy.sites_per_person = {p.sites_per_person}, and sites have different noise or budgets"
        raise Refused(what, "give all sites one epsilon and one delta: privsgp knows this ε for equal sites only")
    return PersonLevel(mechanism, rows, p.sites_per_person, shown)


def _curve(
    config: Config, samples: Sequence[int], covariance: PairwiseCovariance, shared: Sequence[Shared],
    deltas: Sequence[float], earlier: Earlier, node: int, releases: int,
) -> list[tuple[int, float]]:  # fmt: skip
    """Return ε of a node by how many nodes are honest."""
    shifts = [m.largest_shift for m in shared]

    def epsilon(m: Mechanism) -> float:
        honest = 1 if m.shared is None else m.shared.honest
        whole = by_person(config, earlier(node, m, honest), samples, covariance.correlation(honest, shifts))
        return accountant.epsilon(whole, releases, deltas[node], config.privacy.relation).epsilon

    return trust_curve(covariance, node, shared[node], epsilon)


def batch_sizes(config: Config, samples: Sequence[int]) -> list[float]:
    """Return b_i = q J_i, where q is the rate that gives `batch` at the mean size."""
    batch, mean = config.algorithm.batch, sum(samples) / len(samples)
    if batch > mean:
        what = f"algorithm.batch = {batch:g} is above {mean:g}, the mean of the samples"
        raise Refused(what, f"take at most {int(mean)}")
    return [batch / mean * J for J in samples]


def per_node(value: Any, n: int) -> list[Any]:  # noqa: ANN401 - one value of any kind, or a list of them
    """Return one value for each node."""
    return list(value) if isinstance(value, list) else [value] * n
