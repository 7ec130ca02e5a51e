"""A block of m nodes: what an algorithm may do with them, whoever else is in the network.

A process owns a block. A laptop simulation is one process with m = n; the paper's set-up is n processes with m = 1.
Algorithms are written once, for a block, and never know which of these they run in: only `mix` does.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from privsgp.gradients.product import aligned_rows
from privsgp.gradients.tables.storage import gather

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from privsgp.accounting.mechanisms import Mechanism, Sampling
    from privsgp.algorithms.algorithm import Trust
    from privsgp.algorithms.async_gossip import AsyncTools
    from privsgp.algorithms.update_rule import UpdateRule
    from privsgp.gradients import PerSample, Stacked
    from privsgp.gradients.tables.storage import Place
    from privsgp.gradients.tables.table import Kind


def _average(_k: int, messages: Tensor, _size: int) -> Tensor:
    """Return the mean over the nodes, [d]: a server that nobody measures."""
    return messages.mean(0)


def _public(purpose: str, k: int) -> np.random.Philox:
    """Return public bits for a network that has no seed of its own."""
    return np.random.Philox(key=len(purpose), counter=[0, 0, 0, k])


class Drawn(NamedTuple):
    """One pass over drawn samples: row numbers [m, capacity], and which of them are real. The rest is padding."""

    rows: Tensor
    mask: Tensor


class State(NamedTuple):
    """What the nodes hold: x [m, d], the push-sum weights w [m] (float64) and the de-biased z = x / w."""

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
        x = x0.expand(nodes, -1).clone()
        z = aligned_rows(x, x.shape[1]).copy_(x)  # its rows are what every product of the forward pass reads
        return cls(x, torch.ones(nodes, dtype=torch.float64, device=x.device), z)


@dataclass(frozen=True)
class Settings:
    """What a user chooses about an algorithm and what its privacy mechanism is made of."""

    clip: float = 1.0
    difference_clip: float | None = None
    sampling: Sampling = "poisson"
    table: Kind = "factored"
    table_init: Literal["gradients", "zeros"] = "gradients"
    table_dtype: Literal["float32", "bfloat16"] | None = None  # None: that of the gradients
    table_place: Place = "auto"
    block: int = 1  # samples per entry of a block table
    nodes: int = 1
    trust: Trust = "per-node"
    spare: int = 0  # steps that may have to be made again
    period: int = 10  # releases from one anchor to the next
    anchor_ratio: float | None = None  # samples of an anchor by those of a batch; None: all samples
    anchor_noise: float = 1.0
    alpha: float = 0.1
    compressor: Literal["none", "random-k", "quantisation"] = "none"
    kept: float = 0.05  # share of the coordinates that random-k sends
    levels: int = 16  # of quantisation, on either side of 0
    shift_rate: float | None = None  # SoteriaFL's own
    anchor_probability: float | None = None  # b/J
    clip_what: Literal["record", "mean"] = "record"

    @property
    def block_size(self) -> int:
        """How many samples are drawn by one coin."""
        return self.block if self.table == "block" else 1


@dataclass
class Block:
    """m nodes, their data and their tools; the tools are handed in by the engine.

    `inputs` and `targets` are [m, J + 1, …]; row J is no sample's: padding slots point there.
    """

    mechanisms: Sequence[Mechanism]
    inputs: Tensor
    targets: Tensor
    gradient: Stacked
    sample: Callable[[int], list[Drawn]]  # line 5: the samples drawn at step k, in one pass or more
    noise: Callable[[int, Tensor], None]  # line 8: g_i += N(0, σ_i² I), in place
    mix: Callable[[int, Tensor, Tensor], tuple[Tensor, Tensor]]  # lines 10-13
    release: Callable[[int, Tensor], None]  # pays for what carries the noise of step k, before any of it leaves
    step_size: Callable[[int], float]
    average: Callable[[int, Tensor, int], Tensor] = _average  # what a server makes of messages of so many bytes
    public: Callable[[str, int], np.random.Philox] = _public  # randomness of a purpose at step k that all may know
    async_tools: AsyncTools | None = None  # where nodes act one at a time
    update_rule: UpdateRule | None = None  # what is made of a noised direction; None: nothing
    leave_one_core: Callable[[], AbstractContextManager[None]] = nullcontext  # a second thread has it
    private: Path | None = None  # a folder for the site alone, where a table may be mapped
    prepare: Callable[[PerSample], PerSample] | None = None  # what a table makes of gradients before they are clipped
    exact: bool = False  # whether noise is secret: estimates are then in float64 until it is added

    @property
    def rows(self) -> int:
        """The largest J_i, which is also the number of the padding row."""
        return self.inputs.shape[1] - 1

    def column(self, values: Sequence[float]) -> Tensor:
        """One value per node, shaped to multiply [m, d]."""
        return torch.tensor(values, dtype=torch.float64, device=self.inputs.device)[:, None]

    @cached_property
    def b(self) -> Tensor:
        """The public constants b_i that batch sums are divided by, [m, 1]."""
        return self.column([mechanism.batch for mechanism in self.mechanisms])

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

    def gradients(self, z: Tensor, drawn: Drawn) -> PerSample:
        """Return clip_G(∇f_i(z_i; j)) for the drawn samples j; padding counts as 0."""
        g = self.gradient(z, gather(self.inputs, drawn.rows), gather(self.targets, drawn.rows))
        if self.prepare is not None:
            g = self.prepare(g)
        g.exact = self.exact
        g.clip_(self.mechanisms[0].clip, drawn.mask)
        return g
