"""Noise that neighbours share: node i adds a_i + Σ_j ± s_i u_ij, and what one end of a pair adds the other subtracts.

The u_ij cancel in the sum over all nodes. An observer that does not know them sees each node's message under all.
`accounting.pairwise` computes its effective σ against a coalition, which the nodes' mechanisms count. A pair's numbers
are ChaCha20's under the pair's own key, with (pair, step) as nonce, so both ends make the same words:

- in a simulation the keys follow from the seed;
- without a seed, if both ends are in this process, they are this process's secret, as own noise is;
- in both cases, if pairs take long, the process draws the nodes' sums over all pairs, which have the same law;
- between sites they come from X25519 keys that cards sign (`sites/protocol/pairs.py`): nobody else can compute them.

A sum is formed in one order at every node, pairs by their other end, then own noise, then the gradient. With secret
noise the gradient comes before own noise. All is in float64 and rounded once, to the grid of the node's own noise.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch

from privsgp.devices import device_of
from privsgp.errors import Refused
from privsgp.randomness.noise import Keyed, NodeNoise, Noise, Secure, add_noise_
from privsgp.randomness.snapshot import clock_offset, refuse_old_memory

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from privsgp.accounting.mechanisms import Mechanism
    from privsgp.accounting.pairwise import PairwiseCovariance
    from privsgp.randomness.noise import KeyExchange, Normals, Source

    Pair = tuple[int, int]


_LONG = 1 << 22  # numbers a step, of all pairs, beyond which their sums are drawn at once where they may be


@dataclass(frozen=True)
class PairwiseNoise(Noise):
    """a_i + Σ_j ± s_i u_ij, by the covariance that was settled."""

    name: ClassVar[str] = "pairwise"

    covariance: PairwiseCovariance
    honest: int

    def __post_init__(self) -> None:
        self.covariance.refuse_large_pairs()

    def of_nodes(
        self, nodes: range, mechanisms: Sequence[Mechanism], source: Source, exchange: KeyExchange | None = None
    ) -> NodeNoise:
        """Return the noise of a process's nodes; `exchange` agrees on secrets where others are elsewhere."""
        here = Ends(self.covariance.nodes, nodes)
        return _OfNodes(self, here, mechanisms, source, _pair_source(here, source, exchange))


class Ends:
    """The pairs that have an end among the nodes of a process, in order, and the rows of these nodes."""

    def __init__(self, n: int, nodes: range) -> None:
        self.n, self.nodes = n, nodes
        self.pairs = [(i, j) for i, j in combinations(range(n), 2) if i in nodes or j in nodes]

    def number(self, pair: Pair) -> int:
        """Name a pair by one number, the same in every process."""
        return pair[0] * self.n + pair[1]

    @cached_property
    def by_first(self) -> list[list[Pair]]:
        """The pairs in groups that share their first node: what is drawn at a time."""
        groups: dict[int, list[Pair]] = {}
        for pair in self.pairs:
            groups.setdefault(pair[0], []).append(pair)
        return list(groups.values())


def _pair_source(here: Ends, source: Source, exchange: KeyExchange | None) -> Normals:
    """Return where the numbers of pairs come from."""
    if isinstance(source, Keyed):
        return source.derived("pairs")
    if exchange is None and len(here.nodes) < here.n:
        what = f"nodes {here.nodes} share noise with other processes, without a protected way to exchange keys"
        raise Refused(what, "take privacy.noise = 'independent', or `privsgp join`, which exchanges signed keys")
    return Secure() if exchange is None else exchange(here)


