"""Estimators of scikit-learn over `privsgp.train`: `fit`, `predict`, `score`, also in a `Pipeline`.

Every `fit` without a seed is a release: it spends its ε on the records that it is given. `GridSearchCV` fits once for
each setting and fold, and the sum counts. So `fit` warns if the budget book has more for these records than this fit
has spent. No ε covers a step of a pipeline that learns from private records, such as `StandardScaler`.
"""

from __future__ import annotations

import itertools
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_consistent_length, check_is_fitted, column_or_1d, validate_data

from privsgp import models
from privsgp.accounting.book import Book
from privsgp.accounting.shown import up
from privsgp.api import train
from privsgp.data import survival
from privsgp.data.hashes import hashes
from privsgp.engine.folder import Folder
from privsgp.errors import Refused

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import ArrayLike, NDArray
    from torch import nn

    Array = NDArray[Any]

_ALGORITHM = {"name": "privsgp", "steps": 100, "step_size": 0.5, "average": "tail"}
_FAR = 10.0  # mean absolute value above which a model of this step size learns little
_SHARE = 4  # a batch is one in so many samples of a site


class _Private(BaseEstimator):  # type: ignore[misc]
    """The constructor and `fit`; a subclass says what its targets are."""

    _loss: str
    _metric: str

    def __init__(
        self, *, epsilon: float = 1.0, delta: float = 1e-5, nodes: int = 1, model: str | nn.Module = "linear",
        options: dict[str, Any] | None = None, seed: int | None = None, out: str = "runs",
    ) -> None:  # fmt: skip
        self.epsilon, self.delta, self.nodes, self.model = epsilon, delta, nodes, model
        self.options, self.seed, self.out = options, seed, out

    def fit(self, X: ArrayLike, y: ArrayLike, sites: ArrayLike | None = None, persons: ArrayLike | None = None) -> Self:
        """Train a model: one release for each site.

        Args:
            X: Samples [N, features].
            y: A target for each sample.
            sites: The name of the site that holds each sample [N]. Without it, samples are divided among `nodes`.
            persons: The person of each sample [N]; `options={"rows_per_person": 3}` says how many of them are used.

        Returns:
            This estimator, with `epsilon_`, `statement_` and `result_` (a `privsgp.Result`).

        Raises:
            Refused: If a setting, the data or a budget does not fit. Nothing is spent then.

        """
        x, known = validate_data(self, X, y, dtype=np.float32, multi_output=True)
        check_consistent_length(x, sites, persons)
        self._learn_form(known)
        targets = self._targets(known)
        if max(float(np.abs(values).mean()) for values in (x, targets) if values.dtype.kind == "f") > _FAR:
            warnings.warn("X or y is far from the range -1 … 1: bring it there by public numbers", stacklevel=2)
        given: dict[str, Any] = {"loss": self._loss, "seed": self.seed, "progress": False} | (self.options or {})
        data: Any = (x, targets)
        whose: Any = None if persons is None else np.asarray(persons).tolist()
        if sites is None:
            given["nodes"] = nodes = self.nodes
        else:
            names = column_or_1d(sites).astype(str)
            held = {str(name): np.flatnonzero(names == name) for name in np.unique(names)}
            data, nodes = {name: (x[rows], targets[rows]) for name, rows in held.items()}, len(held)
            if whose is not None:
                whose = {name: np.asarray(persons)[rows].tolist() for name, rows in held.items()}
        given["privacy"] = {"epsilon": self.epsilon, "delta": self.delta} | given.get("privacy", {})
        given["algorithm"] = _ALGORITHM | {"batch": max(1, len(x) / nodes / _SHARE)} | given.get("algorithm", {})
        classes = len(self.classes_) if isinstance(self, ClassifierMixin) else None
        network = self._network(x.shape[1], targets, classes)
        self.result_ = train(network, data, out=self._folder(), persons=whose, classes=classes, **given)
        self.epsilon_ = max(self.result_.summary["epsilon_spent"])
        self.statement_ = "\n".join(self.result_.view.privacy)
        if self.seed is None:
            self._warn(x)
        return self

    def _network(self, features: int, targets: Array, classes: int | None) -> nn.Module:
        """Return the module that was given, or one of this name."""
        if not isinstance(self.model, str):
            return self.model
        count = models.outputs(self._loss, classes=classes, target_shape=targets.shape[1:])
        return models.make(self.model, input_shape=(features,), outputs=count, seed=self.seed or 0)

    def _folder(self) -> Path:
        """Return a run folder that is not there yet."""
        name = type(self).__name__
        return next(path for k in itertools.count(1) if not (path := Path(self.out) / f"{name}-{k}").exists())

    def _warn(self, x: Array) -> None:
        """Warn if the budget book has other private runs with these records."""
        book, found = Book(), hashes(x, tokens=False)
        own = Folder(self.result_.folder).run
        known = [entry for entry, _ in book.overlapping(found) if not entry.simulation]
        if any(entry.run != own for entry in known):
            total = book.spent_on(found, known[-1].relation).epsilon
            warnings.warn(
                f"ε = {up(total)} is spent on one of these records in all. Each fit spends its ε, and a search "
                "fits once for each setting and fold: choose settings on public data",
                stacklevel=3,
            )

    def _learn_form(self, y: Array) -> None:
        """Keep what is public of the targets."""

    def _targets(self, y: Array) -> Array:
        """Return targets as `train` takes them."""
        return y.astype(np.float32)

    def _rows(self, X: ArrayLike) -> Array:
        check_is_fitted(self)
        rows: Array = validate_data(self, X, reset=False, dtype=np.float32)
        return rows

    def predict(self, X: ArrayLike) -> Array:
        """Return the class, the values or the risk of each sample.

        Args:
            X: Samples [N, features].

        Returns:
            An entry for each sample.

        """
        rows = self._rows(X)
        return self.result_.predict(rows)

    def score(self, X: ArrayLike, y: ArrayLike) -> float:
        """Return accuracy, R² or the C-index. No ε covers it.

        Args:
            X: Samples that are public, or whose owner alone sees the score.
            y: Their targets.

        Returns:
            The metric.

        Raises:
            Refused: If these are records that a private `fit` was given.

        """
        return float(self.result_.evaluate((self._rows(X), self._targets(np.asarray(y))))[self._metric])

    def __sklearn_tags__(self) -> Any:  # noqa: ANN401 - a class of scikit-learn's
        tags = super().__sklearn_tags__()
        tags.non_deterministic = self.seed is None
        return tags


