from __future__ import annotations

import pytest
import torch
from modules import RULED, around, build, cross_entropy, mlp, plain_gradients, probe, samples
from torch import nn

from privsgp.gradients import Layout, make_table, stack
from privsgp.gradients.per_sample import Outer
from privsgp.gradients.rules.ruled import Ruled
from privsgp.gradients.stacked import Functional


@pytest.mark.parametrize("nodes", [1, 3])
@pytest.mark.parametrize("name", RULED)
def test_the_rule_gives_the_gradients_of_torch_func_and_of_plain_autograd(name, nodes):
    model = build(RULED[name])
    z, data = around(model, nodes), samples(nodes, 4)
    rule = Ruled(model, Layout.of(model), cross_entropy)(z, *data)
    functional = Functional(model, Layout.of(model), cross_entropy)(z, *data)
    plain = plain_gradients(model, cross_entropy, z, *data)
    torch.testing.assert_close(rule.dense(), plain, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(rule.dense(), functional.dense(), rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(rule.norm(), plain.norm(dim=-1), rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(rule.sum(), plain.sum(1), rtol=1e-10, atol=1e-12)
    assert rule.dense().shape[-1] == Layout.of(model).dim


@pytest.mark.parametrize("name", [name for name in RULED if name not in ("three dimensions", "bias alone")])
def test_nothing_of_the_size_of_the_batch_times_d_is_kept(name):
    model = build(RULED[name])
    g = Ruled(model, Layout.of(model), cross_entropy)(around(model, 2), *samples(2, 3))
    assert all(isinstance(piece, Outer) for piece in g.pieces)


@pytest.mark.parametrize(
    ("name", "data_layers"),
    [("bare linear", [True]), ("mlp", [True, False]), ("flatten", [True, False]), ("views", [True, True, False]),
     ("scaled input", [False, False]), ("residual", [True, False, False])],
)  # fmt: skip
def test_it_knows_which_layers_see_the_data_itself(name, data_layers):
    model = build(RULED[name])
    inputs, targets = samples(2, 3)
    g = Ruled(model, Layout.of(model), cross_entropy)(around(model, 2), inputs, targets)
    assert [piece.input_is_data for piece in g.pieces] == data_layers
    for piece in g.pieces:
        if piece.input_is_data:
            assert torch.equal(piece.input, inputs)


def test_the_users_model_is_left_alone():
    model = build(RULED["mlp"])
    rule = Ruled(model, Layout.of(model), cross_entropy)
    rule(around(model, 2), *samples(2, 3))
    assert all(type(model[i]) is nn.Linear for i in (0, 2))
    assert all(p.requires_grad and p.grad is None for p in model.parameters())


@pytest.mark.parametrize("batch", [1, 5, 24])
@pytest.mark.parametrize(
    ("widths", "options"),
    [((17, 10), {}), ((33, 19, 7), {}), ((20, 9, 11, 3), {"activation": nn.Tanh}), ((65, 31, 3), {"bias": False}),
     ((784, 64, 10), {})],
)  # fmt: skip
def test_a_nodes_bits_do_not_depend_on_the_block_it_is_in(widths, options, batch):
    model = build(lambda: mlp(*widths, **options), dtype=torch.float32)
    gradient = stack(model, cross_entropy, probe(widths[0], dtype=torch.float32))
    assert isinstance(gradient, Ruled)
    z, (inputs, targets) = around(model, 8), samples(8, batch, widths[0], dtype=torch.float32)
    mask = torch.rand(8, batch, generator=torch.Generator().manual_seed(1)) < 0.8
    rows = torch.arange(batch).expand(8, batch).where(mask, batch)

    def everything(block):
        first, second = (gradient(t * z[block], inputs[block], targets[block]) for t in (1.0, 0.5))
        seen = [first.norm(), *(p.delta for p in first.pieces), *(p.input for p in first.pieces)]
        for g in (first, second):
            g.clip_(0.7, mask[block])
        seen += [first.sum(), second.sum()]
        for difference_clip in (None, 0.3):
            table = make_table("factored", first, batch, clip=0.7, difference_clip=difference_clip)
            seen += [table.set(rows[block], first), table.replace(rows[block], second), *table.arrays().values()]
        return seen

    whole = everything(slice(0, 8))
    for size in (1, 2, 3, 5):
        for start in range(0, 8, size):
            block = slice(start, start + size)
            for part, every in zip(everything(block), whole, strict=True):
                assert torch.equal(part, every[block])
