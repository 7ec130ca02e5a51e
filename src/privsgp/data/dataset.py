"""Data sets: arrays that have been checked once, and the data of a group of nodes as one array per quantity.

Every array of a user goes through `from_arrays`. An error names the array, the row and the remedy. It appears only on
the user's own terminal, and in no run folder.

Nodes have different J_i: all are padded with zeros to the longest. One more row, the last, belongs to no node: padding
slots of a batch point to it and never to a real sample.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from privsgp import devices
from privsgp.errors import Refused

if TYPE_CHECKING:
    from collections.abc import Sequence


Task = Literal["classification", "regression"]
Array = NDArray[Any]
Inputs = NDArray[np.float32] | NDArray[np.int64]
Targets = NDArray[np.int64] | NDArray[np.float32]
_MORE = "give their number as data.classes, or store it in the file as `classes`"


class PersonRows(NamedTuple):
    """For each row a hash of its person, of 128 bits [N, 2], and how many rows a person has at most.

    `weights` are the shares of rows in their person's mean [N]; None: all rows of a person have the same.
    """

    hashes: NDArray[np.uint64]
    most: int
    weights: NDArray[np.float32] | None = None

    def taken(self, rows: NDArray[np.int64]) -> PersonRows:
        """Return whose some of the rows are."""
        weights = None if self.weights is None else self.weights[rows]
        return self._replace(hashes=self.hashes[rows], weights=weights)


@dataclass(frozen=True, eq=False)
class Dataset:
    """Records with labels or targets, and test data.

    Args:
        name: The name of the data set.
        x: Inputs [N, …]: real numbers (float32), or tokens (int64) from 0 to `vocabulary` − 1.
        y: Class labels (int64 [N]), or targets (float32 [N] or [N, k]).
        x_test: Test inputs; None without a test set. No guarantee covers metrics on them.
        y_test: Test labels or targets; None without a test set.
        classes: The public number of classes; None for regression.
        counted: The labels in which `classes` was counted, if any.
        vocabulary: The public number of tokens; None: inputs are real numbers.
        rows: Hashes of a table's rows as they are in its file. The budget book recognises records by them.
        persons: The person of each row, whose rows follow each other; a sample is then a person. None: it is a row.

    Example:
        >>> import numpy as np, privsgp
        >>> x = np.zeros((4, 3), dtype=np.float32)
        >>> privsgp.Dataset("mine", x, np.array([0, 1, 0, 1]), None, None, classes=2).x.shape
        (4, 3)

    """

    name: str
    x: Inputs
    y: Targets
    x_test: Inputs | None
    y_test: Targets | None
    classes: int | None
    counted: Literal["", "y", "y_test"] = ""
    vocabulary: int | None = None
    rows: NDArray[np.uint64] | None = None
    persons: PersonRows | None = None

    def taken(self, rows: NDArray[np.int64], persons: PersonRows | None = None) -> Dataset:
        """Return some of the rows, in this order; `persons` says whose they are if that was not known."""
        if persons is None and self.persons is not None:
            persons = self.persons.taken(rows)
        known = None if self.rows is None else self.rows[rows]
        return replace(self, x=self.x[rows], y=self.y[rows], rows=known, persons=persons)

    def first_rows(self, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Tell which of these rows begin a sample: all of them, or the first of each person's."""
        if self.persons is None:
            return np.ones(len(rows), dtype=bool)
        whose = self.persons.hashes[rows]
        return np.append(np.ones(min(1, len(rows)), bool), (whose[1:] != whose[:-1]).any(1))

    def samples(self, rows: NDArray[np.int64]) -> int:
        """Return how many samples these rows are."""
        return int(self.first_rows(rows).sum())


