"""_Published data sets: digits, MNIST (idx), CIFAR-10 (its binary version) and a9a (LIBSVM text).

A damaged file is refused with its path.
"""

from __future__ import annotations

import contextlib
import gzip
import os
import struct
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from privsgp.errors import Refused
from privsgp.files import opened

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from privsgp.data.dataset import Array

CIFAR_RECORDS = 10_000
A9A_FEATURES = 123


def find(name: str, folders: list[Path], remedy: str) -> Path:
    """The first of `name` and `name.gz` that lies in one of `folders`."""
    candidates = [folder / file for folder in folders for file in (name, f"{name}.gz")]
    for path in candidates:
        if path.is_file():
            return path
    raise Refused(f"{name} is missing; looked for {', '.join(map(str, candidates))}", remedy)


def read_idx(path: Path) -> NDArray[np.uint8]:
    """An idx file of unsigned bytes: magic number 0, 0, 8, rank; big-endian sizes; the bytes."""
    with _refusing(path):
        raw = _read(path)
        shape = struct.unpack(f">{raw[3]}I", raw[4 : 4 + 4 * raw[3]])
        if raw[:3] != b"\0\0\x08":
            raise ValueError("it does not start like an idx file of bytes")
        return np.frombuffer(raw, np.uint8, offset=4 + 4 * raw[3]).reshape(shape)


def read_cifar(path: Path) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """One batch of CIFAR-10's binary version: images [10000, 3, 32, 32] and labels [10000]."""
    with _refusing(path):
        records = np.frombuffer(_read(path), np.uint8).reshape(CIFAR_RECORDS, 1 + 3 * 32 * 32)
        return records[:, 1:].reshape(-1, 3, 32, 32), records[:, 0]


def read_libsvm(path: Path, features: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """LIBSVM text with labels −1 and +1, which become 0 and 1; inputs are dense [N, features]."""
    from sklearn.datasets import load_svmlight_file

    with _refusing(path):
        x, labels = load_svmlight_file(str(path), n_features=features, dtype=np.float32, zero_based=False)
        if not (np.abs(labels) == 1).all():
            raise ValueError("a label is not ±1")
        return x.toarray(), (labels > 0).astype(np.int64)


def _read(path: Path) -> bytes:
    with opened(path) as file:
        return (gzip.GzipFile(fileobj=file) if path.suffix == ".gz" else file).read()


@contextlib.contextmanager
def _refusing(path: Path) -> Iterator[None]:
    """Refuse a file that is not what its format promises."""
    try:
        yield
    except (OSError, EOFError, ValueError, IndexError, struct.error, zlib.error) as error:
        remedy = "fetch the file again and compare its size and checksum"
        raise Refused(f"{path} is damaged: {error}", remedy) from error


def data_folder(data_dir: Path | None) -> Path | None:
    """Return the data folder: as named, else $PRIVSGP_DATA."""
    named = data_dir or os.environ.get("PRIVSGP_DATA")
    return Path(named) if named else None


def _files(name: str, data_dir: Path | None, subfolder: str, files: tuple[str, ...], source: str) -> list[Path]:
    folder = data_folder(data_dir)
    remedy = f"{source}; PRIVSGP_DATA or the command line's --data-dir names the data folder"
    if folder is None:
        raise Refused(f"data.name = {name!r} needs {', '.join(files)}, and no data folder is named", remedy)
    return [find(file, [folder / subfolder, folder], remedy) for file in files]


def _digits(_data_dir: Path | None) -> tuple[Array, ...]:
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    test = np.zeros(len(y), bool)
    for digit in range(10):  # a public split: each fifth of a class
        test[np.flatnonzero(y == digit)[4::5]] = True
    return x[~test], y[~test], x[test], y[test]


def _mnist(data_dir: Path | None) -> tuple[Array, ...]:
    files = tuple(f"{part}-{kind}-ubyte" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1"))
    source = "put the four idx files of MNIST (.gz or not; torchvision.datasets.MNIST gets them) into its MNIST/raw/"
    x, y, x_test, y_test = map(read_idx, _files("mnist", data_dir, "MNIST/raw", files, source))
    return x[:, None], y, x_test[:, None], y_test


def _cifar10(data_dir: Path | None) -> tuple[Array, ...]:
    files = (*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin")
    source = "unpack the official binary version of CIFAR-10 (cifar-10-binary.tar.gz, University of Toronto) there"
    *train, test = map(read_cifar, _files("cifar10", data_dir, "cifar-10-batches-bin", files, source))
    return np.concatenate([x for x, _ in train]), np.concatenate([y for _, y in train]), *test


def _a9a(data_dir: Path | None) -> tuple[Array, ...]:
    source = "get a9a and a9a.t from the LIBSVM binary classification data sets (.gz or not) into its a9a/"
    train, test = _files("a9a", data_dir, "a9a", ("a9a", "a9a.t"), source)
    return *read_libsvm(train, A9A_FEATURES), *read_libsvm(test, A9A_FEATURES)


class _Published(NamedTuple):
    """A published data set; its values go from 0 to `full`, and are brought to a public mean and deviation."""

    read: Callable[[Path | None], tuple[Array, ...]]
    classes: int
    full: float = 1.0
    mean: tuple[float, ...] = (0.0,)
    deviation: tuple[float, ...] = (1.0,)

    def scaled(self, x: Array) -> Array:
        """Return inputs on the public scale."""
        made = x.astype(np.float32)
        made /= np.float32(self.full)
        channels = (-1, *(1,) * (x.ndim - 2)) if x.ndim > 2 else (-1,)
        made -= np.array(self.mean, np.float32).reshape(channels)
        made /= np.array(self.deviation, np.float32).reshape(channels)
        return made


PUBLISHED = {
    "digits": _Published(_digits, 10, 16, (0.3,), (0.37,)),
    "mnist": _Published(_mnist, 10, 255, (0.1307,), (0.3081,)),
    "cifar10": _Published(_cifar10, 10, 255, (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
    "a9a": _Published(_a9a, 2),
}
BUILT_IN = tuple(PUBLISHED)  # published data sets: their test sets are public
