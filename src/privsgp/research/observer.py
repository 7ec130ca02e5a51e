"""What one curious site learns of each other site, beside the guarantee that holds against everybody.

Not a guarantee, and never calibrated to: it holds where gradients do not depend on noise that the observer has not
seen (docs/proofs/neighbour.md). There everything is linear and Gaussian. With u_m = g_m + N(0, σ_m²),

    x_m^{k+½} = x_m^k − γ u_m^k,     x^{k+1} = P^k x^{k+½},

and observer i sees x_m^{k+½} of every m that sends to it at step k. A Kalman filter over the others' x turns these
messages into innovations, which are independent; their squared shifts, in units of their noise, add up to

    μ_ij² = sup Σ_{s,t} M_st ⟨Δ_s, Δ_t⟩   over |Δ_t| ≤ shift_j,

Δ_t being what the record adds to g_j at step t. γ is common to all nodes and steps, and cancels.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from scipy import linalg

from privsgp.accounting.curve import Gaussian
from privsgp.errors import Refused

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from privsgp.graph.sequences import Graph

    Matrix = NDArray[np.float64]

LARGEST = 50_000_000  # n K² numbers of 8 bytes: what is kept for one observer
_SWEEPS, _CLOSE = 200, 1e-4  # of the search for the worst Δ, and how near both its bounds have to be

NOTE = (
    "a neighbour's view is information beside the guarantee, never used for calibration: it is one site's, who sees "
    "the messages sent to it and nothing that is published, and holds for one step size at all sites, no momentum, and "
    "gradients that do not depend on noise it has not seen (linear losses); with other losses a neighbour learns more "
    "or less than this, and never more than the guarantee"
)


def view(network: Graph, steps: int, shift: float, delta: float) -> Matrix:
    """Return `epsilon[i, j]` of site j towards observer i alone in so many steps; nan of a site towards itself.

    `shift` is how far one record moves its site's averaged gradient, in units of the site's noise σ.

    Assumes: full batches, noise of each site's own, taken as ideal, and gradients that do not depend on noise which
    the observer has not seen. No guarantee: the mechanism's own holds against everybody, and is never below this.
    """
    most = math.isqrt(LARGEST // network.nodes)
    if network.nodes < 2 or not 1 <= steps <= most:
        what = f"a neighbour's view of {network.nodes} nodes in {steps} steps"
        raise Refused(what, f"take at least 2 nodes and 1 to {most} steps")
    if not math.isfinite(steps * shift * shift):
        raise Refused(f"a neighbour's view of records that move by {shift:g} σ", "give more noise: no ε is finite here")
    units = np.ones(network.nodes)  # squares of units neither overflow nor vanish
    mu = seen_shifts([network.matrix(k) for k in range(steps)], units, units) * shift
    of = np.vectorize(lambda m: m if math.isnan(m) else Gaussian(m).epsilon(delta), otypes=[float])
    return np.asarray(of(mu))


def seen_shifts(mixing: Sequence[Matrix], shifts: Matrix, sigmas: Matrix) -> Matrix:
    """Return μ[i, j], the shift in units of noise that observer i sees of site j's worst record; nan for i = j.

    It is rounded up by as much as the search for the worst record is off, and cut at √K shift_j / σ_j, which all
    messages of j together show.
    """
    if _alike(mixing, shifts, sigmas):  # what one observer sees, all do, a few places on
        first = _seen_by(0, mixing, shifts, sigmas)
        return np.stack([np.roll(first, i) for i in range(len(shifts))])
    return np.stack([_seen_by(i, mixing, shifts, sigmas) for i in range(len(shifts))])


def _alike(mixing: Sequence[Matrix], shifts: Matrix, sigmas: Matrix) -> bool:
    """Whether the network looks the same from every node: turning it by one place changes nothing."""
    turned = all(np.array_equal(P, np.roll(P, (1, 1), (0, 1))) for P in mixing)
    return turned and len(set(shifts.tolist())) == 1 == len(set(sigmas.tolist()))


def _seen_by(i: int, mixing: Sequence[Matrix], shifts: Matrix, sigmas: Matrix) -> Matrix:
    most = math.sqrt(len(mixing)) * shifts / sigmas
    found = [math.sqrt(worst(gram)) for gram in information(i, mixing, shifts, sigmas)]
    seen = np.minimum(found, most)
    seen[i] = math.nan
    return seen


def information(i: int, mixing: Sequence[Matrix], shifts: Matrix, sigmas: Matrix) -> Matrix:
    """Return M [site, step, step] of observer i: of Δ_t = shift_j v_t it sees Σ M_st ⟨v_s, v_t⟩ in units of noise.

    Filters the others' x: `covariance` is what is unknown of it before a step's messages, `moved[t]` by how much a
    record of each site that shows at step t has misled the filter.
    """
    nodes, steps = len(shifts), len(mixing)
    told = np.zeros((nodes, steps, steps))
    covariance, moved = np.zeros((nodes, nodes)), np.zeros((steps, nodes, nodes))
    others = np.delete(np.arange(nodes), i)
    for k, P in enumerate(mixing):
        covariance[others, others] += sigmas[others] ** 2
        moved[k, others, others] = shifts[others]
        if len(seen := others[P[i, others] > 0]):
            rows = _learn(covariance, moved[: k + 1], seen).transpose(2, 0, 1)
            told[:, : k + 1, : k + 1] += rows @ rows.transpose(0, 2, 1)
        covariance = P @ covariance @ P.T
        moved[: k + 1] = P @ moved[: k + 1]
    return told


def _learn(covariance: Matrix, moved: Matrix, seen: NDArray[np.int64]) -> Matrix:
    """Take in the messages of the senders `seen`; return by how many units of noise each record moved them."""
    root = linalg.inv(linalg.cholesky(covariance[np.ix_(seen, seen)], lower=True))
    innovation, gain = root @ moved[:, seen], root @ covariance[seen]
    moved -= gain.T @ innovation
    covariance -= gain.T @ gain
    moved[:, seen], covariance[seen], covariance[:, seen] = 0.0, 0.0, 0.0  # known now, but for what rounding leaves
    return np.asarray(innovation)


def worst(gram: Matrix) -> float:
    """Return an upper bound on Σ M_st ⟨v_s, v_t⟩ over unit vectors v, in any dimension, which some v comes close to.

    Ascends from v_t almost alike: alike is the optimum where no entry of M is negative. At an optimum Mv = y v, row by
    row, and Σ y bounds every v if diag(y) − M has no negative eigenvalue. Raising y by as much as it lacks makes any
    y such a one, so that the bound holds wherever the ascent stands.
    """
    shown = np.flatnonzero(np.diag(gram) > 0)
    if not len(shown):
        return 0.0
    gram = gram[np.ix_(shown, shown)]
    v = np.ones((len(gram), 1 + math.isqrt(2 * len(gram))))
    v[:, 1:] = 1e-3 * np.random.default_rng(0).standard_normal((len(gram), v.shape[1] - 1))
    bound, others = math.inf, gram - np.diag(np.diag(gram))
    for sweep in range(_SWEEPS):
        y = np.diag(gram) + _ascend(others, v)
        if sweep % 10 == 1:
            lacking = linalg.eigvalsh(gram - np.diag(y), subset_by_index=[len(y) - 1, len(y) - 1])[0]
            bound = min(bound, float(y.sum() + len(y) * max(lacking, 0.0)))
            if bound <= (1 + _CLOSE) * float(np.sum(v * (gram @ v))):
                break
    return bound


def _ascend(others: Matrix, v: Matrix) -> Matrix:
    """Turn one vector after the other to where the rest pull it; return how strongly they do."""
    strength = np.zeros(len(v))
    for t, row in enumerate(others):
        pull = row @ v
        strength[t] = length = math.sqrt(pull @ pull)
        if length:
            v[t] = pull / length
    return strength
