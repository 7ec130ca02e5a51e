"""Carries messages between two sites that nobody can dial, without being able to read, change or make any.

A message is sealed by its sender for its receiver: encrypted with a key that only the two can compute (X25519 of the
keys on their cards), and inside it is signed like any other. The relay keeps the newest of each link, in memory. It
sees sender, receiver, time and size of messages. It can lose or delay messages, and repeat old ones, which sites
ignore.
"""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from privsgp.sites.protocol import frames
from privsgp.sites.protocol.frames import Frame, Rejected

if TYPE_CHECKING:
    from collections.abc import Iterator

    from privsgp.sites.agreement import Agreement
    from privsgp.sites.identity import Site

_NONCE = 12  # bytes, drawn: a site put back to an older copy would come to the same numbers with other bytes
_ROOM = 2048  # bytes of a sealed message besides its body

Link = tuple[int, int]


def most(agreement: Agreement) -> int:
    """Return how long a sealed message may be."""
    return agreement.message_bytes + _ROOM


class Seal:
    """The keys by which two sites seal messages for each other."""

    def __init__(self, site: Site, agreement: Agreement, node: int) -> None:
        self.site, self.agreement, self.node = site, agreement, node

    def close(self, frame: Frame) -> bytes:
        """Seal a message for its target."""
        nonce, link = os.urandom(_NONCE), (frame.header.source, frame.header.target)
        return nonce + self._cipher(link).encrypt(nonce, b"".join(frame.pieces()), self._about(link))

    def open(self, source: int, sealed: bytes | bytearray) -> Frame:
        """Open a message that a source has sealed for this site; whatever is none is rejected."""
        link = source, self.node
        try:
            nonce = bytes(sealed[:_NONCE])
            text = self._cipher(link).decrypt(nonce, bytes(sealed[_NONCE:]), self._about(link))
        except (InvalidTag, ValueError):
            raise Rejected("seal", "a sealed message that its sender did not seal, or that was changed") from None
        head = max(0, len(text) - self.agreement.message_bytes)  # what is before the body, whose length was agreed on
        header, signature, _ = frames.opened(text[:head])
        frames.refuse_head(self.agreement, source, self.node, header, signature)
        return Frame(header, signature, memoryview(text)[head:])

    def _cipher(self, link: Link) -> ChaCha20Poly1305:
        """Return the cipher of a link: each direction has a key of its own."""
        other = link[0] if link[1] == self.node else link[1]
        secret = self.site.exchange(self.agreement.roster[other])
        info = b"privsgp/seal/1/" + self._about(link)
        return ChaCha20Poly1305(HKDF(hashes.SHA256(), 32, bytes.fromhex(self.agreement.run), info).derive(secret))

    def _about(self, link: Link) -> bytes:
        return f"{self.agreement.run}/{link[0]}/{link[1]}".encode()


class Relay:
    """The newest sealed message of each link."""

    def __init__(self, changed: threading.Condition | None = None) -> None:
        self.changed = changed or threading.Condition()
        self._slots: dict[Link, tuple[int, bytes]] = {}

    def put(self, link: Link, step: int, sealed: bytes) -> None:
        """Keep a message, if it is newer."""
        with self.changed:
            if step > self.newest(link):
                self._slots[link] = step, sealed
                self.changed.notify_all()

    def newest(self, link: Link) -> int:
        """Return the step of the message of a link, −1 where there is none."""
        with self.changed:
            return self._slots.get(link, (-1, b""))[0]

    def kept_of(self, source: int) -> dict[int, int]:
        """Return the step of a source's message to each target that has one here."""
        with self.changed:
            return {target: step for (j, target), (step, _) in self._slots.items() if j == source}

    def next(self, target: int, after: dict[int, int]) -> tuple[int, int, bytes] | None:
        """Return a source, a step, and its message to a target: one newer than the step that the target has of it."""
        with self.changed:
            for (source, i), (step, sealed) in self._slots.items():
                if i == target and step > after.get(source, -1):
                    return source, step, sealed
            return None


def collected(parts: Iterator[bytes], limit: int) -> bytes:
    """Put pieces together, up to a limit."""
    text = bytearray()
    for part in parts:
        if len(text) + len(part) > limit:
            raise Rejected("length", f"more than {limit} bytes of a sealed message")
        text += part
    return bytes(text)
