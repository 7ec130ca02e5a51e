"""A block of m nodes: their data and what an algorithm computes with, whoever else is in the network.

A process owns a block. A laptop simulation is one process with m = n; the paper's set-up is n processes with m = 1.
Algorithms are written once, for a block, and never know which of these they run in: only the driver of a step does.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
import torch

from privsgp.devices import device_of
from privsgp.options import Options

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from torch import Tensor

    from privsgp.accounting.mechanisms import Mechanism, Sampling
    from privsgp.algorithms.algorithm import Trust
    from privsgp.algorithms.update_rule import UpdateRule
    from privsgp.clock import Event
    from privsgp.gradients import PerSample, Stacked

    Direction = Callable[[Tensor, list["Drawn"]], Tensor]  # the nodes' gradient estimates at z, by drawn samples
    Kept = Callable[[], dict[str, Tensor]]  # what a direction remembers, and changes in place

_PIECE = 1 << 18  # numbers that are gone through at once: what they need stays in a core's cache
EVERYONE = slice(None)  # all nodes of a block
OwnOptions = TypeVar("OwnOptions", bound=Options)


class Drawn(NamedTuple):
    """One pass over drawn samples: row numbers [m, capacity], and which of them are real. The rest is padding."""

    rows: Tensor
    mask: Tensor
    keys: Tensor | None = None  # of each sample's dropout at this step, where a model has some

    def of(self, nodes: slice) -> Drawn:
        """Return what was drawn for some of the nodes."""
        keys = None if self.keys is None else self.keys[nodes]
        return self._replace(rows=self.rows[nodes], mask=self.mask[nodes], keys=keys)


class State(NamedTuple):
    """What the nodes hold: x [m, d], the push-sum weights w [m] (float64) and the de-biased z = x / w."""

    x: Tensor
    w: Tensor
    z: Tensor

    @classmethod
    def debiased(cls, x: Tensor, w: Tensor) -> State:
        """Put z = x / w beside them."""
        return cls(x, w, x / w.to(x.dtype)[:, None])

    def debias_(self, nodes: slice = EVERYONE) -> None:
        """Write x / w of some nodes over their z."""
        torch.div(self.x[nodes], self.w[nodes].to(self.x.dtype)[:, None], out=self.z[nodes])

    @classmethod
    def start(cls, x0: Tensor, nodes: int) -> State:
        """All nodes start from the same x⁰ with weight 1."""
        from privsgp.gradients.product import aligned_rows

        x = x0.expand(nodes, -1).clone()
        z = aligned_rows(x, x.shape[1]).copy_(x)  # its rows are what every product of the forward pass reads
        return cls(x, torch.ones(nodes, dtype=torch.float64, device=x.device), z)


@dataclass(frozen=True)
class Settings:
    """What an algorithm and its mechanism are made of: facts of the run, and the algorithm's own options."""

    clip: float = 1.0
    sampling: Sampling = "poisson"
    batch: float = 1.0  # at the mean number of samples
    nodes: int = 1
    trust: Trust = "per-node"
    spare: int = 0  # steps that may have to be made again
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
    """What the nodes of a block draw. The engine's own is `privsgp.engine.node_randomness.NodeRandomness`."""

    secret: bool = False  # whether nobody else can draw the same: estimates are then in float64 until noise is added
    attempt: int = 0  # of a step that may be made again

    def sample(self, k: int) -> list[Drawn]:
        """Return the samples of step k, in one pass or more (line 5)."""
        raise NotImplementedError

    def noise(self, k: int, g: Tensor, nodes: slice = EVERYONE) -> None:
        """Add N(0, σ_i² I) to each row of g, in place (line 8); g has the rows of `nodes` alone."""
        raise NotImplementedError

    def noised_step(self, k: int, g: Tensor, x: Tensor, step_size: float, nodes: slice = EVERYONE) -> bool:
        """Do lines 8 and 9 in one pass, x −= γ (g + noise), and return True; or do nothing and return False."""
        del k, g, x, step_size, nodes
        return False

    def public(self, purpose: str, k: int) -> np.random.Philox:
        """Return random bits of a purpose at step k that all nodes have and everybody may know."""
        return np.random.Philox(key=len(purpose), counter=[0, 0, 0, k])

    def spare_core(self) -> AbstractContextManager[None]:
        """Leave a core to the thread that draws the next step's noise, if there is one."""
        return nullcontext()

    def events(self, k: int) -> Iterable[Event]:
        """Return which nodes act at step k, in order, if they act one at a time."""
        raise NotImplementedError

    def sample_some(self, numbers: Mapping[int, int]) -> list[Drawn]:
        """Draw samples for some nodes, {node: number of its gradient}; all others draw none."""
        raise NotImplementedError


