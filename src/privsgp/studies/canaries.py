"""Canaries: records of the auditor's own, among made-up ones, whose trace in a message can be told from all else.

A run to be audited gets data of the same shape and sizes as the real data, but nobody's. The first M records of every
node are canaries. Canary c owns input feature c, which is 0 in every other record: of all the node's records only c has
a gradient in column c of the first layer. Its input there is so large that hardly anything of its clipped gradient lies
elsewhere. What a message shows in that column is noise, and the canary's share if it is present. Where only the final
model is seen, inputs are smaller: a canary that is learnt at once has no gradient any more, and leaves little trace.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch.func import functional_call

from privsgp.data import Dataset
from privsgp.errors import Refused
from privsgp.gradients import Layout

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

    from privsgp.runs.problem import Problem

AMPLITUDE = 1e6  # of the input of a canary that is lured
MODEST = 10.0  # of the input of one that is left alone
SWING = 100.0  # of what a lure makes a canary's first-layer outputs: saturates a softmax, yet is far below AMPLITUDE
MOST = 256  # canaries on a node, unless more are asked for


@dataclass(frozen=True, eq=False)
class Canaries:
    """M canaries on each of n nodes: who is present [n, M], and the unit each lure raises for them, [lures, n, M].

    A *lure* is a model the neighbours send back to make canaries' gradients what the adversary wants. In lure l the
    first layer's outputs for a canary are −SWING but for one unit; −1 stands for no unit at all.
    """

    present: NDArray[np.bool_]
    units: NDArray[np.int64]

    @property
    def count(self) -> int:
        """The number M of canaries on a node."""
        return int(self.present.shape[1])

    def lures(self, x0: Tensor, layout: Layout) -> Tensor:
        """Return the models to send back, [lures, n, d]: x⁰ but for the canaries' columns."""
        models = x0.expand(*self.units.shape[:2], -1).clone()
        columns = first_layer(models, layout)[..., : self.count]
        columns.fill_(-SWING / AMPLITUDE)
        lure, node, canary = np.nonzero(self.units >= 0)
        columns[lure, node, self.units[lure, node, canary], canary] = SWING / AMPLITUDE
        return models


def first_layer(x: Tensor, layout: Layout) -> Tensor:
    """View the first layer's weights in X [..., d], [..., units, features]."""
    return layout.views(x)[layout.names[0]]


def draw(
    problem: Problem, canaries: int | None, rng: np.random.Generator, *, lures: int = 1, odds: float = 0.5
) -> Canaries:
    """Toss every canary's coin, present with probability `odds`, and choose its units.

    Models and sizes that have no room for canaries are refused.
    """
    layout = Layout.of(problem.model)
    features, shape = int(np.prod(problem.dataset.x.shape[1:])), layout.shapes[0]
    if len(shape) != 2 or shape[1] != features:
        raise Refused(
            f"an audit of a model whose first parameter has shape {tuple(shape)} for {features} input features",
            "canaries need a linear first layer on the data: audit the same privacy settings with 'mlp' or 'logistic'",
        )
    nodes, room = len(problem.parts), min(features, *(len(rows) for rows in problem.parts))
    count = min(MOST, max(1, 3 * room // 4)) if canaries is None else canaries
    if not 1 <= count <= room:
        raise Refused(f"canaries = {count}", f"take 1 to {room}: each needs an input feature and a record of its own")
    if shape[0] > 1:
        units = np.stack([rng.choice(shape[0], 2, replace=False) for _ in range(nodes * count)], -1)
    else:
        units = np.repeat([[0], [-1]], nodes * count, axis=1)
    return Canaries(rng.random((nodes, count)) < odds, units.reshape(2, nodes, count)[:lures])


def plant(problem: Problem, canaries: Canaries, rng: np.random.Generator, *, lured: bool) -> Problem:
    """Return the problem with made-up data of the same shape and sizes, and the canaries as every node's first records.

    Of the real data only shapes, sizes and the number of classes are used.
    """
    real, M = problem.dataset, canaries.count
    sizes = [len(rows) for rows in problem.parts]
    ends = np.cumsum(sizes)
    parts = [np.arange(end - size, end) for end, size in zip(ends, sizes, strict=True)]
    own = np.stack([rows[:M] for rows in parts])
    x = rng.standard_normal((sum(sizes), int(np.prod(real.x.shape[1:]))), dtype=np.float32)
    x[:, :M] = 0
    x[own] = (AMPLITUDE if lured else MODEST) * np.eye(M, x.shape[1], dtype=np.float32)
    x = x.reshape(-1, *real.x.shape[1:])
    y = _targets(real, sum(sizes), rng)
    if lured:
        y[own] = _wrong(problem, canaries, x[own[0]])
    return replace(problem, dataset=Dataset("canaries", x, y, None, None, real.classes), parts=parts)


def _targets(real: Dataset, count: int, rng: np.random.Generator) -> NDArray[np.int64] | NDArray[np.float32]:
    if real.classes is None:
        return rng.standard_normal((count, *real.y.shape[1:]), dtype=np.float32)
    return rng.integers(real.classes, size=count)


def _wrong(problem: Problem, canaries: Canaries, inputs: NDArray[np.float32]) -> NDArray[np.int64]:
    """Return the targets [n, M] that the lures make least likely, so that gradients are large; 0 for regression."""
    layout, classes = Layout.of(problem.model), problem.dataset.classes
    lures = canaries.lures(layout.flatten(problem.model), layout).flatten(0, 1)
    if classes is None:
        return np.zeros((*canaries.present.shape, *problem.dataset.y.shape[1:]), np.int64)
    x = torch.from_numpy(inputs)
    with torch.no_grad():
        logits = torch.stack([functional_call(problem.model, layout.views(z), (x,)) for z in lures])
    if logits.shape[-1] == 1:
        logits = torch.cat([torch.zeros_like(logits), logits], -1)
    likely = logits.softmax(-1).reshape(*canaries.units.shape, -1).sum(0).numpy()
    least: NDArray[np.int64] = np.argmin(likely, -1)
    return least