class PrivateClassifier(ClassifierMixin, _Private):  # type: ignore[misc]
    """Classify with each site's own (ε, δ).

    Args:
        classes: The public labels. Without a seed they are needed: private records must not show them.
        epsilon: The ε of each site.
        delta: Its δ.
        nodes: The number of sites among which samples are divided if `fit` gets no `sites`.
        model: "linear", "mlp" or another name, or a module with an output for each class.
        options: Other arguments of `privsgp.train`, such as `{"privacy": {"clip": 0.5}, "graph": "ring"}`.
        seed: Makes a simulation that protects nobody.
        out: The folder in which each fit makes its run folder.

    Example:
        >>> import numpy as np
        >>> from privsgp.sklearn import PrivateClassifier
        >>> X = np.random.default_rng(0).standard_normal((400, 3))
        >>> model = PrivateClassifier(classes=["low", "high"], epsilon=2.0, seed=0)
        >>> model.fit(X, np.where(X[:, 0] > 0, "high", "low"), sites=np.repeat(["a", "b"], 200)).epsilon_ <= 2
        True
        >>> model.predict([[2, 0, 0], [-2, 0, 0]]).tolist()
        ['high', 'low']

    """

    _loss, _metric = "cross-entropy", "accuracy"

    def __init__(
        self, *, classes: Sequence[Any] | None = None, epsilon: float = 1.0, delta: float = 1e-5, nodes: int = 1,
        model: str | nn.Module = "linear", options: dict[str, Any] | None = None, seed: int | None = None,
        out: str = "runs",
    ) -> None:  # fmt: skip
        super().__init__(epsilon=epsilon, delta=delta, nodes=nodes, model=model, options=options, seed=seed, out=out)
        self.classes = classes

    def _learn_form(self, y: Array) -> None:
        check_classification_targets(y)
        if self.classes is None and self.seed is None:
            raise Refused("no classes", "name the public labels: PrivateClassifier(classes=[0, 1])")
        self.classes_ = np.unique(y if self.classes is None else np.asarray(self.classes))
        if len(self.classes_) < 2:
            raise Refused("y has 1 class", "bring samples of at least two classes")

    def _targets(self, y: Array) -> Array:
        y = column_or_1d(y, warn=True)
        if (unknown := ~np.isin(y, self.classes_)).any():
            raise Refused(f"y has the label {y[unknown][0]!r}", f"the classes are {self.classes_.tolist()}")
        return np.searchsorted(self.classes_, y)

    def predict(self, X: ArrayLike) -> Array:
        """Return the label of each sample.

        Args:
            X: Samples [N, features].

        Returns:
            Labels [N].

        """
        numbers = super().predict(X)  # refuses to predict before `fit`
        found: Array = self.classes_[numbers]
        return found

    def predict_proba(self, X: ArrayLike) -> Array:
        """Return the probability of each class, in the order of `classes_`.

        Args:
            X: Samples [N, features].

        Returns:
            Probabilities [N, classes].

        """
        rows = self._rows(X)
        return self.result_.predict_proba(rows)

    score = _Private.score

    def __sklearn_tags__(self) -> Any:  # noqa: ANN401 - a class of scikit-learn's
        tags = super().__sklearn_tags__()
        tags.classifier_tags.poor_score = True  # noise may be all that is left of few records
        return tags


