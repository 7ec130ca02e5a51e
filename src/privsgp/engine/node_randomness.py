"""What the nodes of a process draw: the samples of line 5, the noise of line 8, and bits that all may know.

What would be waited for is drawn ahead, while gradients are computed or messages travel; the numbers are the same.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from privsgp.algorithms import Drawn, Randomness
from privsgp.algorithms.block import EVERYONE
from privsgp.clock import Events
from privsgp.devices import device_of
from privsgp.gradients.dropout import sample_keys, tosses
from privsgp.randomness.coins import batches, capacity, draw, draw_all
from privsgp.randomness.noise import Keyed, Secure, clock_offset, clocks_parted
from privsgp.seeds import public_seed
from privsgp.threads import leave_one_core

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from contextlib import AbstractContextManager

    from torch import Tensor

    from privsgp.clock import Event
    from privsgp.engine.spec import RunSpec
    from privsgp.randomness.protocol import KeyExchange


class NodeRandomness(Randomness):
    """The coins and the noise of a run's nodes here, x being like `like`; `alone`: no messages travel to others.

    `exchange` agrees on secrets with nodes elsewhere, where there are some.

    Guarantee: sampler and σ are those of the mechanism that is counted. Without a seed coins and noise are secret.

    Assumes: `attempt` grows before a step is made again that may differ from what was sent.
    """

    def __init__(self, spec: RunSpec, like: Tensor, *, alone: bool, exchange: KeyExchange | None = None) -> None:
        self.spec, self.alone = spec, alone
        self.source = Secure() if spec.seed is None else Keyed(spec.seed)
        self.node_noise = spec.noise.of_nodes(spec.here, spec.mechanisms, self.source, exchange)
        self.secret = self.source.secret
        self.drawn: list[Drawn] = []  # the samples of the last step
        self._ahead = False  # whether a second thread draws the next step's noise
        self._dropout = public_seed(spec.seed, spec.shared_hash, "dropout") if tosses(spec.learning.model) else None
        self._dummy = spec.learning.inputs.shape[1] - 1
        self._samples = np.array(spec.learning.samples)[:, None]
        # By the mechanisms of all nodes: a batch has one size wherever a node lives.
        self.slots = max(capacity(m, spec.nodes) for m in set(spec.protection.mechanisms))
        self._like = like.new_empty(1).expand_as(like)  # x itself would be kept alive
        self._drawn: tuple[int, int, list[Drawn]] | None = None
        self._offset = 0.0  # of the clocks, when that was drawn

    def sample(self, k: int) -> list[Drawn]:
        """Return the samples of step k, in passes of one size."""
        drawn, self._drawn = self._drawn, None
        if drawn is not None and self.source.secret and clocks_parted(self._offset):
            self.source.undraw("coins", self.spec.here, *drawn[:2])
            drawn = None
        self.drawn = drawn[2] if drawn is not None and drawn[:2] == (k, self.attempt) else self._draw(k)
        return self.drawn

    def events(self, k: int) -> Iterable[Event]:
        """Return which nodes act at step k, in the order of the public clock."""
        if not isinstance(self.spec.clock, Events):
            raise TypeError(f"{self.spec.algorithm.name} needs a clock of events, and has {self.spec.clock!r}")
        return self.spec.clock.of(k)

    def sample_some(self, numbers: Mapping[int, int]) -> list[Drawn]:
        """Draw for some nodes, each by the number of its own gradient."""
        nothing, mechanisms = np.empty(0, np.int64), self.spec.protection.mechanisms
        draws = {i: draw(self.source, mechanisms[i], i, number, self.attempt) for i, number in numbers.items()}
        steps = [numbers.get(i, 0) for i in self.spec.here]
        return self._passes([draws.get(i, nothing) for i in self.spec.here], steps)

    def noise(self, k: int, g: Tensor, nodes: slice = EVERYONE) -> None:
        """Add the noise of step k to every node's row of g, in place; g may be of some nodes alone."""
        self.node_noise.add_(g, self.spec.here[nodes], k, self.attempt)
        self._begin_next(k, nodes)

    def noised_step(self, k: int, g: Tensor, x: Tensor, step_size: float, nodes: slice = EVERYONE) -> bool:
        """Take γ (g + noise of step k) from x, in place, where one pass does it; tell whether that was done."""
        done = self.node_noise.step_(x, g, self.spec.here[nodes], k, self.attempt, step_size)
        if done:
            self._begin_next(k, nodes)
        return done

    def _begin_next(self, k: int, nodes: slice) -> None:
        """Let a second thread draw the next step's noise, unless threads draw it for some nodes each."""
        alone = self.alone and nodes == EVERYONE and k + 1 < self.spec.steps  # others draw `meanwhile`
        self._ahead = alone and not self.node_noise.zero and device_of(self.spec.device).in_host_memory
        if self._ahead:
            self.node_noise.begin(self._like, k + 1, self.attempt)

    def spare_core(self) -> AbstractContextManager[None]:
        """Leave a core to the thread that draws ahead."""
        return leave_one_core() if self._ahead else nullcontext()

    def meanwhile(self, k: int) -> None:
        """Draw the next step's samples and noise while the messages of step k travel."""
        if k + 1 < self.spec.steps:
            self._offset = clock_offset()
            self._drawn = k + 1, self.attempt, self._draw(k + 1)
            if not self.node_noise.zero:
                self.node_noise.prepare(self._like, k + 1, self.attempt)

    def public(self, purpose: str, k: int) -> np.random.Philox:
        """Return the bits of a purpose at step k that all may know."""
        seed = public_seed(self.spec.seed, self.spec.shared_hash, purpose)
        return np.random.Philox(key=seed % 2**128, counter=[0, 0, 0, k])

    def _draw(self, k: int) -> list[Drawn]:
        here, releases = self.spec.here, [mechanism.at(k) for mechanism in self.spec.mechanisms]
        return self._passes(draw_all(self.source, releases, here, k, self.attempt), [k] * len(here))

    def _passes(self, draws: Sequence[np.ndarray[Any, Any]], steps: Sequence[int]) -> list[Drawn]:
        """Lay draws into passes; `steps` are the numbers of the nodes' own gradients, for dropout."""
        passes = [rows for rows, _ in batches(draws, self.slots, self._dummy)]
        for rows in passes:  # others' rows follow a node's own in memory, whoever says what J_i is
            if np.any((rows < 0) | ((rows >= self._samples) & (rows != self._dummy))):
                raise RuntimeError("a sample was drawn that is not its node's")
        placed = [self._placed(rows) for rows in passes]
        keys = [self._keys(rows, steps) for rows in passes]
        return [Drawn(rows, rows != self._dummy, key) for rows, key in zip(placed, keys, strict=True)]

    def _keys(self, rows: np.ndarray[Any, Any], steps: Sequence[int]) -> Tensor | None:
        """Return what each sample's dropout is decided by at this step: public, and nothing of any data."""
        if self._dropout is None:
            return None
        nodes = np.array(self.spec.here)
        return self._placed(sample_keys(self._dropout, nodes, np.array(steps), rows).numpy())

    def _placed(self, values: np.ndarray[Any, Any]) -> Tensor:
        """Copy to the device; from page-locked memory nobody has to wait for the copy."""
        there = torch.from_numpy(values)
        device = self.spec.device
        return there.pin_memory().to(device, non_blocking=True) if device_of(device).pins else there
