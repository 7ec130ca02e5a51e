"""What is timed: n nodes with J random samples each, a model, a batch. Random data costs what real data costs."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import torch

from privsgp import graph, models
from privsgp.accounting.sharing import Sharing
from privsgp.algorithms import ALGORITHMS, Settings
from privsgp.clock import Times, Waiting
from privsgp.engine.spec import Learning, NodeBudgets, RunSpec
from privsgp.gradients.rounding import kappa
from privsgp.randomness.noise import IndependentNoise
from privsgp.randomness.pairwise import PairwiseNoise

if TYPE_CHECKING:
    from torch import Tensor, nn

    from privsgp.accounting.mechanisms import Mechanism
    from privsgp.randomness.noise import Noise

CLIP, SIGMA, STEP_SIZE = 1.0, 0.01, 0.1


@dataclass(frozen=True)
class Workload:
    """One row of the table: `nodes` models of one kind, each with a mean of `batch` of its `samples` samples a step."""

    name: str = "mlp"
    nodes: int = 50
    batch: int = 48
    samples: int = 1200
    model: str = "mlp"
    hidden: int = 100
    shape: tuple[int, ...] = (784,)
    classes: int = 10
    device: str = "cpu"
    table_dtype: Literal["float32", "bfloat16"] | None = None
    rows: int = 1  # of a sample; with more, it is a person
    shared: bool = False  # whether pairs of nodes share noise; three quarters of them are honest

    def but(self, **changes: Any) -> Workload:  # noqa: ANN401 - the fields above
        """Return the same workload with some numbers changed."""
        return replace(self, **changes)

    def make_model(self) -> nn.Module:
        """The model at x⁰, on the CPU."""
        return models.make(self.model, input_shape=self.shape, outputs=self.classes, hidden=self.hidden, seed=0)

    def data(self) -> tuple[Tensor, Tensor]:
        """Inputs [n, J + 1, …] and labels [n, J + 1]; row J is nobody's. Persons have `rows` of them each."""
        generator = torch.Generator(self.device).manual_seed(0)
        rows = self.nodes, self.samples + 1, *((self.rows,) if self.rows > 1 else ())
        inputs = torch.randn(*rows, *self.shape, generator=generator, device=self.device)
        targets = torch.randint(self.classes, rows, generator=generator, device=self.device)
        inputs[:, -1], targets[:, -1] = 0, 0 if self.rows == 1 else -1
        return inputs, targets

    def spec(self, algorithm: str = "privsgp-vr", *, steps: int = 1 << 20, seed: int | None = 0) -> RunSpec:
        """Return the run as the engine wants it: exponential graph, σ fixed by hand."""
        device, dtype, chosen = torch.device(self.device), torch.float32, ALGORITHMS[algorithm]
        own = {} if self.table_dtype is None else {"table_dtype": self.table_dtype}
        settings = Settings(clip=CLIP, options=chosen.Options(**own))
        slack = kappa(dtype, device, positions=1 if self.model == "mlp" and self.rows == 1 else 2)
        made = chosen.mechanism(settings, sigma=SIGMA, batch=self.batch, samples=self.samples, kappa=slack)
        n, loss = self.nodes, models.per_sample("cross-entropy")
        network = graph.make("exponential", n)
        made, noise = self._noised(made)
        protection = NodeBudgets([made] * n, [None] * n, [1e-5] * n, "zero-out", "certified", None, _not_counted)
        return RunSpec(
            name=self.name,
            seed=seed,
            shared_hash="benchmark",
            learning=Learning(
                self.make_model(),
                loss,
                None,
                *self.data(),
                None,
                [m.samples for m in protection.mechanisms],
                rows=self.rows,
            ),
            protection=protection,
            algorithm=chosen,
            settings=settings,
            graph=network,
            clock=Waiting(Times(n), network, 0.0),
            steps=steps,
            step_size=lambda _k: STEP_SIZE,
            device=device,
            dtype=dtype,
            evaluate_every=steps,
            checkpoint_every=steps,
            noise=noise,
        )

    def _noised(self, made: Mechanism) -> tuple[Mechanism, Noise]:
        if not self.shared:
            return made, IndependentNoise()
        sharing = Sharing(self.nodes, max(2, math.ceil(0.75 * self.nodes)))
        covariance = sharing.solved(made.sigma, 2.0)
        return sharing.counted(made, covariance), PairwiseNoise(covariance, sharing.honest)


def _not_counted(_node: int, _releases: int) -> float:
    return math.nan
