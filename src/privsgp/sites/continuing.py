"""A study that continues a run which has ended: what counts of that run, and what has to be the same in both.

The study file holds the ended agreement with the signatures of all its sites. So each site computes from it, by itself,
what every node has released before.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from privsgp.accounting.compound import Continued, Shared
from privsgp.accounting.pairwise import PairwiseCovariance
from privsgp.algorithms import ALGORITHMS
from privsgp.algorithms.update_rule import node_weights
from privsgp.runs import config as configs
from privsgp.runs.budgets import batch_sizes, settings
from privsgp.sites.study import PROTOCOL, Continues, Study

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from privsgp.accounting.mechanisms import Mechanism
    from privsgp.runs.budgets import Earlier
    from privsgp.runs.config import Config
    from privsgp.sites.identity import Card

    Fault = tuple[bool, str, str]

_ASK = "ask for a study that `privsgp agree amend` wrote"
_SLACK = 2.0**-8  # κ of the coarsest device: the ended run may have been on it
_MAY_CHANGE = {"nodes", "sizes", "sites", "partition"}  # of [data]


@dataclass(frozen=True)
class _Phase:
    """The releases of one node in a run that has ended, as all sites agreed on that run.

    `shared` is its pairwise noise, if any: each node's own variances, and that of a pair. `honest` is how many of its
    nodes are taken to be honest at most, this one included: 1 where another site may know the node's pair secrets.
    `members` are its sites' identities.
    """

    config: Config
    samples: Sequence[int]
    sigma: Sequence[float]
    shared: tuple[Sequence[float], float] | None
    node: int
    releases: int
    honest: int
    members: frozenset[str]

    def implied_honest(self, study: Study, honest: int) -> int:
        """Return how many nodes of the ended run are honest if so many sites of a study are, whichever these are.

        Sites that the study has added were not there.
        """
        added = sum(card.identity not in self.members for card in study.roster)
        return max(1, min(self.honest, honest - added))

    def mechanism(self, slack: float, coordinates: int, h: int) -> Mechanism:
        """Return what was released, if h nodes were honest.

        Guarantee: as `PairwiseCovariance.effective`, for every set of so many honest nodes of that run.
        """
        c, i = self.config, self.node
        made = ALGORITHMS[c.algorithm.name].mechanism(
            settings(c), sigma=self.sigma[i], batch=batch_sizes(c, self.samples)[i], samples=self.samples[i],
            kappa=slack,
        ).changed(coordinates=coordinates)  # fmt: skip
        if self.shared is None:
            return made
        weights = node_weights(c.algorithm.weights, self.samples, self.sigma, shared=True)
        own, pair = self.shared
        noise = PairwiseCovariance(tuple(own), pair, None if weights is None else tuple(weights))
        return Shared(made.with_sigma(noise.effective(h)[i]), h, noise.nodes - 1, min(noise.own_sigma))


def earlier(study: Study, config: Config) -> Earlier:
    """Return what counts a node's mechanism together with all that the node released in the runs before."""
    each = [phases(study, node) if config.private else [] for node in range(len(study.roster))]

    def counted_with(node: int, mechanism: Mechanism, honest: int) -> Mechanism:
        slack, coordinates = max(mechanism.kappa, _SLACK), mechanism.coordinates
        known = [
            (one.mechanism(slack, coordinates, one.implied_honest(study, honest)), one.releases)
            for one in each[node]
            if one.releases
        ]
        return Continued(mechanism, tuple(known)) if known else mechanism

    return counted_with


def phases(study: Study, node: int, revoked: frozenset[str] = frozenset()) -> list[_Phase]:
    """Return what a node released in the runs that a study continues; `revoked` are keys that were revoked later.

    Guarantee: a revoked key counts as dishonest in all runs, from their first steps on. For the site whose key it was
    only its own noise counts there.
    """
    c = study.continues
    if c is None or (i := c.nodes[node]) is None:
        return []
    ended, revoked = c.study, revoked | set(c.revoked)
    config, shared = configs.parse(ended.settings), ended.shared_noise
    honest = 1
    if shared is not None and ended.roster[i].identity not in revoked:
        honest = max(1, config.honest - sum(card.identity in revoked for card in ended.roster))
    noise = None if shared is None else (shared.own, shared.pair)
    members = frozenset(card.identity for card in ended.roster)
    own = _Phase(config, ended.samples, ended.sigma, noise, i, c.releases[node], honest, members)
    return [*phases(ended, i, revoked), own]


def counted_lines(study: Study) -> list[str]:
    """Say, of each site, what it released in the runs that a study continues, and on which trust that rests."""
    honest = configs.parse(study.settings).trusted
    return [
        f"{card.name}: {one.releases} releases of an earlier run count too"
        + (f", if {h} of its {len(one.samples)} sites were honest" if one.shared and h > 1 else "")
        for node, card in enumerate(study.roster)
        for one in phases(study, node)
        for h in [one.implied_honest(study, honest)]
    ]


