"""Noise that neighbours share: node i adds a_i + Σ_j ± s_i u_ij, and what one end of a pair adds the other subtracts.

The u_ij cancel in the sum over all nodes; who does not know them sees each node's message under all of them. What that
is worth before a coalition is in `accounting.pairwise`, and is the σ that the nodes' mechanisms count. A pair's numbers
are ChaCha20's under the pair's own key, with (pair, step, attempt) as nonce, so both ends make the same words:

- in a simulation the keys follow from the seed;
- without a seed, where both ends are in this process, they are this process's secret, as own noise is;
- between processes they come from X25519 keys that are made for this life of a process, HKDF over the transcript of the
  exchange: no third process can compute them, and no other life of the run has the same.

A sum is formed in one order at every node, pairs by their other end, then own noise, then the gradient, in float64
where noise is secret, and rounded once, to the grid of the node's own noise.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from privsgp.accounting.computed import LARGEST_PAIR
from privsgp.devices import device_of
from privsgp.errors import Refused
from privsgp.randomness.noise import Keyed, Secure, Streams, clock_offset, clocks_parted, snap_
from privsgp.randomness.prefetch import PrefetchedNoise
from privsgp.randomness.protocol import NodeNoise, Noise

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt
    from torch import Tensor

    from privsgp.accounting.mechanisms import Mechanism
    from privsgp.accounting.pairwise import NoiseGraph, Pair, PairwiseCovariance
    from privsgp.randomness.noise import Source
    from privsgp.randomness.protocol import Gather


@dataclass(frozen=True)
class PairwiseNoise(Noise):
    """a_i + Σ_j ± s_i u_ij, by the covariance that was settled; `context` is what else all nodes agree on."""

    covariance: PairwiseCovariance
    honest: int
    context: str = ""

    def __post_init__(self) -> None:
        least, pair = min(self.covariance.own), self.covariance.pair
        if pair > LARGEST_PAIR**2 * least:
            raise Refused(
                f"pairs share noise of σ = {pair**0.5:g} beside {least**0.5:g} of a node's own",
                f"take a smaller privacy.pair_ratio: up to {LARGEST_PAIR:g} times was counted",
            )

    @property
    def name(self) -> str:
        """What a summary calls it."""
        return "pairwise"

    @property
    def shared(self) -> bool:
        """True."""
        return True

    def of_nodes(
        self, nodes: range, mechanisms: Sequence[Mechanism], source: Source, gather: Gather | None = None
    ) -> NodeNoise:
        """Return the noise of a process's nodes; `gather` exchanges public keys where others are elsewhere."""
        here = _Ends(self.covariance.graph, nodes)
        return _OfNodes(self, here, mechanisms, source, _pair_source(self, here, source, gather))

    def transcript(self, keys: Sequence[str]) -> bytes:
        """Return what must be the same at both ends of every pair: the noise of all, who shares it, and their keys."""
        c = self.covariance
        told = {
            "context": self.context, "honest": self.honest, "own": c.own, "pair": c.pair, "weights": c.weights,
            "pairs": c.graph.pairs, "keys": list(keys),
        }  # fmt: skip
        return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).digest()


class _Ends:
    """The pairs that have an end among the nodes of a process, in order, and the rows of these nodes."""

    def __init__(self, graph: NoiseGraph, nodes: range) -> None:
        self.graph, self.nodes = graph, nodes
        self.pairs = [(i, j) for i, j in graph.pairs if i in nodes or j in nodes]

    def number(self, pair: Pair) -> int:
        """Name a pair by one number, the same in every process."""
        return pair[0] * self.graph.nodes + pair[1]

    @cached_property
    def by_first(self) -> list[list[Pair]]:
        """The pairs in groups that share their first node: what is drawn at a time."""
        groups: dict[int, list[Pair]] = {}
        for pair in self.pairs:
            groups.setdefault(pair[0], []).append(pair)
        return list(groups.values())