def from_arrays(
    x: Array,
    y: Array,
    x_test: Array | None = None,
    y_test: Array | None = None,
    *,
    name: str = "data",
    task: Task = "classification",
    classes: int | None = None,
    vocabulary: int | None = None,
    classes_known: bool = True,
    several: bool = False,
) -> Dataset:
    """Check the arrays and make them a `Dataset`; uint8 inputs are divided by 255, others are taken as they are.

    With a `vocabulary` inputs are tokens, whole numbers below it, and stay so. Without `classes_known`, labels are not
    checked: the caller calls `with_classes` once it has all sites' labels. With `several`, a sample may have any array
    of labels or numbers.

    Assumes: the number of classes is public. Without `classes` it is counted in `y_test`, and only where there is no
    test set in `y`, which is for simulations: one record of a node must not change the shape of the model.
    """
    if (x_test is None) != (y_test is None):
        raise Refused(f"{name}: only one of x_test and y_test is there", "give both, or neither")
    train = _pair(x, y, name, "", task, vocabulary, several=several)
    dataset = Dataset(name, *train, None, None, None, vocabulary=vocabulary)
    if x_test is not None:
        dataset = with_tests(dataset, *_pair(x_test, y_test, name, "_test", task, vocabulary, several=several))
    return with_classes(dataset, classes) if classes_known and task == "classification" else dataset


def nobody(shape: Sequence[int], target: Sequence[int], classes: int | None, vocabulary: int | None = None) -> Dataset:
    """Return a record of nobody: zeros, of the first class."""
    x = np.zeros((1, *shape), np.float32 if vocabulary is None else np.int64)
    y = np.zeros((1, *target), np.float32 if classes is None else np.int64)
    return Dataset("nobody", x, y, None, None, classes, vocabulary=vocabulary)


def with_tests(dataset: Dataset, x_test: Inputs, y_test: Targets) -> Dataset:
    """Return the data set with other test samples; refuse those that are not like the samples it learns from."""
    _refuse_shapes(dataset.name, "x", dataset.x, "x_test", x_test)
    _refuse_shapes(dataset.name, "y", dataset.y, "y_test", y_test)
    return replace(dataset, x_test=x_test, y_test=y_test)


def _refuse_shapes(name: str, key: str, first: Array, where: str, other: Array) -> None:
    if first.shape[1:] != other.shape[1:]:
        what = f"{name}: a sample of {key} has shape {first.shape[1:]}, one of {where} {other.shape[1:]}"
        raise Refused(what, "give all samples, of all sites and of the test data, the same shape")


def with_classes(dataset: Dataset, classes: int | None) -> Dataset:
    """Fix the number of classes, given or counted, and refuse labels outside it."""
    dataset = _counted(dataset) if classes is None else replace(dataset, classes=classes, counted="")
    _refuse_outside(dataset, dataset.classes or 0)
    return dataset


def pool(sites: Sequence[Dataset], name: str, classes: int | None) -> tuple[Dataset, list[NDArray[np.int64]]]:
    """One data set out of several sites', with each site's rows in it, in the order of `sites`."""
    for site in sites[1:]:
        _refuse_shapes(site.name, "x", site.x, sites[0].name, sites[0].x)
        _refuse_shapes(site.name, "y", site.y, sites[0].name, sites[0].y)
    x, y = np.concatenate([s.x for s in sites]), np.concatenate([s.y for s in sites])
    rows = np.split(np.arange(len(x)), np.cumsum([len(s.x) for s in sites])[:-1])
    tested, persons = [site for site in sites if site.x_test is not None], None
    x_test, y_test = (_joined([getattr(site, key) for site in tested]) for key in ("x_test", "y_test"))
    if len(whose := [site.persons for site in sites if site.persons is not None]) == len(sites):
        hashes, weights = (_joined([getattr(one, key) for one in whose]) for key in ("hashes", "weights"))
        persons = PersonRows(hashes, whose[0].most, weights)
    known = _joined([site.rows for site in sites])
    pooled = Dataset(name, x, y, x_test, y_test, None, vocabulary=sites[0].vocabulary, rows=known, persons=persons)
    if y.dtype != np.int64:
        return pooled, rows
    pooled = _counted(pooled) if classes is None else replace(pooled, classes=classes)
    for site in sites:  # so that an error names the site's own file and row
        _refuse_outside(site, pooled.classes or 0)
    return pooled, rows


