"""What a data set is here: arrays that have been checked, so that nothing after this has to look at them again.

Every array a user brings goes through `from_arrays`. What is wrong with it is said once, with the array, the row and
what to do; this is the user's own data on the user's own terminal, and nothing of it is written to a run folder.

The data of a block of nodes as one array per quantity, so that m nodes take a step in one batched operation.

Nodes have different J_i: all are padded with zeros to the longest. One more row, the last, belongs to nobody: padding
slots of a batch point to it and never to a real sample (privacy.md, Randomness).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

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
Vocabulary = int | tuple[int, ...]
Targets = NDArray[np.int64] | NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Dataset:
    """Inputs `x` [N, ...] with class labels (int64 [N]) or targets (float32 [N] or [N, k]) `y`.

    Inputs are real numbers (float32), or tokens (int64) from 0 to `vocabulary` − 1, which is public and may be one
    number for each of a sample's (0: that one is real; all are then float32, which holds tokens below 2²⁴ exactly).

    `x_test, y_test` are public, or their metrics are not covered by any guarantee (privacy.md, Artefacts); both are
    None without a test set. `classes` is None for regression; `counted` names the labels it was counted in, if any.
    """

    name: str
    x: Inputs
    y: Targets
    x_test: Inputs | None
    y_test: Targets | None
    classes: int | None
    counted: Literal["", "y", "y_test"] = ""
    vocabulary: Vocabulary | None = None


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
) -> Dataset:
    """Check the arrays and make them a `Dataset`; uint8 inputs are divided by 255, others are taken as they are.

    With a `vocabulary` inputs are tokens, whole numbers below it, and stay so.

    Assumes: the number of classes is public. Without `classes` it is counted in `y_test`, and only where there is no
    test set in `y`, which is for simulations: one record of a node must not change the shape of the model.
    """
    dataset = unsettled(x, y, x_test, y_test, name=name, task=task, vocabulary=vocabulary)
    return dataset if task == "regression" else settle(dataset, classes)


def unsettled(
    x: Array,
    y: Array,
    x_test: Array | None,
    y_test: Array | None,
    *,
    name: str,
    task: Task,
    vocabulary: int | None = None,
) -> Dataset:
    """Check everything but the range of the labels, for which one site's labels may not be enough; see `settle`."""
    if (x_test is None) != (y_test is None):
        raise Refused(f"{name}: of x_test and y_test only one is there", "give both, or neither")
    train = _pair(x, y, f"{name}: x", f"{name}: y", task, vocabulary)
    if x_test is None or y_test is None:
        return Dataset(name, *train, None, None, None, vocabulary=vocabulary)
    seen, known = _pair(x_test, y_test, f"{name}: x_test", f"{name}: y_test", task, vocabulary)
    dataset = Dataset(name, *train, seen, known, None, vocabulary=vocabulary)
    refuse_other_shapes(dataset, name)
    return dataset


def refuse_other_shapes(dataset: Dataset, name: str) -> None:
    """Refuse test samples that are not like those that are learnt from."""
    pairs = (("x", dataset.x, dataset.x_test), ("y", dataset.y, dataset.y_test))
    for key, ours, theirs in pairs:
        if theirs is not None and ours.shape[1:] != theirs.shape[1:]:
            raise Refused(
                f"{name}: a sample of {key} has shape {ours.shape[1:]}, one of {key}_test {theirs.shape[1:]}",
                "give training and test samples the same shape",
            )


def settle(dataset: Dataset, classes: int | None) -> Dataset:
    """Fix the number of classes, given or counted, and refuse labels outside it."""
    dataset = _counted(dataset) if classes is None else replace(dataset, classes=classes, counted="")
    _refuse_outside(dataset, dataset.classes or 0)
    return dataset


