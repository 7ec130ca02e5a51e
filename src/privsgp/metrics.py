"""Metrics of a model's outputs on public test data, beside what a guess without a model would get.

All of scikit-learn's, on all samples at once: they are computed at the end of a run, never in between. Their data must
be public (`data.test`), or they stay at the site: no ε covers a metric.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from privsgp import curves

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray
    from torch import Tensor

    Metric = Callable[[Tensor, Tensor], Any]
    Probabilities = NDArray[np.float64]
    Labels = NDArray[np.int64]

Kind = Literal["cross-entropy", "binary", "mse", "survival"]
CLASSES = ("accuracy", "balanced_accuracy", "f1", "auc", "log_loss", "brier", "calibration_error")
SHIFTED = ("calibration_in_the_large", "calibration_slope")  # of two classes
VALUES = ("r2", "mae", "rmse")
NAMES = (*CLASSES, *SHIFTED, *VALUES, *curves.NAMES)
PICTURES = ("confusion", "roc", "calibration", "survival")
BASELINE, NO_BETTER = "baseline", "dull"
KEYS = (*NAMES, *PICTURES, BASELINE, NO_BETTER, "own_metrics")  # all that stands in a summary because of test data
BINS = 15
_SURE, _STEEP = 1e-12, 100.0  # a probability that counts as 0; a slope that counts as endless
_GRID = [float(v) for v in np.linspace(0, 1, 33) ** 2]  # false positive rates that a ROC curve is kept at
_LARGEST = 100  # classes whose confusion is kept


@dataclass(frozen=True)
class Calibration:
    """How outputs become probabilities and classes.

    `weights` are those of the classes in the training loss: a model learns w_c · p_c, so log w_c is subtracted from its
    logits. Then logits become slope · z, plus `shift` for class 1. A class is said that has the largest w_c · p_c, or,
    of two, class 1 from `threshold` on.
    """

    weights: tuple[float, ...] | None = None
    slope: float = 1.0
    shift: float = 0.0
    threshold: float | None = None

    def probabilities(self, outputs: NDArray[np.float64], kind: Kind) -> Probabilities:
        """Return a probability for each class [N, k]."""
        if (self.weights, self.slope, self.shift) == (None, 1.0, 0.0):
            return probabilities(outputs, kind)
        z = np.concatenate([np.zeros_like(outputs), outputs], 1) if kind == "binary" else outputs
        z = self.slope * (z if self.weights is None else z - np.log(self.weights))
        return probabilities(z + self.shift * (np.arange(z.shape[1]) == 1), "cross-entropy")

    def then(self, shift: float, slope: float) -> Calibration:
        """Return the calibration that moves the log odds of this one further, by a slope and a shift."""
        return replace(self, slope=slope * self.slope, shift=slope * self.shift + shift)

    def classes(self, p: Probabilities) -> Labels:
        """Return the class that is said."""
        if self.threshold is not None and p.shape[1] == 2:
            return (p[:, 1] >= self.threshold).astype(np.int64)
        predicted: Labels = (p if self.weights is None else p * self.weights).argmax(1)
        return predicted


PLAIN = Calibration()


@dataclass(frozen=True)
class Measure:
    """What is measured of a model in the end.

    `kind` is the loss that says what outputs mean; None for a loss of the user's own, of which `correct` alone is
    known, if that. `unit` is the (centre, scale) that takes values of a regression back to the unit of their table;
    metrics are in that unit. `times` are the edges at which survival is predicted.
    """

    kind: Kind | None = None
    classes: int | None = None
    correct: Metric | None = None
    unit: tuple[float, float] = (0.0, 1.0)
    calibration: Calibration = PLAIN
    times: Sequence[float] | None = None

    def __call__(self, outputs: Tensor, targets: Tensor) -> dict[str, Any]:
        """Return metrics by their names; those that cannot be computed are left out, or None."""
        if self.kind == "mse":
            outputs, targets = in_unit(outputs, self.unit), in_unit(targets, self.unit)
        found = self._known(outputs, targets)
        if words := no_better(found, len(targets)):
            found[NO_BETTER] = words
        return found

    def _known(self, outputs: Tensor, targets: Tensor) -> dict[str, Any]:
        """Return metrics, and what a guess that looks at no sample would get."""
        values, y = outputs.detach().double().cpu().numpy(), targets.cpu().numpy()
        found: dict[str, Any] = {}
        guess: Mapping[str, float | None] = {}
        if not np.isfinite(values).all():
            return found
        if self.kind == "mse":
            found, guess = of_values(values, y), of_values(np.full_like(values, y.mean(0)), y)
        elif self.kind == "survival":
            found, guess = curves.measured(values, y, self.times), curves.guessed(y)
        elif self.kind is not None and self.classes is not None and values.ndim == 2 and y.ndim == 1:
            p = self.calibration.probabilities(values, self.kind)
            predicted, often = self.calibration.classes(p), np.bincount(y, minlength=self.classes) / len(y)
            found = of_classes(p, y, predicted) | shifted(p, y) | pictures(p, y, predicted)
            guess = of_classes(np.tile(often, (len(y), 1)), y)
        elif self.correct is not None:  # a loss of the user's own
            found = {"accuracy": float(self.correct(outputs, targets).double().mean())}
            if y.ndim == 1 and y.dtype.kind in "iu":
                guess = {"accuracy": np.unique(y, return_counts=True)[1].max() / len(y)}
        else:
            return found
        return found | {BASELINE: {name: None if v is None else float(v) for name, v in guess.items()}}


def in_unit(values: Tensor, unit: tuple[float, float]) -> Tensor:
    """Return values of a model in the unit of the table that it learnt from."""
    centre, scale = unit
    return values if unit == (0.0, 1.0) else centre + scale * values.double()


def probabilities(outputs: NDArray[np.float64], kind: Kind) -> Probabilities:
    """Return a probability for each class [N, k]; "binary" has one logit, that of class 1."""
    from scipy.special import expit, softmax

    if kind == "binary":
        return np.concatenate([expit(-outputs), expit(outputs)], 1)
    found: Probabilities = softmax(outputs, 1)
    return found


def shifted(p: Probabilities, y: Labels) -> dict[str, float | None]:
    """Return, of two classes, what to add to the logit of class 1 so that its mean is right, and the best slope.

    A calibrated model has 0 and 1. A slope below 1 says that the probabilities are too extreme.
    """
    from scipy.optimize import brentq
    from scipy.special import expit, logit

    if p.shape[1] != 2 or not 0 < y.mean() < 1:
        return {}
    z, best = logit(np.clip(p[:, 1], _SURE, 1 - _SURE)), platt(p[:, 1], y)
    in_the_large = brentq(lambda a: float(expit(z + a).mean() - y.mean()), -100, 100)
    return dict(zip(SHIFTED, (float(in_the_large), None if best is None else best[1]), strict=True))


def platt(p: NDArray[np.float64], y: Labels, counts: NDArray[np.float64] | None = None) -> tuple[float, float] | None:
    """Return the (shift, slope) that make σ(shift + slope · logit p) most likely; None if no finite ones do.

    `counts` says how often each pair of p and y occurred; noise may have made some negative.
    """
    from scipy.special import logit
    from sklearn.linear_model import LogisticRegression

    z = logit(np.clip(p, _SURE, 1 - _SURE))
    no, yes = z[y == 0], z[y == 1]
    if not len(no) or not len(yes) or no.max() <= yes.min() or yes.max() <= no.min():
        return None  # nothing in between: the steeper, the better
    found = LogisticRegression(C=np.inf, tol=1e-9, max_iter=1000).fit(z[:, None], y, sample_weight=counts)
    slope = float(found.coef_[0, 0])
    return (float(found.intercept_[0]), slope) if abs(slope) < _STEEP else None


def threshold_for(p: NDArray[np.float64], y: Labels, aim: str, least: float) -> float:
    """Return the threshold on the probability of class 1 with at least this sensitivity (or specificity)."""
    own = np.sort(p[y == (aim == "sensitivity")])
    at = math.ceil(round(least * len(own), 9))
    return float(own[-at]) if aim == "sensitivity" else float(np.nextafter(own[at - 1], 2))


def edge_for(edges: NDArray[np.float64], counts: NDArray[np.float64], aim: str, least: float) -> float:
    """Return the edge of a histogram [2, bins] with at least this sensitivity (or specificity) as a threshold."""
    no, yes = counts
    if aim == "sensitivity":
        return float(edges[:-1][yes[::-1].cumsum()[::-1] >= least * yes.sum()].max())
    return float(edges[1:][no.cumsum() >= least * no.sum()].min())


def of_classes(p: Probabilities, y: Labels, predicted: Labels | None = None) -> dict[str, float | None]:
    """Return metrics of classification; F1 is that of class 1, or the mean over classes where there are more.

    The Brier score is the mean of (p − y)² for class 1, or summed over classes where there are more.
    A class that no test sample has counts nowhere, and leaves AUC, the mean of one class against the rest, unknown.
    """
    from sklearn import metrics

    predicted = p.argmax(1) if predicted is None else predicted
    classes, present = range(p.shape[1]), np.unique(y)
    two, every = len(classes) == 2, len(present) == len(classes)
    each = {"labels": [1]} if two else {"labels": present}
    return {
        "accuracy": float(metrics.accuracy_score(y, predicted)),
        "balanced_accuracy": float(
            metrics.recall_score(y, predicted, labels=present, average="macro", zero_division=0)
        ),
        "f1": float(metrics.f1_score(y, predicted, average="macro", zero_division=0, **each)),
        "auc": float(metrics.roc_auc_score(y, p[:, 1] if two else p, multi_class="ovr")) if every else None,
        "log_loss": float(metrics.log_loss(y, p, labels=list(classes))),
        "brier": float(np.square(p - np.eye(len(classes))[y]).sum(1).mean() / (2 if two else 1)),
        "calibration_error": _calibration_error(_bins(p, y)),
    }


def of_values(predicted: NDArray[np.float64], y: NDArray[Any]) -> dict[str, float | None]:
    """Return metrics of regression, means over the targets of a sample where it has several."""
    from sklearn import metrics

    y = y.astype(np.float64).reshape(predicted.shape)
    varies = len(y) > 1 and bool((y != y[0]).any(0).all())
    return {
        "r2": float(metrics.r2_score(y, predicted)) if varies else None,
        "mae": float(metrics.mean_absolute_error(y, predicted)),
        "rmse": float(np.sqrt(metrics.mean_squared_error(y, predicted))),
    }


def pictures(p: Probabilities, y: Labels, predicted: Labels) -> dict[str, Any]:
    """Return what is drawn: confusion (a row for each true class), the ROC curve, and confidence against frequency.

    Of more than two classes the curve is the mean of one class against the rest, as AUC is.
    """
    from sklearn.metrics import confusion_matrix

    classes = p.shape[1]
    drawn: dict[str, Any] = {"calibration": [[round(c, 4), round(f, 4), n] for c, f, n in _bins(p, y)]}
    if classes <= _LARGEST:
        drawn["confusion"] = confusion_matrix(y, predicted, labels=list(range(classes))).tolist()
    counted = [c for c in ([1] if classes == 2 else range(classes)) if 0 < (y == c).sum() < len(y)]
    if counted:
        curves = np.array([_roc(p[:, c], y == c) for c in counted])
        drawn["roc"] = [[0.0, 0.0], *([round(x, 4), round(v, 4)] for x, v in zip(_GRID, curves.mean(0), strict=True))]
    return drawn


def _roc(score: NDArray[np.float64], positive: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Return the true positive rate of one class against the rest at each false positive rate of the grid."""
    from sklearn.metrics import roc_curve

    wrong, right, _ = roc_curve(positive, score)
    found: NDArray[np.float64] = right[np.searchsorted(wrong, _GRID, side="right") - 1]
    return found