class Execution:
    """How lines 6 to 9 are computed here. `parts`: these nodes at a time, one thread each; none: all nodes at once."""

    def __init__(self, parts: Sequence[slice] = ()) -> None:
        self.parts = parts

    def recorded(self, direction: Direction, kept: Kept) -> Direction:
        """Return what computes the direction: on a GPU its launches may be recorded and replayed."""
        del kept
        return direction


@dataclass(frozen=True)
class Block:
    """m nodes and what is computed with; all of it is handed in by the engine.

    `inputs` and `targets` are [m, J + 1, …]; row J is no sample's: padding slots point there.
    """

    mechanisms: Sequence[Mechanism]
    inputs: Tensor
    targets: Tensor
    gradient: Stacked
    random: Randomness
    step_size: Callable[[int], float]
    update_rule: UpdateRule | None = None  # what is made of a noised direction; None: nothing
    execution: Execution = field(default_factory=Execution)

    def part(self, nodes: slice) -> Block:
        """Return some of the nodes, for lines 6 to 9."""
        return replace(
            self, mechanisms=self.mechanisms[nodes], inputs=self.inputs[nodes], targets=self.targets[nodes],
            execution=Execution(),
        )  # fmt: skip

    @property
    def exact(self) -> bool:
        """Whether noise is secret: estimates are then in float64 until it is added."""
        return self.random.secret

    @property
    def rows(self) -> int:
        """The largest J_i, which is also the number of the padding row."""
        return self.inputs.shape[1] - 1

    def column(self, values: Sequence[float]) -> Tensor:
        """One value per node, shaped to multiply [m, d]."""
        return torch.tensor(values, dtype=torch.float64, device=self.targets.device)[:, None]

    @cached_property
    def b(self) -> Tensor:
        """The public constants b_i that batch sums are divided by, [m, 1]."""
        return self.column([mechanism.batch for mechanism in self.mechanisms])

    @cached_property
    def b_over_scale(self) -> Tensor:
        """What sums of differences are divided by, b_i/θ, [m, 1]; θ is the mechanism's, so what is counted is done."""
        scales = [1.0 if (m := one.weighted) is None else m.difference_scale for one in self.mechanisms]
        return self.b / self.column(scales)

    @cached_property
    def J(self) -> Tensor:  # noqa: N802 - the paper's letter
        """The public numbers of samples J_i, [m, 1]."""
        return self.column([mechanism.samples for mechanism in self.mechanisms])

    def batch(self, k: int) -> Tensor:
        """The public constants that batch sums of step k are divided by, [m, 1]."""
        return self.column([mechanism.at(k).batch for mechanism in self.mechanisms])

    def zeros(self, z: Tensor) -> Tensor:
        """Return room for estimates shaped like z, in the precision that they have until noise is added."""
        return torch.zeros_like(z, dtype=torch.float64 if self.exact else z.dtype)

    def descend(self, k: int, g: Tensor, x: Tensor, nodes: slice = EVERYONE) -> Tensor:
        """Return x − γ (g + N(0, σ_i² I)), in place, or what `update_rule` makes of it; g is overwritten."""
        with self.random.spare_core():
            if self.update_rule is None and self.random.noised_step(k, g, x, self.step_size(k), nodes):
                return x
            self.random.noise(k, g, nodes)
            return moved(x, g if self.update_rule is None else self.update_rule(g), self.step_size(k))

    def gradients(self, z: Tensor, drawn: Drawn, prepare: Callable[[PerSample], PerSample] | None = None) -> PerSample:
        """Return clip_G(∇f_i(z_i; j)) for the drawn samples j; padding counts as 0.

        `prepare` is what a table makes of gradients before they are clipped.
        """
        from privsgp.gradients.tables.storage import gather

        inputs, targets = gather(self.inputs, drawn.rows), gather(self.targets, drawn.rows)
        g = self.gradient(z, inputs, targets) if drawn.keys is None else self.gradient(z, inputs, targets, drawn.keys)
        if prepare is not None:
            g = prepare(g)
        g.exact = self.exact
        g.clip_(self.mechanisms[0].clip, drawn.mask)
        return g


def moved(x: Tensor, g: Tensor, step_size: float) -> Tensor:
    """Return x − γ g, in place; g may be in float64, and is then rounded a few rows at a time."""
    if g.dtype == x.dtype:
        return x.sub_(g, alpha=step_size)
    tall = device_of(x).rows_at_once(x, _PIECE)
    for rows in (slice(top, top + tall) for top in range(0, len(x), tall)):
        x[rows].sub_(g[rows].to(x.dtype), alpha=step_size)
    return x