def _joined(parts: Sequence[Array | None]) -> Any:  # noqa: ANN401 - an array, or None
    """Return arrays as one; None if there is none, or if one of them is missing."""
    known = [part for part in parts if part is not None]
    return np.concatenate(known) if known and len(known) == len(parts) else None


def array(given: object, key: str) -> Array:
    """Return what was given as an array; refuse rows of different lengths, and more than there is memory for."""
    try:
        made = np.array(given) if isinstance(given, np.memmap) else np.asarray(given)  # a file is read once
    except ValueError as error:  # rows of different lengths
        raise Refused(f"{key} is no array: {error}", "give every row the same length, as a NumPy array") from error
    if made.dtype == object:
        raise Refused(f"{key} holds objects, not numbers", "give every row the same length, as numbers")
    return made


def _pair(
    x: object, y: object, name: str, kind: str, task: Task, vocabulary: int | None, *, several: bool
) -> tuple[Inputs, Targets]:
    key = f"{name}: x{kind}"
    given = array(x, key)
    found = inputs(given, key) if vocabulary is None else tokens(given, key, vocabulary)
    known = targets(np.asarray(y), f"{name}: y{kind}", task, several=several)
    if len(found) != len(known):
        raise Refused(f"{key} has {len(found)} rows, y{kind} has {len(known)}", "give one row of y to each of x")
    return found, known


def _refuse_form(array: Array, key: str, axes: tuple[int, ...], kinds: str, remedy: str) -> None:
    """Refuse an array without rows, of other axes, or of other kinds of numbers (NumPy's letters)."""
    if array.size == 0 or not axes[0] <= array.ndim <= axes[-1]:
        raise Refused(f"{key} has shape {array.shape}", remedy)
    if array.dtype.kind not in kinds:
        raise Refused(f"{key} has dtype {array.dtype}", remedy)


def _refuse_values(array: Array, key: str, wrong: NDArray[np.bool_], what: str, remedy: str) -> None:
    """Refuse values that are wrong; the first one is named.

    This is said at the site itself, before anything has left it.

    Guarantee: peers learn that the site was refused and not why. Whether a record is well-formed (finite, its label one
    of the public classes, its tokens in the vocabulary) is what a record is, and is not protected: docs/privacy.md.
    """
    if count := int(wrong.sum()):
        first = tuple(int(axis) for axis in np.unravel_index(int(wrong.argmax()), wrong.shape))
        more = f" ({count} such values)" if count > 1 else ""
        raise Refused(f"{key}{list(first)} = {array[first]} {what}{more}", remedy)


def tokens(array: Array, key: str, vocabulary: int) -> NDArray[np.int64]:
    """Check that inputs are tokens of a vocabulary."""
    _refuse_form(array, key, (2, 9), "iu", f"give a row of tokens to each sample, whole numbers below {vocabulary}")
    what = f"is outside the vocabulary, 0..{vocabulary - 1}"
    remedy = "give the model an embedding with a row for every token, or map rare tokens to one"
    _refuse_values(array, key, (array < 0) | (array >= vocabulary), what, remedy)
    return array.astype(np.int64)


def inputs(array: Array, key: str) -> NDArray[np.float32]:
    """Check that inputs are finite; bytes are brought to 0 … 1."""
    _refuse_form(array, key, (2, 9), "fiub", "give at least one sample of real numbers, one row each: [N, ...]")
    values = _finite(array, key)
    return values / np.float32(255) if array.dtype == np.uint8 else values


def targets(array: Array, key: str, task: Task, *, several: bool = False) -> Targets:
    """Check targets and return them as a loss sees them; with `several`, a sample may have any array of them."""
    if task == "regression":
        _refuse_form(
            array, key, (1, 9 if several else 2), "fiub", "give one real target [N] or k targets [N, k] to each sample"
        )
        return _finite(array, key)
    remedy = "give one class number to each sample, [N]: 0, 1, 2, …; for several, from Python, take a loss of torch, "
    remedy += "nn.CrossEntropyLoss(reduction='none') or nn.BCEWithLogitsLoss(reduction='none'), or of your own"
    _refuse_form(array, key, (1, 9 if several else 1), "fiub", remedy)
    if array.dtype.kind == "f":
        # Beyond 2^53 a float names no single integer.
        whole = (np.abs(array) < 2.0**53) & (array == np.rint(array))
        remedy = "number the classes 0, 1, 2, …; for targets that are numbers take loss = 'mse' or task='regression'"
        _refuse_values(array, key, ~whole, "is no class number", remedy)
    return array.astype(np.int64)


