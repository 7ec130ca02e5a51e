"""Files: read within bounds, and refused by name where they are not right; written whole or not at all.

An idle pipe, an endless device, brackets a hundred thousand deep and invalid numbers are refusals that name the file.
It is never a traceback and never a hang. Files are written in a folder beside their place and renamed into it.
"""

from __future__ import annotations

import errno
import hashlib
import importlib.util
import json
import math
import os
import re
import shutil
import stat
import tempfile
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel, ValidationError

from privsgp.errors import Refused

if TYPE_CHECKING:
    from collections.abc import Callable
    from io import BufferedReader

Shape = TypeVar("Shape", bound=BaseModel)
# A list of numbers is one line, not one for each; no string has a line's end in it.
_NUMBERS = re.compile(r"\[\n\s+[-+.eE\d]+(?:,\n\s+[-+.eE\d]+)*\n\s*\]")
LONGEST = 2**26  # bytes of a JSON file
_DIGITS = 100  # of a whole number; seeds have 78
UNFINISHED = ".privsgp-tmp"  # what a killed process may leave behind ends in this


def opened(path: Path) -> BufferedReader:
    """Open a file for reading; refuse what is none, a pipe or a device, say, which may never end."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a pipe would block
    kind = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(kind):
        os.close(descriptor)
        if stat.S_ISDIR(kind):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        raise Refused(f"{path} is no regular file", "name a file on a disk")
    return os.fdopen(descriptor, "rb")


def read_bytes(path: Path, most: int = LONGEST) -> bytes:
    """Return what a file holds; refuse more than `most` bytes of it."""
    with opened(path) as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise Refused(f"{path} has more than {most:,} bytes", "this is the wrong file: name another one")
    return content


def packaged(package: str, name: str, sha256: str, install: str) -> bytes:
    """Return a file that lies inside an installed package, if it is the one that is known.

    Guarantee: no code of the package is run, and no other bytes are returned.
    """
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise Refused(f"{name} of the package {package} is not here", f"install it: {install}")
    path = Path(spec.submodule_search_locations[0]) / name
    try:
        raw = read_bytes(path, 2 * LONGEST)
    except OSError as error:
        raise Refused(f"{path} cannot be read: {error.strerror}", f"install it again: {install}") from error
    if hashlib.sha256(raw).hexdigest() != sha256:
        raise Refused(f"{path} is not the expected file: its hash differs", f"install it again: {install}")
    return raw


def read_json(path: Path, shape: type[BaseModel]) -> dict[str, Any]:
    """Return the object in a JSON file as it is, after checking that it has the shape."""
    return parsed(read_bytes(path), shape, str(path))


def parsed(text: bytes, shape: type[BaseModel], where: str) -> dict[str, Any]:
    """Return the object that a text is, after checking that it has the shape; `where` it stood goes into a refusal."""
    found: dict[str, Any] = loaded(text, where)
    shaped(found, shape, where)
    return found


def loaded(text: bytes, where: str) -> Any:  # noqa: ANN401 - any JSON
    """Return the value that a JSON text is; refuse numbers that are none, and brackets without an end."""
    try:
        return json.loads(text, parse_constant=_number, parse_float=_number, parse_int=_whole)
    except (ValueError, RecursionError) as error:  # UnicodeDecodeError is a ValueError too
        raise _damaged(where, str(error)[:200]) from error


def shaped(found: object, shape: type[Shape], where: str, remedy: str = "") -> Shape:
    """Return what these plain values are; refuse them by name if they do not have the shape."""
    try:
        return shape.model_validate(found)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(map(str, first["loc"])) or "it"
        if key == "version":
            what = f"{where} is of version {first['input']!r:.80}: {first['msg']}"
            raise Refused(what, "another release wrote it: read it with that one (run.json names it)") from error
        raise _damaged(where, f"{key} = {first['input']!r:.80}: {first['msg']}", remedy) from error


def read_toml(path: Path, what: str, see: str, most: int = 2**20) -> dict[str, Any]:
    """Return what a TOML file says; `what` it is, and where to `see` how it is written, go into a refusal."""
    try:
        found = tomllib.loads(read_bytes(path, most).decode("utf-8-sig"))
        repr(found)  # keys of thousands of parts are refused here, not where an error shows their value
    except OSError as error:
        raise Refused(f"cannot read the {what} {path}: {error.strerror}", f"name one that is there; {see}") from error
    except Refused:
        raise
    except (ValueError, RecursionError) as error:  # bytes or digits that are none, brackets without an end
        raise Refused(f"{path} is not TOML: {error}", see) from error
    return found


def _damaged(where: str, why: str, remedy: str = "") -> Refused:
    remedy = remedy or "it is damaged, or not what privsgp wrote: restore it from a copy, or name another folder"
    return Refused(f"{where}: {why}", remedy)


def _number(text: str) -> float:
    if not math.isfinite(value := float(text)):
        raise ValueError(f"{text:.40} is no finite number")
    return value


def _whole(text: str) -> int:
    if len(text) > _DIGITS:
        raise ValueError(f"a number of {len(text)} digits")
    return int(text)


def write(path: Path, text: str) -> None:
    """Write a text file whole or not at all."""
    replace(path, lambda temporary: temporary.write_text(text))


def in_units(size: float) -> str:
    """Write a number of bytes for people."""
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:,.3g} GB" if size < 1000 else f"{size:,.0f} GB"


def flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the values of sections within sections by their whole keys: "algorithm.batch"."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        found |= flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
    return found


def finite(value: float) -> float | None:
    """Return a number as JSON may hold it: None where it is infinite."""
    return value if math.isfinite(value) else None


def write_json(path: Path, value: dict[str, Any]) -> None:
    """Write JSON whole or not at all; what is not a finite number must already be None."""
    text = json.dumps(value, indent=2, allow_nan=False)
    write(
        path, _NUMBERS.sub(lambda found: " ".join(found[0].split()).replace("[ ", "[").replace(" ]", "]"), text) + "\n"
    )


def replace(path: Path, save: Callable[[Path], object]) -> None:
    """Let `save` write in a folder beside the place, make it durable and move it there; clean up whatever happens.

    The folder is for `save` alone: safetensors makes files with names of its own beside the one it writes.
    """
    room = Path(tempfile.mkdtemp(UNFINISHED, f".{path.name}.", path.parent))
    try:
        temporary = room / "new"
        save(temporary)
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        shutil.rmtree(room, ignore_errors=True)


def write_private(path: Path, text: bytes) -> None:
    """Write a file for its owner alone, whole or not at all."""

    def save(temporary: Path) -> None:
        temporary.touch(0o600)
        temporary.write_bytes(text)

    replace(path, save)


def sync_names(folder: Path) -> None:
    """Make the names in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def user_folder(own: str, base: str, default: str, name: str) -> Path:
    """Return the folder in the variable `own`; else `name` in that of `base`, or in `default` of the user's folder."""
    if given := os.environ.get(own):
        return Path(given)
    there = os.environ.get(base)
    return (Path(there) if there else Path.home() / default) / name
