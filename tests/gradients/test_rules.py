from __future__ import annotations

import pytest
import torch
from modules import LAYERS, UNRULED_LAYERS, around, build, cross_entropy, plain_gradients, probe, samples

from privsgp.gradients import Layout, stack
from privsgp.gradients.rules.mixed import Mixed
from privsgp.gradients.rules.ruled import Ruled


@pytest.mark.parametrize("nodes", [1, 3])
@pytest.mark.parametrize("name", LAYERS)
def test_every_layer_gives_the_gradients_of_plain_autograd(name, nodes):
    model = build(LAYERS[name])
    gradient = stack(model, cross_entropy, probe(12))
    assert type(gradient) is (Mixed if name in ("shortcut", "words") else Ruled)  # their forward is their own
    z, data = around(model, nodes), samples(nodes, 4, 12)
    g, plain = gradient(z, *data), plain_gradients(model, cross_entropy, z, *data)
    torch.testing.assert_close(g.dense(), plain, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(g.norm(), plain.norm(dim=-1), rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(g.sum(), plain.sum(1), rtol=1e-10, atol=1e-12)
    mask = torch.rand(nodes, 4, generator=torch.Generator().manual_seed(0)) < 0.7
    g.clip_(0.3, mask)
    clipped = plain * (0.3 / plain.norm(dim=-1)).clamp(max=1).where(mask, 0)[..., None]
    torch.testing.assert_close(g.dense(), clipped, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(g.sum(), clipped.sum(1), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", UNRULED_LAYERS)
def test_a_layer_without_a_rule_leaves_the_others_theirs(name):
    model = build(UNRULED_LAYERS[name])
    assert type(stack(model, cross_entropy, probe(12))) is Mixed


@pytest.mark.parametrize("name", LAYERS)
def test_a_gradient_is_kept_in_its_smaller_form(name):
    model = build(LAYERS[name])
    g = Ruled(model, Layout.of(model), cross_entropy)(around(model, 2), *samples(2, 3, 12))
    for piece in g.pieces:
        assert sum(factor[0, 0].numel() for factor in piece.factors().values()) <= piece.size


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("at", [(0, 1), (1, 3)])
def test_a_sample_that_overflows_counts_as_zero_and_disturbs_no_other(name, at):
    model = build(LAYERS[name], dtype=torch.float32)
    inputs, targets = samples(2, 4, 12, classes=2, dtype=torch.float32)
    others = torch.ones(2, 4, dtype=torch.bool)
    others[at] = False
    targets[at] = 2

    def gradients(loss):
        return Ruled(model, Layout.of(model), loss)(around(model, 2), inputs, targets)

    expected = gradients(cross_entropy)
    expected.clip_(0.5, others)
    g = gradients(lambda out, y: cross_entropy(out, y) * torch.where(y == 2, torch.inf, 1.0))
    g.clip_(0.5, torch.ones_like(others))
    torch.testing.assert_close(g.dense(), expected.dense())
    torch.testing.assert_close(g.sum(), expected.sum())
    assert not g.dense()[at].any()
