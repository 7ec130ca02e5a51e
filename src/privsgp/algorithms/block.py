"""A block of m nodes: their data and what an algorithm computes with, whoever else is in the network.

A process owns a block. A laptop simulation is one process with m = n; the paper's set-up is n processes with m = 1.
Algorithms are written once, for a block, and never know which of these they run in: only the driver of a step does.

Below the block are the gradient estimates that more than one algorithm takes, before noise.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
import torch

from privsgp.devices import device_of
from privsgp.options import Options

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from torch import Tensor

    from privsgp.accounting.mechanisms import Mechanism
    from privsgp.algorithms.algorithm import Trust
    from privsgp.algorithms.update_rule import UpdateRule
    from privsgp.clock import Event
    from privsgp.gradients import PerSample, Stacked

    Direction = Callable[[Tensor, list["Drawn"]], Tensor]  # the nodes' gradient estimates at z, by drawn samples
    Kept = Callable[[], dict[str, Tensor]]  # what a direction remembers, and changes in place

_PIECE = 1 << 18  # numbers that are gone through at once: what they need stays in a core's cache
OwnOptions = TypeVar("OwnOptions", bound=Options)


class Drawn(NamedTuple):
    """One pass over drawn samples: row numbers [m, capacity], and which of them are real. The rest is padding."""

    rows: Tensor
    mask: Tensor


class State(NamedTuple):
    """The state of the nodes: x [m, d], the push-sum weights w [m] (float64) and the de-biased z = x / w."""

    x: Tensor
    w: Tensor
    z: Tensor

    @classmethod
    def debiased(cls, x: Tensor, w: Tensor) -> State:
        """Put z = x / w beside them."""
        return cls(x, w, x / w.to(x.dtype)[:, None])

    @classmethod
    def start(cls, x0: Tensor, nodes: int) -> State:
        """All nodes start from the same x⁰ with weight 1."""
        from privsgp.gradients.product import aligned_rows

        x = x0.expand(nodes, -1).clone()
        z = aligned_rows(x, x.shape[1]).copy_(x)  # its rows are what every product of the forward pass reads
        return cls(x, torch.ones(nodes, dtype=torch.float64, device=x.device), z)


@dataclass(frozen=True)
class Settings:
    """Settings of an algorithm and its mechanism: facts of the run, and the algorithm's own options."""

    clip: float = 1.0
    batch: float = 1.0  # at the mean number of samples
    nodes: int = 1
    trust: Trust = "per-node"
    spare: int = 0  # steps that may have to be made again
    local_steps: int = 1  # τ: steps of a message
    options: Options | None = None  # None: the algorithm's own defaults

    def own(self, kind: type[OwnOptions]) -> OwnOptions:
        """Return the options as the algorithm's own kind; those of another algorithm are a mistake of the caller."""
        if self.options is None:
            return kind()
        if not isinstance(self.options, kind):
            raise TypeError(f"{type(self.options).__name__} where {kind.__name__} is needed")
        return self.options

    def carried_to(self, kind: type[Options], **changes: Any) -> Settings:  # noqa: ANN401 - values of options
        """Return the settings for another algorithm: options that it has too keep their values, unless changed."""
        given = {} if self.options is None else self.options.model_dump()
        return replace(self, options=kind(**{k: v for k, v in (given | changes).items() if k in kind.model_fields}))

    @property
    def difference_clip(self) -> float | None:
        """C of an estimator with differences; None: 2G, or no differences at all."""
        clip: float | None = getattr(self.options, "difference_clip", None)
        return clip

    @property
    def difference_scale(self) -> float:
        """θ of an estimator with differences from a table; 1 as well where "auto" has not been settled yet."""
        scale: float | str = getattr(self.options, "difference_scale", 1.0)
        return 1.0 if isinstance(scale, str) else scale


class Randomness:
    """The draws of the nodes of a block. The engine's own is `privsgp.engine.node_randomness.NodeRandomness`."""

    secret: bool = False  # whether nobody else can draw the same: estimates are then in float64 until noise is added

    def sample(self, k: int) -> list[Drawn]:
        """Return the samples of step k, in one pass or more (line 5)."""
        raise NotImplementedError

    def noise(self, k: int, g: Tensor, node: int | None = None) -> None:
        """Add N(0, σ_i² I) to each row of g, in place (line 8); with `node`, g is that node's row alone, [1, d]."""
        raise NotImplementedError

    def public(self, purpose: str, k: int) -> np.random.Philox:
        """Return random bits of a purpose at step k that all nodes have and everybody may know."""
        return np.random.Philox(key=len(purpose), counter=[0, 0, 0, k])

    def events(self, k: int) -> Iterable[Event]:
        """Return which nodes act at step k, in order, if they act one at a time."""
        raise NotImplementedError

    def sample_some(self, numbers: Mapping[int, int]) -> list[Drawn]:
        """Draw samples for some nodes, {node: number of its gradient}; all others draw none."""
        raise NotImplementedError