def budget(study: Study, node: int) -> str:
    """Return the number of the budget that a node spends in a run, and spent in the runs that it continues."""
    c = study.continues
    if c is None or (i := c.nodes[node]) is None:
        return f"{study.run}/{node}"
    return budget(c.study, i)


def counted(study: Study, node: int) -> dict[str, int]:
    """Return the runs that a node's run continues, and how many releases of each its ε counts."""
    c = study.continues
    if c is None or (i := c.nodes[node]) is None:
        return {}
    return counted(c.study, i) | {c.study.run: c.releases[node]}


def faults(study: Study, config: Config) -> Iterator[Fault]:
    """Yield what does not hold together in a study that continues a run; a later fault may need an earlier check."""
    c = study.continues
    if c is None:
        return
    ended, n = c.study, len(study.roster)
    what = f"it continues a run of protocol {ended.version}, and this is protocol {PROTOCOL}"
    yield ended.version != PROTOCOL, what, "propose a new study: its budget adds to what the records have spent"
    lengths = (len(c.nodes), len(c.releases), len(c.signatures))
    yield lengths != (n, n, len(ended.roster)), "it does not name every site of both runs", _ASK
    missing = [card.name for i, card in enumerate(ended.roster) if not ended.signed_by(i, c.signatures[i])]
    yield bool(missing), f"the run that it continues has no right signature of {', '.join(missing)}", _ASK
    before = [i for i in c.nodes if i is not None]
    twice = len(set(before)) < len(before) or max(before, default=0) >= len(ended.roster)
    yield twice, f"nodes = {c.nodes} of the run that it continues", _ASK
    more = any(r > (0 if i is None else ended.steps) for i, r in zip(c.nodes, c.releases, strict=True))
    yield more, f"releases = {c.releases} of a run of {ended.steps} steps", _ASK
    yield from _roster_faults(study, c)
    old = configs.parse(ended.settings)
    yield old.shared() != ended.settings, "the configuration of the run that it continues is not written out", _ASK
    for key, value in _same(config, study).items():
        was = _same(old, ended)[key]
        yield value != was, f"{key} is {value!r:.80}, and was {was!r:.80}", "keep it, or propose a study of its own"
    several = config.privacy.sites_per_person > 1
    yield several, "privacy.sites_per_person above 1 in a run that continues another", "propose a study of its own"
    sums = bool(config.sum.kind or old.sum.kind)
    yield sums, "a noised sum is one release, and continues nothing", "propose a study of its own"
    weighed = old.pairwise and old.algorithm.weights == "noise"
    yield weighed, "algorithm.weights = 'noise' with pairwise noise in the ended run", "propose a study of its own"


def _roster_faults(study: Study, c: Continues) -> Iterator[Fault]:
    """Yield sites that would not be counted as those they were, and keys that were revoked and are used again."""
    known = {card.identity: i for i, card in enumerate(c.study.roster)}
    yield bool(set(c.revoked) - set(known)), "it revokes keys of nobody", _ASK
    for card, i in zip(study.roster, c.nodes, strict=True):
        was = known.get(card.identity, i)
        yield was != i, f"{card.name} was node {was} of the run that it continues, and not {i}", _ASK
        other = i is not None and card.identity != c.study.roster[i].identity
        unrevoked = other and c.study.roster[i or 0].identity not in c.revoked
        yield unrevoked, f"{card.name} has another key than in the run that it continues", "revoke the key before it"
    used = [
        card
        for card in revoked_cards(study)
        for now in study.trusted
        if any(getattr(card, key) == getattr(now, key) for key in ("identity", "exchange", "authority"))
    ]
    names = ", ".join(card.name for card in used)
    yield bool(used), f"a revoked key of {names} is used again", "make a new one: `privsgp site init` in a new folder"


def revoked_cards(study: Study) -> list[Card]:
    """Return the cards whose keys were revoked in a study, or in those that it continues."""
    found, revoked = list[Any](), set[str]()
    while study.continues is not None:
        revoked |= set(study.continues.revoked)
        study = study.continues.study
        found += [card for card in study.roster if card.identity in revoked]
    return found


def _same(config: Config, study: Study) -> dict[str, Any]:
    """Return what has to be the same in both runs: the unit of privacy, the data, and what rounding depends on."""
    values = config.shared()
    data = {f"data.{key}": value for key, value in values["data"].items() if key not in _MAY_CHANGE}
    return data | {
        "model": values["model"], "features": values["features"], "evaluation": values["evaluation"],
        "engine.dtype": values["engine"]["dtype"], "privacy.relation": config.privacy.relation,
        "a seed": config.seed is not None, "private": config.private, "the samples": study.sample.model_dump(),
        "the number of weights": study.weights,
    }  # fmt: skip