def pool(sites: Sequence[Dataset], name: str, classes: int | None) -> tuple[Dataset, list[NDArray[np.int64]]]:
    """One data set out of several sites', with each site's rows in it, in the order of `sites`."""
    for site in sites[1:]:
        for key, first, other in (("x", sites[0].x, site.x), ("y", sites[0].y, site.y)):
            if first.shape[1:] != other.shape[1:]:
                raise Refused(
                    f"{site.name}: a sample of {key} has shape {other.shape[1:]}, in {sites[0].name} {first.shape[1:]}",
                    "give the samples of all sites the same shape",
                )
    tests = [(s.x_test, s.y_test) for s in sites if s.x_test is not None and s.y_test is not None]
    pooled = Dataset(
        name,
        np.concatenate([s.x for s in sites]),
        np.concatenate([s.y for s in sites]),
        np.concatenate([x for x, _ in tests]) if tests else None,
        np.concatenate([y for _, y in tests]) if tests else None,
        None,
        vocabulary=sites[0].vocabulary,
    )
    ends = np.cumsum([len(s.x) for s in sites])
    rows = [np.arange(end - len(s.x), end, dtype=np.int64) for s, end in zip(sites, ends, strict=True)]
    if pooled.y.dtype != np.int64:
        return pooled, rows
    pooled = _counted(pooled) if classes is None else replace(pooled, classes=classes)
    for site in sites:  # so that an error names the site's own file and row
        _refuse_outside(site, pooled.classes or 0)
    return pooled, rows


def array(given: object, key: str) -> Array:
    """Return what was given as an array; refuse rows of different lengths, and more than there is memory for."""
    try:
        made = np.array(given) if isinstance(given, np.memmap) else np.asarray(given)  # a file is read once
    except ValueError as error:  # rows of different lengths
        raise Refused(f"{key} is no array: {error}", "give every row the same length, as a NumPy array") from error
    if made.dtype == object:
        raise Refused(f"{key} holds objects, not numbers", "give every row the same length, as numbers")
    return made


def targets(array: Array, key: str, task: Task) -> Targets:
    """Check targets and return them as a loss sees them."""
    return (_labels if task == "classification" else _values)(array, key)


def _pair(x: Array, y: Array, x_key: str, y_key: str, task: Task, vocabulary: int | None) -> tuple[Inputs, Targets]:
    given = array(x, x_key)
    found = inputs(given, x_key) if vocabulary is None else tokens(given, x_key, vocabulary)
    known = targets(np.asarray(y), y_key, task)
    if len(found) != len(known):
        raise Refused(f"{x_key} has {len(found)} rows, {y_key} has {len(known)}", "give one row of y to each of x")
    return found, known


def tokens(array: Array, key: str, vocabulary: int) -> NDArray[np.int64]:
    """Check that inputs are tokens of a vocabulary.

    This is said at the site itself: a record's tokens are well-formed or it is none (`_refuse_outside`).
    """
    if array.ndim < 2 or array.size == 0:
        raise Refused(f"{key} has shape {array.shape}", "give at least one sample, one row of tokens each: [N, T]")
    if array.dtype.kind not in "iu":
        raise Refused(f"{key} has dtype {array.dtype}", f"give tokens as whole numbers from 0 to {vocabulary - 1}")
    if (outside := (array < 0) | (array >= vocabulary)).any():
        first = tuple(int(axis) for axis in np.unravel_index(int(outside.argmax()), outside.shape))
        raise Refused(
            f"{key}{list(first)} = {array[first]} is outside the vocabulary, 0..{vocabulary - 1}",
            "give the model an embedding with a row for every token, or map rare tokens to one",
        )
    return array.astype(np.int64)


def inputs(array: Array, key: str) -> NDArray[np.float32]:
    """Check that inputs are finite; bytes are brought to 0 … 1."""
    if array.ndim < 2 or array.size == 0:
        raise Refused(f"{key} has shape {array.shape}", "give at least one sample, one row each: [N, ...]")
    scale = np.float32(255 if array.dtype == np.uint8 else 1)
    values = _finite(array, key)
    return values if scale == 1 else values / scale


def _values(array: Array, key: str) -> NDArray[np.float32]:
    if array.ndim not in (1, 2) or array.size == 0:
        raise Refused(f"{key} has shape {array.shape}", "give one target [N] or k targets [N, k] to each sample")
    return _finite(array, key)


def _finite(array: Array, key: str) -> NDArray[np.float32]:
    if array.dtype.kind not in "fiub":
        raise Refused(f"{key} has dtype {array.dtype}", "store real numbers")
    with np.errstate(over="ignore"):
        values = array.astype(np.float32, copy=False)
    wrong = ~np.isfinite(values)
    if count := int(wrong.sum()):
        first = tuple(int(axis) for axis in np.unravel_index(int(wrong.argmax()), wrong.shape))
        raise Refused(
            f"{key} has {count} values that are not finite in float32, the first at {list(first)}: {array[first]}",
            "replace them or leave these samples out",
        )
    return values


