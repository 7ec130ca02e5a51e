"""From a name in a config to a checked data set.

Inputs are scaled by the fixed, published constants below, never by statistics of the nodes' data (privacy.md,
Artefacts). Files are looked for in the data folder: an argument, or the environment variable PRIVSGP_DATA.
"""

from __future__ import annotations

import filecmp
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from privsgp.data.dataset import Dataset, Task, from_arrays, pool, unsettled
from privsgp.data.files import find, read_cifar, read_idx, read_libsvm, read_npz
from privsgp.errors import Refused

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from privsgp.data.dataset import Array, Inputs

    Arrays = tuple[Array, Array, Array, Array]

MNIST_MEAN, MNIST_STD = 0.1307, 0.3081
CIFAR_MEAN, CIFAR_STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
DIGITS_MEAN, DIGITS_STD = 0.3, 0.37
A9A_FEATURES = 123


def load(
    name: str,
    *,
    data_dir: Path | None = None,
    task: Task = "classification",
    classes: int | None = None,
    vocabulary: int | None = None,
    pixels: bool = False,
) -> Dataset:
    """The data set `name`: digits, mnist, cifar10, a9a, or the path of an .npz file with x, y (and x_test, y_test).

    `classes` is for .npz files, where it stands above the file's own number `classes`. With `task="regression"` labels
    become real targets. `vocabulary` is for files of tokens. With `pixels` built-in images have values from 0 to 1
    instead of scaled ones.
    """
    if name.endswith(".npz"):
        x, y, x_test, y_test, declared = _npz(npz_path(name, data_dir))
        return from_arrays(
            x, y, x_test, y_test, name=name, task=task, classes=classes or declared, vocabulary=vocabulary
        )
    if name not in _KNOWN:
        raise Refused(f"data.name = {name!r} is unknown", f"use {', '.join(_KNOWN)} or the path of an .npz file")
    read, known_classes = _KNOWN[name]
    if classes not in (None, known_classes):
        raise Refused(f"data.classes = {classes} with data.name = {name!r}", f"leave it out: it has {known_classes}")
    return from_arrays(*read(data_dir, pixels), name=name, task=task, classes=known_classes)


def load_sites(
    template: str,
    nodes: Sequence[int],
    *,
    task: Task = "classification",
    classes: int | None = None,
    vocabulary: int | None = None,
) -> tuple[Dataset, list[NDArray[np.int64]]]:
    """Each node's own .npz file (`template` with {node} replaced by its number), pooled, and which rows are whose.

    Test sets are pooled too; a site may have none.
    """
    if "{node}" not in template:
        raise Refused(f"data.path = {template!r} has no {{node}}", 'write it like "site-{node}.npz"')
    sites: list[Dataset] = []
    declared: set[int] = set()
    for path in site_paths(template, nodes):
        x, y, x_test, y_test, own = _npz(path)
        sites.append(unsettled(x, y, x_test, y_test, name=str(path), task=task, vocabulary=vocabulary))
        declared |= set() if own is None else {own}
    if classes is None and len(declared) > 1:
        raise Refused(f"{template}: `classes` is {sorted(declared)} in different files", "store one number in all")
    return pool(sites, template, classes or next(iter(declared), None))


def site_paths(template: str, nodes: Sequence[int]) -> list[Path]:
    """Each node's file."""
    return [Path(template.replace("{node}", str(node))) for node in nodes]


def same_data(one: Path, other: Path) -> bool:
    """Whether two names stand for one file, by whatever path, link or copy, or most records of one are the other's."""
    if os.path.realpath(one) == os.path.realpath(other):
        return True
    try:
        return one.samefile(other) or filecmp.cmp(one, other, shallow=False) or _same_records(one, other)
    except (OSError, Refused):  # one of them is not there, or no npz
        return False


def _same_records(one: Path, other: Path) -> bool:
    """Tell whether half of one file's records stand in the other: saved anew, in another order, some left out."""
    mine, theirs = ([row.tobytes() for row in read_npz(path)["x"].astype(np.float32)] for path in (one, other))
    common = set(mine) & set(theirs)
    return any(2 * sum(row in common for row in rows) >= len(rows) for rows in (mine, theirs))


def npz_path(name: str, data_dir: Path | None) -> Path:
    """Where an .npz file lies: as it is named, else in the data folder."""
    path, folder = Path(name), _folder(data_dir)
    return folder / path if folder and not path.is_file() and (folder / path).is_file() else path


