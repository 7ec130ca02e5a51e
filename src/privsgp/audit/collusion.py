"""What a coalition knows of a node's shared noise, so that an audit attacks what is left of it.

Against node i work together: a coalition of all but h nodes, the worst that there is, which hands over the numbers of
every pair it is part of; and the other h − 1 honest nodes' *total* noise is handed over as well. The attacker takes
from node i's message what it shares with the coalition, and the best guess of the rest from the others' noise. By the
theorem, what remains is N(0, σ_eff,i²), independent of all that (docs/proofs/pairwise.md).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from scipy import stats

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from privsgp.accounting.pairwise import PairwiseCovariance
    from privsgp.randomness.noise import Normals

ROUNDING = 1.02  # by which the grid may add to the variance of a sum of own noise


class Told:
    """A source of pairs' numbers that lets the attacker read along."""

    def __init__(self, source: Normals, columns: Callable[[Tensor], Tensor]) -> None:
        self.source, self.columns = source, columns
        self.numbers: dict[tuple[int, int], Tensor] = {}  # by pair and step

    @property
    def secret(self) -> bool:
        """As the source's."""
        return self.source.secret

    def fill_normal(self, out: Tensor, nodes: Sequence[int], step: int) -> None:
        """Fill as the source does, and keep what the canaries' columns are."""
        self.source.fill_normal(out, nodes, step)
        for pair, row in zip(nodes, self.columns(out).double(), strict=True):
            self.numbers[pair, step] = row.clone()


class Collusion:
    """The attack on one run's shared noise: `honest` nodes are left, each of them attacked in its turn."""

    def __init__(self, covariance: PairwiseCovariance, honest: int, told: Told) -> None:
        self.covariance, self.told = covariance, told
        self._sets = [worst(covariance, i, honest) for i in range(covariance.graph.nodes)]
        self._guesses = [_regression(covariance, H) for H in self._sets]
        self._squares: list[float] = []
        self._count = 0

    def known(self, step: int, added: Tensor) -> Tensor:
        """Return what the attacker takes from each node's message: `added` [n, …] is all nodes' total noise."""
        steps = torch.tensor(self.covariance.steps, dtype=torch.float64)
        scaled = added.double().cpu() * steps[:, None, None]
        self._squares.append(float(scaled.sum(0).square().sum()))
        self._count += scaled[0].numel()
        found = torch.empty_like(scaled)
        for i, (H, beta) in enumerate(zip(self._sets, self._guesses, strict=True)):
            rest = [scaled[j] - self._shared(step, j, H) for j in H[1:]]
            guess = sum((b * one for b, one in zip(beta, rest, strict=True)), torch.zeros_like(scaled[0]))
            found[i] = self._shared(step, i, H) + guess
        for key in [key for key in list(self.told.numbers) if key[1] < step]:  # another thread may be adding to it
            del self.told.numbers[key]
        return found / steps[:, None, None]

    def cancellation_p(self) -> float:
        """Return a p-value against "the sum of all nodes' noise is their own": pairs that do not cancel add to it."""
        declared = ROUNDING * sum(self.covariance.own)
        return float(stats.chi2.sf(sum(self._squares) / declared, self._count)) if self._count else 1.0

    def _shared(self, step: int, node: int, honest: Sequence[int]) -> Tensor:
        """Return what a node shares with the coalition, as it adds it (times n p)."""
        size = float(np.sqrt(self.covariance.pair))
        total: Tensor | None = None
        for pair in self.covariance.graph.pairs:
            if node in pair and (pair[0] not in honest or pair[1] not in honest):
                number = self.told.numbers[pair[0] * self.covariance.graph.nodes + pair[1], step].cpu()
                part = number * (size if pair[0] == node else -size)
                total = part if total is None else total + part
        return torch.zeros(()) if total is None else total


def worst(covariance: PairwiseCovariance, node: int, honest: int) -> list[int]:
    """Return the honest nodes that leave a node the least, itself first: those with the least noise of their own."""
    others = [j for j in range(covariance.graph.nodes) if j != node]
    return [node, *sorted(others, key=lambda j: (covariance.own[j], j))[: honest - 1]]


def _regression(covariance: PairwiseCovariance, honest: Sequence[int]) -> list[float]:
    """Return β: how much of each other honest node's noise is in that of the first."""
    S = covariance.among(honest)
    return [float(b) for b in np.linalg.solve(S[1:, 1:], S[1:, 0])]


def listen(node_noise: object, columns: Callable[[Tensor], Tensor]) -> Told:
    """Have the numbers of a process's pairs told to the attacker; pairs are then drawn one by one, never together."""
    told: list[Told] = []
    node_noise.overhear(lambda source: told.append(Told(source, columns)) or told[0])  # type: ignore[attr-defined, func-returns-value]
    return told[0]
