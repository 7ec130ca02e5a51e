"""The newest header that each source has signed for this site, kept through crashes.

A site whose folders were all put back to an older copy would make steps again that it has sent, with other noise. Its
peers can tell it: each has the site's own signed header of a later step. So that a restarted peer still has it, it is
on the disk before the message is let in. Each source has two places, which are written in turn: a write that a crash
cuts short spoils the older one only, and the signature shows which one that is.
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from typing import TYPE_CHECKING

from cryptography.exceptions import InvalidSignature

from privsgp.files import opened
from privsgp.sites.frames import PLACE, Frame, Header, Rejected, head, kept, refuse_head

if TYPE_CHECKING:
    from pathlib import Path

    from privsgp.sites.agreement import Agreement


class Seen:
    """The newest header of each source over its link to this site; without a path it is kept in memory alone."""

    _durable = True

    def __init__(self, agreement: Agreement, node: int, path: Path | None = None) -> None:
        self.agreement, self.node, self.path = agreement, node, path
        self._newest: dict[int, Frame] = {}
        self._place: dict[int, int] = {}  # which of its two places a source's newest is in
        if path is not None:
            self._read(path)

    def newest(self, source: int) -> Frame | None:
        """Return the newest header of a source, as a message without its body."""
        return self._newest.get(source)

    def note(self, frame: Frame) -> None:
        """Keep the header of a message that is newer than all before it.

        Guarantee: when this returns, a restarted process knows it.
        """
        source, known = frame.header.source, self._newest.get(frame.header.source)
        if known is not None and known.header.step >= frame.header.step:
            return
        place = 1 - self._place.get(source, 1)
        if self.path is not None:
            self._write(self.path, 2 * source + place, head(frame.header, frame.signature))
        self._newest[source], self._place[source] = Frame(frame.header, frame.signature, b""), place

    def _write(self, path: Path, place: int, text: bytes) -> None:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            if os.pwrite(descriptor, text.ljust(PLACE, b"\0"), place * PLACE) != PLACE:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            if self._durable:
                os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def _read(self, path: Path) -> None:
        """Take up what earlier processes kept; what its source did not sign is no header."""
        if not path.exists():  # it has all its blocks from the start: a full disk does not stop it later
            path.touch(0o600)
            with path.open("wb") as file:
                file.write(bytes(2 * len(self.agreement.roster) * PLACE))
                file.flush()
                os.fsync(file.fileno())
            return
        with opened(path) as file:
            for at in range(2 * len(self.agreement.roster)):
                self._take_up(at, file.read(PLACE))

    def _take_up(self, at: int, text: bytes) -> None:
        source, place = divmod(at, 2)
        try:
            frame = kept(text)
            self._verify(source, frame.header, frame.signature)
        except (Rejected, InvalidSignature):
            return
        known = self._newest.get(source)
        if known is None or known.header.step < frame.header.step:
            self._newest[source], self._place[source] = frame, place

    def _verify(self, source: int, header: Header, signature: bytes) -> None:
        if (header.run, header.source, header.target) != (self.agreement.run, source, self.node):
            raise Rejected("link", "a header of another link")
        self.agreement.roster[source].verify(b"message", header.text(), signature)


class Heard(Seen):
    """The newest header of each site that others have told of, whomever it was for; a power cut may take the last."""

    _durable = False  # they come with every hello, and whom they are for has them on its disk

    def note(self, frame: Frame) -> None:
        """Keep such a header, at least in memory."""
        with suppress(OSError):
            super().note(frame)
            return
        self._newest[frame.header.source] = frame

    def _verify(self, source: int, header: Header, signature: bytes) -> None:
        refuse_head(self.agreement, source, header.target, header, signature)