def _npz(path: Path) -> tuple[Array, Array, Array | None, Array | None, int | None]:
    arrays = read_npz(path)
    return arrays["x"], arrays["y"], arrays.get("x_test"), arrays.get("y_test"), _declared(arrays, path)


def _declared(arrays: dict[str, Array], path: Path) -> int | None:
    count = arrays.get("classes")
    if count is None:
        return None
    if count.ndim or count.dtype.kind not in "iu" or count < 1:
        raise Refused(f"{path}: classes = {count}", "store one positive whole number")
    return int(count)


def _folder(data_dir: Path | None) -> Path | None:
    named = data_dir or os.environ.get("PRIVSGP_DATA")
    return Path(named) if named else None


def _files(name: str, data_dir: Path | None, subfolder: str, files: tuple[str, ...], source: str) -> list[Path]:
    folder = _folder(data_dir)
    remedy = f"{source}; the data folder is named by --data-dir or PRIVSGP_DATA"
    if folder is None:
        raise Refused(f"data.name = {name!r} needs {', '.join(files)}, and no data folder is named", remedy)
    return [find(file, [folder / subfolder, folder], remedy) for file in files]


def _digits(_data_dir: Path | None, pixels: bool) -> Arrays:  # noqa: FBT001 - as all readers
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    test = np.zeros(len(y), bool)
    for digit in range(10):  # a public split: each fifth of a class
        test[np.flatnonzero(y == digit)[4::5]] = True
    x = _scaled(x, 16, *_constants(DIGITS_MEAN, DIGITS_STD, pixels))
    return x[~test], y[~test], x[test], y[test]


def _mnist(data_dir: Path | None, pixels: bool) -> Arrays:  # noqa: FBT001 - as all readers
    files = tuple(f"{part}-{kind}-ubyte" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1"))
    source = "put the four original idx files of MNIST (.gz or unpacked) in its MNIST/raw/, torchvision's layout"
    train, y, test, y_test = map(read_idx, _files("mnist", data_dir, "MNIST/raw", files, source))
    scale = _constants(MNIST_MEAN, MNIST_STD, pixels)
    x, x_test = (_scaled(images[:, None], 255, *scale) for images in (train, test))
    return x, y, x_test, y_test


def _cifar10(data_dir: Path | None, pixels: bool) -> Arrays:  # noqa: FBT001 - as all readers
    files = (*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin")
    source = "unpack the official binary version of CIFAR-10 (cifar-10-binary.tar.gz, University of Toronto) there"
    *train, test = map(read_cifar, _files("cifar10", data_dir, "cifar-10-batches-bin", files, source))
    mean, std = (np.array(c, np.float32).reshape(-1, 1, 1) for c in _constants(CIFAR_MEAN, CIFAR_STD, pixels))
    x = np.concatenate([images for images, _ in train])
    y = np.concatenate([labels for _, labels in train])
    return _scaled(x, 255, mean, std), y, _scaled(test[0], 255, mean, std), test[1]


def _constants(mean: Any, std: Any, pixels: bool) -> tuple[Any, Any]:  # noqa: ANN401, FBT001 - one number or three
    return (0.0, 1.0) if pixels else (mean, std)


def _a9a(data_dir: Path | None, _pixels: bool) -> Arrays:  # noqa: FBT001 - as all readers
    source = "get a9a and a9a.t from the LIBSVM binary classification data sets (.gz or not) into its a9a/"
    train, test = _files("a9a", data_dir, "a9a", ("a9a", "a9a.t"), source)
    return *read_libsvm(train, A9A_FEATURES), *read_libsvm(test, A9A_FEATURES)


def _scaled(x: Array, full: float, mean: float | Inputs, std: float | Inputs) -> Inputs:
    scaled = x.astype(np.float32)
    scaled /= np.float32(full)
    scaled -= np.asarray(mean, np.float32)
    scaled /= np.asarray(std, np.float32)
    return scaled


_KNOWN: dict[str, tuple[Callable[[Path | None, bool], Arrays], int]] = {
    "digits": (_digits, 10),
    "mnist": (_mnist, 10),
    "cifar10": (_cifar10, 10),
    "a9a": (_a9a, 2),
}
BUILT_IN = tuple(_KNOWN)  # published data sets: their test sets are public