def _labels(array: Array, key: str) -> NDArray[np.int64]:
    if array.ndim != 1 or array.size == 0:
        raise Refused(f"{key} has shape {array.shape}", "give one class number to each sample: [N]")
    if array.dtype.kind not in "fiub":
        raise Refused(f"{key} has dtype {array.dtype}", "number the classes 0, 1, 2, …")
    if array.dtype.kind == "f":
        # Beyond 2^53 a float names no single integer.
        whole = (np.abs(array) < 2.0**53) & (array == np.rint(array))
        if not whole.all():
            first = int(whole.argmin())
            raise Refused(
                f"{key}[{first}] = {array[first]} is no class number",
                "number the classes 0, 1, 2, …; for targets that are numbers take loss = 'mse', or from Python a loss "
                "of your own and task='regression'",
            )
    return array.astype(np.int64)


def _refuse_outside(dataset: Dataset, classes: int) -> None:
    """Refuse labels that are none. This is said at the site itself, before anything has left it.

    Guarantee: peers learn that the site was refused and not why. Whether a record is well-formed (finite, its label one
    of the public classes) is what a record is, and is not protected: docs/privacy.md.
    """
    for key, labels in (("y", dataset.y), ("y_test", dataset.y_test)):
        if labels is not None and (outside := (labels < 0) | (labels >= classes)).any():
            first = int(outside.argmax())
            raise Refused(
                f"{dataset.name}: {key}[{first}] = {labels[first]} is outside 0..{classes - 1}",
                "number the classes from 0; if there are more of them than the test set shows, give their number as "
                "data.classes, or store it in the file as `classes`",
            )


def _counted(dataset: Dataset) -> Dataset:
    """Count the classes in the test labels, and only where there are none in the records' own.

    Where a class is missing among the test labels, records decide whether it is one: they are then what was counted in.
    """
    public = dataset.y if dataset.y_test is None else dataset.y_test
    alone = dataset.y_test is not None and _gap(dataset.y_test) is None
    present = public if alone else np.concatenate([dataset.y, public])
    if (gap := _gap(present)) is not None:
        raise Refused(
            f"{dataset.name}: a label is {present[present > gap].min()} but none is {gap}",
            "number the classes 0, 1, 2, …; if one really has no sample, give their number as data.classes, or store "
            "it in the file as `classes`",
        )
    return replace(dataset, classes=max(1, int(public.max()) + 1), counted="y_test" if alone else "y")


def _gap(labels: Targets) -> int | None:
    """Return the first class that no label names below one that is named; None too for labels below 0."""
    present = np.unique(labels)
    gap = np.flatnonzero(present != np.arange(len(present)))
    return int(gap[0]) if present[0] >= 0 and len(gap) else None


@dataclass(frozen=True, eq=False)
class StackedData:
    """`inputs` [m, Jmax + 1, ...], `targets` [m, Jmax + 1, ...] and the number of real rows of each node, J_i.

    The last row belongs to nobody: zeros, target 0.
    """

    inputs: torch.Tensor
    targets: torch.Tensor
    samples: list[int]


def stack(dataset: Dataset, parts: Sequence[NDArray[np.int64]]) -> StackedData:
    """Node r of the block holds the rows `parts[r]` of the data set, in that order."""
    samples = [len(rows) for rows in parts]
    shape = (len(parts), max(samples) + 1)
    whole = dataset.classes is not None
    kind = torch.int64 if dataset.x.dtype == np.int64 else torch.float32
    devices.refuse_vast(
        kind.itemsize * math.prod((*shape, *dataset.x.shape[1:])),
        "the samples of all nodes, padded to the longest, take",
        "take fewer samples a node, or smaller ones (float32, features instead of pixels), or a larger machine",
    )
    inputs = torch.zeros(shape + dataset.x.shape[1:], dtype=kind)
    targets = torch.zeros(shape + dataset.y.shape[1:], dtype=torch.int64 if whole else torch.float32)
    for node, rows in enumerate(parts):
        inputs.numpy()[node, : len(rows)] = dataset.x[rows]
        targets.numpy()[node, : len(rows)] = dataset.y[rows]
    return StackedData(inputs, targets, samples)
