"""A small network with everything that makes runs differ, trained by the package and by the reference."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field
from typing import Any

import networkx as nx
import numpy as np
import torch
from torch import nn

import reference
from networkx_graphs import from_networkx
from privsgp.algorithms import ALGORITHMS, Block, Drawn, Exchange, Randomness, State
from privsgp.engine.drive import drive, rehearsed
from privsgp.gradients import Layout, PerSample, stack
from privsgp.models import per_sample
from privsgp.randomness.coins import batches, draw
from privsgp.randomness.noise import Keyed, add_noise_
from privsgp.transport.in_process import InProcess
from settings import settings_of

cross_entropy = per_sample("cross-entropy")


def irregular(nodes=4):
    """A directed ring in two halves with extra edges: nobody is connected in one step, and w ≠ 1."""
    even, odd = nx.DiGraph(), nx.DiGraph()
    for graph in (even, odd):
        graph.add_nodes_from(range(nodes))
    for i in range(nodes):
        (odd if i % 2 else even).add_edge(i, (i + 1) % nodes)
    even.add_edges_from([(0, 2), (0, 3)])
    odd.add_edge(3, 1)
    return from_networkx([even, odd])


def mlp():
    return nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3))


@dataclass
class Setting:
    """What both sides are given. The nodes hold 6, 9, 4 and 7 samples; a pass has room for `room` of them."""

    model: nn.Module = field(default_factory=mlp)
    loss: Any = cross_entropy
    graph: Any = field(default_factory=irregular)
    samples: tuple[int, ...] = (6, 9, 4, 7)
    rate: float = 0.3
    sigma: tuple[float, ...] = (0.1, 0.0, 0.3, 0.05)
    clip: float = 0.5
    steps: int = 6
    seed: int = 3
    room: int = 2
    dtype: torch.dtype = torch.float64

    def __post_init__(self):
        generator = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for p in self.model.to(self.dtype).parameters():
                p.copy_(torch.randn(p.shape, generator=generator, dtype=torch.float64))
        shape = len(self.samples), max(self.samples) + 1
        self.inputs = torch.randn(*shape, 5, generator=generator, dtype=torch.float64).to(self.dtype)
        self.targets = torch.randint(3, shape, generator=generator)
        self.layout = Layout.of(self.model)
        self.source = Keyed(self.seed)

    def mechanisms(self, algorithm, settings):
        """One per node, with b_i = q J_i."""
        return [
            algorithm.mechanism(settings, sigma=s, batch=self.rate * J, samples=J, kappa=1e-12)
            for J, s in zip(self.samples, self.sigma, strict=True)
        ]

    def draws(self, mechanisms):
        """The samples of every step and node."""
        nodes = range(len(mechanisms))
        return [[draw(self.source, mechanisms[i].at(k), i, k) for i in nodes] for k in range(self.steps)]

    def step_size(self, k):
        return 0.7 / (1 + k)


def nothing(_k, _event):
    pass


class Given(Randomness):
    """Samples and noise by functions of the step."""

    def __init__(self, sample, noise, public=None):
        self.sample, self._noise = sample, noise
        if public is not None:
            self.public = public

    def noise(self, k, g, nodes=slice(None)):
        del nodes
        self._noise(k, g)


def public(purpose, k):
    """Bits that everybody knows."""
    return np.random.Philox(key=zlib.crc32(purpose.encode()), counter=[0, 0, 0, k])


def trained(setting, name, *, rules=True, watch=nothing, **options):
    """Train as the engine does; return the algorithm and its last state. `watch` sees the events of each step."""
    algorithm = ALGORITHMS[name]
    settings = settings_of(name, clip=setting.clip, **options)
    mechanisms = setting.mechanisms(algorithm, settings)
    nodes, draws = len(mechanisms), setting.draws(mechanisms)
    x0 = setting.layout.flatten(setting.model)
    probe = torch.randn(4, 5, generator=torch.Generator().manual_seed(1)).to(setting.dtype)

    def sample(k):
        passes = map(torch.from_numpy, batches(draws[k], setting.room, nobody := max(setting.samples)))
        return [Drawn(rows, rows != nobody) for rows in passes]

    def noise(k, g):
        add_noise_(g, setting.source, range(nodes), k, sigma=[m.at(k).sigma for m in mechanisms])

    transport = InProcess(setting.graph, x0)

    def driver(k, event):
        watch(k, event)
        return transport.mix(k, *event) if isinstance(event, Exchange) else rehearsed(k, event)

    block = Block(
        mechanisms=mechanisms,
        data=(setting.inputs, setting.targets),
        gradient=stack(setting.model, setting.loss, (probe, torch.tensor([0, 1, 0, 1])), rules=rules),
        random=Given(sample, noise, public),
        step_size=setting.step_size,
    )
    run, state = algorithm(block, settings), State.start(x0, nodes)
    run.begin(state.z)
    for k in range(setting.steps):
        state = drive(run.step(k, state), k, driver)
    return run, state


def expected(setting, name, **options):
    """The same by the reference, with the same coins and noise."""
    options.pop("table", None)
    algorithm = ALGORITHMS[name]
    settings = settings_of(name, clip=setting.clip, **options)
    mechanisms = setting.mechanisms(algorithm, settings)
    nodes = len(mechanisms)
    noise = torch.empty(setting.steps, nodes, setting.layout.dim, dtype=torch.float64)
    for k in range(setting.steps):
        setting.source.fill_normal(noise[k], range(nodes), k)

    def gradient(z, i, j):
        sample = setting.inputs[i, j].numpy(), setting.targets[i, j].numpy()
        return reference.per_sample_gradient(setting.model, setting.loss, z, *sample)

    return reference.run(
        name,
        gradient=gradient,
        x0=setting.layout.flatten(setting.model).double().numpy(),
        samples=setting.samples,
        batch=[m.batch for m in mechanisms],
        draws=setting.draws(mechanisms),
        step_size=[setting.step_size(k) for k in range(setting.steps)],
        P=[setting.graph.matrix(k) for k in range(setting.steps)],
        steps=setting.steps,
        noise=noise.numpy(),
        sigma=[m.sigma for m in mechanisms],
        clip=setting.clip,
        **options,
    )


def entries(run):
    """The table of every node, multiplied out, [m, J + 1, d]."""
    block = run.block
    rows = torch.arange(block.rows + 1).expand(len(block.mechanisms), -1)
    x0 = torch.zeros(len(rows), block.gradient.layout.dim, dtype=block.data[0].dtype)
    like = block.gradients(x0, Drawn(rows, torch.ones_like(rows, dtype=torch.bool)))
    return PerSample(run.table._entries(rows, run.table._like_parts(like))).dense()


def assert_agree(run, state, out):
    for got, wanted in zip(state, (out.x, out.w, out.z), strict=True):
        np.testing.assert_allclose(got.numpy(), wanted, rtol=0, atol=1e-10)
    if out.tables:
        stored = entries(run).numpy()
        for i, table in enumerate(out.tables):
            np.testing.assert_allclose(stored[i, : len(table)], table, rtol=0, atol=1e-10)
            np.testing.assert_allclose(run.table.mean[i].numpy(), table.mean(0), rtol=0, atol=1e-10)
            assert not stored[i, len(table) :].any()
