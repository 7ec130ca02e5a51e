"""A neighbour's view: its laws, the covariance written out, and attacks on simulated runs."""

from __future__ import annotations

import itertools
import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import runs
from privsgp import graph
from privsgp.accounting import accountant
from privsgp.accounting.mechanisms import SampledMean
from privsgp.errors import Refused
from privsgp.research import observer

OBSERVE = ("observe", "ring", "--samples=1200", "--steps=40", "--sigma=0.01")
FULL = SampledMean(sigma=0.01, clip=1.0, batch=1200, samples=1200)
SHIFT = 1 / 12  # of FULL: G / (Jσ)


def seen(mixing, i, u):
    """What site i is sent by others while x goes down u [steps, nodes, ...] from 0: push-sum as it is, without a γ."""
    x, messages = np.zeros(u.shape[1:]), []
    for P, now in zip(mixing, u, strict=True):
        x = x - now
        messages += [x[m] for m in range(len(P)) if m != i and P[i, m] > 0]
        x = np.tensordot(P, x, 1)
    return np.array(messages)


def written_out(mixing, i, shifts, sigmas):
    """M of every site from the covariance of all that is seen, as one dense matrix."""
    steps, nodes = len(mixing), len(shifts)
    unit = np.eye(steps * nodes).reshape(steps, nodes, -1)
    A = seen(mixing, i, unit).reshape(-1, steps, nodes)
    A[:, :, i] = 0  # its own noise it knows
    noisy = (A * sigmas).reshape(len(A), -1)
    inverse = np.linalg.inv(noisy @ noisy.T)
    return np.stack([shifts[j] ** 2 * A[:, :, j].T @ inverse @ A[:, :, j] for j in range(nodes)])


def mixing_of(name, nodes, steps, seed=0):
    network = graph.make(name, nodes, seed=seed)
    return [network.matrix(k) for k in range(steps)]


@pytest.mark.parametrize(("name", "nodes"), [("ring-directed", 4), ("exponential", 4), ("random", 3), ("random", 4)])
def test_the_filter_is_the_covariance_written_out(name, nodes):
    rng = np.random.default_rng(5)
    for steps, i in itertools.product((1, 3, 6), range(nodes)):
        mixing = mixing_of(name, nodes, steps, seed=3)
        shifts, sigmas = rng.uniform(0.5, 2, nodes), rng.uniform(0.5, 2, nodes)
        if not any(P[i, m] for P in mixing for m in range(nodes) if m != i):
            continue
        found = observer.information(i, mixing, shifts, sigmas)
        assert found == pytest.approx(written_out(mixing, i, shifts, sigmas), rel=1e-9, abs=1e-12)


def ascended(gram, tries=20):
    """The largest Σ M_st ⟨v_s, v_t⟩ that one vector after the other, from many starts, climbs to."""
    rng, best = np.random.default_rng(1), 0.0
    for _ in range(tries):
        v = rng.standard_normal(gram.shape)
        v /= np.linalg.norm(v, axis=1, keepdims=True)
        for t in [*range(len(gram))] * 200:
            pull = gram[t] @ v - gram[t, t] * v[t]
            v[t] = pull / max(np.linalg.norm(pull), 1e-300) if pull.any() else v[t]
        best = max(best, float(np.sum(gram * (v @ v.T))))
    return best


def test_the_worst_record_is_found_and_bounded():
    for name, i, j in [("ring", 0, 1), ("exponential", 0, 2), ("random", 1, 3)]:
        gram = observer.information(i, mixing_of(name, 4, 6), np.ones(4), np.ones(4))[j]
        best = ascended(gram)
        signs = max(float(np.array(s) @ gram @ np.array(s)) for s in itertools.product((-1, 1), repeat=6))
        assert signs <= best * (1 + 1e-9)
        assert best * (1 - 1e-9) <= observer.worst(gram) <= best * (1 + 1e-3)
    assert observer.worst(np.zeros((3, 3))) == 0


@settings(max_examples=30, deadline=None)
@given(st.integers(2, 5), st.integers(1, 12), st.integers(0, 99), st.floats(0.1, 3))
def test_nobody_learns_more_than_the_guarantee(nodes, steps, seed, sigma):
    mixing, sigmas = mixing_of("random", nodes, steps, seed), np.full(nodes, sigma)
    for i in range(nodes):
        for gram in observer.information(i, mixing, np.ones(nodes), sigmas):
            assert np.linalg.eigvalsh(gram)[-1] <= (1 + 1e-9) / sigma**2  # a part of what all messages tell
    mu = observer.seen_shifts(mixing, np.ones(nodes), sigmas)
    assert (mu[~np.isnan(mu)] <= math.sqrt(steps) / sigma).all()


