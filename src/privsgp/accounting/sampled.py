"""One release of a (Poisson-sampled) Gaussian: its two hockey sticks, by dp-accounting.

Under zero-out the pair is (1−q) N(0, 1) + q N(μ, 1) against N(0, 1). Under replace-one both sides are mixtures, with
shifts μ and −μ: of all admissible pairs of shifts the opposite one is the worst, since the hockey stick grows with
either norm and falls with their inner product (Kahane's formula: (x − e^ε y)₊ has a negative mixed derivative).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from privsgp.accounting.curve import gaussian_delta

if TYPE_CHECKING:
    from numpy.typing import NDArray


SELDOM = 1e-5  # below, the library subtracts numbers that are equal in double precision, and refuses some


@dataclass(frozen=True)
class Sampled:
    """A Gaussian with shift `mu` (in units of σ) for a sample drawn with probability `rate`."""

    rate: float
    mu: float
    replace: bool = False

    def forward(self, epsilon: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return H_ε(P‖Q), the sample being present in P."""
        return self._divergence("REPLACE" if self.replace else "REMOVE", epsilon)

    def backward(self, epsilon: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return H_ε(Q‖P)."""
        return self._divergence("REPLACE" if self.replace else "ADD", epsilon)

    def outline(self, epsilon: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the larger of both."""
        return np.maximum(self.forward(epsilon), self.backward(epsilon))

    def _seldom(self, adjacency: str, epsilon: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the zero-out sticks from the Gaussian's: (1 − q + q r − e^ε)₊ = q (r − 1 − (e^ε − 1)/q)₊.

        The other way 1 − e^ε (1 − q + q r) is q e^ε (k − r) with k = 1 − (1 − e^{−ε})/q.
        """
        if adjacency == "REMOVE":
            return self.rate * gaussian_delta(np.log1p(np.expm1(epsilon) / self.rate), self.mu)
        k = np.maximum(1 + np.expm1(-epsilon) / self.rate, 0.0)
        stick = gaussian_delta(-np.log(np.maximum(k, 1e-300)), self.mu)
        return np.asarray(self.rate * np.exp(np.minimum(epsilon, 1.0)) * k * stick)

    def _divergence(self, adjacency: str, epsilon: NDArray[np.float64]) -> NDArray[np.float64]:
        if self.rate < SELDOM and not self.replace:
            return self._seldom(adjacency, epsilon)
        from dp_accounting.pld.privacy_loss_mechanism import AdjacencyType, GaussianPrivacyLoss  # a second to import

        kind = AdjacencyType(adjacency)
        loss = GaussianPrivacyLoss(1.0, sensitivity=self.mu, sampling_prob=self.rate, adjacency_type=kind)
        return np.asarray(loss.get_delta_for_epsilon(epsilon), dtype=np.float64)