class PrivateRegressor(RegressorMixin, _Private):  # type: ignore[misc]
    """Predict numbers with each site's own (ε, δ); bring targets to a public scale of about ±1 before.

    Arguments are those of `PrivateClassifier`, without `classes`.
    """

    _loss, _metric = "mse", "r2"

    def _targets(self, y: Array) -> Array:
        several = y.ndim > 1 and y.shape[1] > 1
        return super()._targets(y if several else column_or_1d(y, warn=True))

    score = _Private.score

    def __sklearn_tags__(self) -> Any:  # noqa: ANN401 - a class of scikit-learn's
        tags = super().__sklearn_tags__()
        tags.regressor_tags.poor_score = True
        return tags


class PrivateSurvival(_Private):
    """Predict survival in public bins with each site's own (ε, δ).

    Other arguments are those of `PrivateClassifier`. Targets are pairs (time, event) [N, 2]. One column alone holds the
    times of events that all happened.

    Args:
        bins: The public upper edges of the bins of time.

    """

    _loss, _metric = "survival", "c_index"

    def __init__(
        self, *, bins: Sequence[float] = (), epsilon: float = 1.0, delta: float = 1e-5, nodes: int = 1,
        model: str | nn.Module = "hazard", options: dict[str, Any] | None = None, seed: int | None = None,
        out: str = "runs",
    ) -> None:  # fmt: skip
        super().__init__(epsilon=epsilon, delta=delta, nodes=nodes, model=model, options=options, seed=seed, out=out)
        self.bins = bins

    def _targets(self, y: Array) -> Array:
        if y.dtype.names or (y.ndim > 1 and (y.shape[1] != 2 or not np.isin(y[:, 1], (0, 1)).all())):
            raise Refused("y is no pairs (time, event)", "give an array [N, 2]: the time, and 1 for an event or else 0")
        known = np.column_stack([y, np.ones(len(y))]) if y.ndim == 1 else y
        return survival.targets(known[:, 0], known[:, 1] > 0, self.bins)

    def predict(self, X: ArrayLike) -> Array:
        """Return the risk of each sample: minus the sum of its survival curve.

        Args:
            X: Samples [N, features].

        Returns:
            Risks [N]; higher ones are for earlier events.

        """
        found: Array = -self.predict_survival(X).sum(1)
        return found

    def predict_survival(self, X: ArrayLike) -> Array:
        """Return the probability to survive each bin.

        Args:
            X: Samples [N, features].

        Returns:
            Probabilities [N, bins].

        """
        return super().predict(X)

    def __sklearn_tags__(self) -> Any:  # noqa: ANN401 - a class of scikit-learn's
        tags = super().__sklearn_tags__()
        tags.target_tags.required = tags.target_tags.positive_only = True
        return tags