def as_it_is(direction: Direction, kept: Kept) -> Direction:
    """Return what computes the direction: itself."""
    del kept
    return direction


@dataclass(frozen=True)
class Block:
    """m nodes and what is computed with; all of it is handed in by the engine.

    `data` are inputs and targets [m, J + 1, …], and of persons the weights of their rows [m, J + 1, rows]. Row J is no
    sample's: padding slots point there.
    """

    mechanisms: Sequence[Mechanism]
    data: tuple[Tensor, ...]
    gradient: Stacked
    random: Randomness
    step_size: Callable[[int], float]
    update_rule: UpdateRule | None = None  # what is made of a noised direction; None: nothing
    recorded: Callable[[Direction, Kept], Direction] = as_it_is  # on a GPU: its launches are recorded and replayed

    @property
    def exact(self) -> bool:
        """Whether noise is secret: estimates are then in float64 until it is added."""
        return self.random.secret

    @property
    def rows(self) -> int:
        """The largest J_i, which is also the number of the padding row."""
        return self.data[0].shape[1] - 1

    def column(self, values: Sequence[float]) -> Tensor:
        """One value per node, shaped to multiply [m, d]."""
        return torch.tensor(values, dtype=torch.float64, device=self.data[0].device)[:, None]

    @cached_property
    def b(self) -> Tensor:
        """The public constants b_i that batch sums are divided by, [m, 1]."""
        return self.column([mechanism.batch for mechanism in self.mechanisms])

    @cached_property
    def b_over_scale(self) -> Tensor:
        """The divisor of sums of differences, b_i/θ, [m, 1]. θ is the mechanism's, so the code does what is counted."""
        scales = [1.0 if (m := one.weighted) is None else m.difference_scale for one in self.mechanisms]
        return self.b / self.column(scales)

    @cached_property
    def J(self) -> Tensor:  # noqa: N802 - the paper's letter
        """The public numbers of samples J_i, [m, 1]."""
        return self.samples.double()

    @cached_property
    def samples(self) -> Tensor:
        """The same as whole numbers."""
        return torch.tensor([[mechanism.samples] for mechanism in self.mechanisms], device=self.data[0].device)

    def batch(self, k: int) -> Tensor:
        """The public constants that batch sums of step k are divided by, [m, 1]."""
        return self.column([mechanism.at(k).batch for mechanism in self.mechanisms])

    def zeros(self, z: Tensor) -> Tensor:
        """Return room for estimates shaped like z, in the precision that they have until noise is added."""
        return torch.zeros_like(z, dtype=torch.float64 if self.exact else z.dtype)

    def descend(self, k: int, g: Tensor, x: Tensor) -> Tensor:
        """Return x − γ (g + N(0, σ_i² I)), in place, after `update_rule` if there is one; g is overwritten."""
        self.random.noise(k, g)
        return moved(x, g if self.update_rule is None else self.update_rule(g), self.step_size(k))

    def gradients(self, z: Tensor, drawn: Drawn, prepare: Callable[[PerSample], PerSample] | None = None) -> PerSample:
        """Return clip_G(∇f_i(z_i; j)) for the drawn samples j; padding counts as 0.

        `prepare` is what a table makes of gradients before they are clipped.
        """
        from privsgp.gradients.per_sample import gather

        g = self.gradient(z, *(gather(t, drawn.rows) for t in self.data))
        if prepare is not None:
            g = prepare(g)
        g.clip_(self.mechanisms[0].clip, drawn.mask, exact=self.exact)
        return g


def moved(x: Tensor, g: Tensor, step_size: float) -> Tensor:
    """Return x − γ g, in place; g may be in float64, and is then rounded a few rows at a time."""
    if g.dtype == x.dtype:
        return x.sub_(g, alpha=step_size)
    tall = device_of(x).rows_at_once(x, _PIECE)
    for rows in (slice(top, top + tall) for top in range(0, len(x), tall)):
        x[rows].sub_(g[rows].to(x.dtype), alpha=step_size)
    return x


def clipped_mean(block: Block, z: Tensor, batch: list[Drawn], b: Tensor | None = None) -> Tensor:
    """(1/b) Σ_{j∈B} clip_G(∇f_i(z_i; j)); the divisor is the constant b, never the drawn size."""
    total = block.gradients(z, batch[0]).sum()
    for drawn in batch[1:]:
        total += block.gradients(z, drawn).sum()
    return total.div_((block.b if b is None else b).to(total.dtype))
