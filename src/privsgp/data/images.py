"""Images in class folders: `FOLDER/CLASS/*.png`, as most people have them; PNG and JPEG, by Pillow.

Classes and image size are public and equal at all sites. A site without images of a class numbers the others as all
sites do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from privsgp import devices
from privsgp.data.persons import Named, PersonOptions, named
from privsgp.errors import Refused
from privsgp.files import opened
from privsgp.options import Count, Options, option

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

ENDINGS = (".png", ".jpg", ".jpeg")
_PIXELS = 2**26  # of one image: more is a bomb, or nothing to learn from a few hundred of
_SPOILT = (OSError, ValueError, SyntaxError, TypeError, EOFError, MemoryError)  # what Pillow makes of a damaged file


class ImageOptions(Options):
    """Folders of class folders with PNG and JPEG images.

    Example:
        >>> import privsgp
        >>> privsgp.Images(labels=["cat", "dog"], size=64).size
        64

    """

    labels: list[str] = option(..., "names of the class folders, in the order of their numbers, public")
    size: Count | None = option(None, "pixels a side to which images are scaled; default: all have one size already")
    grey: bool = option(default=False, meaning="one channel instead of three")


def class_folders(folder: Path) -> list[str]:
    """Return the names of the class folders in a folder."""
    try:
        return sorted(path.name for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    except OSError as error:
        raise Refused(f"data: {folder} cannot be read: {error.strerror}", "name a folder of class folders") from error


def read_images(folder: Path, options: ImageOptions) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Read a folder's images [N, C, H, W] and the numbers of their classes, in the order of their names."""
    paths = _labelled(folder, options.labels)
    return _images(folder, [path for path, _ in paths], options), np.array([number for _, number in paths], np.int64)


def persons_of_images(folder: Path, options: ImageOptions, persons: PersonOptions) -> Named:
    """Return the persons in the names of a folder's images."""
    names = [persons.in_file_name(path.name) for path, _ in _labelled(folder, options.labels)]
    return named({persons.person or "": names}, persons, f"{folder}, by the pattern")


def _labelled(folder: Path, labels: list[str]) -> list[tuple[Path, int]]:
    """Return the images in class folders, and the numbers of their classes, in the order that they are read in."""
    if unknown := [name for name in class_folders(folder) if name not in labels]:
        what = f"{folder} has a class folder {unknown[0]!r}, and the public classes are {', '.join(labels)}"
        raise Refused(what, "name it in data.images.labels at all sites, or move it away")
    return [(path, number) for number, name in enumerate(labels) for path in _files(folder / name)]


def read_bare_images(path: Path, options: ImageOptions) -> NDArray[np.uint8]:
    """Read images whose classes nobody needs: one, those of a folder, or those in its class folders."""
    return _images(path, bare_images(path, options.labels), options)


def bare_images(path: Path, labels: list[str]) -> list[Path]:
    """Return an image alone, or those of a folder, in the order that they are read in."""
    if is_image(path):
        return [path]
    if path.is_dir() and class_folders(path):
        return [image for image, _ in _labelled(path, labels)]
    return _files(path)


def is_image(path: Path) -> bool:
    """Tell whether a name is that of an image."""
    return path.suffix.lower() in ENDINGS and not path.is_dir()


def _images(where: Path, paths: list[Path], options: ImageOptions) -> NDArray[np.uint8]:
    if not paths:
        raise Refused(f"{where} has no image", f"put files that end in {', '.join(ENDINGS)} there, in class folders")
    first = _image(paths[0], options)
    devices.refuse_vast(
        5 * first.size * len(paths),  # bytes, and the same as float32
        f"{paths[0].parent}: {len(paths):,} images take",
        "take a smaller data.images.size",
    )
    x = np.empty((len(paths), *first.shape), np.uint8)
    for row, path in enumerate(paths):
        image = _image(path, options)
        if image.shape != first.shape:
            what = f"{path} has {list(image.shape[1:])} pixels, {paths[0]} {list(first.shape[1:])}"
            raise Refused(what, "set data.images.size: privsgp scales all images to it")
        x[row] = image
    return x


def _files(folder: Path) -> list[Path]:
    found = folder.iterdir() if folder.is_dir() else ()
    return sorted(path for path in found if is_image(path))


def _image(path: Path, options: ImageOptions) -> NDArray[np.uint8]:
    """Read one image, [C, H, W]; refuse one that is damaged, or vast."""
    from PIL import Image

    try:
        with opened(path) as file, Image.open(file, formats=("PNG", "JPEG")) as image:
            _refuse_large(path, image.width * image.height)
            shown: Any = image.convert("L" if options.grey else "RGB")
            if options.size is not None:
                shown = shown.resize((options.size, options.size), Image.Resampling.BILINEAR)
            pixels = np.asarray(shown, np.uint8)
    except Refused:
        raise
    except _SPOILT as error:
        raise Refused(f"{path} cannot be read as an image: {error}", "replace it, or move it away") from error
    return pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)


def _refuse_large(path: Path, pixels: int) -> None:
    if pixels > _PIXELS:
        raise Refused(f"{path} has {pixels:,} pixels", f"take at most {_PIXELS:,}")
