"""Long-term keys for processes that torchrun starts: the cards of their owners, handed over by another way.

Process 0 keeps the meeting place and could show any two processes other public keys than they told. With cards each
process signs what it saw, so that the two notice (`randomness.pairwise.exchange`).
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from privsgp.errors import Refused
from privsgp.randomness.pairwise import Identities
from privsgp.sites.canonical import digest
from privsgp.sites.identity import Card, Site
from privsgp.transport.rendezvous import blocks

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from privsgp.runs.config import Config
    from privsgp.transport.rendezvous import World

_PURPOSE = b"pair transcript"


class ProcessIdentities(Identities):
    """The card of each process's owner, in the order of ranks, and this one's own keys; a site may own several."""

    def __init__(self, site: Site, cards: Sequence[Card], owners: Sequence[int]) -> None:
        self.site, self.cards, self.owners = site, cards, owners  # by node: its process

    @cached_property
    def roster(self) -> str:
        """A hash of all cards, in order."""
        return digest([card.values for card in self.cards])

    def sign(self, text: bytes) -> str:
        """Sign with the site's identity."""
        return self.site.sign(_PURPOSE, text).hex()

    def signed(self, node: int, text: bytes, signature: str) -> bool:
        """Tell whether the owner of a node's process signed this."""
        return self.cards[self.owners[node]].signed(_PURPOSE, text, signature)

    def common(self, node: int) -> bytes:
        """Return X25519 of the two cards' keys."""
        return self.site.exchange(self.cards[self.owners[node]])


def identities(config: Config, world: World, cards: Sequence[Path], home: Path) -> ProcessIdentities:
    """Return the long-term keys of a run's processes."""
    if world.alone or not config.pairwise:
        raise Refused(
            "--card without noise that several processes share",
            "leave it out, or take privacy.noise = 'pairwise' and start several processes: secrets of pairs are signed",
        )
    if len(cards) != world.size:
        raise Refused(f"{len(cards)} --card with {world.size} processes", "give one for each, in the order of ranks")
    site, found = Site.open(home), [Card.read(path) for path in cards]
    if found[world.rank] != site.card:
        raise Refused(
            f"card {world.rank} is that of {found[world.rank].name}, and {home} is the home of {site.name}",
            "give the cards in the order of ranks, and --home of the site that this process belongs to",
        )
    owners = [rank for rank, block in enumerate(blocks(config.data.nodes, world.size)) for _ in block]
    return ProcessIdentities(site, found, owners)
