"""Study files: the signing sites, the expiry and every number, without computing the run again.

`Agreement` builds on it. This module does without torch, so that privsgp can refuse a study at once.
"""

from __future__ import annotations

import datetime as dt
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field

from privsgp import __version__
from privsgp.errors import Refused
from privsgp.files import loaded, read_bytes, replace, shaped
from privsgp.options import Count, Options, Positive, option
from privsgp.outside import Hash, Signature
from privsgp.sites.canonical import canonical, digest
from privsgp.sites.identity import Card, Site

FORMAT: Literal["privsgp-study"] = "privsgp-study"
PROTOCOL = 2  # grows with every change of messages, and of what sites compute: releases of one protocol work together
LONGEST = 2**22
_TIME = "%Y-%m-%dT%H:%M:%SZ"


def text_of(when: dt.datetime) -> str:
    """Return a time as study files write it."""
    return when.strftime(_TIME)


def _time(text: str) -> dt.datetime:
    return dt.datetime.strptime(text, _TIME).replace(tzinfo=dt.UTC)


_Time = Annotated[
    str, Field(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$"), AfterValidator(lambda text: text_of(_time(text)))
]
_Variance = Annotated[float, Field(gt=0, le=1e100, allow_inf_nan=False)]
_Seconds = Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False)]


class Limits(Options):
    """The limits that sites agree on for a run."""

    deadline: _Seconds = option(10.0, "seconds that the messages of a step are waited for")
    staleness: Count = option(64, "steps after which a silent link's next message is waited for, however long")
    fewest: Count = option(2, "sites that must be there for steps to be taken, oneself included")
    transfer: _Seconds = option(120.0, "seconds that one message may take")
    max_update: Positive | None = option(
        None, "steps, as long as γ (C + σ √d), that the model in a message may be away from the receiver's; None: any"
    )


class _Shape(Options):
    shape: list[Annotated[int, Field(ge=1)]]
    target: list[Annotated[int, Field(ge=1)]]
    classes: int | None


class _Model(Options):
    weights: Annotated[int, Field(ge=1, le=2**34)]
    x0: Hash
    features: Hash | None  # the map that samples go through first


class _Shared(Options):
    """The variances of pairwise noise: each node's own, and that of a pair."""

    own: list[_Variance]
    pair: _Variance


class Continues(Options):
    """The run that a study continues, with the signatures of all its sites, and what counts of it."""

    study: Study
    signatures: list[Signature]
    nodes: list[Annotated[int, Field(ge=0)] | None]  # by node of the new run: its node in that run; None: it is new
    releases: list[Annotated[int, Field(ge=0)]]  # by node of the new run: what counts as released in that run
    revoked: list[Hash]  # identities of that run: others may know what such a key has shared
    starts_from_model: bool  # which lies beside the study file


