"""The paper's loop, lines 5 to 14 of Algorithm 1; the algorithms on top of it differ only in their direction.

5       draw samples
6-7     g_i = direction(z_i)          this is where SGP, PrivSGP, PrivSGP-VR and PrivSGP-SAG differ
8       g_i += N(0, σ_i² I)
9       x_i^{k+½} = x_i − γ g_i       `update_rule` may give nodes weights, momentum or steps of one length
10-13   x_i = Σ_j P_ij x_j^{k+½},  w_i = Σ_j P_ij w_j
14      z_i = x_i / w_i
"""

from __future__ import annotations

import copy
from abc import abstractmethod
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar, Self, TypeVar

from privsgp.accounting.mechanisms import Mechanism, SampledMean, Unprotected
from privsgp.algorithms.algorithm import Algorithm, cancelling, clipped_mean
from privsgp.algorithms.block import EVERYONE, Block, Drawn, Settings, State
from privsgp.algorithms.events import Exchange, Release, Step
from privsgp.threads import one_thread_each

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

AnyDirection = TypeVar("AnyDirection")


def of_each_node(direction: AnyDirection) -> AnyDirection:
    """Declare that a `direction` takes each node by itself, so that some can be done without the others.

    It is not inherited: another direction may remember something of all nodes.
    """
    direction.of_each_node = True  # type: ignore[attr-defined]
    return direction


# --8<-- [start:loop]
class PushSum(Algorithm):
    """Stochastic gradient push for a block of nodes."""

    nodes = EVERYONE  # those of the run that are in `block`; of a part, some

    def __init__(self, block: Block, settings: Settings) -> None:
        super().__init__(block, settings)
        self.recorded = block.execution.recorded(self.direction, self.arrays)

    @abstractmethod
    def direction(self, z: Tensor, batch: list[Drawn]) -> Tensor:
        """Return the nodes' gradient estimates [m, d] at z, before noise; the next call may overwrite them."""

    @cancelling
    def step(self, k: int, s: State) -> Step:
        """Take step k."""
        batch = self.block.random.sample(k)  # 5
        self.each(lambda part: part.descend(k, s, batch))  # 6-9: x −= γ (direction(z) + noise)
        yield Release(s.x)
        x, w = yield Exchange(s.x, s.w)  # 10-13
        new = State(x, w, s.z)
        self.each(lambda part: new.debias_(part.nodes))  # 14: z = x / w
        return new

    def descend(self, k: int, s: State, batch: list[Drawn]) -> None:
        """Move x of this part's nodes, in place."""
        g = self.recorded(s.z[self.nodes], [drawn.of(self.nodes) for drawn in batch])  # 6-7
        self.block.descend(k, g, s.x[self.nodes], self.nodes)  # 8-9

    def each(self, work: Callable[[Self], None]) -> None:
        """Do some work for all nodes: for each part, in a thread of its own, if there are parts."""
        if len(self.parts) > 1:
            one_thread_each(work, self.parts)
        else:
            work(self)

    @cached_property
    def parts(self) -> list[Self]:
        """The same for some of the nodes each; itself alone, if all nodes go at once."""
        return [self.part(nodes) for nodes in self.block.execution.parts] or [self]

    def part(self, nodes: slice) -> Self:
        """Return the same for some of the nodes."""
        part = copy.copy(self)
        part.block, part.nodes = self.block.part(nodes), nodes
        part.recorded = part.direction
        part.__dict__.pop("parts", None)
        return part

    def close(self) -> None:
        """Let go of everything, and so do its parts."""
        for part in vars(self).pop("parts", []):
            part.close()
        super().close()


class PrivSGP(PushSum):
    """PrivSGP (the paper's Algorithm 2): stochastic gradient push with clipped gradients and Gaussian noise.

    A sample moves a message by at most G/b, and only when it is drawn: DP-SGD's subsampled Gaussian.
    """

    name: ClassVar[str] = "privsgp"

    @staticmethod
    def mechanism(settings: Settings, *, sigma: float, batch: float, samples: int, kappa: float) -> Mechanism:
        """(1/b) Σ_{j∈B} clip(g_j) + N(0, σ²)."""
        return SampledMean(
            sigma=sigma, clip=settings.clip, batch=batch, samples=samples, sampling=settings.sampling, kappa=kappa
        )

    @of_each_node
    def direction(self, z: Tensor, batch: list[Drawn]) -> Tensor:
        """G = (1/b) Σ_{j∈B} clip_G(∇f_i(z_i; j))."""
        return clipped_mean(self.block, z, batch)


# --8<-- [end:loop]
class SGP(PrivSGP):
    """SGP (Assran et al. 2019): stochastic gradient push without clip and without noise. Not private.

    PrivSGP with an infinite clip and σ = 0, to the last bit.
    """

    name: ClassVar[str] = "sgp"
    private: ClassVar[bool] = False

    @staticmethod
    def mechanism(settings: Settings, *, sigma: float, batch: float, samples: int, kappa: float) -> Mechanism:
        """(1/b) Σ_{j∈B} g_j, as it is; σ is ignored."""
        del sigma
        return Unprotected(batch=batch, samples=samples, sampling=settings.sampling, kappa=kappa)
