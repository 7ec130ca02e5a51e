"""Made-up samples for the planner, so that planning spends nothing: nobody's records, with no to a strong signal.

Rows of a table follow its schema: ranges, lists of values, missing values, the public balance of classes. Columns
depend on each other through a few common factors, and the target on a random combination of all of them.

Other inputs are Gaussian with a spectrum that falls like 1/r, as that of natural data does, turned by a random rotation
and scaled (inputs are standardised by public constants). Classes differ by their means in the leading
directions, about as hard to tell apart as hand-written digits are for a linear model. Targets of a regression are
linear in the leading directions, with noise.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from scipy import fft, special

from privsgp.data import survival
from privsgp.data.schema import Category, Encoded, Number, Schema, Target

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray
    from torch import Tensor

    Floats = NDArray[np.float64]

WIDEST = 4096  # coordinates of a sample that a matrix turns
BETWEEN = (0.2, 0.45, 0.7)  # share of the variance, in a direction that matters, that lies between classes
FACTORS = 2  # that all columns share
COMMON, LEADING = 0.5, 0.9  # their share of a column's variance; the same where the target follows them
MISSING = 0.1  # share of values that are missing, in columns that may have some
OTHERS = 0.02  # share of "other" in a category
EVENTS, CENSORED = 0.5, 0.3  # share of persons with the event before the last time, and of those not seen until then
SKEWED = 4.0  # how many times as frequent as the next a class is, where the balance is not public


class Samples(NamedTuple):
    """Inputs and targets to learn from, and more of them to test on; `name` says what differs between runs."""

    x: Tensor
    y: Tensor
    x_test: Tensor
    y_test: Tensor
    name: str = ""


class Signal(NamedTuple):
    """How well a row of a made-up table predicts its target: the standard deviation of its log odds.

    `evenness` is the power that takes shares of classes towards equal ones: a public balance is never exact, and more
    even classes are harder to predict. With `leading`, the target follows the common factors of the columns.
    """

    name: str
    strength: float
    evenness: float = 1.0
    leading: bool = False

    @property
    def auc(self) -> float:
        """The AUC of the best possible model, if two classes are equally frequent."""
        odds = self.strength * special.ndtri(np.arange(0.5, 1000) / 1000)
        yes, no = special.expit(odds), special.expit(-odds)
        return float((yes * (no.cumsum() - no / 2)).sum() / (yes.sum() * no.sum()))

    @property
    def c_index(self) -> float:
        """The C-index of the best possible model of survival."""
        odds = math.sqrt(2) * self.strength * special.ndtri(np.arange(0.5, 1000) / 1000)
        return float(special.expit(np.abs(odds)).mean())

    @property
    def r2(self) -> float:
        """The R² of the best possible model."""
        return self.strength**2 / (self.strength**2 + 4)


# Of public tables, nine in ten are between the first and the last (docs/planner.md).
NONE = Signal("none", 0.0, 0.75)
SIGNALS = (
    Signal("weak", 0.5, 0.75), Signal("moderate", 1.0), Signal("strong", 2.0, 0.75), Signal("very strong", 4.0), NONE,
)  # fmt: skip


def make(
    shape: tuple[int, ...],
    classes: int | None,
    target: tuple[int, ...] = (),
    *,
    samples: int,
    scale: float = 1.0,
    seed: int = 0,
    between: float = BETWEEN[1],
) -> Samples:
    """Return `samples` samples to learn from and four times as many to test on.

    `classes` is None for a regression; `scale` is the root mean square of an input's coordinates; `between` is the
    share of the variance that lies between classes.
    """
    rng = np.random.default_rng(seed)
    size, count = math.prod(shape), 5 * samples
    spectrum = np.arange(1, size + 1) ** -0.5
    spectrum *= scale * math.sqrt(size / np.square(spectrum).sum())
    latent = rng.standard_normal((count, size))
    y, latent = _classes(rng, latent, classes, between) if classes is not None else _values(rng, latent, target)
    x = torch.from_numpy(_rotated(rng, latent * spectrum)).float().reshape(count, *shape)
    return Samples(x[:samples], y[:samples], x[samples:], y[samples:])


def table(schema: Schema, signal: Signal, *, samples: int, seed: int = 0) -> Samples:
    """Return rows as the schema describes them, encoded; the target depends on them with this signal.

    Shares of the classes are those of the schema, or skewed ones, to the power `evenness`.
    """
    rng, count, kinds, times = np.random.default_rng(seed), 5 * samples, schema.classes, schema.times
    common, shares = rng.standard_normal((count, FACTORS)), _shares(schema, signal.evenness)
    together = LEADING if signal.leading else COMMON
    x = np.concatenate([_column(rng, common, column, together) for column in schema.encoded.values()], 1)
    spread = x.std(0)
    unit = (x - x.mean(0)) / np.where(spread > 0, spread, 1)
    if signal.leading:  # what the columns tell of the factors
        unit = unit @ np.linalg.lstsq(unit, common, rcond=None)[0]
    scores = unit @ rng.standard_normal((unit.shape[1], kinds or 1))
    if kinds is not None:
        scores -= scores.mean(1, keepdims=True)
    scores /= max(math.sqrt(np.square(scores).mean()), 1e-12)
    if times is not None:
        y = _survival(rng, signal.strength * scores[:, 0], len(times))
    elif kinds is None:
        y = _numbers(rng, scores[:, 0], schema, signal.r2)
    else:
        each = math.sqrt((kinds - 1) / (2 * kinds))  # then the log odds of two classes differ by `strength`
        y = _labels(rng, signal.strength * each * scores, shares)
    best = f"AUC {signal.auc:.2f}" if times is None else f"C-index {signal.c_index:.2f}"
    best = f"R² {signal.r2:.2f}" if kinds is None and times is None else best
    inputs = torch.from_numpy(x).float()
    return Samples(inputs[:samples], y[:samples], inputs[samples:], y[samples:], f"{signal.name} ({best})")


def _column(rng: np.random.Generator, common: Floats, column: Encoded, together: float) -> Floats:
    """Return a made-up column as it is encoded, its indicator of missing values last.

    Common factors make this share of its variance.
    """
    own = rng.standard_normal(len(common))
    z = math.sqrt(together / FACTORS) * common @ rng.choice([-1.0, 1.0], FACTORS) + math.sqrt(1 - together) * own
    gone = rng.random(len(z)) < (0.0 if column.missing is None else MISSING)
    if isinstance(column, Number):
        (low, high), (centre, scale) = column.limits, column.affine
        low, high = (low - centre) / scale, (high - centre) / scale
        made = np.clip(z if column.centre is not None else 0.4 * z, low, high)
        made = np.where(gone, ((column.missing or 0.0) - centre) / scale, made)[:, None]
    elif isinstance(column, Category):
        often = 1 / np.arange(1, len(column.known) + 1)
        often[column.known.index("other")] = OTHERS
        codes = np.searchsorted(np.cumsum(often / often.sum())[:-1], special.ndtr(z))
        codes = np.where(gone, column.known.index(column.missing or "other"), codes)
        made = np.eye(len(column.known))[codes]
    else:
        made = np.where(np.where(gone, column.missing or False, z > 0.5), 1.0, -1.0)[:, None]
    return made if column.missing is None else np.concatenate([made, gone[:, None]], 1)


def _shares(schema: Schema, evenness: float) -> Floats:
    """Return the share of each class: the public balance, else skewed ones, to this power."""
    skewed = [SKEWED**-i for i in range(schema.classes or 2)]
    shares = np.asarray(schema.target.balance or skewed) ** evenness
    return np.asarray(shares / shares.sum())


def _labels(rng: np.random.Generator, scores: Floats, shares: Sequence[float] | Floats) -> Tensor:
    """Draw labels with these log odds, shifted so that classes have these shares."""
    shift = np.log(shares)
    for _ in range(100):
        odds = special.softmax(scores + shift, 1)
        shift += np.log(shares / odds.mean(0))
    drawn = (rng.random((len(odds), 1)) > np.cumsum(odds, 1)[:, :-1]).sum(1)
    return torch.from_numpy(drawn)


def _numbers(rng: np.random.Generator, score: Floats, schema: Schema, explained: float) -> Tensor:
    """Return targets of a regression on the schema's scale; the score explains this share of their variance."""
    y = math.sqrt(explained) * score + math.sqrt(1 - explained) * rng.standard_normal(len(score))
    target = schema.target
    (low, high), (centre, scale) = target.limits, target.affine
    centred = isinstance(target, Target) and target.centre is not None
    y = np.clip(y if centred else 0.4 * y, (low - centre) / scale, (high - centre) / scale)
    return torch.from_numpy(y).float()


