"""The certified accountant: ε of a run from the mechanism its algorithm declares.

Every mechanism becomes a list of releases: sampled Gaussians, SAGA releases, and those of a person at sites that share
noise. Together they become one curve δ(ε). Gaussians add up exactly; the rest is composed as privacy-loss
distributions. Before any ε is returned, two other readings of the mechanism bracket it. It may not exceed the Rényi
bound (`renyi_bound`). It may not lie below the ε that an observer certainly learns (`lower_bound`). These two can only
refuse an ε: none is ever replaced by theirs. Each process computes every ε itself: a file could hold a smaller one.
"""

from __future__ import annotations

import math
import operator
from dataclasses import astuple, dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple, get_args

from privsgp.accounting import lower_bound, mechanisms, renyi_bound
from privsgp.accounting import sampler_cost as sampler
from privsgp.accounting.compound import Anchored, Composed, Continued, PersonLevel, Shared, Summed
from privsgp.accounting.curve import Curve, Gaussian, Group, Sampled
from privsgp.accounting.mechanisms import Mechanism, Relation, Saga
from privsgp.accounting.saga import Ends, Geometry
from privsgp.errors import Refused

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from privsgp.accounting.mixture import Mixture

    Release = Sampled | Geometry | Mixture

SMALLEST, LARGEST = 1e-7, 1e60  # shifts, in units of σ: below, sampling is not worth counting; above, nothing is left
SLACK = 0.02  # by which discretisation may blur the bracket
# Composition takes the worst admissible pair at each ε, Rényi divergence at each order: where no pair is the worst at
# all of them, as for 0.3 < θ < 1, the first is looser. Measured: up to 15 % (q = 0.09, θ = 0.7, K = 2000).
ENVELOPE = 0.2


MOST_SITES = 3  # with more, neither the mixture nor the Rényi sum over all patterns of coins is a good bound
_FEW = 20_000  # boxes of a mixture in a search
_MOST = 2**53  # releases: beyond, floats no longer count one by one


class Disagreement(Refused):
    """Two independent bounds contradict each other: a bug, so no ε is given."""

    def __init__(self, what: str) -> None:
        super().__init__(what, "no ε is given; report this: two independent computations contradict each other")


class _Spent(NamedTuple):
    """ε of one sample, `math.inf` where no finite bound is known, and the second opinion, which changes nothing."""

    epsilon: float
    rdp_epsilon: float


@dataclass(frozen=True)
class _Run:
    """What is counted: releases and how often each, and how many such runs in a row make one neighbour."""

    parts: tuple[tuple[Release, int], ...]
    in_a_row: int = 1

    @property
    def plain(self) -> bool:
        """Whether all releases are Gaussians without sampling, which add up exactly."""
        return all(isinstance(release, Sampled) and release.rate == 1 for release, _ in self.parts)


def epsilon(mechanism: Mechanism, steps: int, delta: float, relation: Relation = "zero-out") -> _Spent:
    """Return the certified ε of `steps` releases at this δ.

    Guarantee: the node's messages of the whole run are (ε, δ)-differentially private under the relation, against an
    adversary who sees all of them and chooses everything else, adaptively.
    Assumes: what `accounting.assumptions` says; the parameters were fixed before the run.
    """
    steps = check(steps, delta, relation)
    run = _run(mechanism, steps, relation)
    if run is None:
        return _Spent(math.inf, math.inf)
    return _Spent(*_counted(run, mechanism, steps, delta, relation))


def profile(mechanism: Mechanism, steps: int, relation: Relation = "zero-out") -> Curve:
    """Return the whole certified curve δ(ε) of `steps` releases.

    Guarantee: for every ε ≥ 0 the messages of the run are (ε, δ(ε))-differentially private under the relation.
    Assumes: as `epsilon`.
    """
    run = _run(mechanism, check(steps, 0.5, relation), relation)
    if run is None:
        return Gaussian(math.inf)
    return _neighbour(_composed(run, 1.0), run.in_a_row)


def rough(mechanism: Mechanism, steps: int, delta: float, relation: Relation) -> float:
    """Return about the certified ε, quickly and possibly a little below it: for a search, never for a claim."""
    run = _run(mechanism, steps, relation)
    if run is None:
        return math.inf
    parts = tuple((_roughly(release), count) for release, count in run.parts)
    curve = _composed(_Run(parts, run.in_a_row), delta)
    return _neighbour(curve, run.in_a_row).epsilon(delta)


def _roughly(release: Release) -> Release:
    """Return a release that is quick to count."""
    if isinstance(release, Geometry):
        return Ends(*astuple(release))
    return release if isinstance(release, Sampled) else replace(release, boxes=_FEW)