@pytest.mark.parametrize(("name", "nodes"), [("ring-directed", 2), ("exponential", 2), ("complete", 5)])
def test_who_gets_every_message_and_knows_all_other_noise_learns_all(name, nodes):
    """With two sites there is no other noise; on a complete graph all of it is sent to everybody."""
    found = observer.view(graph.make(name, nodes), 30, SHIFT, 1e-5)
    guarantee = accountant.epsilon(FULL, 30, 1e-5).epsilon
    assert found[~np.eye(nodes, dtype=bool)] == pytest.approx(guarantee, rel=1e-9)
    assert np.isnan(found.diagonal()).all()


def test_distance_hides():
    ring = observer.view(graph.make("ring", 10), 60, SHIFT, 1e-5)[0]
    assert ring[1:6].tolist() == sorted(ring[1:6], reverse=True)
    assert ring[1:] == pytest.approx(ring[:0:-1])
    assert ring[5] < 0.5 * ring[1]
    directed = observer.view(graph.make("ring-directed", 6), 60, SHIFT, 1e-5)[0]
    assert directed[1:].tolist() == sorted(directed[1:])  # 5 sends to 0, 1 is the furthest upstream


def test_what_has_not_arrived_is_not_learned():
    assert observer.view(graph.make("ring-directed", 6), 1, SHIFT, 1e-5)[0, 1:5].tolist() == [0, 0, 0, 0]


def test_a_network_that_looks_alike_from_everywhere_is_seen_alike(monkeypatch):
    mixing, ones = mixing_of("exponential", 6, 12), np.ones(6)
    turned = observer.seen_shifts(mixing, ones, ones)
    monkeypatch.setattr(observer, "_alike", lambda *_: False)
    assert turned == pytest.approx(observer.seen_shifts(mixing, ones, ones), nan_ok=True)


def test_noise_of_any_size_is_seen_or_refused():
    ring = graph.make("ring", 4)
    assert np.nanmax(observer.view(ring, 5, 1e-302, 1e-5)) == 0
    with pytest.raises(Refused, match="more noise"):
        observer.view(ring, 5, 1e198, 1e-5)


def test_replacing_moves_twice_as_far():
    zeroed, less, replaced = (
        json.loads(runs.command(*OBSERVE, "--nodes=4", "--json", *more).out)["observed_epsilon"]
        for more in ((), ("--clip=2",), ("--relation=replace-one",))
    )
    assert replaced == less != zeroed


@pytest.mark.parametrize("adaptive", [False, True])
def test_an_attack_on_simulated_runs_gets_as_far(adaptive):
    """Runs are simulated with and without the record; a discriminant trained on half of them is tried on the rest.

    It knows nothing of filters or covariances. Where other sites' gradients follow what the observer has seen, it
    gets no further: that is known to it and cancels.
    """
    nodes, steps, i, j, many = 4, 5, 0, 2, 40_000
    mixing = mixing_of("random", nodes, steps, seed=3)
    gram = observer.information(i, mixing, np.ones(nodes), np.full(nodes, 0.8))[j]
    signs = max(itertools.product((-1, 1), repeat=steps), key=lambda s: np.array(s) @ gram @ np.array(s))
    mu = math.sqrt(np.array(signs) @ gram @ np.array(signs))
    rng = np.random.default_rng(7)

    def views(record):
        u = rng.normal(0, 0.8, (steps, nodes, many))
        u[:, i] = 0
        u[:, j] += record * np.array(signs)[:, None]
        if not adaptive:
            return seen(mixing, i, u)
        for k in range(1, steps):
            so_far = seen(mixing[:k], i, u[:k])
            u[k, 1:] += np.tanh(so_far.sum(0)) if len(so_far) else 0
        known = np.zeros_like(u)  # what the observer computes from its view and takes off
        full = seen(mixing, i, u)
        for k in range(1, steps):
            rows = len(seen(mixing[:k], i, u[:k]))
            known[k, 1:] = np.tanh(full[:rows].sum(0)) if rows else 0
        return full - seen(mixing, i, known)

    without, present = views(0), views(1)
    half = many // 2
    pooled = (np.cov(without[:, :half]) + np.cov(present[:, :half])) / 2
    direction = np.linalg.solve(pooled, present[:, :half].mean(1) - without[:, :half].mean(1))
    scores = direction @ without[:, half:], direction @ present[:, half:]
    assert (scores[1].mean() - scores[0].mean()) / scores[0].std() == pytest.approx(mu, rel=0.04)


def test_the_command_writes_the_matrix():
    told = json.loads(runs.command(*OBSERVE, "--nodes=4", "--json").out)
    rows = told["observed_epsilon"]
    assert [row[i] for i, row in enumerate(rows)] == [None] * 4
    assert max(value for row in rows for value in row if value is not None) <= told["epsilon"]
    assert "never used for calibration" in told["note"]
    assert "against everybody" in runs.command(*OBSERVE, "--nodes=14").out


@pytest.mark.parametrize("given", [("--nodes=1",), ("--nodes=4", "--steps=999999"), ("--nodes=4", "--relation=other")])
def test_the_command_refuses_what_is_not_derived(given):
    ran = runs.command(*OBSERVE, *given)
    assert ran.code == 2
    assert "→" in ran.err
