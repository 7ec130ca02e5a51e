"""Files that others may have written, or that broke: read within bounds, and refused by name where they are not right.

A pipe that nobody writes to, a device without an end, brackets a hundred thousand deep, numbers that are none: each is
a refusal that names the file, never a traceback and never a hang.
"""

from __future__ import annotations

import errno
import json
import math
import os
import stat
from typing import IO, TYPE_CHECKING, Any

from pydantic import BaseModel, ValidationError

from privsgp.errors import Refused

if TYPE_CHECKING:
    from pathlib import Path

LONGEST = 2**26  # bytes of a JSON file
_DIGITS = 100  # of a whole number; seeds have 78


def opened(path: Path) -> IO[bytes]:
    """Open a file for reading; refuse what is none, a pipe or a device, say, which may never end."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a pipe would wait for who writes to it
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
        raise Refused(f"{path} has more than {most:,} bytes", "that is not what it should be: name another file")
    return content


def read_json(path: Path, shape: type[BaseModel]) -> dict[str, Any]:
    """Return the object in a JSON file as it is, after checking that it has the shape."""
    return parsed(read_bytes(path), shape, str(path))


def parsed(text: bytes, shape: type[BaseModel], where: str) -> dict[str, Any]:
    """Return the object that a text is, after checking that it has the shape; `where` it stood goes into a refusal."""
    try:
        found: dict[str, Any] = json.loads(text, parse_constant=_number, parse_float=_number, parse_int=_whole)
        shape.model_validate(found)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(map(str, first["loc"])) or "it"
        raise _damaged(where, f"{key} = {first['input']!r:.80}: {first['msg']}") from error
    except (ValueError, RecursionError) as error:  # UnicodeDecodeError is a ValueError too
        raise _damaged(where, str(error)[:200]) from error
    return found


def _damaged(where: str, why: str) -> Refused:
    return Refused(
        f"{where}: {why}", "it is damaged, or not what privsgp wrote: restore it from a copy, or name another folder"
    )


def _number(text: str) -> float:
    if not math.isfinite(value := float(text)):
        raise ValueError(f"{text:.40} is no finite number")
    return value


def _whole(text: str) -> int:
    if len(text) > _DIGITS:
        raise ValueError(f"a number of {len(text)} digits")
    return int(text)
