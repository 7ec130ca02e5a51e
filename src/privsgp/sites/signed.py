"""The signatures of a run between sites, from its folder: each is checked again, and `private/` stays closed.

A run may be of an older release: what is checked here is what people signed, not whether it could be run today.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from pydantic import BaseModel, ValidationError

from privsgp.errors import Refused
from privsgp.files import loaded, read_bytes, write_json
from privsgp.outside import Signature, fault
from privsgp.sites.protocol.gossip import Goodbye
from privsgp.sites.study import LONGEST, Study

if TYPE_CHECKING:
    from pathlib import Path

    from privsgp.sites.protocol.peers import PeerTable

_NAME, _LONGEST = "signatures.json", 2**24


class _One(BaseModel):
    name: str
    identity: str
    signature: Signature | None
    left: Goodbye | None
    pair_key: str | None = None


class _SignaturesFile(BaseModel):
    """Each site's signature, its goodbye, and its key where noise is shared."""

    run: str
    sites: list[_One]


def known(folder: Path) -> tuple[dict[int, str], dict[int, Goodbye], dict[int, str]]:
    """Return the signatures, goodbyes and keys that earlier processes kept, by node; nothing of it is checked here."""
    kept = dict(enumerate(_read(folder)))
    return (
        {i: one.signature for i, one in kept.items() if one.signature},
        {i: one.left for i, one in kept.items() if one.left},
        {i: one.pair_key for i, one in kept.items() if one.pair_key},
    )


def keep(folder: Path, peers: PeerTable) -> None:
    """Write what a site knows of signatures, goodbyes and keys."""
    sites = [
        _One(
            name=card.name, identity=card.identity, signature=peers.signatures.get(i), left=peers.goodbyes.get(i),
            pair_key=peers.pair_keys.get(i),
        )
        for i, card in enumerate(peers.agreement.roster)
    ]  # fmt: skip
    write_json(folder / _NAME, _SignaturesFile(run=peers.agreement.run, sites=sites).model_dump())


def _read(folder: Path) -> list[_One]:
    path = folder / _NAME
    try:
        return _SignaturesFile.model_validate_json(read_bytes(path, _LONGEST), strict=True).sites
    except FileNotFoundError:
        return []
    except ValidationError as error:
        raise Refused(f"{path}: {fault(error)}", "it is damaged: restore it from a copy") from error


class _Signed(NamedTuple):
    """A study and its signatures."""

    study: Study
    signed: list[bool]  # by node: its signature of this agreement is there, and right
    has_left: list[bool]  # each site: its goodbye is signed

    @property
    def text(self) -> str:
        """Say it in a line."""
        each = list(zip(self.study.roster, self.signed, strict=True))
        signed = [f"{card.name} {card.fingerprint}" for card, has_signed in each if has_signed]
        missing = [card.name for card, has_signed in each if not has_signed]
        without = f"; no right signature of {', '.join(missing)}" if missing else ""
        return f"agreement {self.study.run}, signed by {', '.join(signed) or 'nobody'}{without}"


def read(folder: Path) -> _Signed | None:
    """Return who agreed to the run in a folder; None where it is no run between sites."""
    path = folder / "agreement.study"
    if not path.exists():
        return None
    study = Study.of_any_release(loaded(read_bytes(path, LONGEST), str(path)), str(path))
    if any(len(values) != len(study.roster) for values in (study.samples, study.epsilon, study.delta, study.sigma)):
        raise Refused(f"{path} does not have one J, ε, δ and σ per site", "it is damaged: restore it from a copy")
    found = {one.identity: one for one in _read(folder)}
    known = [(node, card, found.get(card.identity)) for node, card in enumerate(study.roster)]
    signed = [one is not None and study.signed_by(node, one.signature or "") for node, _, one in known]
    has_left = [one is not None and one.left is not None and one.left.is_of(card, study.run) for _, card, one in known]
    return _Signed(study, signed, has_left)
