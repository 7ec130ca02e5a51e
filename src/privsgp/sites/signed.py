"""Who agreed to a run between sites, from its folder: every signature checked again, nothing of `private/` opened.

A run may be of an older release: what is checked here is what people signed, not whether it could be run today.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from pydantic import BaseModel, ConfigDict, Field

from privsgp.errors import Refused
from privsgp.files import parsed, read_bytes
from privsgp.sites.agreement import StudyFile
from privsgp.sites.canonical import digest
from privsgp.sites.identity import Card
from privsgp.sites.members import left_for_good

if TYPE_CHECKING:
    from pathlib import Path

_LONGEST = 2**24
_PUBLIC = ("samples", "epsilon", "delta", "sigma")
_Signature = Annotated[str, Field(pattern=r"^[0-9a-f]{128}$")] | None


class _Goodbye(BaseModel):
    model_config = ConfigDict(strict=True)

    taken: dict[str, int]
    signature: _Signature


class _One(BaseModel):
    model_config = ConfigDict(strict=True)

    name: str
    identity: str
    signature: _Signature
    left: _Goodbye | None


class SignaturesFile(BaseModel):
    """What signatures.json must look like."""

    model_config = ConfigDict(strict=True)

    run: str
    sites: list[_One]


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


@dataclass(frozen=True)
class Signed:
    """An agreement and who has signed it."""

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
    study, kept = folder / "agreement.study", folder / "signatures.json"
    if not is_between_sites(folder):
        return None
    values = parsed(read_bytes(study, _LONGEST), StudyFile, str(study))
    if any(len(values[key]) != len(values["roster"]) for key in _PUBLIC):
        raise Refused(f"{study} does not have one J, ε, δ and σ per site", "it is damaged: restore it from a copy")
    run = digest(values)
    told: dict[str, Any] = {"sites": []}
    if kept.exists():
        told = parsed(read_bytes(kept, _LONGEST), SignaturesFile, str(kept))
    roster = [Card.of(card, f"{study}, roster[{at}]") for at, card in enumerate(values["roster"])]
    found = {one["identity"]: one for one in told["sites"]}
    return Signed(
        values["name"],
        run,
        values["created"],
        [_signatory(values, i, card, run, found.get(card.identity, {})) for i, card in enumerate(roster)],
    )


def _signatory(values: dict[str, Any], i: int, card: Card, run: str, told: dict[str, Any]) -> Signatory:
    J, epsilon, delta, sigma = (values[key][i] for key in _PUBLIC)
    signed, goodbye = card.signed(b"agreement", run.encode(), told.get("signature") or ""), told.get("left")
    left = goodbye is not None and left_for_good(card, run, goodbye)
    return Signatory(card.name, card.fingerprint, J, epsilon, delta, sigma, signed=signed, left=left)