def _bins(p: Probabilities, y: Labels) -> list[tuple[float, float, int]]:
    """Return (mean confidence, how often it is right, samples) of each bin of confidence that has samples.

    Of two classes confidence is that in class 1; of more, that in the class which is said.
    """
    two = p.shape[1] == 2
    confidence, right = (p[:, 1], y == 1) if two else (p.max(1), p.argmax(1) == y)
    bins = np.minimum((confidence * BINS).astype(int), BINS - 1)
    inside = [bins == b for b in range(BINS)]
    return [(float(confidence[b].mean()), float(right[b].mean()), int(b.sum())) for b in inside if b.any()]


def _calibration_error(bins: Sequence[tuple[float, float, int]]) -> float:
    """Return the expected calibration error: how far confidence and frequency are apart, weighed by samples."""
    apart = (n * abs(confidence - frequency) for confidence, frequency, n in bins)
    *_, total = itertools.accumulate(apart, initial=0.0)  # `sum` rounds otherwise from Python 3.12 on
    return total / sum(n for _, _, n in bins)


def mean(found: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the means of several models' metrics, for nodes that keep to themselves; pictures are of one model."""
    first = found[0]
    if len(found) == 1:
        return first
    shared = {name: _mean([one.get(name) for one in found]) for name in NAMES if name in first}
    return shared | ({BASELINE: first[BASELINE]} if BASELINE in first else {})


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if len(known) == len(values) else None


def no_better(found: Mapping[str, Any], samples: int) -> list[str]:
    """Say which metrics are no better than a guess that never looks at a sample: two standard errors count as none."""
    guess = found.get(BASELINE, {})
    notes = []
    for name, words in _GUESSES.items():
        value, base = found.get(name), guess.get(name)
        if value is None or base is None:
            continue
        room = 2 * math.sqrt(base * (1 - base) / samples) if name == "accuracy" else 0.0
        if (value > base) if name in LOWER else (value <= base + room):
            notes.append(f"{name.replace('_', ' ')} {shown(name, value)} is {words} ({shown(name, base)})")
    return notes


LOWER = ("log_loss", "brier", "survival_brier")  # of probabilities: the smaller the better
_GUESSES = {
    "log_loss": "worse than predicting the base rate",
    "brier": "worse than predicting the base rate",
    "accuracy": "not clearly better than always predicting the most frequent class",
    "balanced_accuracy": "no better than always predicting one class",
    "auc": "no better than tossing a coin",
    "c_index": "no better than tossing a coin",
    "survival_brier": "worse than one survival curve for everybody",
    "r2": "no better than always predicting the mean",
}


def shown(name: str, value: float | None) -> str:
    """Write a metric for people: accuracies in percent, all else with four digits."""
    if value is None:
        return "–"
    return f"{value:.1%}".replace("%", " %") if name.endswith("accuracy") else f"{value:.4g}"
