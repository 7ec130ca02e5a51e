"""Rows for a model that is trained: a file, or arrays, made what the run's records were made before it saw them.

One place decides that, here: arrays are taken as they are; tables go through the schema that the model's file
carries, texts and images through its settings. Nothing of the rows is kept.
"""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np

from privsgp.accounting.book import Book
from privsgp.data import schema as schemas
from privsgp.data import tables
from privsgp.data.dataset import inputs, targets, tokens
from privsgp.data.hashes import hashes
from privsgp.data.images import ImageOptions, bare_images, is_image
from privsgp.data.loading import Form, read_arrays
from privsgp.data.same_records import in_common
from privsgp.data.samples import is_dataset, pair, plain
from privsgp.data.text import TextOptions
from privsgp.engine.folder import Folder
from privsgp.errors import Refused

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import ArrayLike, NDArray


def encoded_rows(path: Path, card: dict[str, Any]) -> NDArray[np.float32]:
    """Return the samples of a file."""
    return checked(read_arrays(path, _form(path, card), labelled=False).x, card)


def file_names(path: Path, card: dict[str, Any]) -> list[str] | None:
    """Return what the images of a folder are called, in the order of their rows; None where samples have no names."""
    images = form_of(card).images
    if images is None or not (is_image(path) or path.is_dir()):
        return None
    base = path if path.is_dir() else path.parent
    return [str(file.relative_to(base)) for file in bare_images(path, images.labels)]


def labelled_rows(path: Path, card: dict[str, Any]) -> tuple[NDArray[np.float32], NDArray[Any]]:
    """Return the samples of a file, and their targets."""
    form = _form(path, card)
    if form.images is not None and is_image(path):
        raise Refused(f"{path} is an image outside a class folder", "give a folder of class folders")
    found = read_arrays(path, form)
    targets: Any = found.y
    return checked(found.x, card), labels(targets, card)


def _form(path: Path, card: dict[str, Any]) -> Form:
    """Return how a file is read; refuse what this model has no way to read, by the name of what it is."""
    form, table = form_of(card), tables.is_table(path.name)
    if not path.exists():
        raise Refused(f"{path} does not exist", "name an existing file, in the format that the run used")
    known = form.images is not None and (path.is_dir() or is_image(path))
    if not known and (path.is_dir() or not (form.fits(path) or path.suffix == ".npz" or table)):
        raise Refused(
            f"{path} is not a file that this model can read",
            "give samples in the format that the run used, or as x (and targets as y): numpy.savez(path, x=…)",
        )
    return replace(form, schema=schema_of(card)) if table and not form.fits(path) else form


def form_of(card: dict[str, Any]) -> Form:
    """Return how the files of a run were read that are no tables: public settings, which its model's file carries."""
    text, images = card.get("text"), card.get("images")
    return Form(
        card.get("vocabulary"),
        None if text is None else TextOptions(**text),
        None if images is None else ImageOptions(**images),
    )


def schema_of(card: dict[str, Any]) -> schemas.Schema:
    """Return the public schema that a model's file carries; refuse a table for a model that has none."""
    text = card.get("schema_text")
    if text is None:
        raise Refused(
            "the samples are a table, and the model was not trained on tables",
            "give samples in the format that the run used: arrays, .npz",
        )
    try:
        return schemas.parse(tomllib.loads(text), "the model's schema")
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise Refused(f"the model's schema is not TOML: {error}", "put a copy of the model back") from error


def unit_of(card: dict[str, Any]) -> tuple[float, float]:
    """Return the (centre, scale) of the targets of a regression; (0, 1) if they are as the user gave them."""
    return (0.0, 1.0) if card.get("schema_text") is None else schema_of(card).unit


def times_of(card: dict[str, Any]) -> list[float] | None:
    """Return the edges at which survival is predicted, by the schema; None if the run had none."""
    return None if card.get("schema_text") is None else schema_of(card).times


def refuse_records(run: Path, what: str, card: dict[str, Any], x: NDArray[Any], *, every: bool = False) -> None:
    """Refuse samples that a private run was trained on: what is measured on them no ε covers.

    Guarantee: samples half of which are those of a node here, or of all nodes here together, whatever file and order
    they are in, are refused (`same_records.in_common`). With `every`, this holds for all private runs in the book.
    Assumes: this user's budget book knows the run; anybody else has none of its records.
    """
    book = Book()
    found = book.keyed(hashes(x, tokens=isinstance(card.get("vocabulary"), int)))[:, 0]
    known = book.sets_of(None if every else {Folder(run).run or ""})
    if in_common(found, [own[:, 0] for sets in known.values() for own in sets]):
        raise Refused(
            f"{what} has records that {'a private run' if every else run} was trained on. No ε covers metrics on them",
            "take public data, or records that no site trained on",
        )


def checked(x: ArrayLike, card: dict[str, Any]) -> NDArray[Any]:
    """Return samples in the run's own form, those of a data frame by the schema; refuse those of another shape."""
    given: NDArray[Any]
    if tables.is_frame(x):
        given = tables.of_frame(x, schema_of(card), "x", labelled=False).x
    elif (texts := form_of(card).text) is not None and _are_texts(x):
        given = texts.encoded(list(x))
    else:
        given = np.asarray(plain(pair(x)[0] if is_dataset(x) else x, "x"))
    shape, vocabulary = tuple(card["input_shape"]), card.get("vocabulary")
    rows = inputs(given, "x") if vocabulary is None else tokens(given, "x", vocabulary)
    if rows.shape[1:] != shape:
        raise Refused(
            f"a sample of x has shape {rows.shape[1:]}, the model takes {shape}",
            f"give x of shape [N, {', '.join(map(str, shape))}]",
        )
    return np.require(rows, requirements="W")  # torch warns of mapped files, which are read alone


def _are_texts(x: object) -> TypeGuard[Collection[str]]:
    """Tell whether samples are texts as they are: a list, an array, a column."""
    return isinstance(x, Collection) and not isinstance(x, str | Mapping) and all(isinstance(text, str) for text in x)


def labels(y: ArrayLike, card: dict[str, Any]) -> NDArray[Any]:
    """Return targets in the run's own form; refuse classes that the model does not have."""
    found = targets(np.asarray(y), "y", "regression" if card["classes"] is None else "classification")
    if card["classes"] is not None and (outside := (found < 0) | (found >= card["classes"])).any():
        first = int(outside.argmax())
        raise Refused(f"y[{first}] = {found[first]} is outside 0..{card['classes'] - 1}", "number the classes from 0")
    return found
