"""Agreements: one canonical JSON file, *.study, that all sites sign. Its SHA-256 is the run's id.

It holds the shared configuration, the release, the roster (everybody's card), the graph, size and hash of x⁰, sizes
J_i, budgets (ε_i, δ_i), noise σ_i, K, limits and an expiry. No code travels. A site that joins recomputes all of it
from the configuration and refuses differences. So other sites' values never change its own noise.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import math
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from privsgp import __version__, devices, features
from privsgp.accounting import accountant
from privsgp.accounting.book import Total
from privsgp.accounting.policy import Policy, refuse_spending, refused
from privsgp.accounting.shown import up
from privsgp.data.dataset import PersonRows
from privsgp.devices import chosen_device
from privsgp.errors import Refused
from privsgp.gradients import Layout
from privsgp.graph.assumptions import HORIZON
from privsgp.runs import config as configs
from privsgp.runs import sums
from privsgp.runs.budgets import per_node, with_scale
from privsgp.runs.build import build_run
from privsgp.runs.problem import assembled, first_model, weights_digest
from privsgp.runs.resolve import make_graph, resolve
from privsgp.runs.result import read_model
from privsgp.sites import continuing
from privsgp.sites.canonical import digest
from privsgp.sites.protocol.increments import increment_bytes
from privsgp.sites.study import FORMAT, PROTOCOL, Continues, Limits, Study, text_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from torch import nn

    from privsgp.data import Dataset
    from privsgp.engine.spec import RunSpec
    from privsgp.graph import Graph
    from privsgp.runs.budgets import Earlier
    from privsgp.runs.config import Config
    from privsgp.sites.identity import Card

    Fault = tuple[bool, str, str]  # whether it is there, what is wrong, and what to do

ALLOWED = ("privsgp", "privsgp-vr", "privsgp-sag", "sgp")
FEATURES = ("none", "scattering", "synthetic-encoder")
_MOST_FEATURES = 4096  # of filters, of directions, …: what is made before it can be compared with a size
_CLOSE = 1e-6  # by which noise that two sites computed may differ
_VASTLY = 1.1  # of a σ beside what its budget needs
_ROUNDING = 1e-9


class Agreement(Study):
    """A study that was read and is consistent in itself."""

    @classmethod
    def of(cls, values: object, where: str) -> Self:
        """Return the agreement that these values are."""
        agreement = super().of(values, where)
        _refuse(agreement._faults(), f"{where}: ")
        return agreement

    @cached_property
    def config(self) -> Config:
        """The configuration that all sites share."""
        return configs.parse(self.settings)

    def _faults(self) -> Iterator[Fault]:
        """Yield what does not hold together in the values, one after the other: a later one may need an earlier one."""
        c, n, ask = self.config, self.config.data.nodes, "ask for a study that `propose` wrote"
        yield c.shared() != self.settings, "its configuration is not written out in full", ask
        for key in ("roster", "samples", "epsilon", "delta", "sigma"):
            count = len(getattr(self, key))
            yield count != n, f"{key} has {count} entries for {n} nodes", "give one per site"
        names, identities = [card.name for card in self.roster], {card.identity for card in self.roster}
        twice = len(set(names)) < n or len(identities) < n
        yield twice, f"two of the sites {names} have the same name or identity", "each site has its own card"
        is_other = c.data.sizes != self.samples or c.algorithm.steps != self.steps
        yield is_other, "J_i or K differ from its configuration", ask
        order = "give --site in the order of data.sites, or leave data.sites out"
        yield c.data.sites not in (None, names), f"data.sites = {c.data.sites}, and the cards are of {names}", order
        for key, value in _budgets(c).items():  # the policy is asked about those that are shown
            remedy = "do not sign it, and ask the proposer how it came about"
            yield (
                value != getattr(self, key),
                f"{key} is {getattr(self, key)}, and its configuration says {value}",
                remedy,
            )
        silent = c.private and c.privacy.epsilon is not None and not all(0 < one < math.inf for one in self.sigma)
        yield silent, f"sigma = {self.sigma}, with budgets", ask
        shared = self.shared_noise
        is_other = (shared is not None) != c.pairwise or (shared is not None and len(shared.own) != n)
        yield is_other, "shared_noise is not of its configuration", ask
        yield from _algorithm_faults(c)
        yield from self._limit_faults()
        if self.is_sum:
            made = sums.study(c, self.samples, c.privacy.clip, self.epsilon[0] or 1.0, self.delta[0])
            is_other = c.shared() != made.shared() or self.limits.fewest < n
            yield is_other, "a noised sum is one step on the complete graph, with all sites", ask
        yield from continuing.faults(self, c)

    def _limit_faults(self) -> Iterator[Fault]:
        limits, period, n = self.limits, self.graph.period or HORIZON, len(self.roster)
        yield limits.fewest > n, f"fewest = {limits.fewest} with {n} sites", "take at most their number"
        what = f"staleness = {limits.staleness} with a graph that uses a link every {period} steps"
        yield limits.staleness < period, what, f"take at least {period}"
        what = f"max_update = {limits.max_update} with {self.config.algorithm.name}, whose steps have any length"
        remedy = "leave --max-update out, or take an algorithm that clips gradients"
        yield limits.max_update is not None and self.step_norm is None, what, remedy
        for link in sorted(self.links):
            what = f"{self.roster[link[0]].name} sends to {self.roster[link[1]].name}, and neither can be dialled"
            remedy = "give one of them an --address, name a --relay, or take a graph without this link"
            yield self.is_relayed(link) and self.relay is None, what, remedy
        if self.relay is not None:
            what = f"{self.relay.name} as a relay, which nobody can dial"
            yield self.relay.address is None, what, "a relay needs an --address"

    def share(self, k: int, link: tuple[int, int]) -> float:
        """Return the share that a link carries at step k."""
        edges = self.graph.edges(k)
        return float(edges.share[(edges.source == link[0]) & (edges.target == link[1])].sum())

    def most_weight(self, link: tuple[int, int], after: int, step: int) -> float:
        """Return the most weight that a link can carry after one step, up to another: n (1 − Π (1 − p_k)).

        The weights of all sites and of all that is on its way sum to n at every moment. So a source that has sent f
        since `after` holds at most n − f, and sends the share p_k of that.
        """
        held = 1.0
        for k in range(step, after, -1):
            held *= 1 - self.share(k, link)
            if held < _CLOSE:
                return float(len(self.roster))
        return len(self.roster) * (1 - held)

    @cached_property
    def step_norm(self) -> float | None:
        """How far the steps of a message move x, τ γ (C + σ √d), by the largest σ; None where nothing is clipped.

        The mean of a batch's clipped gradients is about C long at most, and the noise σ √d.
        """
        if not self.config.private:
            return None
        c, shared, sigma = self.config, self.shared_noise, max(self.sigma)
        if shared is not None:
            sigma = math.sqrt(max(shared.own) + (len(self.roster) - 1) * shared.pair)
        a, noise = c.algorithm, sigma * math.sqrt(self.weights)
        return float(a.local_steps * a.step_size * (c.privacy.clip + noise))

    @property
    def increment_bytes(self) -> int:
        """The length of an increment of few bits in a message; 0 where messages are exact."""
        return increment_bytes(self.config.transport.bits, self.weights)

    @property
    def most_increments(self) -> int:
        """The increments that a message may have: they are not longer than the exact sums."""
        return self.message_bytes // self.increment_bytes if self.increment_bytes else 0

    @property
    def is_sum(self) -> bool:
        """Whether the run is one noised sum, for which each site needs the messages of all."""
        return self.config.sum.kind is not None

    @property
    def honest(self) -> int | None:
        """How many sites have to be honest for ε to hold, oneself included, where noise is shared."""
        return self.config.honest if self.config.pairwise else None

    @property
    def if_honest(self) -> str:
        """The assumption of ε about other sites, for pairwise noise."""
        h, n = self.honest, len(self.roster)
        return "" if h is None else f" if {h} of the {n} sites are honest, this one included"

    @cached_property
    def graph(self) -> Graph:
        """The links."""
        return make_graph(self.config)

    @cached_property
    def links(self) -> set[tuple[int, int]]:
        """Every (source, target) that is ever used."""
        return set(self.graph.links())

    @property
    def rounds(self) -> int:
        """Steps with gradients and, after them, those of rounds of mixing alone: as many for a message as before."""
        a = self.config.algorithm
        return a.steps + a.final_mixing * a.local_steps

    def spec(self, dataset: Dataset, node: int, device: str = "cpu", start: Path | None = None) -> RunSpec:
        """Make the run of one node again, from its own data; refuse an agreement that says otherwise.

        A run that continues another one may begin with a model, in the file `start`.

        Guarantee: mechanism, σ and allowance of the node are calibrated here, from its own number of samples.
        """
        rows = np.arange(len(dataset.y))
        J, agreed, shape = dataset.samples(rows), self.samples[node], _shape(dataset)
        remedy = "J is public and counted with: propose a new agreement, with the number that is true"
        _refuse([(agreed != J, f"the data has {J} samples, and {self.name} says {agreed}", remedy)])
        what = f"the data is like {shape}, and {self.name} says {self.sample.model_dump()}"
        _refuse([(shape != self.sample.model_dump(), what, "bring data like that")])
        self._refuse_size(node)
        config = self.config.with_section("engine", device=device)
        problem = assembled(config, dataset, [rows], range(node, node + 1), self.samples)
        if self.continues is not None and self.continues.starts_from_model:
            _load(problem.model, start)
        resolved = resolve(config, problem.encoded(chosen_device(device)))
        spec = build_run(resolved, agreed=self.values, earlier=continuing.earlier(self, config))
        self._refuse_other(spec, problem.encoder)
        self._refuse_other_budget(spec, node)
        return spec

    def refuse_policy(self, policy: Policy, node: int) -> None:
        """Refuse to let a node's site sign, where its policy does not allow this, whatever its records have spent."""
        seeded = self.config.seed is not None
        if seeded and not policy.allows_seeds:
            raise refused(f"simulation is not true, and the agreement has the seed {self.config.seed}: no ε holds")
        if not seeded:
            refuse_spending(
                policy, epsilon=self.epsilon[node], delta=self.delta[node], relation=self.config.privacy.relation,
                samples=self.samples[node], before=Total(0.0, 0.0),
            )  # fmt: skip
        if policy.weights is not None and self.weights > policy.weights:
            raise refused(f"weights = {policy.weights:,}, and the agreement's model has {self.weights:,}")
        if policy.algorithms is not None and (name := self.config.algorithm.name) not in policy.algorithms:
            raise refused(f"algorithms = {policy.algorithms}, and the agreement's is {name!r}")
        if policy.fewest is not None and self.limits.fewest < policy.fewest:
            raise refused(f"fewest = {policy.fewest}, and the agreement continues with {self.limits.fewest} sites")
        if policy.most_honest is not None and (most := self.honest or 1) > policy.most_honest:
            raise refused(f"honest = {policy.most_honest}, and ε of the agreement holds if {most} sites are honest")
        for other, card in enumerate(self.roster) if policy.peers is not None else ():
            if other != node and card.fingerprint not in (policy.peers or ()):
                raise refused(f"peers does not name {card.fingerprint} ({card.name})")

    def _refuse_size(self, node: int) -> None:
        """Refuse a model of another size than was agreed on, or too large for this machine, before it takes memory.

        Guarantee: the policy was asked about the size that the model has.
        """
        sample = self.sample
        try:
            shapes = tuple(sample.shape), tuple(sample.target)
            model, _ = first_model(self.config, *shapes, sample.classes, device="meta")
            weights: int | str = sum(value.numel() for value in model.parameters())
        except (RuntimeError, OverflowError, TypeError, MemoryError):
            weights = "more than can be counted"
        if weights != self.weights:
            raise Refused(
                f"{self.name} says {self.weights} weights, and its model has {weights}",
                "nothing was signed: ask the proposer for a new agreement",
            )
        need = (4 + sum(node in link for link in self.links)) * self.message_bytes
        devices.refuse_vast(
            need,
            f"{self.name}: {self.weights:,} weights need",
            "nothing was signed: take a machine with more memory, or agree on a smaller model or graph",
        )

    def _refuse_other(self, spec: RunSpec, encoder: nn.Module | None) -> None:
        own = {"model": _model(spec.learning.model, encoder), "graph": graph_hash(spec.graph)}
        names = {"model": "model (x⁰, or the map of features)", "graph": "graph"}
        remedy = "nothing was signed: compare the versions of privsgp, torch and NumPy with the proposer's"
        for key, value in own.items():
            what = f"{self.name}: the {names[key]} comes out differently here"
            _refuse([(value != self.values[key], what, remedy)])
        for i, (m, sigma) in enumerate(zip(spec.protection.mechanisms, self.sigma, strict=True)):
            is_other = abs(m.sigma - sigma) > _CLOSE * max(m.sigma, sigma)
            what = f"{self.name}: sigma of {self.roster[i].name} is {sigma:g}, and its budget needs {m.sigma:g}"
            _refuse([(is_other, what, "nothing was signed: ask the proposer for a new agreement")])

    def _refuse_other_budget(self, spec: RunSpec, node: int) -> None:
        """Refuse a σ with which this node would spend more than its budget, or much less.

        Each site checks its own: what others add is theirs to check, and not part of this node's guarantee.
        """
        p, m, asked = spec.protection, spec.protection.mechanisms[node], self.epsilon[node]
        if p.allowance is None or asked is None:
            return
        spent = p.epsilon(node, p.allowance[node])
        lower = m.with_sigma(m.sigma / _VASTLY)
        wasted = not self.config.pairwise and (
            accountant.rough(lower, p.allowance[node], p.deltas[node], p.relation) <= asked
        )
        what = f"{self.name}: sigma = {m.sigma:g} of this site would spend ε = {up(spent)}, and its budget is {asked:g}"
        is_other = spent > asked * (1 + _ROUNDING) or wasted
        _refuse([(is_other, what, "nothing was signed: ask the proposer for a new agreement")])


