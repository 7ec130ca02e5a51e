"""Everything a run needs, decided: no choice and no check is left for the loop.

Refuses a run whose arithmetic rounds by more than the slack κ that its noise was calibrated for.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from privsgp.accounting.mechanisms import nominal
from privsgp.accounting.shown import up
from privsgp.clock import Events
from privsgp.devices import device_of
from privsgp.engine.averaging import FinalModel
from privsgp.errors import Refused
from privsgp.gradients.persons import is_row
from privsgp.gradients.rounding import kappa, sum_error, table_error
from privsgp.gradients.rules.ruled import positions
from privsgp.randomness.coins import capacity
from privsgp.randomness.noise import IndependentNoise
from privsgp.seeds import public_seed
from privsgp.transport.rounding import Rounding

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import Tensor

    from privsgp.accounting.mechanisms import Accountant, Mechanism, Relation
    from privsgp.accounting.pairwise import PairwiseCovariance
    from privsgp.algorithms import Algorithm, Settings
    from privsgp.clock import Waiting
    from privsgp.graph import Graph
    from privsgp.randomness.noise import Noise

    PerSampleFunction = Callable[[Tensor, Tensor], Tensor]


_ROUNDING = 1e-9  # of a budget: between two ways to add up the same ε
_MADE_UP = 9  # samples of the probe: a model that goes through a batch by 2, 3, 4 or 8 mixes some of them


@dataclass(frozen=True)
class Learning:
    """What is learnt: the model at x⁰, its loss, and the data of the nodes here, [m, J + 1, …], row J for nobody.

    If a sample is a person with up to `rows` > 1 rows, the data are [m, J + 1, rows, …].
    """

    model: nn.Module
    loss: PerSampleFunction
    correct: PerSampleFunction | None
    inputs: Tensor
    targets: Tensor
    test: tuple[Tensor, Tensor] | None
    samples: Sequence[int]  # J_i of these nodes: how many of their rows are theirs
    vocabulary: int | None = None  # of inputs that are tokens (`data.Dataset`)
    measure: Callable[[Tensor, Tensor], dict[str, Any]] | None = None  # of all outputs and targets of the test data
    rows: int = 1  # of a person at most
    weights: Tensor | None = None  # of the rows of persons, [m, J + 1, rows]; None: all have the same

    @property
    def data(self) -> tuple[Tensor, ...]:
        """The arrays that have a row for each sample."""
        return tuple(t for t in (self.inputs, self.targets, self.weights) if t is not None)

    @property
    def places(self) -> int:
        """At how many positions of a sample, those of all rows, the model uses a layer at most."""
        return positions(self.model, self.made_up()[0]) * self.rows

    def rows_of(self, node: int) -> tuple[Tensor, Tensor]:
        """Return inputs and targets of all rows of a node here."""
        x, y = (t[node, : self.samples[node]] for t in (self.inputs, self.targets))
        return (x, y) if self.rows == 1 else (x[real := is_row(y[None])[0]], y[real])

    def made_up(self) -> tuple[Tensor, Tensor]:
        """Return a few samples of the right shape and range that are nobody's, for the probe."""
        rng, axes = np.random.Generator(np.random.Philox(0)), 2 if self.rows == 1 else 3
        size = (_MADE_UP, *self.inputs.shape[axes:])
        x = torch.from_numpy(
            rng.standard_normal(size) if self.vocabulary is None else rng.integers(0, self.vocabulary, size)
        )
        shape, real = (_MADE_UP, *self.targets.shape[axes:]), self.targets.is_floating_point()
        y = torch.from_numpy(rng.standard_normal(shape) if real else np.arange(np.prod(shape)).reshape(shape) % 2)
        return x.to(self.targets.device, self.inputs.dtype), y.to(self.targets)


