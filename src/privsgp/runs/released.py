"""Pay for a noised sum, make it, and add it up: budget book and ledgers first, then the noise."""

from __future__ import annotations

import os
import uuid
from typing import TYPE_CHECKING, Any

from blake3 import blake3

from privsgp import graph as graphs
from privsgp.accounting import policy as policies
from privsgp.accounting.book import Book, Entry
from privsgp.accounting.ledger import Header, Ledger
from privsgp.errors import Refused
from privsgp.randomness.noise import Keyed, Secure
from privsgp.runs import booked
from privsgp.runs.problem import layout
from privsgp.seeds import public_seed
from privsgp.statistics.release import Release

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

    from privsgp.accounting.book import Records
    from privsgp.runs.config import Config
    from privsgp.statistics.release import Array, Vectors


def planned(config: Config, vectors: Vectors, sizes: Sequence[int], epsilon: float, delta: float) -> Release:
    """Return the release of all sites of a configuration: its relation, its noise, its honest sites."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise Refused("a private evaluation or description with several processes", "run it without torchrun")
    if config.data.person is not None:  # a person's rows may be on both sides, and add up
        raise Refused("a private evaluation or description of persons with several rows", "it is for records only")
    honest = config.honest if config.pairwise and len(sizes) > 1 else None
    return Release.plan(vectors, sizes, epsilon, delta, config.privacy.relation, honest, config.pair_ratio)


def total(
    release: Release, sums: Sequence[Array], config: Config, budget: float, folder: Path, command: str,
    records: Sequence[Records | None],
) -> NDArray[np.float64]:  # fmt: skip
    """Return the noised sum over the sites; `folder` gets a ledger for each.

    Guarantee: without a seed the release is in the budget book and in durable ledgers before any noise is drawn. It is
    charged to all of `records`. If the process dies, it counts as spent, and another call is another release.
    """
    run, n, simulation = uuid.uuid4().hex, len(sums), config.seed is not None
    common: dict[str, Any] = {"run": run, "relation": release.relation, "simulation": simulation}
    entries = [
        Entry(
            node=i, ledger=run, command=command, name=config.name, data=config.data.path or config.data.name,
            folder=str(folder.resolve()), trust="per-node" if release.noise.name == "independent" else "honest sites",
            epsilon=budget, delta=release.delta, sites=tuple(config.data.sites or ()), **common,
        )
        for i in range(n)
    ]  # fmt: skip
    booked.enter(entries, records, resumed=False, policy=policies.read(policies.default_home() / "policy.toml"))
    (folder / "ledger").mkdir(parents=True)
    ledgers = [_opened(folder, i, release, config, budget, common) for i in range(n)]
    try:
        for ledger in ledgers:
            ledger.reserve(0, 1)
        if not simulation:
            Book().remember(run, {i: one.seen("")[:2] for i, one in enumerate(ledgers)})
        messages = release.noised(sums, _source(config, folder))
        for ledger, message in zip(ledgers, messages, strict=True):
            ledger.sent(0, blake3(message.numpy().tobytes()).hexdigest())
            ledger.close()
        if not simulation:
            Book().remember(run, {i: one.seen("")[:2] for i, one in enumerate(ledgers)})
    finally:
        for ledger in ledgers:
            ledger.unlock()
    seed = public_seed(config.seed, config.shared_hash(), "graph")
    return release.total(messages, graphs.make(config.graph.name, n, seed=seed, **config.options("graph")))


def _opened(folder: Path, node: int, release: Release, config: Config, budget: float, common: dict[str, Any]) -> Ledger:
    header = Header(
        node=node, mechanism=release.mechanisms[node].describe(), steps=1, spare=0, layout=layout(config),
        budget={"epsilon": budget, "delta": release.delta},
        site=config.data.sites[node] if config.data.sites else "", **common,
    )  # fmt: skip
    return Ledger.open(folder / "ledger" / f"node-{node}.jsonl", header)


def _source(config: Config, folder: Path) -> Keyed | Secure:
    """Return secret noise; of a simulation noise that the seed and the folder's name decide."""
    return Secure() if config.seed is None else Keyed(config.seed).derived(f"noise of {folder.name}")


def next_folder(place: Path, name: str) -> Path:
    """Return the first folder `name`-1, `name`-2, … that is not there."""
    number = 1
    while (place / f"{name}-{number}").exists():
        number += 1
    return place / f"{name}-{number}"