class _OfNodes(NodeNoise):
    def __init__(
        self, noise: PairwiseNoise, here: Ends, mechanisms: Sequence[Mechanism], source: Source, pairs: Normals
    ) -> None:
        _refuse_uncounted(noise, here.nodes, mechanisms)
        self.here, self.pairs, self._own = here, pairs, source
        self._sigma, self._pair = noise.covariance.own_sigma, noise.covariance.pair_sigma
        self._step, self._unused = -1, set[int]()  # the step whose shared noise is drawn, and rows not used yet
        self._shared = torch.empty(0)
        self._offset = clock_offset()  # when shared noise was drawn

    def begin(self, step: int, like: Tensor) -> None:
        """Draw what the nodes here share at a step."""
        self._offset = clock_offset()
        dtype = torch.float64 if self._own.secret else like.dtype
        self._shared = torch.empty(len(self.here.nodes), like.shape[1], dtype=dtype, device=like.device)
        self._fill_shared(self._shared, step)
        self._step, self._unused = step, set(self.here.nodes)

    def add_(self, g: Tensor, nodes: Sequence[int], step: int) -> None:
        """Add own noise and that of all pairs to each node's row of g, in place."""
        if self._step != step or not self._unused.issuperset(nodes):
            if list(nodes) != list(self.here.nodes):
                raise Refused(f"pairwise noise of nodes {list(nodes)} alone", "draw what all nodes here share first")
            self.begin(step, g)
        if self._own.secret:
            refuse_old_memory(self._offset, "resume the run: this step was not sent, and is drawn again")
        self._unused.difference_update(nodes)
        first, sigma = nodes[0] - self.here.nodes.start, [self._sigma[i] for i in nodes]
        noised = self._shared[first : first + len(nodes)]  # used once: the sum is written over it
        if self._own.secret:
            add_noise_(noised.add_(g), self._own, nodes, step, sigma=sigma)
        else:
            own = torch.empty_like(g)
            self._own.fill_normal(own, nodes, step)
            noised.addcmul_(own, _column(sigma, own)).add_(g)
        g.copy_(noised)

    def overhear(self, wrap: Callable[[Normals], Normals]) -> None:
        """Let an audit read the numbers of pairs: `wrap` returns their source. From now on each pair's are drawn."""
        self.pairs = wrap(self.pairs)

    def together(self, columns: int) -> bool:
        """Tell whether all pairs' sums are drawn at once: where no end is another's secret, and pairs take long.

        It depends on public numbers alone: a simulation has the same noise in however many processes it runs. Of two
        or three nodes pairs are as few as nodes, and √n (v_i − v̄) may be longer than what is counted of k numbers.
        """
        n, pairs = self.here.n, math.comb(self.here.n, 2)
        return pairs > n and isinstance(self.pairs, Keyed | Secure) and pairs * columns > _LONG

    def _fill_shared(self, out: Tensor, step: int) -> None:
        """Fill row r of `out` with what the r-th node here shares: the sum over its pairs."""
        if self.together(out.shape[1]):
            self._fill_sums(out, step)
            return
        out.zero_()
        for group in self.here.by_first:  # a node's own sum is added up in one go, whoever else is here
            u = out.new_empty(len(group), out.shape[1])
            self.pairs.fill_normal(u, [self.here.number(pair) for pair in group], step)
            self._share(out, group, u)

    def _fill_sums(self, out: Tensor, step: int) -> None:
        """Fill with s √n (v_i − v̄): as Gaussian as the sums of all pairs, with the same covariance s² (n I − 11ᵀ)."""
        n, here = self.here.n, self.here.nodes
        v = out.new_empty(n, out.shape[1])
        self.pairs.fill_normal(v, range(n * n, n * n + n), step)
        v.sub_(_summed(v).div_(n))
        torch.mul(v[here.start : here.stop], _column([math.sqrt(n) * self._pair[i] for i in here], out), out=out)

    def _share(self, out: Tensor, group: Sequence[Pair], u: Tensor) -> None:
        """Add the numbers of pairs to the node they begin with, all together, and take them from each other end."""
        here, first = self.here.nodes, group[0][0]
        if first in here:  # then all of its pairs are in the group, whichever nodes are here
            out[first - here.start].add_(_summed(u), alpha=self._pair[first])
        ends = [(row, j - here.start) for row, (_, j) in enumerate(group) if j in here]
        if ends:
            rows, places = zip(*ends, strict=True)
            u = u if len(rows) == len(u) else u[list(rows)]
            sigma = _column([self._pair[here.start + row_here] for row_here in places], u)
            out.index_add_(0, torch.tensor(places, device=u.device), u.mul_(sigma), alpha=-1)


def _column(values: Sequence[float], like: Tensor) -> Tensor:
    return torch.tensor(values, dtype=like.dtype, device=like.device)[:, None]


def _summed(u: Tensor) -> Tensor:
    """Return the sum of the rows, added one after the other: the same however many threads there are."""
    return torch.from_numpy(np.add.reduce(u.numpy(), axis=0)) if device_of(u).in_host_memory else u.sum(0)


def _refuse_uncounted(noise: PairwiseNoise, nodes: range, mechanisms: Sequence[Mechanism]) -> None:
    """Refuse noise that is worth less than a node's mechanism counts, whoever settled it."""
    if any(len(mechanism.kinds) > 1 for mechanism in mechanisms):
        what = "pairwise noise is the same at every step, and this method's steps differ"
        raise Refused(what, "take privacy.noise = 'independent'")
    effective = noise.covariance.effective(noise.honest)
    for i, mechanism in zip(nodes, mechanisms, strict=True):
        shared, partners = mechanism.shared, noise.covariance.nodes - 1
        honest = 0 if shared is None or shared.partners != partners else shared.honest
        if honest != noise.honest or mechanism.sigma > effective[i]:
            what = f"node {i} is counted with σ = {mechanism.sigma:g} and {honest} honest nodes; its pairwise noise "
            what += f"has σ = {effective[i]:g} if {noise.honest} are honest"
            raise Refused(what, "nothing was sent; report this: noise must be what is counted")