def _survival(rng: np.random.Generator, risk: Floats, bins: int) -> Tensor:
    """Return targets of persons whose hazard rises with their risk; a few are not seen until the end."""
    until = rng.exponential(size=len(risk)) * np.exp(-risk)
    until *= bins / np.quantile(until, EVENTS)
    followed = np.where(rng.random(len(risk)) < CENSORED, rng.uniform(0, bins, len(risk)), bins)
    time, event = np.minimum(until, followed), until <= followed
    return torch.from_numpy(survival.targets(time, event, range(1, bins + 1)))


def _rotated(rng: np.random.Generator, x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Turn the rows: by any rotation or, where its matrix would be vast, by a cosine transform with random signs."""
    size = x.shape[1]
    if size <= WIDEST:
        rotation, _ = np.linalg.qr(rng.standard_normal((size, size)))
        return np.asarray(x @ rotation)
    return np.asarray(fft.dct(x * rng.choice([-1.0, 1.0], size), norm="ortho")[:, rng.permutation(size)])


def _classes(
    rng: np.random.Generator, latent: NDArray[np.float64], classes: int, between: float
) -> tuple[Tensor, NDArray[np.float64]]:
    leading = min(2 * classes, latent.shape[1])
    labels = rng.integers(0, classes, len(latent))
    means = rng.standard_normal((classes, leading))
    latent[:, :leading] = math.sqrt(1 - between) * latent[:, :leading] + math.sqrt(between) * means[labels]
    return torch.from_numpy(labels), latent


def _values(
    rng: np.random.Generator, latent: NDArray[np.float64], target: tuple[int, ...]
) -> tuple[Tensor, NDArray[np.float64]]:
    leading = min(10, latent.shape[1])
    weights = rng.standard_normal((leading, *target)) / math.sqrt(leading)
    exact = latent[:, :leading] @ weights
    return torch.from_numpy(exact + 0.3 * rng.standard_normal(exact.shape)).float(), latent
