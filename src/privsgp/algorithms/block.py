"""A block of m nodes: what an algorithm may do with them, whoever else is in the network.

A process owns a block. A laptop simulation is one process with m = n; the paper's set-up is n processes with m = 1.
Algorithms are written once, for a block, and never know which of these they run in: only `mix` does.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from privsgp.devices import device_of
from privsgp.gradients.product import aligned_rows
from privsgp.gradients.tables.storage import Rows, gather
from privsgp.options import Options

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from privsgp.accounting.mechanisms import Mechanism, Sampling
    from privsgp.algorithms.algorithm import Trust
    from privsgp.algorithms.async_gossip import AsyncTools
    from privsgp.algorithms.update_rule import UpdateRule
    from privsgp.gradients import PerSample, Stacked

    Direction = Callable[[Tensor, list["Drawn"]], Tensor]  # the nodes' gradient estimates at z, by drawn samples
    Kept = Callable[[], dict[str, Tensor]]  # what a direction remembers, and changes in place

_PIECE = 1 << 18  # numbers that are gone through at once: what they need stays in a core's cache
EVERYONE = slice(None)  # all nodes of a block
OwnOptions = TypeVar("OwnOptions", bound=Options)


def _average(_k: int, messages: Tensor, _size: int) -> Tensor:
    """Return the mean over the nodes, [d]: a server that nobody measures."""
    return messages.mean(0)


def _public(purpose: str, k: int) -> np.random.Philox:
    """Return public bits for a network that has no seed of its own."""
    return np.random.Philox(key=len(purpose), counter=[0, 0, 0, k])


def as_it_is(direction: Direction, _kept: Kept) -> Direction:
    """Let a direction be computed whenever it is asked for."""
    return direction


def in_turn(work: Callable[[Any], None], parts: Sequence[Any]) -> None:
    """Do the work of one part after the other."""
    for part in parts:
        work(part)


def not_at_once(_k: int, _g: Tensor, _x: Tensor, _step_size: float) -> bool:
    """Let noise be added first."""
    return False


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

    def debias_(self, nodes: slice) -> None:
        """Write x / w of some nodes over their z."""
        torch.div(self.x[nodes], self.w[nodes].to(self.x.dtype)[:, None], out=self.z[nodes])

    @classmethod
    def start(cls, x0: Tensor, nodes: int) -> State:
        """All nodes start from the same x⁰ with weight 1."""
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


@dataclass
class Block:
    """m nodes, their data and their tools; the tools are handed in by the engine.

    `inputs` and `targets` are [m, J + 1, …]; row J is no sample's: padding slots point there.
    """

    mechanisms: Sequence[Mechanism]
    inputs: Tensor | Rows
    targets: Tensor
    gradient: Stacked
    sample: Callable[[int], list[Drawn]]  # line 5: the samples drawn at step k, in one pass or more
    noise: Callable[..., None]  # (k, g), line 8: g_i += N(0, σ_i² I), in place
    mix: Callable[[int, Tensor, Tensor], tuple[Tensor, Tensor]]  # lines 10-13
    release: Callable[[int, Tensor], None]  # pays for what carries the noise of step k, before any of it leaves
    step_size: Callable[[int], float]
    noised_step: Callable[..., bool] = not_at_once  # (k, g, x, γ): lines 8 and 9, where one pass does both
    average: Callable[[int, Tensor, int], Tensor] = _average  # what a server makes of messages of so many bytes
    public: Callable[[str, int], np.random.Philox] = _public  # randomness of a purpose at step k that all may know
    async_tools: AsyncTools | None = None  # where nodes act one at a time
    update_rule: UpdateRule | None = None  # what is made of a noised direction; None: nothing
    leave_one_core: Callable[[], AbstractContextManager[None]] = nullcontext  # a second thread has it
    prepare: Callable[[PerSample], PerSample] | None = None  # what a table makes of gradients before they are clipped
    record: Callable[[Direction, Kept], Direction] = as_it_is  # how lines 6 and 7 are run on the block's device
    exact: bool = False  # whether noise is secret: estimates are then in float64 until it is added
    parts: Sequence[slice] = ()  # in which lines 6 to 9 are done, where that is worth it
    each: Callable[[Callable[[Any], None], Sequence[Any]], object] = in_turn  # does some work for each part
    nodes: slice = field(default_factory=lambda: EVERYONE)  # which of the engine's nodes are here: of a part, some

    def part(self, nodes: slice) -> Block:
        """Return some of the nodes, for lines 6 to 9; `noise` and `noised_step` are told which."""
        if isinstance(self.inputs, Tensor):
            return replace(
                self, mechanisms=self.mechanisms[nodes], inputs=self.inputs[nodes], targets=self.targets[nodes],
                noise=partial(self.noise, rows=nodes), noised_step=partial(self.noised_step, rows=nodes),
                leave_one_core=nullcontext, parts=(), nodes=nodes,
            )  # fmt: skip
        raise TypeError(f"{type(self.inputs).__name__} cannot be parted")

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
        return self.b / self.column([getattr(mechanism, "difference_scale", 1.0) for mechanism in self.mechanisms])

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

    def descend(self, k: int, g: Tensor, x: Tensor) -> Tensor:
        """Return x − γ (g + N(0, σ_i² I)), in place, or what `update_rule` makes of it; g is overwritten."""
        if self.update_rule is None and self.noised_step(k, g, x, self.step_size(k)):
            return x
        self.noise(k, g)
        return moved(x, g if self.update_rule is None else self.update_rule(g), self.step_size(k))

    def gradients(self, z: Tensor, drawn: Drawn) -> PerSample:
        """Return clip_G(∇f_i(z_i; j)) for the drawn samples j; padding counts as 0."""
        inputs, targets = gather(self.inputs, drawn.rows), gather(self.targets, drawn.rows)
        g = self.gradient(z, inputs, targets) if drawn.keys is None else self.gradient(z, inputs, targets, drawn.keys)
        if self.prepare is not None:
            g = self.prepare(g)
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
