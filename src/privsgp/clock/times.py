"""How long things take on the virtual clock: a node's gradient, and a message on its way.

Times are public randomness, keyed by the node and by the number of its gradient alone. They depend neither on data nor
on how many samples were drawn, so that who acts when reveals nothing, and is known before the run.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from scipy.special import ndtri

if TYPE_CHECKING:
    from numpy.typing import NDArray

Distribution = Literal["constant", "exponential", "lognormal"]

_CHUNK = 256  # numbers that are drawn at a time


@dataclass(frozen=True)
class Times:
    """Seconds. `spread` is standard deviation / mean of a log-normal time; `stragglers` take `slowdown` times as long.

    `stragglers` are numbers of nodes, or the fraction of all nodes that is to be slow; which ones is drawn then.
    """

    nodes: int
    distribution: Distribution = "constant"
    mean: float = 1.0
    spread: float = 0.0
    latency: float = 0.0
    bandwidth: float = math.inf  # bytes a second
    stragglers: float | tuple[int, ...] = 0.0
    slowdown: float = 1.0
    seed: int = 0

    def gradient(self, node: int, number: int) -> float:
        """Return what the node's `number`-th gradient takes."""
        slow = self.slowdown if node in self.slow else 1.0
        if self.distribution == "constant":
            return self.mean * slow
        chunk, place = divmod(number, _CHUNK)
        return float(_gradients(self, node, chunk)[place]) * slow

    def message(self, size: int) -> float:
        """Return what a message of `size` bytes takes."""
        return self.latency + size / self.bandwidth

    def pick(self, node: int, number: int, choices: int) -> int:
        """Return one of 0 … choices − 1, each equally often: with whom a node averages its `number`-th gradient."""
        chunk, place = divmod(number, _CHUNK)
        return int(_uniforms(self.seed, "partner", node, chunk)[place] * choices)

    @cached_property
    def slow(self) -> frozenset[int]:
        """The stragglers."""
        if isinstance(self.stragglers, tuple):
            return frozenset(self.stragglers)
        order = np.argsort(_bits(self.seed, "stragglers", 0, 0, self.nodes), kind="stable")
        return frozenset(order[: round(self.stragglers * self.nodes)].tolist())


@lru_cache(maxsize=4096)
def _gradients(times: Times, node: int, chunk: int) -> NDArray[np.float64]:
    """Draw by inversion: both have the mean that was asked for."""
    u = _uniforms(times.seed, "gradient", node, chunk)
    if times.distribution == "exponential":
        return np.asarray(-times.mean * np.log(u))
    s = math.sqrt(math.log1p(times.spread**2))
    return np.asarray(times.mean * np.exp(s * ndtri(u) - s * s / 2))


@lru_cache(maxsize=4096)
def _uniforms(seed: int, purpose: str, node: int, chunk: int) -> NDArray[np.float64]:
    """Return numbers strictly between 0 and 1."""
    return np.asarray(((_bits(seed, purpose, node, chunk, _CHUNK) >> np.uint64(11)) + 0.5) * 2.0**-53)


def _bits(seed: int, purpose: str, node: int, chunk: int, count: int) -> NDArray[Any]:
    # Raw bits of a keyed bit generator, because NumPy promises those (not its samplers) to stay the same for ever.
    key = (("gradient", "partner", "stragglers").index(purpose), node, chunk)
    return np.asarray(np.random.Philox(np.random.SeedSequence(seed, spawn_key=key)).random_raw(count))