def _refuse(faults: Iterable[Fault], where: str = "") -> None:
    for is_there, what, remedy in faults:
        if is_there:
            raise Refused(where + what, remedy)


def _load(model: nn.Module, start: Path | None) -> None:
    """Put the agreed first weights into a model."""
    if start is None or not start.exists():
        remedy = "put the file that came with the study into the study's folder, under its name"
        raise Refused(f"{start}, the model that the run begins with, is missing", remedy)
    model.load_state_dict(read_model(start, Layout.of(model)), strict=False)


def propose(
    config: Config,
    roster: Sequence[Card],
    dataset: Dataset,
    *,
    name: str,
    limits: Limits,
    days: float = 30.0,
    relay: Card | None = None,
    continues: Continues | None = None,
    start: Path | None = None,
) -> Agreement:
    """Make an agreement from a configuration and the sites' cards; of the data only the shape of samples is used.

    It may continue a run, from the model in the file `start`, if given.
    """
    nodes, auto = config.data.nodes, config.auto
    faults = (
        (nodes != len(roster), f"data.nodes = {nodes} with {len(roster)} cards", "give one --site CARD per node"),
        (bool(auto), f"{', '.join(auto)} = 'auto'", "write the number that `privsgp plan` gives"),
        *_algorithm_faults(config),
    )
    _refuse(faults)
    if config.data.sizes is None:
        raise Refused("run.toml has no data.sizes", "write each site's public number of samples, in --site's order")
    # A step that was sent is never made again: no noise is needed for repeats.
    sizes, config = config.data.sizes, configs.parse(config.with_section("privacy", spare=0.0).shared())
    config = with_scale(config, sizes)  # θ and C are signed as numbers: no site, and no restart, settles on its own
    model, encoder = first_model(config, dataset.x.shape[1:], dataset.y.shape[1:], dataset.classes)
    if start is not None:
        _load(model, start)
    now = dt.datetime.now(dt.UTC)
    values = {
        "format": FORMAT, "version": PROTOCOL, "release": __version__, "name": name,
        "created": text_of(now), "expires": text_of(now + dt.timedelta(days=days)),
        "config": config.shared(), "roster": [card.model_dump() for card in roster],
        "graph": graph_hash(make_graph(config)), "sample": _shape(dataset), "model": _model(model, encoder),
        "steps": config.algorithm.steps, "samples": list(sizes),
        **_budgets(config), "sigma": [], "shared_noise": None,
        "limits": limits.model_dump(), "relay": relay and relay.model_dump(),
    }  # fmt: skip
    if continues is not None:
        values["continues"] = continues.model_dump(by_alias=True, exclude_unset=True)
    study = Study.of(values, name)
    _refuse(continuing.faults(study, config))
    return Agreement.of(values | _noise(config, dataset, continuing.earlier(study, config)), name)


