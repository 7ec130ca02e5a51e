"""audit.jsonl: messages that this site refused or warns of, with evidence; each line is chained to the last.

A line holds the SHA-256 of the line before it: one that was changed, removed or moved shows. Of what a peer repeats
without end, the first lines are kept and then the powers of two, with their count: nobody can fill the disk.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import threading
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

from privsgp.errors import Refused
from privsgp.files import read_bytes, write_all
from privsgp.sites.canonical import canonical

if TYPE_CHECKING:
    from pathlib import Path

_LOG = logging.getLogger(__name__)
_START = "0" * 64
_ALL = 16  # lines of one kind of one peer that are all kept
_LONGEST = 2**28
_LET_IN = "outlier"  # a message that was taken, and is far outside what others send
_NAMED = ("weight", "update", _LET_IN)  # kinds that say what a member does to the model: people are told its name


class Audit:
    """An append-only log of one run; several threads write to it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._counts: Counter[tuple[str, str]] = Counter()
        self._warnings: dict[tuple[str, str], dict[str, Any]] = {}  # by kind and peer, of earlier processes too
        lines = check(path) if path.exists() else []
        for line in map(json.loads, lines):
            self._name(line)
        self._head = hashlib.sha256(lines[-1]).hexdigest() if lines else _START

    def note(self, kind: str, peer: str, what: str, **more: Any) -> None:  # noqa: ANN401 - any JSON
        """Write a line, durably."""
        with self._lock:
            self._counts[kind, peer] += 1
            count = self._counts[kind, peer]
            if count > _ALL and count & (count - 1):
                return
            if kind in _NAMED and not count & (count - 1):
                _LOG.warning("%s: %s", peer, what, extra={"peer": peer, "kind": kind})
            when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
            line = {"at": when, "kind": kind, "peer": peer, "what": what, "count": count, "prev": self._head} | more
            self._name(line)
            try:
                self._append(canonical(line))
            except OSError as error:  # a full disk: the run goes on, or says so itself
                _LOG.warning("%s: %s; not written down: %s of %s", self.path, error.strerror, kind, peer)

    def _append(self, line: bytes) -> None:
        with self.path.open("ab", buffering=0) as file:
            end = file.tell()
            try:
                write_all(file.fileno(), line + b"\n")
                os.fsync(file.fileno())
            except OSError:
                os.truncate(self.path, end)  # half a line would break the chain
                raise
        self._head = hashlib.sha256(line).hexdigest()

    def _name(self, line: dict[str, Any]) -> None:
        """Keep the first line of a kind that a peer is named for."""
        if line["kind"] in _NAMED:
            named = {key: line[key] for key in ("at", "kind", "peer", "what")}
            self._warnings.setdefault((line["kind"], line["peer"]), named | {"refused": line["kind"] != _LET_IN})

    def warnings(self) -> list[dict[str, Any]]:
        """Return what people should know of members in this run: when, who, what, and whether it was refused."""
        with self._lock:
            return list(self._warnings.values())

    def counts(self) -> dict[str, int]:
        """Return how often each kind was refused since this process began."""
        with self._lock:
            found: Counter[str] = Counter()
            for (kind, _), count in self._counts.items():
                if kind != _LET_IN:
                    found[kind] += count
            return dict(found)


def check(path: Path) -> list[bytes]:
    """Return the lines of a log after checking the chain; a last line that a crash cut off is cut off here too."""
    raw = read_bytes(path, _LONGEST)
    whole, _, rest = raw.rpartition(b"\n")
    if rest:
        os.truncate(path, len(raw) - len(rest))
    lines, head = whole.split(b"\n") if whole else [], _START
    for number, line in enumerate(lines, 1):
        try:
            follows = json.loads(line)["prev"] == head
        except (ValueError, TypeError, KeyError):
            follows = False
        if not follows:
            raise Refused(
                f"{path}, line {number} does not follow the line before", "keep it as it is, and ask who changed it"
            )
        head = hashlib.sha256(line).hexdigest()
    return lines