def check(steps: int, delta: float, relation: str) -> int:
    """Refuse a count, a δ or a relation that cannot be; return the count as a plain integer."""
    count = operator.index(steps) if hasattr(steps, "__index__") else -1
    if not 0 <= count <= _MOST:
        raise Refused(f"steps = {steps!r} is no whole number from 0 to {_MOST:,}", "give the number of releases")
    if not 0 < delta < 1:
        raise Refused(f"delta = {delta} is not between 0 and 1", "take a δ well below 1 / samples")
    if relation not in get_args(Relation):
        raise Refused(f"relation = {relation!r} is unknown", "take 'zero-out' or 'replace-one'")
    return count


def _counted(run: _Run, mechanism: Mechanism, steps: int, delta: float, relation: Relation) -> tuple[float, float]:
    """Return both values of ε for the noise as it is computed: the ideal ones at a smaller δ, and a little more."""
    # by how many σ one message of neighbours may differ; of two zero-outs in a row, of either
    farthest = max((_unsampled(release) for release, _ in run.parts), default=0.0)
    cost = sampler.Cost.of(mechanism, steps, farthest)
    found = math.inf, math.inf
    for aside in sampler.ASIDE if cost.variation else (0.0,):
        remaining = cost.ideal_delta(delta, aside)
        if remaining > 0 and math.isinf(found[0]):
            first, second = _bracketed(run, mechanism, steps, remaining, cost.tail, relation)
            found = cost.epsilon(delta, first, aside), cost.epsilon(delta, second, aside)
    return found


@lru_cache(maxsize=1024)
def _bracketed(
    run: _Run, mechanism: Mechanism, steps: int, delta: float, tail: float, relation: Relation
) -> tuple[float, float]:
    """Return ε by composition and by Rényi divergences, once both agree with each other and with `lower_bound`."""
    renyi, floor = renyi_bound.renyi(mechanism, steps, relation), lower_bound.epsilon(mechanism, steps, delta, relation)
    composed = _composed(run, delta)
    above = ENVELOPE if any(isinstance(release, Geometry) for release, _ in run.parts) else SLACK
    # ε of one zero-out, and of the relation: two zero-outs in a row, each with a tail beside what is left of δ
    single, second = composed.epsilon(delta), renyi.epsilon(delta)
    times = renyi_bound.in_a_row(mechanism, relation)
    value = Group(composed, tail, run.in_a_row).epsilon(delta + tail) if run.in_a_row > 1 else single
    pair = Group(renyi, tail, times).epsilon(delta + tail) if times > 1 else second
    infinite, words = min(composed.delta(math.inf), 1.0), ""  # bounds of parts add up to more
    if not (0 <= single <= value and 0 <= infinite <= 1):
        words = f"ε = {value} with ε = {single} and {infinite} at infinity"
    elif math.isfinite(single) and single > second * (1 + above) + 1e-6 and infinite < delta / 100:
        words = f"composition gives ε = {single}, above the Rényi bound {second}"
    elif min(value, pair) < floor * (1 - SLACK) - 1e-9:
        words = f"ε = {value} (Rényi: {pair}) is below {floor}, which an observer learns"
    if words:
        raise Disagreement(f"{words}: {run} at δ = {delta}")
    return value, pair


@lru_cache(maxsize=8)
def _composed(run: _Run, delta: float) -> Curve:
    """Return the curve of all releases: exact for Gaussians, else by privacy-loss distributions, sharpest around δ."""
    if run.plain:
        return Gaussian(math.hypot(*(math.sqrt(n) * _unsampled(release) for release, n in run.parts)))
    from privsgp.accounting import pld  # dp-accounting takes a second to import, and Gaussians alone need none of it

    return pld.compose(run.parts, delta)


def _unsampled(release: Release) -> float:
    """Return the largest shift between neighbours that a release can show when its coin is known."""
    if isinstance(release, Geometry):
        return release.shift * (1 + (release.scale / release.rate - 1) * release.reach)
    return release.mu * (1 + release.replace) if isinstance(release, Sampled) else release.farthest


def _run(mechanism: Mechanism, steps: int, relation: Relation) -> _Run | None:
    """Return what is counted, None where nothing is protected; refuse a mechanism that is not known."""
    bases = _bases(mechanism, steps)
    if not any(n for _, n in bases):
        return _Run(())
    if any(n and base.sigma == 0 for base, n in bases):
        return None
    grouped = _grouped(bases, relation)
    replace = relation == "replace-one" and not grouped
    linked = _linked(mechanism, relation)
    person = mechanism.person if linked == 1 else None
    releases = ((_together(_KINDS[type(base)](base, replace=replace), person), n) for base, n in bases if n)
    counted = tuple((_within_reason(release), n) for release, n in releases)
    in_a_row = (2 if grouped else 1) * linked
    return None if any(_unsampled(release) > LARGEST for release, _ in counted) else _Run(counted, in_a_row)