class Study(Options):
    """A study file that was read: values of the right shape, and cards that are real."""

    format: Literal["privsgp-study"]
    version: int
    release: str
    name: Annotated[str, Field(pattern=r"^\w[\w.-]{0,63}$")]
    created: _Time
    expires: _Time
    settings: dict[str, Any] = Field(alias="config")
    roster: Annotated[list[Card], Field(min_length=2, max_length=1024)]
    graph_hash: Hash = Field(alias="graph")
    sample: _Shape
    model: _Model
    steps: Annotated[int, Field(ge=1)]
    samples: list[Annotated[int, Field(ge=1)]]
    epsilon: list[float | None]  # None where noise is fixed by hand, or there is none
    delta: list[float]
    sigma: list[float]
    shared_noise: _Shared | None
    limits: Limits
    relay: Card | None  # carries messages between sites that cannot be dialled: a member, or another site
    continues: Continues | None = None

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a study file; refuse one that no proposer of this release can have written."""
        try:
            text = read_bytes(path, LONGEST)
        except OSError as error:
            raise Refused(f"cannot read {path}: {error.strerror}", "name a *.study file") from error
        values = loaded(text, str(path))
        if canonical(values) != text.rstrip(b"\n"):
            raise Refused(
                f"{path} is not in canonical form", "use the file as it was proposed: its hash is the run's id"
            )
        return cls.of(values, str(path))

    @classmethod
    def of(cls, values: object, where: str) -> Self:
        """Return the study of this release's protocol that these values are."""
        study = cls.of_any_release(values, where)
        if study.version != PROTOCOL:
            raise Refused(
                f"{where} is for protocol {study.version} (privsgp {study.release}), and this site has protocol "
                f"{PROTOCOL} (privsgp {__version__})",
                f"install a release with protocol {study.version} at this site, or propose a new study",
            )
        return study

    @classmethod
    def of_any_release(cls, values: object, where: str) -> Self:
        """Return the study that these values are, of whichever release."""
        study = shaped(values, cls, where)
        study.refuse_forged(where)
        return study

    def refuse_forged(self, where: str) -> None:
        """Refuse cards that their sites did not endorse, also in the run that it continues."""
        for at, card in enumerate(self.roster):
            card.refuse_forged(f"{where}, roster[{at}]")
        if self.relay is not None:
            self.relay.refuse_forged(f"{where}, relay")
        if self.continues is not None:
            self.continues.study.refuse_forged(f"{where}, the run that it continues")

    @cached_property
    def values(self) -> dict[str, Any]:
        """What is signed, as the file has it."""
        return self.model_dump(by_alias=True, exclude_unset=True)  # an older release had fewer keys

    def is_relayed(self, link: tuple[int, int]) -> bool:
        """Tell whether neither end of a link can be dialled."""
        return all(self.roster[end].address is None for end in link)

    @property
    def trusted(self) -> list[Card]:
        """The trusted certificates: those of the roster, and the relay's."""
        known = {card.identity for card in self.roster}
        return self.roster if self.relay is None or self.relay.identity in known else [*self.roster, self.relay]

    def command(self, card: Card) -> str:
        """Return the command that has to run at the machine of a card: it is a member's, or that of a rented relay."""
        return "join" if card.identity in [one.identity for one in self.roster] else "relay"

    @cached_property
    def run(self) -> str:
        """The hash of the agreement, which is the run's id."""
        return digest(self.values)

    @property
    def weights(self) -> int:
        """d, the number of weights."""
        return self.model.weights

    @property
    def message_bytes(self) -> int:
        """The exact length of a message's body: the running sums of x and w in float64."""
        return 8 * (self.weights + 1)

    def node(self, site: Site) -> int:
        """Return which node of the run this site is."""
        if site.card in self.roster:
            return self.roster.index(site.card)
        if site.card.identity in [card.identity for card in self.roster]:
            raise Refused(
                f"{self.name} has another card of {site.name} than this site's identity folder",
                "send the proposer the card that `privsgp site card` writes now",
            )
        raise Refused(f"{site.name} ({site.card.fingerprint}) is not on the roster of {self.name}", "see `agree show`")

    def refuse_expired(self, now: dt.datetime | None = None) -> None:
        """Refuse to begin after the expiry."""
        now = now or dt.datetime.now(dt.UTC)
        if now > _time(self.expires):
            raise Refused(f"{self.name} has expired on {self.expires}", "propose a new agreement")

    def sign(self, site: Site) -> str:
        """Return the site's signature."""
        return site.sign(b"agreement", self.run.encode()).hex()

    def signed_by(self, node: int, signature: str) -> bool:
        """Tell whether this is the signature of a node's site."""
        return self.roster[node].signed(b"agreement", self.run.encode(), signature)

    def write(self, path: Path) -> None:
        """Write the study file."""
        replace(path, lambda temporary: temporary.write_bytes(canonical(self.values) + b"\n"))

    @property
    def default_folder(self) -> Path:
        """The default run folder of a site."""
        return Path("runs") / f"{self.name}-{self.run[:8]}"
