"""A message on the wire, and what is checked at the border before it is let in.

A message is a header, its sender's signature of it, and the body: the running sums of x and w that one link has carried
(transport/link.py), d + 1 float64. The header holds the body's SHA-256, so the signature is of both: two headers of one
step with different hashes prove that their sender said two things. Lengths are known from the agreement; no memory is
taken for others.
"""

from __future__ import annotations

import hashlib
import math
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from pydantic import ConfigDict, TypeAdapter, ValidationError

from privsgp.errors import InWords
from privsgp.outside import From1, Hash, Whole, shown
from privsgp.sites.canonical import canonical
from privsgp.transport.link import pieces

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from privsgp.sites.agreement import Agreement
    from privsgp.sites.identity import Site
    from privsgp.sites.protocol.increments import Increment

PIECE = 1 << 20  # bytes of a body that travel as one message of gRPC
SIGNATURE = 64
_ANYTHING: dict[str, Any] = {"over": "ignore", "invalid": "ignore"}  # may come: it is refused, and warns of nothing
_HEAD = struct.Struct("<H")  # of a header's length, and of a count of increments
_MOST_HEADER = 1024


class Rejected(InWords, Exception):
    """A refused message of a peer; `kind` is for counting, the text for people."""

    def __init__(self, kind: str, what: str, evidence: dict[str, Any] | None = None) -> None:
        super().__init__(what)
        self.kind, self.evidence = kind, evidence or {}


@dataclass(frozen=True)
class Header:
    """The header of a message: sender, link, step and content."""

    __pydantic_config__: ClassVar = ConfigDict(extra="forbid")

    run: Hash
    source: Whole
    target: Whole
    incarnation: From1  # how often the sender's process has been started
    step: Whole
    length: Whole
    sha256: Hash

    def contradicts(self, other: Header) -> bool:
        """Tell whether both name a message of one link and step, and not the same one."""
        return (self.target, self.step) == (other.target, other.step) and self.sha256 != other.sha256

    def text(self) -> bytes:
        """Return what is signed."""
        return canonical(vars(self))

    @classmethod
    def read(cls, text: bytes) -> Header:
        """Read a header; whatever is not one is rejected."""
        try:
            return _HEADER.validate_json(text[: _MOST_HEADER + 1], strict=True)
        except ValidationError:
            raise Rejected("form", f"a header that is none: {shown(text[:120].decode(errors='replace'))}") from None


_HEADER = TypeAdapter(Header)


@dataclass(frozen=True)
class Frame:
    """A message: its header, signed, and its body."""

    header: Header
    signature: bytes
    body: bytes | memoryview

    @classmethod
    def make(cls, site: Site, header: Header, body: bytes | memoryview) -> Frame:
        """Sign a message."""
        return cls(header, site.sign(b"message", header.text()), body)

    def pieces(self, increments: Sequence[Increment] = ()) -> Iterator[bytes]:
        """Yield what a stream carries: the header with its signature, then the body, a piece at a time.

        Increments that lead to the body stand for it, and their number is in the first piece.
        """
        text, count = self.header.text(), _HEAD.pack(len(increments)) if increments else b""
        yield _HEAD.pack(len(text)) + text + self.signature + count
        yield from in_pieces(b"".join(one.text() for one in increments) if increments else self.body)

    def sums(self) -> NDArray[np.float64]:
        """Return the running sums that the body is."""
        return np.frombuffer(self.body, np.float64)

    def evidence(self) -> dict[str, str]:
        """Return what proves to anybody who said this: the signed header."""
        return {"header": self.header.text().decode(), "signature": self.signature.hex()}


def in_pieces(body: bytes | memoryview) -> Iterator[bytes]:
    """Yield what is sent, so much of it at a time as one message of gRPC holds."""
    view = memoryview(body)
    for at in range(0, len(view), PIECE):
        yield bytes(view[at : at + PIECE])


def body_of(sums: NDArray[np.float64]) -> tuple[memoryview, str]:
    """Return sums, which nobody changes any more, as a body, and its SHA-256."""
    body = bytes_of(sums)
    return body, hashlib.sha256(body).hexdigest()


def bytes_of(sums: NDArray[np.float64]) -> memoryview:
    """Return sums as they travel."""
    return np.ascontiguousarray(sums, np.dtype("<f8")).data.cast("B")


def opened(piece: bytes) -> tuple[Header, bytes, int]:
    """Read the first piece of a stream: the header, its signature, and the number of increments; 0: exact sums."""
    end = _HEAD.size + (_HEAD.unpack(piece[: _HEAD.size])[0] if len(piece) >= _HEAD.size else 0)
    count = piece[end + SIGNATURE :]
    if len(piece) < _HEAD.size + SIGNATURE or len(piece) != end + SIGNATURE + len(count) or len(count) not in (0, 2):
        raise Rejected("form", f"a first piece of {len(piece)} bytes")
    return Header.read(piece[_HEAD.size : end]), piece[end : end + SIGNATURE], _HEAD.unpack(count)[0] if count else 0


def refuse_head(agreement: Agreement, peer: int, node: int, header: Header, signature: bytes) -> None:
    """Reject a header that is not the peer's, of this run, over a link to this node, and of the agreed length."""
    expected = {"run": agreement.run, "source": peer, "target": node, "length": agreement.message_bytes}
    for key, value in expected.items():
        if getattr(header, key) != value:
            raise Rejected(key, f"{key} = {shown(getattr(header, key))}, where {value} was expected")
    if (peer, node) not in agreement.links:
        raise Rejected("link", "a message over a link that the graph does not have")
    if header.step >= agreement.rounds or not agreement.share(header.step, (peer, node)):
        raise Rejected("step", f"step {header.step} of {agreement.rounds}, at which nothing is sent over this link")
    if not agreement.roster[peer].signed(b"message", header.text(), signature.hex()):
        raise Rejected("signature", "a header that its sender did not sign")


def read_body(pieces: Iterator[bytes], length: int) -> memoryview:
    """Put the pieces of a body together; reject any other length, however many pieces there are."""
    body, filled = np.empty(length, np.uint8).data, 0
    for piece in pieces:
        if filled + len(piece) > length:
            raise Rejected("length", f"more than the {length} bytes that were agreed on")
        body[filled : filled + len(piece)] = piece
        filled += len(piece)
    if filled != length:
        raise Rejected("length", f"{filled} of {length} bytes")
    return body


def refuse_body(frame: Frame, before: NDArray[np.float64], most: float, dtype: str) -> None:
    """Reject sums that no link can have carried; `before` are those of the newest message that was let in.

    Guarantee: the sums are those that the header names, finite, can be squared in the model's `dtype`, and bring
    0 ≤ Δw ≤ `most`.
    """
    if hashlib.sha256(frame.body).hexdigest() != frame.header.sha256:
        raise Rejected("hash", "a body that is not the one its header names")
    sums, largest, step = frame.sums(), math.sqrt(np.finfo(dtype).max), frame.header.step
    for part in pieces(len(sums)):
        with np.errstate(**_ANYTHING):
            change = sums[part] - before[part]
        if not np.abs(change).max() <= largest:  # nor is it where one is not a number
            what = f"its message of step {step} is no model: a change in it is not finite, or above {largest:.3g}"
            raise Rejected("not finite", what, frame.evidence())
    weight = float(change[-1])
    if not 0 <= weight <= most * (1 + 1e-9):  # a weight may be too small to change its sum
        what = f"its message of step {step} brings the weight {weight:g}. Since the last one the link can carry"
        raise Rejected("weight", f"{what} from 0 to at most {most:g}", frame.evidence())