class PairStreams(Streams):
    """The normals of pairs whose ends are in different processes, each under a key that only these two have.

    Guarantee: of one (pair, step, attempt) the numbers are handed out once: draws of a pair must go on from attempt to
    attempt and from step to step. Where the machine's clocks show that its memory may be an old one, none are: a peer
    may have seen what they hid before.

    Assumes: keys are of this life of the process alone. Numbers are made on the host, so that both ends' are the same
    whatever their devices.
    """

    secret = True

    def __init__(self, keys: dict[int, bytes]) -> None:
        super().__init__({str(pair): key for pair, key in keys.items()})
        self._last: dict[int, tuple[int, int]] = {}
        self._offset = clock_offset()

    def __repr__(self) -> str:
        return "PairStreams(keys hidden)"

    def __reduce_ex__(self, protocol: object) -> Any:  # noqa: ANN401 - it never returns
        raise Refused("a copy or pickle of pair streams", "keys stay in one object's memory")

    def fill_normal(self, out: Tensor, nodes: Sequence[int], step: int, attempt: int = 0) -> None:
        """Fill row r of `out` [m, d] with the standard normals of pair `nodes[r]`; each can be drawn once."""
        self._refuse_old_memory()
        for pair in nodes:
            if (attempt, step) <= self._last.get(pair, (-1, -1)):
                raise Refused(
                    f"noise of pair {pair}, step {step}, attempt {attempt}: already used",
                    "two messages under one pair's numbers show their difference: start all processes again",
                )
            self._last[pair] = attempt, step
        host = out if device_of(out).in_host_memory else torch.empty(out.shape, dtype=torch.float64)
        self._normals(host.numpy(), nodes, step, attempt, np.float64)
        if host is not out:
            out.copy_(host)

    def undraw(self, purpose: str, nodes: Sequence[int], step: int, attempt: int) -> None:
        """Refuse: the other end has these numbers already."""
        del purpose, nodes, step, attempt
        self._refuse_old_memory()

    def _refuse_old_memory(self) -> None:
        if clocks_parted(self._offset):
            raise Refused(
                "the machine's clocks moved against each other: it may have been put back to a snapshot",
                "start all processes again: they then share other secrets",
            )

    def _read(self, words: npt.NDArray[Any], purpose: str, draw: tuple[int, int, int], block: int = 0) -> None:
        del purpose
        super()._read(words, str(draw[0]), draw, block)


def _pair_source(noise: PairwiseNoise, here: _Ends, source: Source, gather: Gather | None) -> Source:
    """Return where the numbers of pairs come from."""
    if isinstance(source, Keyed):
        return source.derived("pairs")
    if gather is None:
        return Secure()
    return PairStreams(exchange(noise, here, gather))


def exchange(noise: PairwiseNoise, here: _Ends, gather: Gather) -> dict[int, bytes]:
    """Agree on a secret with the other end of every pair; return the pairs' keys by number.

    Guarantee: the key of a pair is HKDF-SHA256 of X25519 between its two ends, over the transcript of all public keys
    and all noise levels. Ends that were shown different transcripts are refused here, or, where they were lied to about
    that too, have different keys.

    Assumes: who carries the public keys does not put its own in their place *and* lie to both ends about the
    transcript. Compare its fingerprint, which every process logs, by another way where that is to be feared.
    """
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

    own = {i: X25519PrivateKey.generate() for i in here.nodes}
    keys = gather([own[i].public_key().public_bytes_raw().hex() for i in here.nodes])
    transcript = noise.transcript(keys)
    if any(said != transcript.hex() for said in gather([transcript.hex()] * len(here.nodes))):
        raise Refused(
            "the processes were shown different keys or noise levels: their transcripts differ",
            "nothing was sent; somebody changes what processes tell each other: find out who, and start again",
        )
    if len(set(keys)) < len(keys):
        raise Refused("two nodes have the same public key", "each makes its own: ask the sites, and start again")
    secrets = {}
    for i, j in here.pairs:
        mine, other = (i, j) if i in own else (j, i)
        try:
            shared = own[mine].exchange(X25519PublicKey.from_public_bytes(bytes.fromhex(keys[other])))
        except ValueError as error:
            raise Refused(f"the public key of node {other} is of no use: {error}", "ask its site") from error
        secrets[here.number((i, j))] = _derived(shared, transcript, (i, j))
    return secrets


def _derived(shared: bytes, transcript: bytes, pair: Pair) -> bytes:
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    return HKDF(SHA256(), 32, salt=transcript, info=f"privsgp 1 pair {pair[0]} {pair[1]}".encode()).derive(shared)


