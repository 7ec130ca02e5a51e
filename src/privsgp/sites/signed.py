"""The signatures of a run between sites, from its folder: each is checked again, and `private/` stays closed.

A run may be of an older release: what is checked here is what people signed, not whether it could be run today.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, NamedTuple

from pydantic import BaseModel, Field, ValidationError

from privsgp.errors import Refused
from privsgp.files import parsed, read_bytes, write_json
from privsgp.outside import fault
from privsgp.sites.canonical import digest
from privsgp.sites.identity import Card
from privsgp.sites.protocol.gossip import Goodbye
from privsgp.sites.study import StudyFile

if TYPE_CHECKING:
    from pathlib import Path

    from privsgp.sites.agreement import Agreement
    from privsgp.sites.protocol.peers import PeerTable

_LONGEST = 2**24
_PUBLIC = ("samples", "epsilon", "delta", "sigma")


_Signature = Annotated[str, Field(pattern=r"^[0-9a-f]{128}$")]


class _One(BaseModel):
    name: str
    identity: str
    signature: _Signature | None
    left: Goodbye | None
    pair_key: str | None = None


class _SignaturesFile(BaseModel):
    run: str
    sites: list[_One]


class Signatures:
    """signatures.json in a run folder: each site's signature, its goodbye, and its key where noise is shared."""

    def __init__(self, folder: Path, agreement: Agreement) -> None:
        self.path, self.agreement = folder / "signatures.json", agreement

    def read(self) -> tuple[dict[int, str], dict[int, Goodbye], dict[int, str]]:
        """Return what earlier processes kept, by node; nothing of it is checked here."""
        kept = dict(enumerate(_read(self.path)))
        return (
            {i: one.signature for i, one in kept.items() if one.signature},
            {i: one.left for i, one in kept.items() if one.left},
            {i: one.pair_key for i, one in kept.items() if one.pair_key},
        )

    def write(self, peers: PeerTable) -> None:
        """Keep what a site knows of signatures, goodbyes and keys."""
        sites = [
            {
                "name": card.name, "identity": card.identity, "signature": peers.signatures.get(i),
                "left": peers.left[i].model_dump() if i in peers.left else None, "pair_key": peers.pair_keys.get(i),
            }
            for i, card in enumerate(self.agreement.roster)
        ]  # fmt: skip
        write_json(self.path, {"run": self.agreement.run, "sites": sites})


def _read(path: Path) -> list[_One]:
    try:
        return _SignaturesFile.model_validate_json(read_bytes(path, _LONGEST), strict=True).sites
    except FileNotFoundError:
        return []
    except ValidationError as error:
        raise Refused(f"{path}: {fault(error)}", "it is damaged: restore it from a copy") from error


class Signatory(NamedTuple):
    """A site of the roster, what was agreed on of it, and what it signed."""

    name: str
    fingerprint: str
    samples: int
    epsilon: float | None
    delta: float
    sigma: float
    signed: bool  # its signature of this agreement is there, and right
    left: bool  # so is its goodbye


class Signed(NamedTuple):
    """An agreement and its signatures."""

    name: str
    run: str  # the hash of the agreement
    created: str
    signatories: list[Signatory]

    @property
    def complete(self) -> bool:
        """Whether all have signed."""
        return all(one.signed for one in self.signatories)

    @property
    def text(self) -> str:
        """Say it in a line."""
        signed = [f"{one.name} {one.fingerprint}" for one in self.signatories if one.signed]
        missing = [one.name for one in self.signatories if not one.signed]
        without = f"; no right signature of {', '.join(missing)}" if missing else ""
        return f"agreement {self.run}, signed by {', '.join(signed) or 'nobody'}{without}"


def is_between_sites(folder: Path) -> bool:
    """Tell whether a folder is a site's, of a run between organisations."""
    return (folder / "agreement.study").exists()


def read(folder: Path) -> Signed | None:
    """Return who agreed to the run in a folder; None where it is no run between sites."""
    study = folder / "agreement.study"
    if not is_between_sites(folder):
        return None
    values = parsed(read_bytes(study, _LONGEST), StudyFile, str(study))
    if any(len(values[key]) != len(values["roster"]) for key in _PUBLIC):
        raise Refused(f"{study} does not have one J, ε, δ and σ per site", "it is damaged: restore it from a copy")
    run, found = digest(values), {one.identity: one for one in _read(folder / "signatures.json")}
    roster = [Card.of(card, f"{study}, roster[{at}]") for at, card in enumerate(values["roster"])]
    public = zip(*(values[key] for key in _PUBLIC), strict=True)
    signatories = [
        Signatory._make((card.name, card.fingerprint, *numbers, *_signed(card, run, found.get(card.identity))))
        for card, numbers in zip(roster, public, strict=True)
    ]
    return Signed(values["name"], run, values["created"], signatories)


def _signed(card: Card, run: str, kept: _One | None) -> tuple[bool, bool]:
    """Tell whether a site signed the agreement, and whether it signed that it left."""
    if kept is None:
        return False, False
    left = kept.left is not None and kept.left.is_of(card, run)
    return card.signed(b"agreement", run.encode(), kept.signature or ""), left