@dataclass(frozen=True)
class NodeBudgets:
    """What is promised: one mechanism and one budget per node, and how many releases that budget pays for.

    `epsilon(node, releases)` is the certified ε of so many releases. `allowance` is, for each node, the number of its
    releases with the spare ones, which its noise was calibrated for; None where noise was fixed by hand.
    """

    mechanisms: Sequence[Mechanism]
    budgets: Sequence[float | None]
    deltas: Sequence[float]
    relation: Relation
    accountant: Accountant
    allowance: Sequence[int] | None
    epsilon: Callable[[int, int], float]
    covariance: PairwiseCovariance | None = None  # of all nodes' noise, where pairs of them share it
    trust_curve: Callable[[int, int], list[tuple[int, float]]] | None = None  # of a node after so many releases

    @property
    def nominal(self) -> bool:
        """Whether budgets are a paper's ε, which is no guarantee."""
        return nominal(self.accountant)

    def refuse_overspending(self, nodes: range) -> None:
        """Refuse, before anything is released, what could spend more than a node's budget by the noise it will add.

        Guarantee: whoever chose σ, and whatever others said, all that may be released of these nodes fits.
        """
        if self.allowance is None or self.nominal:
            return
        for i in nodes:
            budget, spent = self.budgets[i], self.epsilon(i, self.allowance[i])
            if budget is None or not spent <= budget * (1 + _ROUNDING):
                what = f"{self.allowance[i]} releases of node {i} would spend ε = {up(spent, 6)} of {budget}"
                raise Refused(what, "nothing was sent; report this: noise must be calibrated for what is released")


@dataclass(frozen=True)
class RunSpec:
    """A run."""

    name: str
    seed: int | None
    shared_hash: str
    learning: Learning
    protection: NodeBudgets
    algorithm: type[Algorithm]
    settings: Settings
    graph: Graph
    clock: Waiting | Events
    steps: int
    step_size: Callable[[int], float]
    device: torch.device
    dtype: torch.dtype
    evaluate_every: int
    checkpoint_every: int  # 0: never
    rules: bool = True
    block: range | None = None  # the nodes of this process; None: all of them
    layout: str = ""  # what decides which record lies on which node
    momentum: float = 0.0
    weights: Sequence[float] | None = None  # p_i of all nodes; None: all alike
    final_model: FinalModel = field(default_factory=FinalModel)
    noise: Noise = field(default_factory=IndependentNoise)
    card: Mapping[str, Any] = field(default_factory=dict)  # what a model's file says of the model
    sites: Sequence[str] = ()  # what people call the nodes
    pretraining: str | None = None  # what the samples' encoder was learnt from: it stands beside every number
    bits: int = 32  # of a number of a message
    scattered: bool = False  # whether samples lie in random slots of a pass
    share_metrics: bool = True  # metrics on test data: told to peers and kept for others to read; else in private/

    @cached_property
    def nodes(self) -> int:
        """The paper's n."""
        return self.graph.nodes

    @cached_property
    def here(self) -> range:
        """The nodes of this process."""
        return range(self.nodes) if self.block is None else self.block

    def __post_init__(self) -> None:
        counted = [m.samples for m in self.mechanisms]
        if counted != list(self.learning.samples):
            what = f"nodes hold {list(self.learning.samples)} samples and are counted as if they held {counted}"
            raise Refused(what, "nothing was sent; report this: privsgp must draw from the records that it counts")

    def released(self, node: int, k: int) -> int:
        """Return how many releases the node makes in the first k steps: one a step, or what the clock says."""
        return self.clock.released(node, k) if isinstance(self.clock, Events) else k

    def until(self, node: int, releases: int) -> int:
        """Return how many steps can be taken while the node releases no more than so often."""
        return self.clock.until(node, releases) if isinstance(self.clock, Events) else min(self.steps, releases)

    @cached_property
    def mechanisms(self) -> Sequence[Mechanism]:
        """The mechanisms of this process's nodes."""
        return self.protection.mechanisms[self.here.start : self.here.stop]

    @cached_property
    def slots(self) -> int:
        """The samples of a node that a pass has room for, by the mechanisms of all nodes: the same in every process."""
        return max(capacity(m, self.nodes, scattered=self.scattered) for m in set(self.protection.mechanisms))

    def for_nodes(self, nodes: slice) -> RunSpec:
        """Return the same run for some of the nodes here."""
        own = self.learning
        some = replace(
            own, inputs=own.inputs[nodes], targets=own.targets[nodes], samples=own.samples[nodes],
            weights=None if own.weights is None else own.weights[nodes],
        )  # fmt: skip
        return replace(self, block=self.here[nodes], learning=some)

    def without_records(self) -> RunSpec:
        """Return the same run without anybody's records: what is computed from it is a function of public facts."""
        own = self.learning
        none = replace(own, inputs=own.inputs[:, :0], targets=own.targets[:, :0], weights=None)
        return replace(self, learning=none)

    def rounding(self, x: Tensor) -> Rounding | None:
        """Return what rounds messages of the nodes here, which begin with the rows of x; None if nothing does."""
        seed = public_seed(self.seed, self.shared_hash, "rounding")
        return None if self.bits == 32 else Rounding(self.bits, seed, self.graph, x, self.here)

    @property
    def apart(self) -> bool:
        """Whether nodes keep to themselves: an average of their models would be nobody's."""
        return self.algorithm.network == "alone" and self.nodes > 1

    @cached_property
    def simulation(self) -> bool:
        """Whether randomness can be repeated by anyone who reads the config: then nothing is private."""
        return self.seed is not None


