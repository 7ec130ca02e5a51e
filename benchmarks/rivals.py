"""What we are measured against: a loop over the nodes of Opacus engines or of plain SGD steps, and the floor.

The Opacus loops do plain DP-SGD: Poisson batch, clip, noise, update; no variance reduction, no mixing, no ledger. They
get their batches by index from tensors in memory: a data loader would only make them slower.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn
from workloads import CLIP, SIGMA, STEP_SIZE

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor
    from workloads import Workload

    Step = Callable[[], None]


def opacus_loop(work: Workload, inputs: Tensor, targets: Tensor) -> Step:
    """A loop of Opacus engines that keep every per-sample gradient."""
    from opacus import GradSampleModule
    from opacus.optimizers import DPOptimizer

    def engine(i: int) -> Step:
        model = GradSampleModule(work.make_model().to(work.device))
        optimizer = DPOptimizer(torch.optim.SGD(model.parameters(), STEP_SIZE), **_privacy(work))
        return _stepping(work, inputs[i], targets[i], model, optimizer, nn.CrossEntropyLoss())

    return _each(work, engine)


def ghost_loop(work: Workload, inputs: Tensor, targets: Tensor) -> Step:
    """A loop of Opacus engines with ghost clipping: two backward passes, no per-sample gradients."""
    from opacus.grad_sample import GradSampleModuleFastGradientClipping
    from opacus.optimizers import DPOptimizerFastGradientClipping
    from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping

    def engine(i: int) -> Step:
        model = GradSampleModuleFastGradientClipping(
            work.make_model().to(work.device), max_grad_norm=CLIP, use_ghost_clipping=True
        )
        optimizer = DPOptimizerFastGradientClipping(torch.optim.SGD(model.parameters(), STEP_SIZE), **_privacy(work))
        loss = DPLossFastGradientClipping(model, optimizer, nn.CrossEntropyLoss())
        return _stepping(work, inputs[i], targets[i], model, optimizer, loss)

    return _each(work, engine)


def sgd_loop(work: Workload, inputs: Tensor, targets: Tensor) -> Step:
    """A loop of plain SGD steps, one a node: nothing is private."""

    def engine(i: int) -> Step:
        return _sgd(work, inputs[i], targets[i])

    return _each(work, engine)


def floor(work: Workload, inputs: Tensor, targets: Tensor) -> Step:
    """One model, one SGD step on all nodes' batches together: what no n different models can go below."""
    return _sgd(work.but(batch=work.nodes * work.batch), inputs.flatten(0, 1), targets.flatten(0, 1))


def _sgd(work: Workload, inputs: Tensor, targets: Tensor) -> Step:
    model = work.make_model().to(work.device)
    optimizer = torch.optim.SGD(model.parameters(), STEP_SIZE)
    return _stepping(work, inputs, targets, model, optimizer, nn.CrossEntropyLoss())


def _stepping(
    work: Workload,
    inputs: Tensor,
    targets: Tensor,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    loss: Callable[[Tensor, Tensor], Tensor],
) -> Step:
    def step() -> None:
        x, y = _poisson(work, inputs, targets)
        loss(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()  # now, or n engines keep n batches of per-sample gradients

    return step


def _each(work: Workload, engine: Callable[[int], Step]) -> Step:
    steps = [engine(i) for i in range(work.nodes)]

    def step() -> None:
        for one in steps:
            one()

    return step


def _privacy(work: Workload) -> dict[str, float]:
    """σ on the averaged gradient, in Opacus's units."""
    return {
        "noise_multiplier": SIGMA * work.batch / CLIP,
        "max_grad_norm": CLIP,
        "expected_batch_size": work.batch,
    }


def _poisson(work: Workload, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    rows = torch.rand(len(inputs), device=inputs.device).lt(work.batch / len(inputs)).nonzero()[:, 0]
    return inputs[rows], targets[rows]
