"""Small copies of MNIST and CIFAR-10 for figures that a laptop makes in minutes: fewer samples, fewer pixels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from privsgp import data
from privsgp.files import replace

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

TEST = 1000  # test samples that are kept


def make(name: str, samples: int, path: Path, data_dir: Path | None) -> None:
    """Write some of the data set to an .npz file, unless it is there; which samples is decided by a fixed seed.

    CIFAR-10's pixels are averaged two by two.
    """
    if path.exists():
        return
    whole = data.load(name, data_dir=data_dir)
    rng = np.random.Generator(np.random.Philox(0))
    arrays: dict[str, Any] = {"classes": np.int64(10)}
    for end, x, y, count in (("", whole.x, whole.y, samples), ("_test", whole.x_test, whole.y_test, TEST)):
        if x is None or y is None:
            raise TypeError(f"{name} has no test data")
        rows = rng.permutation(len(y))[:count]
        arrays |= {f"x{end}": _halved(x[rows]) if name == "cifar10" else x[rows], f"y{end}": y[rows]}
    path.parent.mkdir(parents=True, exist_ok=True)

    def save(temporary: Path) -> None:
        with temporary.open("wb") as file:
            np.savez(file, **arrays)

    replace(path, save)


def _halved(images: NDArray[Any]) -> NDArray[np.float32]:
    """Average squares of two by two pixels."""
    n, channels, height, width = images.shape
    squares = images.reshape(n, channels, height // 2, 2, width // 2, 2)
    halved: NDArray[np.float32] = squares.mean((3, 5), dtype=np.float32)
    return halved