def refuse_counted(config: Config, file: Path, dataset: Dataset) -> None:
    """Refuse, without a seed, classes that were counted in a file's labels, its test labels too: all sites see them."""
    if config.seed is None and dataset.counted:
        raise Refused(
            f"--data {file}: no data.classes, and privsgp does not count them in a site's own labels",
            "write the number of classes into run.toml (data.classes), or store it in the file as `classes`",
        )


def _shape(dataset: Dataset) -> dict[str, Any]:
    return {"shape": list(dataset.x.shape[1:]), "target": list(dataset.y.shape[1:]), "classes": dataset.classes}


def _budgets(config: Config) -> dict[str, list[Any]]:
    """Return (ε_i, δ_i) of every node."""
    n = config.data.nodes
    epsilon = per_node(config.privacy.epsilon if config.private else None, n)
    return {"epsilon": list(epsilon), "delta": list(per_node(config.privacy.delta, n))}


def _noise(config: Config, like: Dataset, earlier: Earlier) -> dict[str, Any]:
    """Return every node's noise, calibrated from public numbers alone: the samples here are made up."""
    J, most = (config.data.sizes or [1])[0], config.data.rows_per_person
    persons = None if most is None else PersonRows(np.arange(2 * J, dtype=np.uint64).reshape(J, 2), most)
    blank = dataclasses.replace(
        like, x=np.zeros((J, *like.x.shape[1:]), like.x.dtype), y=np.zeros((J, *like.y.shape[1:]), like.y.dtype),
        x_test=None, y_test=None, persons=persons,
    )  # fmt: skip
    config = config.with_section("engine", device="cpu")
    problem = assembled(config, blank, [np.arange(J)], range(1), config.data.sizes or ())
    p = build_run(resolve(config, problem.encoded(chosen_device("cpu"))), earlier=earlier).protection
    shared = None if p.covariance is None else {"own": list(p.covariance.own), "pair": p.covariance.pair}
    return {"sigma": [m.sigma for m in p.mechanisms], "shared_noise": shared}


