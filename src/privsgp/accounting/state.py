"""What this user's state folder knows of ledgers, outside all run folders: how much was charged, and the head then.

It is $PRIVSGP_STATE, else $XDG_STATE_HOME/privsgp, else ~/.local/state/privsgp, closed to others. It has one file for
each ledger folder (engine/witness.py writes them). What it says is used to refuse and to warn, never to grant: whoever
changes it can stop a run, not lengthen it (privacy.md, "Peers are adversaries").
"""

from __future__ import annotations

import json
import os
import re
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from privsgp.accounting.ledger import Seen
from privsgp.errors import Refused
from privsgp.files import read_bytes, user_folder, write_private

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

_VERSION = 1
BY = "the state folder"


def state() -> Path | None:
    """Return where this user's counters lie; None without a home folder."""
    with suppress(RuntimeError):
        return user_folder("PRIVSGP_STATE", "XDG_STATE_HOME", ".local/state", "privsgp")
    return None


def unusable() -> str | None:
    """Say what is lost where the state folder cannot be written to."""
    where, why = state(), "there is no home folder"
    try:
        if where is not None:
            where.mkdir(mode=0o700, parents=True, exist_ok=True)
            where.chmod(0o700)
            why = "" if os.access(where, os.W_OK | os.X_OK) else "it is not writable"
    except OSError as error:
        why = error.strerror or str(error)
    lost = "a ledger that is put back to an older state will not be noticed; name another folder in PRIVSGP_STATE"
    return f"nothing can be kept in the state folder {where} ({why}): {lost}" if why else None


def outside(origin: str) -> dict[int, list[Seen]]:
    """Return what the state folder knows of each node's ledger whose first run was `origin`."""
    known: dict[int, list[Seen]] = {}
    for path in _files(origin):
        add(known, read(path).get("nodes"), path, BY)
    return known


def missing(origin: str, folder: Path, there: Collection[int]) -> tuple[int, Seen] | None:
    """Return a node whose ledger is known to have been in a run folder, and is not there; None where all are."""
    for path in _files(origin):
        known: dict[int, list[Seen]] = {}
        values = read(path)
        add(known, values.get("nodes"), path, BY)
        if values.get("folder") == str(folder.resolve()) and (lost := sorted(known.keys() - set(there))):
            return lost[0], max(known[lost[0]])
    return None


def _files(origin: str) -> list[Path]:
    where = state()
    return sorted(where.glob(f"{origin}*.json")) if where is not None and origin.isalnum() else []


def add(known: dict[int, list[Seen]], nodes: object, path: Path, by: str) -> None:
    """Add what a file says of each node's ledger; refuse what is not like that."""
    for node, one in nodes.items() if isinstance(nodes, dict) else [("", None)]:
        match one:
            case [int(charged), str(head)] if node.isdecimal() and re.fullmatch("[0-9a-f]{64}", head):
                known.setdefault(int(node), []).append(Seen(charged, head, by))
            case _:
                raise _unreadable(path)


def read(path: Path) -> dict[str, Any]:
    """Return what a file of ours says; nothing where there is none. One that cannot be read is refused."""
    try:
        values = json.loads(read_bytes(path)) if path.exists() else {}
    except (OSError, ValueError, RecursionError):  # Refused is a ValueError: no regular file, or no end of it
        raise _unreadable(path) from None
    if not isinstance(values, dict):
        raise _unreadable(path)
    return values


def _unreadable(path: Path) -> Refused:
    return Refused(
        f"{path} cannot be read: it says what ledgers have spent",
        "restore it; remove it only if no ledger was lost or put back",
    )


def save(path: Path, kind: str, values: dict[str, Any]) -> None:
    """Write a file for its owner alone, whole or not at all."""
    write_private(path, json.dumps({"format": f"privsgp-{kind}", "version": _VERSION} | values).encode())