def _finite(array: Array, key: str) -> NDArray[np.float32]:
    with np.errstate(over="ignore"):
        values = array.astype(np.float32, copy=False)
    wrong = ~np.isfinite(values)
    _refuse_values(array, key, wrong, "is not finite in float32", "replace it, or leave out the sample")
    return values


def _refuse_outside(dataset: Dataset, classes: int) -> None:
    """Refuse labels that are none."""
    what, remedy = f"is outside 0..{classes - 1}", f"number the classes from 0; if there are more, {_MORE}"
    for key, labels in (("y", dataset.y), ("y_test", dataset.y_test)):
        if labels is not None:
            _refuse_values(labels, f"{dataset.name}: {key}", (labels < 0) | (labels >= classes), what, remedy)


def _counted(dataset: Dataset) -> Dataset:
    """Count the classes in the test labels, and only where there are none in the records' own."""
    where: Literal["y", "y_test"] = "y" if dataset.y_test is None else "y_test"
    present = np.unique(dataset.y if dataset.y_test is None else dataset.y_test)
    gap = np.flatnonzero(present != np.arange(len(present)))
    if present[0] >= 0 and len(gap):
        what = f"{dataset.name}: a label in {where} is {present[gap[0]]} but none is {gap[0]}"
        raise Refused(what, f"number the classes 0, 1, 2, …; if one really has no sample, {_MORE}")
    return replace(dataset, classes=max(1, int(present[-1]) + 1), counted=where)


@dataclass(frozen=True, eq=False)
class StackedData:
    """`inputs` [m, Jmax + 1, ...], `targets` [m, Jmax + 1, ...] and the number of real rows of each node, J_i.

    The last row belongs to nobody: zeros, target 0. If a sample is a person with several rows, both are
    [m, Jmax + 1, most, ...], and rows that belong to no person have the target −1, or NaN. `weights`
    [m, Jmax + 1, most] are shares of rows in their person's mean; None: all rows of a person have the same.
    """

    inputs: torch.Tensor
    targets: torch.Tensor
    samples: list[int]
    weights: torch.Tensor | None = None


def stack(dataset: Dataset, parts: Sequence[NDArray[np.int64]]) -> StackedData:
    """Node r of the block holds the rows `parts[r]` of the data set, in that order."""
    samples = [dataset.samples(rows) for rows in parts]
    most = 1 if dataset.persons is None else dataset.persons.most
    shape = (len(parts), max(samples) + 1, *((most,) if most > 1 else ()))
    whole = dataset.classes is not None
    kind = torch.int64 if dataset.x.dtype == np.int64 else torch.float32
    devices.refuse_vast(
        kind.itemsize * math.prod((*shape, *dataset.x.shape[1:])),
        "the samples of all nodes, padded to the longest, take",
        "take fewer samples a node, or smaller ones (float32, features instead of pixels), or a larger machine",
    )
    inputs = torch.zeros(shape + dataset.x.shape[1:], dtype=kind)
    targets = torch.zeros(shape + dataset.y.shape[1:], dtype=torch.int64 if whole else torch.float32)
    if most > 1:
        targets.fill_(-1 if whole else math.nan)
    shares = None if dataset.persons is None or most == 1 else dataset.persons.weights
    weights = None if shares is None else torch.zeros(shape)
    for node, rows in enumerate(parts):
        first = dataset.first_rows(rows)
        sample = np.cumsum(first) - 1
        index = (node, sample, np.arange(len(rows)) - np.flatnonzero(first)[sample])[: len(shape)]
        inputs.numpy()[index] = dataset.x[rows]
        targets.numpy()[index] = dataset.y[rows]
        if shares is not None and weights is not None:
            weights.numpy()[index] = shares[rows]
    return StackedData(inputs, targets, samples, weights)
