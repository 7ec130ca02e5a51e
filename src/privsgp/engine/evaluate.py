"""How good the models are: the average model x̄ = Σx_i / Σw_i, every node's z_i, and how far they are apart."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

from privsgp import metrics
from privsgp.files import finite
from privsgp.outside import between

if TYPE_CHECKING:
    from collections.abc import Callable

    from privsgp.algorithms import State
    from privsgp.engine.spec import PerSampleFunction, RunSpec
    from privsgp.gradients import Layout
    from privsgp.transport.world import World

    Keep = Callable[[dict[str, Any]], None]

_CHUNK = 2048
_LOG = logging.getLogger(__name__)


def average(s: State) -> Tensor:
    """Return Σx_i / Σw_i, summed in node order in float64 (the same bits wherever the nodes live)."""
    total = torch.zeros_like(s.x[0], dtype=torch.float64)
    weight = torch.zeros((), dtype=torch.float64, device=s.x.device)
    for x, w in zip(s.x, s.w, strict=True):
        total += x
        weight += w
    return (total / weight).to(s.x.dtype)


def consensus_error(s: State) -> float:
    """Return (1/n) Σ_i ‖z_i − x̄‖², the paper's consensus error."""
    return float((s.z - average(s)).double().square().sum(1).mean())


class Evaluator:
    """The rows of metrics.jsonl: without a seed, they use no training data.

    If metrics on test data are private, a row omits them; the whole row goes to `keep`, at the site.
    """

    def __init__(self, model: nn.Module, layout: Layout, spec: RunSpec, world: World, keep: Keep | None = None) -> None:
        self.model, self.layout, self.spec, self.world = model, layout, spec, world
        self.keep = keep or (lambda _row: None)

    def row(self, k: int, seconds: float, s: State) -> dict[str, Any]:
        """Measure this process's nodes. Of several processes none sees the average model: nodes tell their own."""
        if self.world.alone:
            return self.measured(k, seconds, s)
        accuracies = self._tested(self.spec.learning.correct, s.z)
        row = self._shared(self._times(k, seconds), _spread(accuracies))
        own: list[float | None] = list(accuracies if self.spec.share_metrics else []) or [None] * len(s.w)
        answers = self.world.all_gather_nodes(own, between(0, 1, float) | None, self.spec.nodes)
        return row | _spread([accuracy for accuracy in answers if accuracy is not None])

    def measured(self, k: int, seconds: float, s: State) -> dict[str, Any]:
        """Measure all nodes on test data; on training data only in simulation, where it is all here."""
        spec = self.spec
        models = s.z if spec.apart else average(s)[None]
        row = self._times(k, seconds)
        if len(s.w) == spec.nodes:  # a site knows no other model, and how far others are from its own
            row["consensus_error"] = finite(consensus_error(s))
        tested: dict[str, Any] = {}
        if loss := self._tested(spec.learning.loss, models):
            tested["test_loss"] = finite(float(np.mean(loss)))
        if correct := self._tested(spec.learning.correct, models):
            tested["test_accuracy"] = float(np.mean(correct))
        row = self._shared(row, tested | _spread(self._tested(spec.learning.correct, s.z)))
        if spec.simulation and self.world.alone and not spec.apart:  # nodes on their own have no f(x̄)
            row["train_loss"] = finite(self._train_loss(models[0]))
        return row

    def final(self, k: int, s: State) -> dict[str, Any]:
        """Return all metrics of the final model on test data, if anybody may see them; else keep them here."""
        learning = self.spec.learning
        if learning.test is None or learning.measure is None:
            return {}
        models = s.z if self.spec.apart else average(s)[None]
        inputs, targets = learning.test
        measured = metrics.mean([learning.measure(self.outputs(x, inputs), targets) for x in models])
        if not self.spec.share_metrics and measured:
            self.keep({"final": k} | measured)  # not a step of its own
        if not self.spec.share_metrics:
            return {}
        for line in measured.get(metrics.NO_BETTER, ()):
            _LOG.warning("warning: %s", line)
        return measured

    def outputs(self, x: Tensor, inputs: Tensor) -> Tensor:
        """Return what a model makes of all samples."""
        parameters = self.layout.views(x)
        with torch.no_grad():
            return torch.cat([functional_call(self.model, parameters, (a,)) for a in torch.split(inputs, _CHUNK)])

    def _shared(self, row: dict[str, Any], tested: dict[str, Any]) -> dict[str, Any]:
        """Return the row with what the test data say, if anybody may see that; else keep it here."""
        if self.spec.share_metrics:
            return row | tested
        if tested:
            self.keep(row | tested)
        return row

    def mean(self, function: PerSampleFunction, x: Tensor, inputs: Tensor, targets: Tensor) -> float:
        """Return the mean of function(model_x(input), target) over the samples."""
        parameters = self.layout.views(x)
        total = torch.zeros((), dtype=torch.float64, device=x.device)
        with torch.no_grad():
            for a, b in zip(torch.split(inputs, _CHUNK), torch.split(targets, _CHUNK), strict=True):
                total += function(functional_call(self.model, parameters, (a,)), b).double().sum()
        return float(total / len(inputs))

    def _times(self, k: int, seconds: float) -> dict[str, Any]:
        # Milliseconds would show how many samples were drawn.
        spent = round(seconds, 3 if self.spec.simulation else 0)
        return {"step": k, "seconds": spent, "virtual_seconds": self.spec.clock.at(k)}

    def _tested(self, function: PerSampleFunction | None, models: Tensor) -> list[float]:
        """Return means over the test data, one for each of models [·, d]; none where there is no such thing."""
        test = self.spec.learning.test
        return [] if test is None or function is None else [self.mean(function, x, *test) for x in models]

    def _train_loss(self, mean: Tensor) -> float:
        """Return f(x̄) = (1/n) Σ_i f_i(x̄)."""
        learning = self.spec.learning
        rows = map(learning.rows_of, range(len(learning.samples)))
        return float(np.mean([self.mean(learning.loss, mean, *own) for own in rows]))


def _spread(each: list[float]) -> dict[str, float]:
    return {"mean_node_accuracy": float(np.mean(each)), "worst_node_accuracy": min(each)} if each else {}
