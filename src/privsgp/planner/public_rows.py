"""How well a few public rows predict their target, so that made-up rows are as hard to predict.

A public table is often too small to rehearse on: a model of 50 rows says little about one of 5,000. But it shows how
strong the signal may be. Made-up tables of the same size, with signals from none to overwhelming, are measured in the
same way. A signal is plausible if its tables score like the public one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from privsgp.planner import stand_in
from privsgp.planner.stand_in import NONE, Signal

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from privsgp.data.schema import Schema

    Floats = NDArray[np.float64]

STRENGTHS = (0.0, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0)
TABLES = 12  # made-up tables of each strength
SPREAD = 2.5  # standard deviations from their mean score within which a public table is like them
MOST = 512  # public rows that are looked at
LESS_EVEN = 4 / 3  # the public balance is of few rows: classes may be less even, and easier to predict
PENALTY = 0.1  # of the ridge regression, for each row


def signals(schema: Schema, x: Floats, y: NDArray[np.int64] | Floats) -> list[Signal]:
    """Return the lowest, a middle and the highest plausible signal of public rows, encoded as the schema says.

    Targets follow a random combination of the columns, which is hard to learn, or the common factors of the columns,
    as those of real tables often do. So there are two highest ones.
    """
    x, y = x[:MOST], y[:MOST]
    score = quality(x, y, schema.classes)
    low, high = _plausible(schema, score, len(x), leading=False)
    _, highest = _plausible(schema, score, len(x), leading=True)
    lowest = Signal("low", STRENGTHS[low], 0.75) if low else NONE
    middle = Signal("middle", STRENGTHS[(low + high) // 2])
    easy = Signal("high and easy", STRENGTHS[highest], LESS_EVEN, leading=True)
    return [lowest, middle, Signal("high", STRENGTHS[high], LESS_EVEN), easy]


def _plausible(schema: Schema, score: float, rows: int, *, leading: bool) -> tuple[int, int]:
    """Return which strengths are the least and the most whose tables of so many rows score like this."""
    above = []  # by how many standard deviations the public table scores better
    for strength in STRENGTHS:
        signal, scores = Signal("", strength, leading=leading), []
        for seed in range(TABLES):
            made = stand_in.table(schema, signal, samples=-(-rows // 5), seed=seed)
            x, y = torch.cat([made.x, made.x_test])[:rows], torch.cat([made.y, made.y_test])[:rows]
            scores.append(quality(x.double().numpy(), y.numpy(), schema.classes))
        above.append((score - np.mean(scores)) / max(float(np.std(scores, ddof=1)), 0.01))
    least = next((i for i, off in enumerate(above) if off <= SPREAD), len(above) - 1)
    return least, max((i for i, off in enumerate(above) if off >= -SPREAD), default=0)


def quality(x: Floats, y: NDArray[np.int64] | Floats, classes: int | None) -> float:
    """Return the AUC, or R² of numbers, of ridge regression that leaves out the row that it predicts.

    AUC is the mean over classes of one against the rest.
    """
    from sklearn.metrics import roc_auc_score

    spread = x.std(0)
    x = (x - x.mean(0)) / np.where(spread > 0, spread, 1)
    target = y.astype(float)[:, None] if classes is None else np.eye(classes)[y.astype(int)]
    hat = x @ np.linalg.solve(x.T @ x + PENALTY * len(x) * np.eye(x.shape[1]), x.T) + 1 / len(x)
    predicted = target - (target - hat @ target) / (1 - hat.diagonal()[:, None])
    if classes is None:
        return float(1 - np.square(target - predicted).sum() / max(np.square(target - target.mean()).sum(), 1e-12))
    varied = [c for c in range(classes) if 0 < target[:, c].sum() < len(x)]
    return float(np.mean([roc_auc_score(target[:, c], predicted[:, c]) for c in varied])) if varied else 0.5