class _Sum:
    """All noise of the nodes here, as `PrefetchedNoise` draws it: pairs in order, then the nodes' own."""

    def __init__(self, noise: PairwiseNoise, here: _Ends, source: Source, pairs: Source) -> None:
        self.here, self.source, self.pairs = here, source, pairs
        c = noise.covariance
        self.own = [c.own_sigma[i] for i in here.nodes]
        self._pair = c.pair_sigma
        self._room: dict[str, Tensor] = {}

    @property
    def secret(self) -> bool:
        """Whether nobody else can draw the same."""
        return self.source.secret

    def fill_normal(self, out: Tensor, nodes: Sequence[int], step: int, attempt: int = 0) -> None:
        """Fill row r of `out` with the noise of node `nodes[r]`, which are all that are here."""
        if list(nodes) != list(self.here.nodes):
            raise Refused(f"pairwise noise of nodes {list(nodes)} alone", "all nodes of a process make a step together")
        out.zero_()
        for group in self.here.by_first:
            u = self._buffer("pairs", out)[: len(group)]
            self.pairs.fill_normal(u, [self.here.number(pair) for pair in group], step, attempt)
            for row, (i, j) in zip(u, group, strict=True):
                self._add(out, i, row, self._pair[i])
                self._add(out, j, row, -self._pair[j])
        own = self._buffer("own", out)[: len(out)]
        self.source.fill_normal(own, nodes, step, attempt)
        out.add_(own.mul_(torch.tensor(self.own, dtype=out.dtype, device=out.device)[:, None]))

    def undraw(self, purpose: str, nodes: Sequence[int], step: int, attempt: int) -> None:
        """Let a step's noise that nobody used be drawn anew, where it can be."""
        self.pairs.undraw(purpose, [self.here.number(pair) for pair in self.here.pairs], step, attempt)
        self.source.undraw(purpose, nodes, step, attempt)

    def _add(self, out: Tensor, node: int, u: Tensor, sigma: float) -> None:
        if node in self.here.nodes:
            out[node - self.here.nodes.start].add_(u, alpha=sigma)

    def _buffer(self, name: str, like: Tensor) -> Tensor:
        """Return room that is kept from step to step."""
        rows = len(like) if name == "own" else max(map(len, self.here.by_first), default=0)
        kept = self._room.get(name)
        if kept is None or kept.shape != (rows, like.shape[1]) or kept.dtype != like.dtype:
            kept = self._room[name] = torch.empty((rows, like.shape[1]), dtype=like.dtype, device=like.device)
        return kept


class _OfNodes(NodeNoise):
    def __init__(
        self, noise: PairwiseNoise, here: _Ends, mechanisms: Sequence[Mechanism], source: Source, pairs: Source
    ) -> None:
        _refuse_uncounted(noise, here.nodes, mechanisms)
        self._sum = _Sum(noise, here, source, pairs)
        self._ahead = PrefetchedNoise(self._sum, here.nodes)

    @property
    def zero(self) -> bool:
        """False: there is always some."""
        return False

    @property
    def kernel_source(self) -> Keyed | None:
        """None: a kernel draws a node's own noise alone."""
        return None

    def add_(self, g: Tensor, nodes: Sequence[int], step: int, attempt: int) -> None:
        """Add own noise and that of all pairs to each node's row of g, in place."""
        noised = torch.empty(g.shape, dtype=torch.float64 if self._sum.secret else g.dtype, device=g.device)
        self._ahead.fill_normal(noised, nodes, step, attempt)
        noised.add_(g)
        if self._sum.secret:
            snap_(noised, self._sum.own)
        g.copy_(noised)

    def prepare(self, like: Tensor, step: int, attempt: int) -> None:
        """Draw the noise of a step now."""
        self._ahead.prepare(like, step, attempt)

    def begin(self, like: Tensor, step: int, attempt: int) -> None:
        """Let a second thread draw it."""
        self._ahead.begin(like, step, attempt)


def _refuse_uncounted(noise: PairwiseNoise, nodes: range, mechanisms: Sequence[Mechanism]) -> None:
    """Refuse noise that is worth less than a node's mechanism counts, whoever settled it."""
    worth = noise.covariance.effective(noise.honest)
    for i, mechanism in zip(nodes, mechanisms, strict=True):
        counted = mechanism.honest == noise.honest and mechanism.partners == noise.covariance.graph.partners
        if not counted or mechanism.sigma > worth[i]:
            raise Refused(
                f"node {i} is counted with σ = {mechanism.sigma:g} and {mechanism.honest} honest nodes; its pairwise "
                f"noise is worth {worth[i]:g} where {noise.honest} are honest",
                "nothing was sent; report this: noise must be what is counted",
            )
