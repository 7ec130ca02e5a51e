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
from privsgp.algorithms.algorithm import Algorithm, clipped_mean
from privsgp.algorithms.block import EVERYONE, Block, Drawn, Settings, State

if TYPE_CHECKING:
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

    def __init__(self, block: Block, settings: Settings) -> None:
        super().__init__(block, settings)
        self.recorded = block.record(self.direction, self.arrays)  # on a GPU its launches may be replayed

    @abstractmethod
    def direction(self, z: Tensor, batch: list[Drawn]) -> Tensor:
        """Return the nodes' gradient estimates [m, d] at z, before noise; the next call may overwrite them."""

    def step(self, k: int, s: State) -> State:
        """Take step k."""
        batch = self.block.sample(k)  # 5
        self.block.each(lambda part: part.descend(k, s, batch), self.parts)  # 6-9, of some nodes or of all
        with self.block.leave_one_core():
            self.block.release(k, s.x)
            x, w = self.block.mix(k, s.x, s.w)  # 10-13
            new = State(x, w, s.z)
            self.block.each(new.debias_, self.block.parts or [EVERYONE])  # 14
            return new

    def descend(self, k: int, s: State, batch: list[Drawn]) -> None:
        """Move x of this block's nodes, in place."""
        nodes = self.block.nodes
        g = self.recorded(s.z[nodes], [drawn.of(nodes) for drawn in batch])  # 6-7: `direction`
        with self.block.leave_one_core():
            self.block.descend(k, g, s.x[nodes])  # 8-9

    @cached_property
    def parts(self) -> list[Self]:
        """The same for some of the nodes each; itself, where there are no parts or `direction` wants all nodes."""
        alone = getattr(self.direction, "of_each_node", False)
        return [self.part(nodes) for nodes in self.block.parts if alone] or [self]

    def part(self, nodes: slice) -> Self:
        """Return the same for some of the nodes."""
        part = copy.copy(self)
        part.block = self.block.part(nodes)
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
