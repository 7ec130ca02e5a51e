"""A message on the wire, and what is checked at the border before it is let in.

A message is a header, its sender's signature of it, and the body: the running sums of x and w that one link has carried
(transport/link.py), d + 1 float64. The header holds the body's SHA-256, so the signature is of both: two headers of one
step with different hashes prove that their sender said two things. Lengths are known from the agreement; no memory is
taken for others.

Who has the link's message before this one needs half of that: x of this step as it is, d float32, and w. The share that
the link carries of them is public, so the receiver makes the same sums of it, bit by bit, and the header's hash shows
that they are the same.
"""

from __future__ import annotations

import hashlib
import json
import math
import struct
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from cryptography.exceptions import InvalidSignature

from privsgp.sites.canonical import canonical
from privsgp.transport import forms

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from privsgp.sites.agreement import Agreement
    from privsgp.sites.identity import Site

PIECE = 1 << 20  # bytes of a body that travel as one message of gRPC
SIGNATURE = 64
PLACE = 2048  # bytes in which any head fits
_PART = 1 << 15  # numbers that are computed on at a time
_HEAD = struct.Struct("<H")
_BASE = struct.Struct("<q")
_MOST_HEADER = 1024
_HASH = forms.text("[0-9a-f]{64}", "a SHA-256")
_FORM = forms.keys(
    {
        "run": _HASH, "source": forms.whole(), "target": forms.whole(), "incarnation": forms.whole(1),
        "step": forms.whole(), "length": forms.whole(), "sha256": _HASH,
    }
)  # fmt: skip


class Rejected(Exception):
    """What a peer sent is not let in; `kind` is for counting, the text for people."""

    def __init__(self, kind: str, what: str, evidence: dict[str, Any] | None = None) -> None:
        super().__init__(what)
        self.kind, self.evidence = kind, evidence or {}


@dataclass(frozen=True)
class Header:
    """Whose message this is, over which link, of which step and of what."""

    run: str
    source: int
    target: int
    incarnation: int  # how often the sender's process has been started
    step: int
    length: int
    sha256: str

    def text(self) -> bytes:
        """Return what is signed."""
        return canonical(asdict(self))

    @classmethod
    def read(cls, text: bytes) -> Header:
        """Read a header; whatever is not one is rejected."""
        try:
            said: dict[str, Any] = json.loads(text) if len(text) <= _MOST_HEADER else {}
        except (ValueError, RecursionError):
            said = {}
        if not _FORM.fits(said):
            raise Rejected("form", f"a header that is none: {forms.shown(text[:120].decode(errors='replace'))}")
        return cls(**said)


@dataclass(frozen=True)
class Step:
    """What a message brings to who has the one before it: x in the model's precision, w in float64."""

    base: int  # the step of the message before, −1 where this is the first
    body: bytes


@dataclass(frozen=True)
class Frame:
    """A message: its header, signed, and its body; where it is known, also what is new in it."""

    header: Header
    signature: bytes
    body: bytes | bytearray | memoryview
    step: Step | None = None

    @classmethod
    def make(cls, site: Site, header: Header, body: bytes, step: Step | None = None) -> Frame:
        """Sign a message."""
        return cls(header, site.sign(b"message", header.text()), body, step)

    def pieces(self, after: int | None = None) -> Iterator[bytes]:
        """Yield what goes over a stream: the head, then a body, a piece at a time; what is new for who has `after`."""
        first, body = head(self.header, self.signature), self.body
        if self.step is not None and after == self.step.base:
            first, body = first + _BASE.pack(self.step.base), self.step.body
        yield first
        view = memoryview(body)
        for at in range(0, len(view), PIECE):
            yield bytes(view[at : at + PIECE])

    def sums(self) -> NDArray[np.float64]:
        """Return the running sums that the body is."""
        return np.frombuffer(self.body, np.float64)

    def evidence(self) -> dict[str, str]:
        """Return what proves to anybody who said this: the signed header."""
        return {"header": self.header.text().decode(), "signature": self.signature.hex()}


def body_of(sums: NDArray[np.float64]) -> tuple[bytes, str]:
    """Return sums as a body, and its SHA-256."""
    body = np.ascontiguousarray(sums, np.dtype("<f8")).tobytes()
    return body, hashlib.sha256(body).hexdigest()


def step_body(x: NDArray[Any], w: float) -> bytes:
    """Return x and w of a step as the body for who has the message before."""
    return np.ascontiguousarray(x, x.dtype.newbyteorder("<")).tobytes() + np.array([w], "<f8").tobytes()


