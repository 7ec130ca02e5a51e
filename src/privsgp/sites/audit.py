"""audit.jsonl: messages that this site refused or warns of, with evidence; a chained file (accounting/chain.py).

Of endless repetitions by a peer, it keeps the first lines and then the powers of two, with their count. So no peer can
fill the disk.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, deque
from contextlib import closing
from typing import TYPE_CHECKING, Any

from privsgp.accounting.chain import Chain, replay
from privsgp.errors import Refused
from privsgp.files import opened

if TYPE_CHECKING:
    from pathlib import Path

    from privsgp.accounting.chain import Line

_LOG = logging.getLogger(__name__)
_ALL = 16  # lines of one kind of one peer that are all kept
_SHOWN = 5  # newest lines that `privsgp status` shows
_LET_IN = "outlier"  # a message that was taken, and is far outside what others send
# Kinds that say what a member does to the model: people see its name.
_NAMED = ("weight", "update", "not finite", _LET_IN)


class Audit:
    """An append-only log of one run; several threads write to it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._counts: Counter[tuple[str, str]] = Counter()
        self._warnings: dict[tuple[str, str], dict[str, Any]] = {}  # by kind and peer, of earlier processes too
        self._newest: deque[dict[str, Any]] = deque(maxlen=_SHOWN)
        if path.exists():
            with opened(path) as file:
                replay(path, file, self._name)

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
            line = {"at": when, "kind": kind, "peer": peer, "what": what, "count": count} | more
            self._name(line)
            try:
                with closing(Chain.open(self.path, lambda _line: None)) as chain:
                    chain.write(line)
                    chain.sync()
            except (Refused, OSError) as error:  # a full disk: the run goes on, or says so itself
                _LOG.warning("%s; not written down: %s of %s", error, kind, peer)

    def _name(self, line: Line) -> None:
        """Keep the newest lines, and the first line of a kind that a peer is named for."""
        if not isinstance(line, dict):
            return
        named = {key: line[key] for key in ("at", "kind", "peer", "what")}
        self._newest.append(named)
        if line["kind"] in _NAMED:
            self._warnings.setdefault((line["kind"], line["peer"]), named | {"refused": line["kind"] != _LET_IN})

    def warnings(self) -> list[dict[str, Any]]:
        """Return what people should know of members in this run: when, who, what, and whether it was refused."""
        with self._lock:
            return list(self._warnings.values())

    def newest(self) -> list[dict[str, Any]]:
        """Return the newest lines of the log, the oldest of them first."""
        with self._lock:
            return list(self._newest)

    def counts(self) -> dict[str, int]:
        """Return how often each kind was refused since this process began."""
        with self._lock:
            kinds = dict.fromkeys(kind for kind, _ in self._counts if kind != _LET_IN)
            return {one: sum(n for (kind, _), n in self._counts.items() if kind == one) for one in kinds}
