"""The log of all messages that this site has signed in a run; a message is in it, on the disk, before it leaves.

Peers show a site the messages that they have from it. A message that is not in the log was signed by another copy of
the site: a copied virtual machine, the second half of a high-availability pair, or the folder that an older backup has
replaced. Two copies would send the same steps with different noise and spend one budget twice, so the site stops.

The log holds the SHA-256 of each signed header, 32 bytes. Ed25519 gives one signature per header, so a header in the
log stands for exactly one signature.
"""

from __future__ import annotations

import hashlib
import os
from typing import TYPE_CHECKING

from privsgp.files import read_bytes, sync_names, write_all

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from privsgp.sites.frames import Frame, Header

_SIZE = 32
_LONGEST = 2**32


class OwnMessages:
    """The messages that this site has signed; without a path they are kept in memory only."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        kept = read_bytes(path, _LONGEST) if path is not None and path.exists() else b""
        self._end = len(kept) - len(kept) % _SIZE  # a crash may have cut the last entry: its message never left
        self._digests = {kept[at : at + _SIZE] for at in range(0, self._end, _SIZE)}

    def __contains__(self, header: Header) -> bool:
        return _digest(header) in self._digests

    def __len__(self) -> int:
        return len(self._digests)

    def note(self, frames: Iterable[Frame]) -> None:
        """Add messages that are about to leave.

        Guarantee: when this returns, a restarted process knows all of them.
        """
        digests = [_digest(frame.header) for frame in frames]
        if self.path is not None and digests:
            self._append(self.path, b"".join(digests))
        self._digests.update(digests)

    def _append(self, path: Path, text: bytes) -> None:
        is_new = not path.exists()
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.ftruncate(descriptor, self._end)
            os.lseek(descriptor, self._end, os.SEEK_SET)
            write_all(descriptor, text)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        if is_new:
            sync_names(path.parent)
        self._end += len(text)


def _digest(header: Header) -> bytes:
    return hashlib.sha256(header.text()).digest()