def _bases(mechanism: Mechanism, steps: int) -> list[tuple[Mechanism, int]]:
    """Return the bases of a tree, each with its number of releases; refuse a mechanism that is not known."""
    # A subclass may be another release.
    if type(mechanism) not in (*_KINDS, Shared, Summed, PersonLevel, Continued, Composed, Anchored):
        raise Refused(f"the accountant does not know {type(mechanism).__name__}", "see accounting/mechanisms.py")
    match mechanism:
        case Shared():  # its σ is what is left of the noise, so a node's releases are those of the base
            return _bases(mechanism.base, steps)
        case Summed():  # a sample moves the sum of n messages as it moves its node's own; the noise there is √n σ
            noise = math.sqrt(mechanism.nodes)
            return [(base.with_sigma(noise * base.sigma), n) for base, n in _bases(mechanism.base, steps)]
        case PersonLevel():  # sites with noise of their own compose; for others see `_together`
            apart = mechanism.sites if mechanism.apart else 1
            return [(base, apart * n) for base, n in _bases(mechanism.base, steps)]
        case Composed() | Continued():
            return [pair for inner, count in mechanism.phases(steps) for pair in _bases(inner, count)]
        case Anchored():
            return _bases(mechanism.over(steps), 1)
        case _:
            return [(mechanism, steps)]


def _within_reason(release: Release) -> Release:
    """Return the release, or the plain Gaussian above it where its losses are too small or too large for a grid."""
    shift = _unsampled(release)
    near = isinstance(release, Sampled) or (release.shift < 20 if isinstance(release, Geometry) else shift < 10)
    if shift >= SMALLEST and near:
        return release
    return Sampled(1.0, max(shift, SMALLEST * 1e-20))  # between neighbours: replacing is in it


def _linked(mechanism: Mechanism, relation: Relation) -> int:
    """Return at how many sites in a row a person is taken out, one after the other, where no more is proved.

    That is so if sites share noise and a person is drawn by coins: for SAGA, for replaced persons and for many sites.
    """
    person = mechanism.person
    if person is None or person.apart:
        return 1
    releases = [_KINDS[type(base)](base, replace=False) for base, _ in _bases(person.base, 1)]
    if relation == "zero-out" and person.sites <= MOST_SITES:
        chained = any(isinstance(release, Geometry) for release in releases)
    else:
        chained = any(release.rate < 1 for release in releases)
    return person.sites if chained else 1


def _together(release: Release, person: PersonLevel | None) -> Release:
    """Return a release of one site as that of all sites of a person which share noise."""
    if person is None or person.apart or person.sites == 1:
        return release
    assert isinstance(release, Sampled)  # noqa: S101 - `_linked`
    if release.rate == 1:
        return Sampled(1.0, release.mu * person.together, release.replace)
    from privsgp.accounting.mixture import Mixture  # most runs need it not

    return Mixture(release.rate, release.mu, person.sites, person.correlation)


def _neighbour(curve: Curve, in_a_row: int) -> Curve:
    return Group(curve, times=in_a_row) if in_a_row > 1 else curve


def _grouped(bases: Sequence[tuple[Mechanism, int]], relation: Relation) -> bool:
    """Whether replace-one is counted as two zero-outs: where the proof needs that one side has no coins."""
    hidden = (isinstance(m, Saga) and m.difference_scale > m.rate and m.amplified for m, _ in bases)
    return relation == "replace-one" and any(hidden)


def _mean(mechanism: Mechanism, *, replace: bool) -> Release:
    """(1/b) Σ clip(g_j): shift G/b when drawn."""
    rate = mechanism.rate if mechanism.amplified else 1.0
    return Sampled(rate, _over(mechanism.radius, mechanism.batch * mechanism.sigma), replace)


def _saga(mechanism: Mechanism, *, replace: bool) -> Release:
    """One admissible pair a step with coins; without, the largest shift: |θc/b + t/J| ≤ θR/b + (G − R)/J.

    For θ ≤ q both shifts lie between t/J and (t + c)/J, in the ball of radius G/J whatever the coins: as SAG's.
    """
    assert isinstance(mechanism, Saga)  # noqa: S101
    if mechanism.difference_scale <= mechanism.rate:
        return _whole(mechanism, replace=replace)
    ratio, shift = (mechanism.difference_clip or math.inf) / mechanism.clip, mechanism.samples * mechanism.sigma
    geometry = Geometry(mechanism.rate, ratio, _over(mechanism.radius, shift), mechanism.difference_scale)
    return geometry if mechanism.amplified else Sampled(1.0, _unsampled(geometry), replace)


def _whole(mechanism: Mechanism, *, replace: bool) -> Release:
    """(1/J) Σ v_j over all samples, or over a table that is already updated: shift G/J whatever the coins."""
    return Sampled(1.0, _over(mechanism.radius, mechanism.samples * mechanism.sigma), replace)


def _over(norm: float, noise: float) -> float:
    return norm / noise if noise else math.inf


_KINDS: dict[type[Mechanism], Callable[..., Release]] = {
    mechanisms.Unprotected: _mean,
    mechanisms.SampledMean: _mean,
    Saga: _saga,
    mechanisms.Gaussian: _whole,
    mechanisms.Sag: _whole,
}
