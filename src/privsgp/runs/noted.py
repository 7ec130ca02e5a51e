"""Which files a private run learns from: noted in private/, so that a later look, or a later run, can tell.

Every process notes the files of its own nodes. They may be moved before somebody looks again: what they hold counts.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import BaseModel

from privsgp.data.images import is_image
from privsgp.errors import Refused
from privsgp.files import opened, read_json, write_json

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from privsgp.engine.folder import Folder

_NAME = "files"


class Noted(BaseModel):
    """The files of a process's nodes, the SHA-256 of all that lies in them, and one of each whole."""

    files: list[str] = []
    contents: list[str] = []
    digests: list[str] = []
    first: int | None = None  # the node of the first, where each node has one; None for files of all nodes


def note_files(folder: Folder, files: Sequence[Path], first: int | None) -> None:
    """Keep in private/ which files this process's nodes learn from, as they are called wherever one looks from."""
    told = Noted(
        files=[str(file.resolve()) for file in files],
        contents=[sha256 for file in files for _, sha256 in _parts(file)],
        digests=[_digest(file) for file in files],
        first=first,
    )
    write_json(folder.path / "private" / f"{_NAME}{folder.part}.json", told.model_dump())


def noted(run: Path) -> list[Noted]:
    """Return what the processes of a run have noted."""
    found = sorted((run / "private").glob(f"{_NAME}*.json"))
    return [Noted.model_validate(read_json(path, Noted)) for path in found]


def refuse_other_files(folder: Folder, files: Sequence[Path], first: int | None, earlier: Path | None) -> None:
    """Refuse to go on with other files than a private run began with, and with files that have changed nodes.

    Tables hold what records gave: taken out by other ones, a record's share would not stay within its clip. And what
    the records of a file have spent is in its node's ledger; `earlier` is the run whose ledgers are continued.
    """
    if folder.config.exists() and not noted(folder.path):
        raise Refused(
            f"{folder.path} has lost private/{_NAME}{folder.part}.json, which says what records it began with",
            "put it back from a copy of the folder, or begin a new run with --ledger",
        )
    begun, spent = _by_node(folder.path), {} if earlier is None else _by_node(earlier)
    if not begun and not spent:
        return
    for key, file in _keys(files, first).items():
        digest = _digest(file)
        if begun.get(key, digest) != digest:
            raise Refused(
                f"{folder.path} goes on with other records than it began with: {file}",
                "put the file back as it was, at the same node, or begin a new run with --ledger",
            )
        other = next((node for node, one in spent.items() if one == digest and node != key), None)
        if other is not None and spent.get(key) != digest:
            raise Refused(
                f"{file} is node {key}'s, and was node {other}'s in {earlier}",
                "give the nodes their files in the same order: what records have spent is in their own node's ledger",
            )


def holds_moved(path: Path, contents: Collection[str]) -> bool:
    """Tell whether half of what a path holds was learnt from, whatever it is called now."""
    known = set(contents)
    found = [sha256 in known for _, sha256 in _parts(path)]
    return 2 * sum(found) >= len(found) > 0


def _by_node(run: Path) -> dict[int | str, str]:
    return {
        key: digest
        for one in noted(run)
        for key, digest in zip(_keys(one.files, one.first), one.digests, strict=False)  # none in older notes
    }


def _keys(files: Sequence[str | Path], first: int | None) -> dict[int | str, Path]:
    """Name files by their nodes, or by their place where they are all nodes'."""
    return {f"file {i}" if first is None else first + i: Path(file) for i, file in enumerate(files)}


def _digest(path: Path) -> str:
    """Return a hash of all records of a file or folder: of their classes too, which an image's folder tells."""
    told = hashlib.sha256()
    for name, sha256 in _parts(path):
        told.update(f"{name}\n{sha256}\n".encode())
    labels = path / "y.npy"
    if path.is_dir() and labels.exists():
        told.update(_sha256(labels).encode())
    return told.hexdigest()


def _parts(path: Path) -> list[tuple[str, str]]:
    """Return what a path holds, with its SHA-256: the file, x.npy of a folder, or each image, by its place there."""
    if not path.is_dir():
        return [("", _sha256(path))]
    mapped = path / "x.npy"
    parts = [mapped] if mapped.exists() else sorted(file for file in path.rglob("*") if is_image(file))
    return [(part.relative_to(path).as_posix(), _sha256(part)) for part in parts]


def _sha256(path: Path) -> str:
    with opened(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