def split_step(body: bytes | bytearray, dtype: str) -> tuple[NDArray[Any], float]:
    """Return x and w of such a body."""
    size = np.dtype(dtype).itemsize
    d = (len(body) - 8) // size
    return np.frombuffer(body, np.dtype(dtype).newbyteorder("<"), d), float(np.frombuffer(body, "<f8", 1, d * size)[0])


def grown(body: bytearray, before: NDArray[np.float64] | None, share: float, dtype: str) -> bytearray:
    """Return the running sums after a step: those before it, and a share of its x and w.

    Guarantee: operation for operation what the sender's end does (`Outgoing.send`), so the bytes are the same.
    """
    x, w = split_step(body, dtype)
    after = bytearray(8 * (len(x) + 1))
    sums = np.frombuffer(after, "<f8")
    if before is not None:
        sums[:] = before
    for part in _parts(len(x)):
        sums[:-1][part] += x[part].astype(np.float64) * share
    sums[-1] += w * share
    return after


def head(header: Header, signature: bytes) -> bytes:
    """Return a header and its signature as they travel, and are kept."""
    text = header.text()
    return _HEAD.pack(len(text)) + text + signature


def opened(piece: bytes) -> tuple[Header, bytes, int | None]:
    """Read the first piece of a stream: the header, its signature, and the step that a body of what is new is after."""
    end = _HEAD.size + (_HEAD.unpack(piece[: _HEAD.size])[0] if len(piece) >= _HEAD.size else 0)
    base = piece[end + SIGNATURE :]
    if len(piece) < _HEAD.size + SIGNATURE or len(piece) < end + SIGNATURE or len(base) not in (0, _BASE.size):
        raise Rejected("form", f"a first piece of {len(piece)} bytes")
    after = _BASE.unpack(base)[0] if base else None
    return Header.read(piece[_HEAD.size : end]), piece[end : end + SIGNATURE], after


def kept(text: bytes) -> Frame:
    """Read a head that was kept, whatever is after it."""
    size = _HEAD.unpack(text[: _HEAD.size])[0] if len(text) >= _HEAD.size else PLACE
    header, signature, _ = opened(text[: _HEAD.size + size + SIGNATURE])
    return Frame(header, signature, b"")


def refuse_head(agreement: Agreement, peer: int, node: int, header: Header, signature: bytes) -> None:
    """Reject a header that is not the peer's, of this run, over a link to this node, and of the agreed length."""
    expected = {"run": agreement.run, "source": peer, "target": node, "length": agreement.message_bytes}
    for key, value in expected.items():
        if getattr(header, key) != value:
            raise Rejected(key, f"{key} = {forms.shown(getattr(header, key))}, where {value} was expected")
    if (peer, node) not in agreement.links:
        raise Rejected("link", "a message over a link that the graph does not have")
    if header.step >= agreement.rounds:
        raise Rejected("step", f"step {header.step} of {agreement.rounds}")
    try:
        agreement.roster[peer].verify(b"message", header.text(), signature)
    except InvalidSignature:
        raise Rejected("signature", "a header that its sender did not sign") from None


def read_body(length: int, pieces: Iterator[bytes]) -> bytearray:
    """Collect a body of exactly the length that was agreed on; count across the stream."""
    body, filled = bytearray(length), 0
    for piece in pieces:
        if filled + len(piece) > length:
            raise Rejected("length", f"more than the {length} bytes that were agreed on")
        body[filled : filled + len(piece)] = piece
        filled += len(piece)
    if filled != length:
        raise Rejected("length", f"{filled} of {length} bytes")
    return body


def refuse_body(frame: Frame, before: NDArray[np.float64] | None, nodes: int, dtype: str) -> None:
    """Reject sums that no link can have carried: `before` are those of the newest message that was let in.

    Guarantee: what is let in is finite and can be squared in the model's `dtype`, and brings 0 < Δw ≤ n.
    """
    if hashlib.sha256(frame.body).hexdigest() != frame.header.sha256:
        raise Rejected("hash", "a body that is not the one its header names")
    sums, most = frame.sums(), math.sqrt(np.finfo(dtype).max)
    for part in _parts(len(sums)):
        brought = sums[part] if before is None else sums[part] - before[part]
        if not bool(np.all(np.abs(brought) <= most)):  # not so where one is not a number
            raise Rejected("not finite", f"a message of step {frame.header.step} that can be no model")
    if not 0 < brought[-1] <= nodes * (1 + 1e-9):
        raise Rejected("weight", f"Δw = {brought[-1]:g} at step {frame.header.step}: it lies in (0, {nodes}]")


def _parts(length: int) -> Iterator[slice]:
    """Yield what is computed on at a time: what does not leave the processor's cache."""
    for at in range(0, length, _PART):
        yield slice(at, at + _PART)
