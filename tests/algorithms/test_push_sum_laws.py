"""Laws that need no reference to be believed: of the algorithms, and of the mixing they stand on."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_network import Setting, cross_entropy, entries, irregular, trained
from torch.func import functional_call

from networkx_graphs import from_networkx
from privsgp.algorithms import ALGORITHMS, PushSum
from privsgp.graph import make
from privsgp.transport.in_process import InProcess

SILENT = (0.0,) * 4
HUGE = 1e9


@pytest.mark.parametrize("name", [name for name, kind in ALGORITHMS.items() if issubclass(kind, PushSum)])
@pytest.mark.parametrize("room", [3, 9])
def test_without_noise_and_clip_full_batches_on_a_complete_graph_are_gradient_descent(name, room):
    """On the average loss f = (1/n) Σ_i f_i, f_i = (1/J_i) Σ_j f_ij."""
    setting = Setting(graph=make("complete", 4), rate=1.0, sigma=SILENT, clip=HUGE, room=room)
    _, state = trained(setting, name)
    x = setting.layout.flatten(setting.model).requires_grad_()
    for k in range(setting.steps):
        losses = [
            cross_entropy(
                functional_call(setting.model, setting.layout.views(x), (setting.inputs[i, :J],)),
                setting.targets[i, :J],
            ).mean()
            for i, J in enumerate(setting.samples)
        ]
        (slope,) = torch.autograd.grad(torch.stack(losses).mean(), x)
        x = (x - setting.step_size(k) * slope).detach().requires_grad_()
    torch.testing.assert_close(state.z, x.detach().expand(4, -1), rtol=0, atol=1e-12)


@pytest.mark.parametrize("rules", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_privsgp_without_noise_and_with_a_huge_clip_is_sgp_to_the_last_bit(dtype, rules):
    setting = Setting(sigma=SILENT, clip=HUGE, dtype=dtype, steps=10)
    (_, private), (_, plain) = (trained(setting, name, rules=rules) for name in ("privsgp", "sgp"))
    for got, wanted in zip(private, plain, strict=True):
        assert torch.equal(got, wanted)


def test_sgp_ignores_the_clip_and_the_noise_that_others_need():
    (_, noisy), (_, plain) = (trained(Setting(clip=c, sigma=s), "sgp") for c, s in [(0.1, (1.0,) * 4), (HUGE, SILENT)])
    assert torch.equal(noisy.x, plain.x)


@pytest.mark.parametrize("table", ["factored", "dense"])
def test_a_difference_clip_of_twice_the_clip_is_the_papers_estimator(table):
    setting = Setting()
    (one, clipped), (other, plain) = (
        trained(setting, "privsgp-vr", table=table, difference_clip=c) for c in (2 * setting.clip, None)
    )
    torch.testing.assert_close(clipped.x, plain.x, rtol=0, atol=1e-12)
    torch.testing.assert_close(entries(one), entries(other), rtol=0, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("table", ["factored", "dense"])
def test_differences_of_weight_q_are_sag(table, dtype):
    """To the last bit in float64, in which messages are made where noise is secret.

    In float32 SAG rounds its mean once, after (1/J) Σ_j c_j was added in float64; SAGA rounds the mean and the sum.
    """
    setting = Setting(samples=(8, 8, 8, 8), rate=0.25, dtype=dtype, steps=8)
    (one, saga), (other, sag) = (
        trained(setting, name, table=table, **own)
        for name, own in (("privsgp-vr", {"difference_scale": 0.25}), ("privsgp-sag", {}))
    )
    assert torch.equal(saga.x, sag.x) if dtype == torch.float64 else torch.allclose(saga.x, sag.x, atol=1e-6)
    assert torch.equal(entries(one), entries(other)) or dtype == torch.float32


@pytest.mark.parametrize("table_dtype", [None, "bfloat16"])
@pytest.mark.parametrize("table", ["factored", "dense"])
def test_a_step_is_linear_in_the_weight_and_the_table_is_the_same_for_all(table, table_dtype):
    """Rounded entries too: the weight is on what is sent, an entry moves by all of its difference."""
    setting = Setting(sigma=SILENT, steps=1, dtype=torch.float32)
    own = {"table": table, "table_dtype": table_dtype, "table_init": "zeros"}
    (first, low), (second, middle), (_, high) = (
        trained(setting, "privsgp-vr", difference_scale=scale, **own) for scale in (0.25, 0.5, 1.0)
    )
    torch.testing.assert_close(middle.x, (2 * low.x + high.x) / 3, rtol=0, atol=1e-6)
    assert not torch.allclose(low.x, high.x, atol=1e-2)
    for name, array in first.arrays().items():
        assert torch.equal(array, second.arrays()[name]), name


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", ["privsgp-vr", "privsgp-sag"])
@pytest.mark.parametrize("table_init", ["gradients", "zeros"])
def test_the_table_mean_is_the_mean_of_its_entries_after_a_long_run(name, dtype, table_init):
    setting = Setting(dtype=dtype, steps=100)
    run, _ = trained(setting, name, table_init=table_init)
    mean = entries(run).double().sum(1) / torch.tensor(setting.samples)[:, None]
    torch.testing.assert_close(run.table.mean, mean, rtol=0, atol=1e-5 if dtype == torch.float32 else 1e-12)


@pytest.mark.parametrize("name", ["privsgp", "privsgp-vr", "privsgp-sag"])
def test_noise_is_scaled_by_the_nodes_own_sigma_and_lands_before_the_mixing(name):
    """One step: x moves by −γ P (σ ∘ N) against the same step without noise."""
    sigma = (0.1, 0.2, 0.4, 0.8)
    (_, noisy), (_, silent) = (trained(Setting(sigma=s, steps=1), name) for s in (sigma, SILENT))
    setting = Setting()
    noise = torch.empty(4, setting.layout.dim, dtype=torch.float64)
    setting.source.fill_normal(noise, range(4), 0)
    P = torch.from_numpy(setting.graph.matrix(0))
    moved = -setting.step_size(0) * P @ (torch.tensor(sigma, dtype=torch.float64)[:, None] * noise)
    torch.testing.assert_close(noisy.x - silent.x, moved, rtol=0, atol=1e-13)


@st.composite
def connected(draw):
    """Digraphs that are strongly connected over a period, though hardly ever in one step."""
    nodes, period = draw(st.integers(2, 7)), draw(st.integers(1, 3))
    pairs = st.tuples(st.integers(0, period - 1), st.integers(0, nodes - 1), st.integers(0, nodes - 1))
    graphs = [nx.DiGraph() for _ in range(period)]
    for graph in graphs:
        graph.add_nodes_from(range(nodes))
    for i in range(nodes):
        graphs[draw(st.integers(0, period - 1))].add_edge(i, (i + 1) % nodes)
    for k, i, j in draw(st.lists(pairs, max_size=10)):
        graphs[k].add_edge(i, j)
    return from_networkx(graphs)


networks = connected() | st.builds(
    lambda nodes, seed: make("random", nodes, seed=seed), st.integers(2, 9), st.integers(0, 99)
)


def start(nodes, seed=0, dtype=torch.float64):
    x = torch.randn(nodes, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return x.to(dtype), torch.ones(nodes, dtype=torch.float64)


@given(graph=networks, seed=st.integers(0, 99), k=st.integers(0, 20))
def test_mixing_is_the_matrix_and_conserves_what_there_is(graph, seed, k):
    x, w = start(graph.nodes, seed)
    w = w + x[:, 0].abs()
    mixed, weights = InProcess(graph, x).mix(k, x, w)
    P = graph.matrix(k)
    np.testing.assert_allclose(mixed.numpy(), P @ x.numpy(), rtol=0, atol=1e-13)
    np.testing.assert_allclose(weights.numpy(), P @ w.numpy(), rtol=0, atol=1e-13)
    torch.testing.assert_close(mixed.sum(0), x.sum(0), rtol=0, atol=1e-13)
    torch.testing.assert_close(weights.sum(), w.sum(), rtol=0, atol=1e-13)


def repeated(graph, x, w, steps):
    mix = InProcess(graph, x)
    for k in range(steps):
        x, w = mix.mix(k, x, w)
    return x, w


@settings(max_examples=30)
@given(graph=connected(), seed=st.integers(0, 99))
def test_every_z_reaches_the_average(graph, seed):
    x, w = start(graph.nodes, seed)
    mixed, weights = repeated(graph, x, w, 300 * graph.period)
    torch.testing.assert_close(mixed / weights[:, None], x.mean(0).expand_as(x), rtol=0, atol=1e-9)


@given(graph=networks, value=st.floats(-10, 10))
def test_nodes_that_agree_go_on_agreeing(graph, value):
    _, w = start(graph.nodes)
    mixed, weights = repeated(graph, torch.full((graph.nodes, 2), value, dtype=torch.float64), w, 30)
    torch.testing.assert_close(mixed / weights[:, None], torch.full_like(mixed, value), rtol=1e-13, atol=1e-13)


def test_on_the_exponential_graph_weights_stay_one_and_equal_nodes_equal_to_the_last_bit():
    x = torch.randn(3, generator=torch.Generator().manual_seed(0)).expand(16, 3)
    mixed, weights = repeated(make("exponential", 16), x, torch.ones(16, dtype=torch.float64), 50)
    assert torch.equal(mixed, x)
    assert torch.equal(weights, torch.ones(16, dtype=torch.float64))


def test_shares_of_a_third_in_float32_leave_z_unbiased():
    """Float32 has no third: with its rounding in x alone, or in w alone, 3000 steps put z off by 9e-5."""
    x, w = start(6, dtype=torch.float32)
    x, generator = x.abs() + 1, torch.Generator().manual_seed(1)
    mix, held = InProcess(make("ring", 6), x), x.double().sum(0)
    for k in range(3000):
        moved = x + 1e-3 * torch.randn(6, 3, generator=generator)
        held += (moved.double() - x.double()).sum(0)
        x, w = mix.mix(k, moved, w)
    torch.testing.assert_close(x.double().sum(0) / w.sum(), held / 6, rtol=3e-5, atol=0)


def test_a_mixing_step_leaves_its_arguments_alone():
    x, w = start(4)
    before = x.clone(), w.clone()
    InProcess(irregular(), x).mix(0, x, w)
    assert torch.equal(x, before[0])
    assert torch.equal(w, before[1])


def test_messages_are_counted_between_different_nodes_only():
    mix = InProcess(irregular(), start(4)[0])
    assert [mix.messages(k) for k in range(3)] == [4, 3, 4]
