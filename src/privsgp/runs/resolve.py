"""Settle a configuration once: θ, pooled data and the graph. "auto" is settled before, by the planner."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from privsgp import graph
from privsgp.algorithms import ALGORITHMS
from privsgp.errors import Refused
from privsgp.runs import booked
from privsgp.runs.budgets import per_node, with_scale
from privsgp.seeds import public_seed

if TYPE_CHECKING:
    from privsgp.runs.config import Config
    from privsgp.runs.problem import Problem


@dataclass(frozen=True)
class Resolved:
    """A configuration with numbers everywhere, and what is learnt.

    `config` is what config.toml of the run folder holds. `counted` and `problem` are what the run trains and counts:
    where an algorithm pools all data, they have one node.
    """

    config: Config
    counted: Config
    problem: Problem
    graph: graph.Graph


def resolve(config: Config, problem: Problem, started: Config | None = None) -> Resolved:
    """Settle what is open. A run that continues keeps the θ that it `started` with."""
    if config.auto:
        what = f"{config.auto[0]} = 'auto', and this command makes no plan"
        raise Refused(what, "write the number that `privsgp plan` gives")
    config = with_scale(config, problem.samples, started)
    counted, problem = pooled(config, problem)
    return Resolved(config, counted, problem, make_graph(counted))


def pooled(config: Config, problem: Problem) -> tuple[Config, Problem]:
    """Put all nodes' data on one node, drawn at the same rate and at the strictest budget, if the algorithm wants that.

    Guarantee: every node's (ε_i, δ_i) is kept to: the one node has the smallest of each, or the largest σ_i.
    """
    n, p = config.data.nodes, config.privacy
    if n == 1 or not ALGORITHMS[config.algorithm.name].pooled:
        return config, problem
    if (persons := problem.dataset.persons) is not None:
        known = np.unique(persons.hashes[np.concatenate(problem.parts)], axis=0)
        if len(known) < sum(problem.samples):
            what = f"{config.algorithm.name} puts all rows in one table, and a person has rows at several nodes"
            raise Refused(what, "give all rows of a person to one node, or use a method that keeps rows at their nodes")
    strictest = {"delta": min(per_node(p.delta, n))}
    if p.epsilon is not None:
        strictest["epsilon"] = min(per_node(p.epsilon, n))
    if p.sigma is not None:
        strictest["sigma"] = max(per_node(p.sigma, n))
    values = config.model_dump()
    values["data"] |= {"nodes": 1, "sizes": None, "sites": None}
    values["clock"] |= {"stragglers": 0.0, "slowdown": 1.0}  # slow nodes have handed their data over
    values["privacy"] |= strictest
    values["algorithm"] |= {"batch": n * config.algorithm.batch}
    return config.with_values(values), dataclasses.replace(
        problem, parts=[np.concatenate(problem.parts)], aside=booked.pooled(problem.aside)
    )


def make_graph(config: Config) -> graph.Graph:
    """Build the network, check the paper's Assumptions 1 and 2, and that the algorithm can do with it."""
    algorithm = ALGORITHMS[config.algorithm.name]
    if algorithm.network in ("server", "alone"):
        return graph.unconnected(algorithm.network, config.data.nodes)
    seed = public_seed(config.seed, config.shared_hash(), "graph")
    network = graph.make(config.graph.name, config.data.nodes, seed=seed, **config.options("graph"))
    graph.check(network)
    if algorithm.network == "undirected" and not algorithm.asynchronous:  # pairs average evenly, whatever their shares
        graph.check_symmetric(network)
    every = config.algorithm.local_steps
    return network if every == 1 else graph.every_few(network, every)
