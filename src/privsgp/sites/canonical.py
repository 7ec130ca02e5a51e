"""One way to write a JSON value, so that what is signed and hashed is the same bytes at every site."""

from __future__ import annotations

import hashlib
import json


def canonical(value: object) -> bytes:
    """Return the value as JSON: keys sorted, no spaces, ASCII; numbers as Python writes them.

    What is not finite is refused: it has no JSON.
    """
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False).encode()


def digest(value: object) -> str:
    """Return the SHA-256 of a value's canonical JSON."""
    return hashlib.sha256(canonical(value)).hexdigest()