def _algorithm_faults(config: Config) -> Iterator[Fault]:
    """Yield features that a site cannot continue after a crash, or that do not send to neighbours in step."""
    a, privacy, features = config.algorithm, config.privacy, config.features
    what = f"algorithm.name = {a.name!r} between sites: it does not send to neighbours by push-sum in every step, "
    what += "or no test shows that its memory survives a crash"
    yield a.name not in ALLOWED, what, f"take {' or '.join(map(repr, ALLOWED))}"
    what = f"privacy.accountant = {privacy.accountant!r} between sites: its ε is not a guarantee"
    yield privacy.nominal, what, "take 'certified': the other sites rely on the agreement"
    remedy = "write 'independent' or 'pairwise': the agreement must name the sites to trust"
    yield privacy.noise == "auto", "privacy.noise = 'auto' between sites", remedy
    what = f"features.name = {features.name!r} between sites: its weights are not sent to other sites"
    yield features.name not in FEATURES, what, f"take {', '.join(map(repr, FEATURES))}, or bring encoded samples"
    for key, value in features.options.items():
        is_vast = isinstance(value, int) and value > _MOST_FEATURES
        yield is_vast, f"features.{key} = {value} between sites", f"take at most {_MOST_FEATURES}"
    what = f"algorithm.average = {a.average!r} with algorithm.final_mixing = {a.final_mixing} between sites"
    remedy = "leave one of them out: what is on its way between sites is no average"
    yield a.average != "none" and bool(a.final_mixing), what, remedy


def graph_hash(graph: Graph) -> str:
    """Return the SHA-256 of all shares over a period, or over many steps if there is none."""
    edges = [graph.edges(k) for k in range(graph.period or HORIZON)]
    triples = [[e.source.tolist(), e.target.tolist(), e.share.tolist()] for e in edges]
    return digest(triples)


def _model(model: nn.Module, encoder: nn.Module | None) -> dict[str, Any]:
    encoder_digest = None if encoder is None else features.digest(encoder)
    return {"weights": Layout.of(model).dim, "x0": weights_digest(model), "features": encoder_digest}
