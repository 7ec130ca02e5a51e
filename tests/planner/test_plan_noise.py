from __future__ import annotations

import math
from dataclasses import replace

import networkx as nx
import numpy as np
import pytest
import torch

from networkx_graphs import from_networkx
from privsgp import graph as graphs
from privsgp import models
from privsgp.accounting.mechanisms import SampledMean
from privsgp.accounting.sharing import Sharing, solve
from privsgp.algorithms import Block, Drawn, Exchange, PrivSGP, Randomness, Settings, State
from privsgp.engine.drive import drive
from privsgp.planner import stand_in
from privsgp.planner.noise import Network
from privsgp.planner.rehearsal import Rehearsal, RehearsalSpec

STEPS, GAMMA, SIGMA = 60, 0.5, 0.05


def irregular(nodes):
    """A directed ring with extra edges from every third node: push-sum weights leave 1."""
    ring = nx.cycle_graph(nodes, create_using=nx.DiGraph)
    ring.add_edges_from((i, (i + 3) % nodes) for i in range(0, nodes, 3))
    return from_networkx([ring])


GRAPHS = {
    "exponential": lambda n: graphs.make("exponential", n),
    "ring": lambda n: graphs.make("ring", n),
    "irregular": irregular,
}


@pytest.fixture(scope="module")
def rehearsal():
    samples = stand_in.make((20,), 5, samples=800)
    model = models.make("mlp", input_shape=(20,), outputs=5, seed=0, hidden=64)
    return Rehearsal(model, models.per_sample("cross-entropy"), [samples, samples])


def run(rehearsal, graph, sigmas):
    """All nodes for real: own samples, own noise, the graph's mixing; the same coins whatever σ is."""
    n, rows = graph.nodes, len(rehearsal.runs[0].y) // graph.nodes
    coins, noise = torch.Generator().manual_seed(0), torch.Generator().manual_seed(1)
    x, y = (t[: n * rows].reshape(n, rows, *t.shape[1:]) for t in (rehearsal.runs[0].x, rehearsal.runs[0].y))

    def driver(k, event):
        if isinstance(event, Exchange):
            P = torch.from_numpy(graph.matrix(k))
            return (P @ event.x.double()).float(), P @ event.w
        return None

    class _Random(Randomness):
        def sample(self, _k):
            return [Drawn(torch.arange(rows).expand(n, -1), torch.rand(n, rows, generator=coins) < 0.5)]

        def noise(self, _k, g, _node=None):
            g.add_(torch.randn(g.shape, generator=noise) * torch.tensor(sigmas)[:, None])

    block = Block(
        mechanisms=[SampledMean(sigma=s, clip=1.0, batch=rows / 2, samples=rows) for s in sigmas],
        data=tuple(torch.cat([t, torch.zeros_like(t[:, :1])], 1) for t in (x, y)),
        gradient=rehearsal.gradient,
        random=_Random(),
        step_size=lambda _k: GAMMA,
    )
    state, algorithm = State.start(rehearsal.x0, n), PrivSGP(block, Settings())
    for k in range(STEPS):
        state = drive(algorithm.step(k, state), k, driver)
    return state


def moved(rehearsal, spec, distance):
    """Return the mean square by which noise moves a coordinate, over κ²T²."""
    noisy, quiet = (rehearsal.ends(one, distance).clone() for one in (spec, replace(spec, noise=0.0)))
    return float((noisy - quiet).double().square().mean()) / (spec.noise * distance) ** 2


@pytest.mark.parametrize("nodes", [8, 16])
@pytest.mark.parametrize("name", GRAPHS)
def test_predicted_noise_is_within_ten_percent_of_measured(rehearsal, name, nodes):
    graph = GRAPHS[name](nodes)
    sigmas = [SIGMA * (1 + i % 3) for i in range(nodes)]
    noisy, quiet = run(rehearsal, graph, sigmas), run(rehearsal, graph, [0.0] * nodes)
    x_noisy, x_quiet = (s.x.double().sum(0) / s.w.sum() for s in (noisy, quiet))
    measured = float((x_noisy - x_quiet).square().mean())
    plain = STEPS * GAMMA**2 * sum(s**2 for s in sigmas) / nodes**2
    kappa = math.sqrt(sum(s**2 for s in sigmas)) / nodes / math.sqrt(STEPS)
    left = moved(rehearsal, RehearsalSpec("privsgp", Settings(), kappa, STEPS / 2), GAMMA * STEPS)
    assert left * plain == pytest.approx(measured, rel=0.1)


def test_a_network_that_shares_noise_expects_less_of_it_in_the_average():
    budgets, sizes = [(1.0, 1e-5)] * 12 + [(4.0, 1e-5)] * 4, [300] * 16
    sharing = Sharing(16, 12)
    alone, shared = Network(sizes, budgets), Network(sizes, budgets, sharing=sharing)
    weighted = Network(sizes, budgets, sharing=sharing, weighting="noise")
    assert alone.remaining == 1
    assert shared.remaining < 0.5
    assert weighted.weights == pytest.approx(np.array([1.0] * 12 + [3.6] * 4) / (12 + 4 * 3.6), rel=0.1)
    assert shared.covariance([1.0] * 16).average_sigma == pytest.approx(solve([1.0] * 16, 12, 2.0).average_sigma)


def test_curvature_pulls_noise_back():
    """On f = x²/2 one step shrinks what was collected by 1 − γ: the sum of a geometric series."""
    samples = stand_in.Samples(*(torch.zeros(64, 1) for _ in range(4)))
    model = torch.nn.Linear(1, 4000, bias=True)
    torch.nn.init.zeros_(model.weight)
    torch.nn.init.zeros_(model.bias)
    rehearsal = Rehearsal(model, lambda out, _y: out.square().sum(-1) / 2, [samples])
    left = moved(rehearsal, RehearsalSpec("privsgp", Settings(clip=1e6), 0.1, 1e9), 6.4)  # γ = 0.1, 64 steps
    expected = (1 + sum(0.9 ** (2 * k) for k in range(64)) / 64) / 2  # weights see inputs of 0, biases curvature 1
    assert left == pytest.approx(expected, rel=0.05)
    assert np.isfinite(left)
