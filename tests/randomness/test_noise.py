from __future__ import annotations

import copy
import math
import os
import pickle
import struct
import sys
import types

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from scipy import stats

from privsgp import kernels
from privsgp.errors import Refused
from privsgp.randomness.noise import Keyed, Secure, Source, add_noise_
from privsgp.randomness.normals import box_muller
from privsgp.randomness.on_device import snap_

# Statistical bounds are this many standard errors wide: a correct source fails one of them about once in 10⁸ runs.
WIDE = 6.0


@pytest.fixture(params=[lambda: Keyed(7), Secure], ids=["keyed", "secure"])
def source(request: pytest.FixtureRequest) -> Source:
    return request.param()


def normals(source: Source, node: int, step: int, d: int, dtype=torch.float32) -> np.ndarray:
    out = torch.full((1, d), math.nan, dtype=dtype)
    source.fill_normal(out, [node], step)
    return out[0].double().numpy()


def obvious_normals(key: bytes, node: int, step: int, d: int, bits: int) -> list[float]:
    """Box–Muller one pair at a time, from one ChaCha20 stream."""
    nonce = struct.pack("<4I", 0, node, step, 0)
    stream = Cipher(algorithms.ChaCha20(key, nonce), None).encryptor().update(bytes(2 * d * bits // 8))
    words = np.frombuffer(stream, f"<i{bits // 8}").tolist()
    out: list[float] = []
    while len(out) < d:
        width = min(1 << 16, d - len(out))
        half = (width + 1) // 2
        first, second = words[len(out) :][:half], words[len(out) + half :][:half]
        u = [(abs(w) + 0.5) / 2 ** (bits - 1) for w in first]
        angle = [math.pi * w / 2 ** (bits - 1) for w in second]
        cosines = [math.sqrt(max(0.0, -2 * math.log(a))) * math.cos(t) for a, t in zip(u, angle, strict=True)]
        sines = [math.sqrt(max(0.0, -2 * math.log(a))) * math.sin(t) for a, t in zip(u, angle, strict=True)]
        out += (cosines + sines)[:width]
    return out


@pytest.mark.parametrize("d", [1, 7, 650, (1 << 16) + 5])
@pytest.mark.parametrize(("bits", "dtype", "error"), [(32, torch.float32, 2e-6), (64, torch.float64, 1e-13)])
def test_fast_normals_are_the_obvious_ones(d, bits, dtype, error):
    source = Keyed(3)
    plain = obvious_normals(source._keys["noise"], 4, 9, d, bits)
    # Near u = 1 the radius is √(2(1 − u)): a rounding of u is a larger one of the radius.
    np.testing.assert_allclose(normals(source, 4, 9, d, dtype), plain, rtol=error, atol=math.sqrt(error) / 2)
    assert np.median(abs(normals(source, 4, 9, d, dtype) - plain)) <= error


def test_golden_vector_of_the_keyed_source():
    coins = Keyed(0).coins([1], 2, 3)[0]
    assert coins.tolist() == [9120045776662974641, 14024684537773006870, 17286197537435393786]
    golden = [-0.21869464, -0.86994755, 1.65472674, 0.60972363]
    np.testing.assert_allclose(normals(Keyed(0), 1, 2, 4), golden, rtol=1e-6)


def test_normals_have_a_normals_moments_and_tails(source):
    n = 1 << 21
    x = normals(source, 0, 1000, n)
    assert np.isfinite(x).all()
    for power, (moment, variance) in {1: (0, 1), 2: (1, 2), 3: (0, 15), 4: (3, 96)}.items():
        assert abs((x**power).mean() - moment) < WIDE * math.sqrt(variance / n)
    for z in (2.0, 3.0, 4.0):
        for tail in (x > z, x < -z):
            expected = n * stats.norm.sf(z)
            assert abs(tail.sum() - expected) < WIDE * math.sqrt(expected)
    assert stats.kstest(x[:200_000], "norm").pvalue > 1e-7


def test_coins_are_uniform_in_every_byte(source):
    coins = source.coins([0], 1000, 1 << 16)[0].view(np.uint8).reshape(-1, 8)
    for byte in coins.T:
        assert stats.chisquare(np.bincount(byte, minlength=256)).pvalue > 1e-8


def test_nodes_steps_and_purposes_are_independent(source):
    n = 1 << 16
    rows = [normals(source, *where) for where in ((0, 1, n), (1, 1, n), (0, 2, n), (1, 2, n), (2, 1, n))]
    rows.append(stats.norm.ppf((source.coins([0], 1, n)[0] + 0.5) / 2.0**64))
    rows += [np.roll(rows[0], 1), np.roll(rows[0], n // 2)]
    x = np.stack(rows)
    for y in (x, x**2):
        correlation = np.corrcoef(y) - np.eye(len(y))
        assert abs(correlation).max() < WIDE / math.sqrt(n)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("d", [1, 13, 650, (1 << 16) + 5])
def test_a_row_does_not_depend_on_its_group(d, dtype):
    nodes = [5, 0, 3, 11, 2]
    together = torch.empty(len(nodes), d, dtype=dtype)
    Keyed(1).fill_normal(together, nodes, 8)
    strided = torch.empty(len(nodes), 2 * d, dtype=dtype)[:, ::2]
    Keyed(1).fill_normal(strided, nodes[::-1], 8)
    assert torch.equal(together, strided.flip(0))
    for row, node in zip(together, nodes, strict=True):
        np.testing.assert_array_equal(row.double().numpy(), normals(Keyed(1), node, 8, d, dtype=dtype))


def test_keyed_repeats_and_follows_its_whole_seed():
    same = [Keyed(s).coins([0], 0, 8)[0].tolist() for s in (5, 5, 5 + 2**32, 5 + 2**64, -5)]
    assert same[0] == same[1]
    assert len({tuple(s) for s in same}) == 4


@pytest.mark.parametrize("bits", [32, 64])
def test_every_word_gives_a_finite_normal(bits):
    integer, real = (np.int32, np.float32) if bits == 32 else (np.int64, np.float64)
    edge = np.array([np.iinfo(integer).min, -1, 0, 1, np.iinfo(integer).max], integer)
    first, second = (w.ravel() for w in np.meshgrid(edge, edge))
    out = np.empty((1, 2 * len(first)), real)
    box_muller(out, np.concatenate([first, second])[None], real)
    assert np.isfinite(out).all()
    assert abs(out).max() == pytest.approx(math.sqrt(2 * bits * math.log(2)), rel=1e-6)


def test_secure_sources_share_nothing():
    assert not np.intersect1d(Secure().coins([0], 0, 1000), Secure().coins([0], 0, 1000)).size


def test_secure_refuses_to_draw_twice():
    source = Secure()
    drawn = [normals(source, 0, 3, 4), normals(source, 1, 3, 4), normals(source, 0, 5, 4)]
    assert len({tuple(d) for d in drawn}) == 3
    for step in (3, 5, 4):
        with pytest.raises(Refused, match=f"noise of node 0, step {step}: already used"):
            normals(source, 0, step, 4)
    with pytest.raises(Refused, match="already used"):
        source.fill_normal(torch.empty(2, 4), [7, 7], 0)
    source.coins([0], 3, 4)
    with pytest.raises(Refused, match="coins of node 0, step 3"):
        source.coins([0], 3, 4)


@pytest.mark.parametrize("same", [torch.tensor([3]), np.array([3], np.int32), range(3, 4)])
def test_a_node_is_its_number_however_it_is_written(same):
    source, out = Secure(), torch.empty(1, 4)
    source.fill_normal(out, [3], 0)
    with pytest.raises(Refused, match="noise of node 3, step 0: already used"):
        source.fill_normal(out, same, 0)
    with pytest.raises(TypeError):
        source.fill_normal(out, [3.5], 1)


def test_a_device_draws_what_was_claimed_with_the_key_of_noise(monkeypatch):
    """The kernel itself is compared with the cipher in tests/gpu; here is what it is asked for."""
    asked = []
    kernel = types.SimpleNamespace(fill_normal=lambda *given: asked.append(given))
    monkeypatch.setattr(kernels, "chacha", kernel, raising=False)
    monkeypatch.setitem(sys.modules, "privsgp.kernels.chacha", kernel)
    monkeypatch.setattr("privsgp.randomness.on_device.have_triton", lambda: True)
    source, out = Secure(), torch.empty(2, 4, dtype=torch.float64, device="meta")
    monkeypatch.setattr(torch.Tensor, "to", lambda self, *_: self)  # the key stays where it can be read
    source.fill_normal(out, [1, 2**32 - 1], 7)
    (_, nodes, key, step) = asked[0]
    assert (nodes.shape, nodes.dtype, step) == ((2,), torch.int64, 7)
    assert key.numpy().tobytes() == source._keys["noise"] != source._keys["coins"]
    refused = [([1, 3], 7, "already used"), ([4, -1], 8, "node = -1"), ([5, 2**32], 8, "node = 4294967296")]
    for wrong, at, words in refused:
        with pytest.raises(Refused, match=words):
            source.fill_normal(out, wrong, at)
    with pytest.raises(Refused, match="step = 4294967296"):
        source.fill_normal(out, [3, 4], 2**32)
    assert len(asked) == 1


def test_a_device_draws_with_its_own_key_though_another_thread_has_claimed_since(monkeypatch):
    asked, claimed, inner, source = [], [], Secure.claim, Secure()
    kernel = types.SimpleNamespace(fill_normal=lambda *given: asked.append(given))
    monkeypatch.setattr(kernels, "chacha", kernel, raising=False)
    monkeypatch.setitem(sys.modules, "privsgp.kernels.chacha", kernel)
    monkeypatch.setattr("privsgp.randomness.on_device.have_triton", lambda: True)
    monkeypatch.setattr(torch.Tensor, "to", lambda self, *_: self)

    def and_another(self, purpose, nodes, step):
        claimed.append(inner(self, purpose, nodes, step))
        inner(self, purpose, [9], step)  # as a second thread may, before the first has its key
        return claimed[-1]

    monkeypatch.setattr(Secure, "claim", and_another)
    source.fill_normal(torch.empty(2, 4, dtype=torch.float64, device="meta"), [1, 2], 7)
    assert asked[0][2].numpy().tobytes() == claimed[0][1]._keys["noise"] != source._keys["noise"]


def test_secure_keeps_its_keys(monkeypatch):
    source = Secure()
    for leak in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(Refused, match="cannot be copied or pickled"):
            leak(source)
    assert "keys" not in repr(source)
    monkeypatch.setattr(os, "getpid", lambda: -1)
    with pytest.raises(Refused, match="forked"):
        source.coins([0], 0, 1)


def memory_of(source: Secure) -> dict:
    return {name: copy.deepcopy(value) for name, value in vars(source).items() if name != "_ciphers"}


def restored(memory: dict) -> Secure:
    """What a virtual machine holds that was put back to an earlier moment: every byte of that moment's memory."""
    source = object.__new__(Secure)
    vars(source).update({name: copy.deepcopy(value) for name, value in memory.items()}, _ciphers={})
    return source


@pytest.mark.parametrize("replayed", [False, True], ids=["fresh urandom", "urandom replayed too"])
def test_a_machine_put_back_to_a_snapshot_draws_other_noise_and_coins(monkeypatch, replayed):
    """The same noise on two gradients would show their difference exactly."""
    source = Secure()
    normals(source, 0, 3, 4), source.coins([0], 3, 4)
    memory = memory_of(source)
    if replayed:  # a kernel that was not told of the restoration
        monkeypatch.setattr(os, "urandom", lambda n: bytes(range(n)))
    drawn = [
        (normals(past, 0, 4, 4).tolist(), past.coins([0], 4, 4).tolist())
        for past in (restored(memory), restored(memory))
    ]
    assert drawn[0][0] != drawn[1][0]
    assert drawn[0][1] != drawn[1][1]


@pytest.mark.parametrize("where", [{"node": -1}, {"step": 2**32}])
def test_streams_that_would_meet_are_refused(where):
    named = {"node": 0, "step": 0} | where
    with pytest.raises(Refused, match=next(iter(where))):
        Keyed(0).coins([named["node"]], named["step"], 1)


def test_a_counter_that_would_run_over_is_refused():
    with pytest.raises(Refused, match="block"):
        Keyed(0)._read(np.empty((1, 16), np.uint64), "noise", [0], 0, 2**32 - 2)


@pytest.mark.parametrize("out", [torch.empty(4), torch.empty(2, 4), torch.empty(1, 4, dtype=torch.bfloat16)])
def test_wrong_shapes_are_refused(source, out):
    with pytest.raises(Refused, match="one row for each node"):
        source.fill_normal(out, [0], 0)


def test_simulated_noise_is_a_plain_sum():
    g, sigma, nodes = torch.randn(3, 70_000), [0.5, 0.0, 2.0], [4, 1, 0]
    expected = torch.empty_like(g)
    Keyed(2).fill_normal(expected, nodes, 6)
    expected = g + expected * torch.tensor(sigma)[:, None]
    add_noise_(g, Keyed(2), nodes, 6, sigma=sigma)
    assert torch.equal(g, expected)


def test_secret_noise_has_its_sigma_and_lies_on_a_public_grid():
    g = torch.tensor([[0.3], [1e-7], [-5.0]]).repeat(1, 200_000)
    sigma, before = [0.07, 1.0, 0.0], g.clone()
    add_noise_(g, Secure(), [0, 1, 2], 0, sigma=sigma)
    assert torch.equal(g[2], before[2])
    for row, mean, s, grid in zip(g.double(), before.double(), sigma[:2], (2.0**-8, 2.0**-4), strict=False):
        assert torch.equal(row, torch.round(row / grid) * grid)
        assert abs((row - mean).mean()) < WIDE * s / math.sqrt(len(row))
        assert row.std().item() == pytest.approx(s, rel=WIDE / math.sqrt(2 * len(row)) + 7e-4)


def test_the_grid_hides_what_a_float_sum_shows():
    """Float sums 2⁻³⁰ apart share almost no value; after rounding they share their whole support."""
    n = torch.empty(1, 20_000, dtype=torch.float64)
    Keyed(0).fill_normal(n, [0], 0)
    sums = [n.clone(), n.flip(1) + 2.0**-30]
    assert not np.intersect1d(*(s.numpy() for s in sums)).size
    for s in sums:
        snap_(s, [1.0])
    bulk = [np.unique(s[abs(s) < 2].numpy()) for s in sums]
    np.testing.assert_array_equal(bulk[0], bulk[1])


def test_rows_of_one_grid_are_snapped_together_and_others_apart():
    sigma = [1.0, 1.2, 0.0, 1.1, 3.0, 3.0, 0.0]
    y = torch.randn(len(sigma), 1000, dtype=torch.float64)
    expected = y.clone()
    for row, s in zip(expected, sigma, strict=True):
        if s:
            snap_(row[None], [s])
    snap_(y, sigma)
    assert torch.equal(y, expected)
    for wrong in (sigma[1:], [*sigma, 1.0]):
        with pytest.raises(ValueError, match=f"{len(wrong)} σ for 7 rows"):
            snap_(y, wrong)


def test_snapping_moves_by_half_a_cell_at_most_and_once():
    y = torch.randn(2, 1000, dtype=torch.float64)
    snapped = y.clone()
    snap_(snapped, [1.0, 3.0])
    assert (abs(snapped - y).amax(1) <= torch.tensor([1, 4]) / 32).all()
    again = snapped.clone()
    snap_(again, [1.0, 3.0])
    assert torch.equal(again, snapped)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu(source):
    out = torch.empty(3, 100_000, device="cuda")
    source.fill_normal(out, [2, 0, 1], 0)
    assert abs(out.mean()) < WIDE / math.sqrt(out.numel())
    assert abs(np.corrcoef(out.cpu().numpy()) - np.eye(3)).max() < WIDE / math.sqrt(100_000)
    add_noise_(out, source, [2, 0, 1], 1, sigma=[0.1, 0.2, 0.3])
    if not source.secret:
        source.fill_normal(out, [2, 0, 1], 0)
        alone = torch.empty(1, 100_000, device="cuda")
        source.fill_normal(alone, [0], 0)
        assert torch.equal(alone[0], out[1])
