"""Shares in few bits: mass stays what it was, nodes agree, and no residual grows."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from privsgp import graph
from privsgp.accounting.compound import Shared
from privsgp.accounting.mechanisms import SampledMean
from privsgp.accounting.sharing import solve
from privsgp.algorithms import ALGORITHMS
from privsgp.errors import Refused
from privsgp.graph import every_few
from privsgp.randomness.noise import Keyed
from privsgp.randomness.pairwise import PairwiseNoise
from privsgp.runs import config as configs
from privsgp.runs import sums
from privsgp.transport import rounding as module
from privsgp.transport.in_process import InProcess
from privsgp.transport.rounding import BLOCK, Rounding, decode, encode, uniform, width

BITS = [16, 8, 4]
NAMES = ["exponential", "exponential-static", "ring", "ring-directed", "complete", "random"]
SEED = 2**200 + 7


def network(name, nodes):
    return graph.make(name, nodes, seed=3, degree=min(2, max(1, nodes - 1)))


def transport(bits, links, x):
    return InProcess(links, x, Rounding(bits, SEED, links, torch.zeros_like(x), range(links.nodes)))


def nodes_with(n, d, seed, dtype=torch.float64):
    made = torch.Generator().manual_seed(seed)
    x = torch.randn(n, d, generator=made, dtype=torch.float64) * 10 ** torch.rand(d, generator=made).mul(4).sub(2)
    return x.to(dtype), torch.rand(n, generator=made, dtype=torch.float64) + 0.5


@given(
    bits=st.sampled_from(BITS), name=st.sampled_from(NAMES), nodes=st.integers(1, 7), d=st.integers(1, 300),
    seed=st.integers(0, 99), kind=st.sampled_from([(torch.float64, 1e-12), (torch.float32, 1e-6)]),
)  # fmt: skip
@settings(deadline=None, max_examples=60)
def test_mass_is_what_it_was(bits, name, nodes, d, seed, kind):
    links, (dtype, close) = network(name, nodes), kind
    x, w = nodes_with(nodes, d, seed, dtype)
    held, total, weight = x.double().sum(0), float(x.double().abs().sum()), float(w.sum())
    mixing = transport(bits, links, x)
    for k in range(8):
        x, w = mixing.mix(k, x, w)
        assert float((x.double().sum(0) - held).abs().max()) <= close * total
        assert abs(float(w.sum()) - weight) <= 1e-12 * weight
        assert float(w.min()) > 0


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("name", ["exponential", "ring-directed", "random"])
def test_nodes_agree_at_every_width_beside_a_large_number_too(bits, name):
    """A block holds a number that is a thousand times the others: nearest rounding to its scale would move none."""
    links, (x, w) = network(name, 8), nodes_with(8, 2 * BLOCK, 1)
    x = x / x.std(0)
    x[:, 7] = 1000.0
    small, mixing = torch.arange(2 * BLOCK) != 7, transport(bits, links, x)

    def spread():
        z = x / w[:, None]
        return float((z - (x.sum(0) / w.sum()))[:, small].abs().max())

    w, apart = torch.ones_like(w), [float((x - x.mean(0))[:, small].abs().max())]
    for k in range(400):
        x, w = mixing.mix(k, x, w)
        apart.append(spread())
    assert apart[100] < 0.5 * apart[0]
    assert apart[400] < 1e-6 * apart[0]


@pytest.mark.parametrize("bits", BITS)
def test_what_a_sender_keeps_is_less_than_a_scale_beside_its_own_share(bits):
    """It is so at every step, for noise that never ends: the residual does not grow."""
    links, (x, w) = network("exponential", 8), nodes_with(8, 200, 2)
    x, w, rng, most = x / 100, torch.ones_like(w), torch.Generator().manual_seed(0), 0.0
    mixing, exact = transport(bits, links, x), InProcess(links, x)
    y, v = x.clone(), w.clone()
    for k in range(300):
        noise = torch.randn(x.shape, generator=rng, dtype=torch.float64)
        x, w = mixing.mix(k, x + noise, w)
        y, v = exact.mix(k, y + noise, v)
        most = max(most, float((x - y).abs().max()))
        assert torch.equal(w, v)
        torch.testing.assert_close(x.sum(0), y.sum(0), rtol=0, atol=1e-9)
    assert most < 30 / 2 ** (bits - 1)


@pytest.mark.parametrize("bits", BITS)
def test_it_is_the_plain_loop(bits):
    """One sender and one receiver, number by number, in Python's own floats."""
    links, most = network("ring-directed", 2), 2 ** (bits - 1) - 1
    x, w = nodes_with(2, 130, 4)
    mixing, z = transport(bits, links, x), [[0.0] * 130, [0.0] * 130]
    for k in range(5):
        rows, weights = x.tolist(), [0.5 * one for one in w.tolist()]
        expected, carried = [row.copy() for row in rows], [[], []]
        for i in range(2):
            words = np.random.Philox(key=SEED % 2**128, counter=[0, 0, 2 * i + 1 - i, k]).random_raw(64).view(np.int16)
            for at in range(130):
                news = [0.5 * rows[i][j] - z[i][j] * weights[i] for j in range(130)]
                block = [abs(one) for one in news[at // BLOCK * BLOCK :][:BLOCK]]
                scale = np.array(max(block) / most).view(np.int64)
                scale = float((-(-scale // 2**48) * 2**48).view(np.float64))
                share = math.floor(news[at] / scale + (words[at] + 32768.5) / 65536) * scale + z[i][at] * weights[i]
                expected[i][at] -= share
                expected[1 - i][at] += share
                carried[i].append(share / weights[i])
        x, w = mixing.mix(k, x, w)
        np.testing.assert_allclose(x, expected, rtol=0, atol=1e-9 * float(x.abs().max()))
        z = carried


@given(
    bits=st.sampled_from(BITS), dtype=st.sampled_from([torch.float32, torch.float64]), d=st.integers(1, 400),
    scale=st.sampled_from([0.0, 1e-300, 1e-40, 1.0, 1e18]),
)  # fmt: skip
@settings(deadline=None, max_examples=40)
def test_codes_say_the_number_above_or_below(bits, dtype, d, scale):
    news = (torch.randn(3, d, dtype=torch.float64, generator=torch.Generator().manual_seed(d)) * scale).to(dtype)
    codes, part = torch.zeros(3, width(bits, d), dtype=torch.uint8), slice(0, d)
    u = uniform([np.random.Philox(i) for i in range(3)], news)
    encode(news.clone(), u, codes, bits, part, d)
    said = decode(codes, bits, part, news)
    step = news.abs().max() * 1.07 / (2 ** (bits - 1) - 1) + 2 * torch.finfo(dtype).tiny
    assert float((said - news).abs().max()) <= float(step)
    assert not said[news == 0].any()


def test_rounding_keeps_the_mean():
    news, total = torch.tensor([[0.3, -0.02, 7.0, 0.0]]), torch.zeros(1, 4)
    for i in range(2000):
        codes = torch.zeros(1, width(4, 4), dtype=torch.uint8)
        encode(news.clone(), uniform([np.random.Philox(i)], news), codes, 4, slice(0, 4), 4)
        total += decode(codes, 4, slice(0, 4), news)
    np.testing.assert_allclose(total / 2000, news, atol=5 * 0.5 / math.sqrt(2000))


@pytest.mark.parametrize("bits", BITS)
def test_parts_change_no_bit(bits, monkeypatch):
    links, (x, w) = network("random", 5), nodes_with(5, 1000, 3, torch.float32)
    answers = []
    for size in (1 << 16, BLOCK):
        monkeypatch.setattr(module, "_PIECE", size)
        mixing, held = transport(bits, links, x), (x, w)
        for k in range(3):
            held = mixing.mix(k, *held)
        answers.append(held[0])
    assert torch.equal(*answers)


@pytest.mark.parametrize("bits", [32, 4])
@pytest.mark.parametrize("local", [1, 4])
def test_noise_that_pairs_share_cancels_in_the_average(bits, local):
    """What is left in Σx is the nodes' own noise, at every width and for any number of local steps."""
    n, d = 6, 300
    made = PairwiseNoise(solve((1.0,) * n, 4, 2.0, None), 4)
    links = every_few(graph.make("exponential", n), local)
    x, w, own = torch.zeros(n, d, dtype=torch.float64), torch.ones(n, dtype=torch.float64), torch.zeros(n, d).double()
    mixing = InProcess(links, x) if bits == 32 else transport(bits, links, x)
    least, worth = made.covariance.nodes - 1, made.covariance.effective(4)
    counted = [Shared(SampledMean(sigma=one, clip=1.0, batch=2, samples=9), 4, least) for one in worth]
    noise, source = made.of_nodes(range(n), counted, Keyed(5)), Keyed(5)
    for k in range(12):
        g, alone = torch.zeros_like(x), torch.empty_like(x)
        noise.add_(g, range(n), k)
        source.fill_normal(alone, range(n), k)
        own = own + alone * torch.tensor(made.covariance.own_sigma, dtype=x.dtype)[:, None]
        x = x + g
        if (k + 1) % local == 0:
            x, w = mixing.mix(k, x, w)
    assert float(x.sum(0).std()) < 0.7 * float(x.std()) * n  # they do not cancel at a node
    torch.testing.assert_close(x.sum(0), own.sum(0), rtol=0, atol=1e-9)


@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize("name", ["exponential", "random"])
def test_a_graph_of_every_few_steps_has_all_edges_of_the_graph(name, every):
    base = network(name, 8)
    few = every_few(base, every)
    for k in range(12):
        wanted = np.eye(8) if (k + 1) % every else base.matrix((k + 1) // every - 1)
        np.testing.assert_array_equal(few.matrix(k), wanted)
    assert few.links() == base.links()


@pytest.mark.parametrize("name", [n for n in ALGORITHMS if n not in ("privsgp", "privsgp-vr", "privsgp-sag", "sgp")])
@pytest.mark.parametrize("change", [{"transport": {"bits": 8}}, {"algorithm": {"local_steps": 2}}])
def test_methods_that_cannot_keep_what_is_left_out_are_refused(name, change):
    values = {"seed": 1, "privacy": {"sigma": 0.1}, "algorithm": {"name": name, "steps": 4}}
    values = {key: value | change.get(key, {}) if isinstance(value, dict) else value for key, value in values.items()}
    with pytest.raises(Refused, match="a node of push-sum can keep"):
        configs.parse(change | values)


def test_noised_sums_are_exact_whatever_messages_of_training_have():
    """A site shows what one message of each other adds up to: rounding would be in its numbers, and in no interval."""
    given = {"data": {"name": "digits", "nodes": 2}, "privacy": {"epsilon": 1.0}, "sum": {"kind": "description"}}
    config = configs.parse(given | {"seed": 1, "transport": {"bits": 4}, "algorithm": {"local_steps": 2}})
    made = sums.study(config, [900, 897], 1.0, 1.0, 1e-5)
    assert (made.transport.bits, made.algorithm.local_steps) == (32, 1)


def test_steps_that_are_no_whole_messages_are_refused():
    with pytest.raises(Refused, match="K counts local steps"):
        configs.parse({"privacy": {"sigma": 0.1}, "algorithm": {"steps": 10, "local_steps": 4}})


def test_messages_are_part_of_what_sites_agree_on():
    plain = configs.parse({"privacy": {"sigma": 0.1}})
    other = configs.parse({"privacy": {"sigma": 0.1}, "transport": {"bits": 4}, "algorithm": {"local_steps": 2}})
    assert configs.parse(other.shared()).shared() == other.shared()
    assert other.shared_hash() != plain.shared_hash()
