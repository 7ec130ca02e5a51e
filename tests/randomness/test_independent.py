"""Independent noise as a run is given it: each node's own σ, by its own mechanism."""

from __future__ import annotations

import torch

from privsgp.accounting.mechanisms import SampledMean
from privsgp.randomness.noise import IndependentNoise, Keyed, Secure, add_noise_

NODES = range(3, 6)
SIGMA = [0.1, 0.2, 0.3]


def _of_nodes(source, sigma=SIGMA):
    made = [SampledMean(sigma=s, clip=1.0, batch=2, samples=10) for s in sigma]
    return IndependentNoise().of_nodes(NODES, made, source)


def test_each_node_gets_its_own_sigma_of_the_step():
    noise, g, wanted = _of_nodes(Keyed(1)), torch.ones(3, 7), torch.ones(3, 7)
    noise.add_(g, NODES, 4)
    add_noise_(wanted, Keyed(1), NODES, 4, sigma=SIGMA)
    assert torch.equal(g, wanted)


def test_one_node_alone_gets_what_it_gets_among_others():
    noise, g, one = _of_nodes(Keyed(1)), torch.zeros(3, 7), torch.zeros(1, 7)
    noise.add_(g, NODES, 4)
    noise.add_(one, [4], 4)
    assert torch.equal(one[0], g[1])


def test_nothing_is_drawn_where_every_sigma_is_0():
    none, g = _of_nodes(Secure(), [0.0] * 3), torch.zeros(3, 7)
    none.add_(g, NODES, 0)
    none.add_(g, NODES, 0)  # a draw would be refused the second time
    assert not g.any()


def test_a_kernel_may_draw_a_simulations_noise_alone():
    source = Keyed(1)
    assert _of_nodes(source).kernel_source is source
    assert _of_nodes(source := Secure()).kernel_source is source


def test_it_is_a_value_with_a_name():
    assert IndependentNoise() == IndependentNoise()
    assert IndependentNoise().name == "independent"