def hidden_slots(spec: RunSpec) -> bool:
    """Tell whether ε counts on it that nobody knows who was drawn: the slots of the others must not show it."""
    return any(m.amplified for m in spec.mechanisms) and spec.algorithm.private and not spec.simulation


def refuse_coarser(spec: RunSpec) -> None:
    """Refuse to compute in a coarser arithmetic than the one the noise was calibrated for."""
    if not spec.algorithm.private:
        return
    places = spec.learning.places
    now = kappa(spec.dtype, spec.device, positions=places)
    counted = min(mechanism.kappa for mechanism in spec.mechanisms)
    if now > counted:
        what = f"ε was computed for κ = {counted:g}, and the arithmetic now has κ = {now:g}"
        raise Refused(what, "do not change torch.backends.*.allow_tf32 between the preparation and the end of a run")
    if spec.simulation:
        return
    if emulated := device_of(spec.device).emulates_float64:
        raise Refused(f"{emulated} = {os.environ[emulated]!r}: cuBLAS may emulate float64", "leave it unset")
    coarse = device_of(spec.device).coarsens_float32
    if places > 1 and coarse:  # the exact way (`Positions`) counts the rounding of full float32
        what = f"{coarse}: a CPU may multiply float32 in fewer bits"
        raise Refused(what, "leave it unset, or take float32_matmul 'highest'")


def refuse_vast(spec: RunSpec, places: int) -> None:
    """Refuse secret noise where sums could round by more than half of κ; `places` as `positions` tells.

    The other half is for what a draw is above its expected size, and for the clip itself.
    """
    if spec.simulation or not spec.algorithm.private:
        return
    for m in set(spec.protection.mechanisms):
        slots = capacity(m, spec.nodes, scattered=True)
        off = rounding_error(m, slots, steps=spec.steps, places=places)
        if off > m.kappa / 2:
            raise Refused(
                f"sums of {slots:,} gradients of layers at {places:,} positions, {spec.steps:,} steps and "
                f"{m.samples:,} samples may round by {off:.2g} of the clip, and κ/2 = {m.kappa / 2:.2g}",
                "take a smaller algorithm.batch, fewer steps, fewer samples a node, or a `seed` for a simulation",
            )


def rounding_error(m: Mechanism, slots: int, *, steps: int, places: int) -> float:
    """Return by how much of G a run's sums in float64 may differ, with and without a record, beyond its share."""
    off = sum_error(max(slots, *(kind.batch for kind in m.kinds)), slots, places)
    if m.has_table:
        off += table_error(m.samples, steps=steps, positions=places)
    return off
