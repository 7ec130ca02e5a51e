"""The draws of a process's nodes: the samples of line 5, the noise of line 8, and public bits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from privsgp.algorithms import Drawn, Randomness
from privsgp.clock import Events
from privsgp.devices import device_of
from privsgp.randomness.coins import batches, draw, draw_all
from privsgp.randomness.noise import Keyed, Secure
from privsgp.seeds import public_seed

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from torch import Tensor

    from privsgp.clock import Event
    from privsgp.engine.spec import RunSpec
    from privsgp.randomness.noise import KeyExchange, NodeNoise


class NodeRandomness(Randomness):
    """The coins and the noise of a run's nodes here.

    Guarantee: sampler and σ are those of the mechanism that is counted. Without a seed coins and noise are secret.

    Assumes: without a seed, `source` was made in this life of the process: a step that is made again has other noise.
    """

    def __init__(self, spec: RunSpec, source: Keyed | Secure, node_noise: NodeNoise) -> None:
        self.spec, self.source, self.node_noise = spec, source, node_noise
        self.secret = source.secret
        self._dummy = spec.learning.inputs.shape[1] - 1
        self._samples = np.array(spec.learning.samples)[:, None]

    @classmethod
    def of_run(cls, spec: RunSpec, exchange: KeyExchange | None = None) -> NodeRandomness:
        """Return what a process's nodes draw; `exchange` agrees on secrets with nodes elsewhere."""
        source = Secure() if spec.seed is None else Keyed(spec.seed)
        return cls(spec, source, spec.noise.of_nodes(spec.here, spec.mechanisms, source, exchange))

    def of(self, fewer: RunSpec) -> NodeRandomness:
        """Return what some of the nodes draw, from the same source."""
        return NodeRandomness(fewer, self.source, self.node_noise)

    def sample(self, k: int) -> list[Drawn]:
        """Return the samples of step k, in passes of one size."""
        here, releases = self.spec.here, [mechanism.at(k) for mechanism in self.spec.mechanisms]
        return self._passes(draw_all(self.source, releases, here, k))

    def events(self, k: int) -> Iterable[Event]:
        """Return which nodes act at step k, in the order of the public clock."""
        if not isinstance(self.spec.clock, Events):
            raise TypeError(f"{self.spec.algorithm.name} needs a clock of events, and has {self.spec.clock!r}")
        return self.spec.clock.of(k)

    def sample_some(self, numbers: Mapping[int, int]) -> list[Drawn]:
        """Draw for some nodes, each by the number of its own gradient."""
        nothing, mechanisms = np.empty(0, np.int64), self.spec.protection.mechanisms
        draws = {i: draw(self.source, mechanisms[i], i, number) for i, number in numbers.items()}
        return self._passes([draws.get(i, nothing) for i in self.spec.here])

    def noise(self, k: int, g: Tensor, node: int | None = None) -> None:
        """Add the noise of step k, or of a node's gradient of that number, to each row of g, in place."""
        self.node_noise.add_(g, self.spec.here if node is None else [node], k)

    def public(self, purpose: str, k: int) -> np.random.Philox:
        """Return the bits of a purpose at step k that all may know."""
        seed = public_seed(self.spec.seed, self.spec.shared_hash, purpose)
        return np.random.Philox(key=seed % 2**128, counter=[0, 0, 0, k])

    def _passes(self, draws: Sequence[np.ndarray[Any, Any]]) -> list[Drawn]:
        """Lay draws into passes."""
        passes = batches(draws, self.spec.slots, self._dummy, scattered=self.spec.scattered)
        for rows in passes:  # others' rows follow a node's own in memory, whoever says what J_i is
            if np.any((rows < 0) | ((rows >= self._samples) & (rows != self._dummy))):
                raise RuntimeError("a sample was drawn that is not its node's")
        placed = list(map(torch.from_numpy, passes))
        if device_of(self.spec.device).has_cudnn:  # from page-locked memory nobody has to wait for the copy
            placed = [rows.pin_memory().to(self.spec.device, non_blocking=True) for rows in placed]
        return [Drawn(rows, rows != self._dummy) for rows in placed]
