"""The base of all algorithms: state, step, and a declaration of what one message reveals to which observer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar, Literal, TypeVar

from privsgp.options import Options

if TYPE_CHECKING:
    from torch import Tensor

    from privsgp.accounting.mechanisms import Mechanism
    from privsgp.algorithms.block import Block, Settings, State
    from privsgp.algorithms.events import Step


# The network that a method needs: a directed graph, links in both directions with equal shares, a server, or none.
Network = Literal["directed", "undirected", "server", "alone"]
# The view of an adversary: every message of a node; only the sum of all nodes' messages; only a curator's model; every
# message, but not what honest nodes share noise with each other by.
Trust = Literal["per-node", "secure aggregation", "curator", "honest sites"]


AnyStep = TypeVar("AnyStep")


def cancelling(step: AnyStep) -> AnyStep:
    """Declare that a step moves every node by its noised gradient and mixes linearly: shared noise cancels in the sum.

    It is not inherited: another step may do something else with the noise.
    """
    step.cancelling = True  # type: ignore[attr-defined]
    return step


class Algorithm(ABC):
    """A step of a block of nodes."""

    name: ClassVar[str]
    private: ClassVar[bool] = True
    network: ClassVar[Network] = "directed"
    trust: ClassVar[Trust] = "per-node"
    pooled: ClassVar[bool] = False  # all nodes' data on one node
    Options: ClassVar[type[Options]] = Options  # its own keys of [algorithm]
    trusts: ClassVar[tuple[Trust, ...]] = ()  # what `algorithm.trust` may choose between; nothing where it is empty
    asynchronous: ClassVar[bool] = False  # nodes act one at a time, n events a step: `Randomness.events`

    def __init__(self, block: Block, settings: Settings) -> None:
        self.block = block
        self.settings = settings

    @staticmethod
    @abstractmethod
    def mechanism(settings: Settings, *, sigma: float, batch: float, samples: int, kappa: float) -> Mechanism:
        """Declare what one message of a node reveals about one of its samples."""

    @classmethod
    def noise_cancels(cls) -> bool:
        """Whether noise that pairs of nodes share cancels in the sum of all nodes."""
        return cls.private and getattr(cls.step, "cancelling", False)

    def begin(self, z: Tensor) -> None:  # noqa: B027 - most algorithms remember nothing
        """Prepare what the algorithm remembers, at z⁰."""

    def arrays(self) -> dict[str, Tensor]:
        """Return what the algorithm remembers besides (x, w, z), for checkpoints."""
        return {}

    def restored(self, z: Tensor) -> None:  # noqa: B027 - what was made of messages alone may be anything
        """Make sure that what was read into `arrays` is what the accountant assumes of it."""

    @abstractmethod
    def step(self, k: int, s: State) -> Step:
        """Take step k: yield what leaves (`privsgp.algorithms.events`), return the new state.

        Guarantee: a message that carries noise of step k is yielded in a `Release` before any of it leaves.
        """

    def close(self) -> None:
        """Let go of everything: it may refer to itself, and its table would wait for a collector that sees no sizes."""
        vars(self).clear()
