"""Rows for a model that is trained: a file, or arrays, made what the run's records were made before it saw them.

One place decides that, here: arrays are taken as they are, tables go through the schema that the model's file
carries. Nothing of the rows is kept.
"""

from __future__ import annotations

import hashlib
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import BaseModel

from privsgp.data import schema as schemas
from privsgp.data import tables
from privsgp.data.dataset import inputs, targets, tokens
from privsgp.data.files import read_npz
from privsgp.data.loading import same_data
from privsgp.errors import Refused
from privsgp.files import read_json, write_json

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from privsgp.data.mapped import Mapped

_FILES = "files.json"
_ROWS = 4096  # of records that are hashed at a time


def encoded_rows(path: Path, card: dict[str, Any]) -> NDArray[np.float32]:
    """Return the samples of a file."""
    return checked(_arrays(path, card, labelled=False)["x"], card)


def labelled_rows(path: Path, card: dict[str, Any]) -> tuple[NDArray[np.float32], NDArray[Any]]:
    """Return the samples of a file, and their targets."""
    found = _arrays(path, card, labelled=True)
    return checked(found["x"], card), labels(found["y"], card)


def _arrays(path: Path, card: dict[str, Any], *, labelled: bool) -> dict[str, NDArray[Any]]:
    if tables.is_table(path.name):
        table = tables.read(path, schema_of(card), labelled=labelled)
        return {"x": table.x} | ({} if table.y is None else {"y": table.y})
    if path.suffix != ".npz":
        raise Refused(
            f"{path} is no .npz file and no table", "store the samples as x (and targets as y): numpy.savez(path, x=…)"
        )
    return read_npz(path, ("x", "y") if labelled else ("x",))


def schema_of(card: dict[str, Any]) -> schemas.Schema:
    """Return the public schema that a model's file carries; refuse a table for a model that has none."""
    text = card.get("schema_text")
    if text is None:
        raise Refused("a table for a model that learnt from arrays", "give arrays, or an .npz file with x")
    return schemas.parse(tomllib.loads(text), "the model's schema")


def note_files(run: Path, files: list[Path]) -> None:
    """Keep in private/ which files a private run learns from, as they are called wherever one looks from."""
    write_json(run / "private" / _FILES, {"files": [str(file.resolve()) for file in files]})


def refuse_records(run: Path, path: Path, card: dict[str, Any], x: NDArray[Any], y: NDArray[Any]) -> None:
    """Refuse samples that a private run was trained on: what is measured on them no ε covers.

    Guarantee: files that the run learnt from here, copies of them, and files with half of their records are refused;
    of sites that joined a study, the same records in the same order.
    """
    schema = None if card.get("schema_text") is None else schema_of(card)
    noted = run / "private" / _FILES
    own = read_json(noted, _Noted)["files"] if noted.exists() else []
    if any(same_data(path, Path(file), schema) for file in own) or digest(x, y) == _at_site(run):
        raise Refused(
            f"{path} holds records that {run} was trained on: metrics on them no ε covers",
            "take public data, or records that nobody trained on",
        )


class _Noted(BaseModel):
    files: list[str]


def digest(x: NDArray[Any] | Mapped, y: NDArray[Any]) -> str:
    """Return the SHA-256 of records, which never leaves private/; of mapped files some rows at a time."""
    found = hashlib.sha256()
    for start in range(0, len(x), _ROWS):
        found.update(np.ascontiguousarray(x[start : start + _ROWS]).data)
    found.update(np.ascontiguousarray(y).data)
    return found.hexdigest()


def _at_site(run: Path) -> str:
    kept = run / "private" / "records"
    return kept.read_text() if kept.is_file() else ""


def checked(x: ArrayLike, card: dict[str, Any]) -> NDArray[Any]:
    """Return samples in the run's own form, those of a data frame by the schema; refuse those of another shape."""
    given = tables.of_frame(x, schema_of(card), "x", labelled=False).x if tables.is_frame(x) else np.asarray(x)
    shape, vocabulary = tuple(card["input_shape"]), card.get("vocabulary")
    rows = inputs(given, "x") if vocabulary is None else tokens(given, "x", vocabulary)
    if rows.shape[1:] != shape:
        raise Refused(f"a sample of x has shape {rows.shape[1:]}, the model takes {shape}", "give it [N, …] of that")
    return rows


def labels(y: ArrayLike, card: dict[str, Any]) -> NDArray[Any]:
    """Return targets in the run's own form; refuse classes that the model does not have."""
    found = targets(np.asarray(y), "y", "regression" if card["classes"] is None else "classification")
    if card["classes"] is not None and (outside := (found < 0) | (found >= card["classes"])).any():
        first = int(outside.argmax())
        raise Refused(f"y[{first}] = {found[first]} is outside 0..{card['classes'] - 1}", "number the classes from 0")
    return found
