"""The secrets that sites share where noise is pairwise: for each run a key of each site, signed by its identity.

A pair's stream is keyed by HKDF of two X25519 secrets, of the two run keys and of the two cards' keys, over the
agreement's hash. Run keys travel with hellos, each signed together with the run and the node: whoever carries them, a
relay or a third member, cannot put another in their place, and the roster that all signed is the trust store.

A run key is in the run's private folder, for its owner alone, because a restarted site must make the numbers that its
partners have made already. The site deletes it as soon as it can make no more steps with a gradient: when the last one
is committed, when the site leaves, and when the run cannot continue here (too few sites are left, or a copy of the site
is in the run). From then on nobody who takes the site's files, home included, learns what its messages were hidden
under. A run that was stopped may continue, so it keeps its key; `privsgp doctor` lists such keys.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from privsgp.errors import Refused
from privsgp.files import sync_names, write_private
from privsgp.randomness.pair_streams import PairStreams, derived
from privsgp.sites.identity import Site, load_key, private_pem

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from torch import Tensor

    from privsgp.randomness.pairwise import Ends
    from privsgp.sites.agreement import Agreement

WORD = "[0-9a-f]{192}"  # a run key and its site's signature
_KEY = 64


def needs_keys(agreement: Agreement) -> bool:
    """Tell whether the sites of a run share secrets: a simulation's noise follows from its seed."""
    return agreement.config.pairwise and agreement.config.seed is None


def is_word(agreement: Agreement, node: int, word: str) -> bool:
    """Tell whether a node's site signed this key for this run, and it is one that secrets can be made with."""
    public = bytes.fromhex(word[:_KEY])
    if not agreement.roster[node].signed(b"pair key", _to_sign(agreement, node, public), word[_KEY:]):
        return False
    try:
        X25519PrivateKey.generate().exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError:
        return False
    return True


def delete(path: Path) -> None:
    """Delete a run key, durably."""
    if path.exists():
        path.unlink()
        sync_names(path.parent)


def _to_sign(agreement: Agreement, node: int, public: bytes) -> bytes:
    return f"{agreement.run}/{node}/{public.hex()}".encode()


class PairKeys:
    """A site's run key, and the secrets that it gives with what the other sites told of theirs."""

    def __init__(self, site: Site, agreement: Agreement, node: int, path: Path, words: dict[int, str]) -> None:
        """Take up the run key that lies at a path; `words` are all sites', as they come to be known."""
        self.site, self.agreement, self.node, self.path, self.words = site, agreement, node, path, words
        self._cards = {other: site.exchange(card) for other, card in enumerate(agreement.roster) if other != node}
        self._streams: _SitePairStreams | None = None

    def open(self, *, begun: bool) -> None:
        """Make the run key, durably, where the run has not begun, and say so to others; refuse one others can read."""
        if not self.path.exists():
            if begun:
                return  # it is needed for steps that are still to be made alone, and refused there
            write_private(self.path, private_pem(X25519PrivateKey.generate()))
        if self.path.stat().st_mode & 0o077:
            raise Refused(f"{self.path} is open to others", "chmod 600 it, and ask who could read it until now")
        public = self._own().public_key().public_bytes_raw()
        signature = self.site.sign(b"pair key", _to_sign(self.agreement, self.node, public))
        self.words[self.node] = public.hex() + signature.hex()

    def streams(self, here: Ends) -> PairStreams:
        """Return the numbers of this site's pairs; keys are made when they are first asked for, all being known."""
        self._streams = _SitePairStreams({here.number(pair): pair for pair in here.pairs}, self._secret)
        return self._streams

    def used(self, step: int) -> None:
        """Let no number of a step that was committed be drawn again."""
        if self._streams is not None:
            self._streams.commit(step)

    def forget(self) -> None:
        """Delete the run key: the site makes no more steps with a gradient."""
        delete(self.path)
        if self._streams is not None:
            self._streams.forget()

    def _own(self) -> X25519PrivateKey:
        if not self.path.exists():
            raise Refused(
                f"{self.path} is missing, and this run has more steps",
                "put it back: partners have made their halves of the noise with it. Without it, leave, and propose a "
                "new agreement",
            )
        key: X25519PrivateKey = load_key(self.path, X25519PrivateKey)
        return key

    def _secret(self, i: int, j: int) -> bytes:
        """Return the key of a pair's stream: the same at both ends, and nowhere else."""
        other = j if i == self.node else i
        own, ends = self._own(), [bytes.fromhex(self.words[end][:_KEY]) for end in (i, j)]
        if ends[(i, j).index(self.node)] != own.public_key().public_bytes_raw():
            raise Refused(f"{self.path} is not the key that this site sent", "put the run folder back as it was")
        fresh = own.exchange(X25519PublicKey.from_public_bytes(bytes.fromhex(self.words[other][:_KEY])))
        info = b"privsgp/site pair/1/" + f"{i}/{j}/".encode() + ends[0] + ends[1]
        return derived(fresh + self._cards[other], bytes.fromhex(self.agreement.run), info)


class _SitePairStreams(PairStreams):
    """The normals of a site's pairs: the same in every life of its process, for steps that were not committed yet.

    Guarantee: of a committed step none is handed out.

    Assumes: nothing of a step leaves before it is committed (`SiteTrainer`), so that what is drawn again after a crash
    has hidden nothing yet.
    """

    remedy = "join again: from its commit the site sends what it sent"

    def __init__(self, pairs: dict[int, tuple[int, int]], secret: Callable[[int, int], bytes]) -> None:
        super().__init__({})
        self.committed = -1
        self._pairs, self._secret = pairs, secret

    def fill_normal(self, out: Tensor, nodes: Sequence[int], step: int) -> None:
        """Fill row r of `out` [m, d] with the standard normals of pair `nodes[r]`."""
        if step <= self.committed:
            raise Refused(
                f"step {step} needs shared noise, and step {self.committed} is committed already",
                "restore the run folder to the state in which the run stopped: two noises for one step cost ε",
            )
        for pair in nodes:
            if str(pair) not in self._keys:
                self._keys[str(pair)] = self._secret(*self._pairs[pair])
        super().fill_normal(out, nodes, step)

    def commit(self, step: int) -> None:
        """Hand out nothing more of steps up to this one."""
        self.committed = step

    def forget(self) -> None:
        """Drop all keys."""
        self._keys.clear()
        self._pairs.clear()
