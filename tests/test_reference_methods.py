"""The plain loops of the methods beside push-sum, against numbers worked out by hand and laws that need no code."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given as hypothesis_given
from hypothesis import settings
from hypothesis import strategies as st

from reference import clipped
from reference_alone import dp_sgd, local
from reference_asynchronous import Event, ad_psgd, adp2_sgd
from reference_given import Given
from reference_gossip import d_psgd, dp2_sgd
from reference_server import dp_srm, ldp_spider, ldp_svrg
from reference_soteria import soteriafl

CENTRES = [[1.0, 3.0], [-2.0]]
W = [np.array([[0.75, 0.25], [0.25, 0.75]])] * 2
ONE = np.ones(1)
FACTORS = [[2.0, 1.0], [0.5, 2.0]]


def quadratic(x, i, j):
    """∇ ½|x − centre|²."""
    return x - CENTRES[i][j]


BY_HAND = Given(
    gradient=quadratic,
    x0=np.zeros(1),
    samples=[2, 1],
    batch=[2.0, 1.0],
    draws=[[[1], [0]], [[0, 1], [0]]],
    step_size=[1.0, 0.5],
    noise=[[ONE, -ONE], [2 * ONE, 4 * ONE]],
    sigma=[0.5, 0.25],
    clip=2.0,
)


def many(rounds=6, sigma=0.3, clip=0.8):
    """Three nodes with 4, 2 and 3 samples in R², each sample with its own curvature; coins and noise of every round."""
    rng = np.random.default_rng(5)
    samples = [4, 2, 3]
    centres, scale = rng.normal(size=(3, 4, 2)), rng.uniform(0.5, 1, size=(3, 4, 2))
    return Given(
        gradient=lambda x, i, j: scale[i, j] * (x - centres[i, j]),
        x0=np.array([1.0, -0.5]),
        samples=samples,
        batch=[1.5, 1.0, 2.0],
        draws=[[np.flatnonzero(rng.random(J) < 0.5) for J in samples] for _ in range(rounds)],
        step_size=list(0.4 / (1 + np.arange(rounds))),
        noise=list(rng.normal(size=(rounds, 3, 2))),
        sigma=[sigma, 2 * sigma, 0.0],
        clip=clip,
    )


def everybody(given):
    """Full participation, no privacy."""
    draws = [[range(J) for J in given.samples] for _ in given.step_size]
    return replace(given.without_privacy(), draws=draws, batch=[float(J) for J in given.samples])


def as_sent(k, i, v):
    return v


def mean_sgd(given):
    """x − γ mean_i [(1/b_i) Σ_S clip_G(∇f_j(x)) + σ_i n_i], in one expression."""
    history = [given.x0]
    for k, step_size in enumerate(given.step_size):
        x, y = history[-1], []
        for i, drawn in enumerate(given.draws[k]):
            g = sum((clipped(given.gradient(x, i, j), given.clip) for j in drawn), np.zeros_like(x))
            y.append(g / given.batch[i] + given.sigma[i] * given.noise[k][i])
        history.append(x - step_size * np.mean(y, axis=0))
    return np.array(history)


@pytest.mark.parametrize(
    ("method", "first", "second"),
    [
        (lambda g: d_psgd(g, W), [3 / 2, -2], [7 / 8, -9 / 8]),
        (lambda g: dp2_sgd(g, W), [1 / 2, -7 / 4], [1 / 16, -29 / 16]),
        (local, [1 / 2, -7 / 4], [5 / 8, -19 / 8]),
    ],
    ids=["d-psgd", "dp2-sgd", "local"],
)
def test_two_rounds_of_nodes_worked_by_hand(method, first, second):
    history = method(BY_HAND)
    assert history.shape == (3, 2, 1)
    np.testing.assert_allclose(history[:, :, 0], [[0, 0], first, second], rtol=1e-14)


@pytest.mark.parametrize(
    ("method", "options", "expected"),
    [
        (dp_srm, {"alpha": 0.25, "anchor_noise": 2.0}, [-3 / 4, -41 / 32]),
        (
            dp_srm,
            {"alpha": 0.5, "difference_clip": 0.125, "anchor_batch": [1.0, 1.0], "anchor_noise": 2.0},
            [-1 / 4, -103 / 128],
        ),
        (ldp_svrg, {"period": 2, "anchor_noise": 2.0}, [-1 / 2, -17 / 16]),
        (ldp_svrg, {"period": 2, "anchor_noise": 2.0, "difference_clip": 0.125}, [-1 / 2, -77 / 64]),
        (
            ldp_spider,
            {"period": 2, "difference_clip": 0.125, "anchor_batch": [1.0, 1.0], "anchor_noise": 2.0},
            [-1 / 4, -53 / 64],
        ),
    ],
    ids=["dp-srm", "dp-srm-clipped", "ldp-svrg", "ldp-svrg-clipped", "ldp-spider"],
)
def test_two_rounds_with_a_server_worked_by_hand(method, options, expected):
    history = method(BY_HAND, **options)
    assert history.shape == (3, 1)
    np.testing.assert_allclose(history[:, 0], [0, *expected], rtol=1e-14)


@pytest.mark.parametrize(
    ("estimator", "options", "x", "shifts", "tables"),
    [
        ("sgd", {}, [-3 / 8, -169 / 128], [-35 / 64, 21 / 8], []),
        ("svrg", {"coins": [False, False]}, [1 / 8, -125 / 128], [-55 / 64, 3], []),
        ("svrg", {"coins": [False] * 2, "difference_clip": 1 / 16}, [1 / 8, -249 / 256], [-111 / 128, 3], []),
        ("saga", {}, [1 / 8, -125 / 128], [-55 / 64, 3], [[-7 / 8, -2], [2]]),
        (
            "saga",
            {"difference_clip": 1.0, "table_init": "zeros"},
            [-3 / 8, -49 / 32],
            [-1 / 8, 21 / 8],
            [[-1, -2], [13 / 8]],
        ),
    ],
    ids=["sgd", "svrg", "svrg-clipped", "saga", "saga-clipped"],
)
def test_two_rounds_of_soteriafl_worked_by_hand(estimator, options, x, shifts, tables):
    """The compressor multiplies by a number of its round and node, so that neither can be mistaken."""
    out = soteriafl(estimator, BY_HAND, compressor=lambda k, i, v: FACTORS[k][i] * v, shift_rate=0.5, **options)
    np.testing.assert_allclose(out.history[:, 0], [0, *x], rtol=1e-14)
    np.testing.assert_allclose(out.shifts[:, 0], shifts, rtol=1e-14)
    np.testing.assert_allclose(out.server_shift, np.mean(shifts), rtol=1e-14)
    assert [list(t[:, 0]) for t in out.tables] == tables


def test_the_anchor_of_soteriafl_svrg_is_the_model_before_the_step_and_counts_from_the_next_round():
    """One node, nothing drawn: the direction is the full gradient at the anchor, 0 − 2 until it is x¹ = 2."""
    alone = Given(quadratic, np.zeros(1), [2], [1.0], [[[]]] * 3, [1.0] * 3, [[ONE]] * 3, [0.0], None)
    out = soteriafl("svrg", alone, compressor=as_sent, shift_rate=0.5, coins=[False, True, False])
    np.testing.assert_allclose(out.history[:, 0], [0, 2, 4, 4], rtol=1e-14)


def test_dp_sgd_draws_from_the_pool_of_all_nodes():
    history = dp_sgd(
        gradient=quadratic,
        x0=np.zeros(1),
        samples=[2, 1],
        batch=2.0,
        draws=[[2], [0, 1]],
        step_size=[1.0, 0.5],
        noise=[ONE, 2 * ONE],
        sigma=0.5,
        clip=2.0,
    )
    np.testing.assert_allclose(history[:, 0], [0, -3 / 2, -1], rtol=1e-14)


EVENTS = [Event(0, 1, 0), Event(1, 0, 0), Event(0, 1, 1)]
HAPPENED = {
    "gradient": quadratic,
    "x0": np.zeros(1),
    "batch": [2.0, 1.0],
    "draws": [[1], [0], [0, 1]],
    "step_size": [1.0, 0.5, 0.5],
}
HIDDEN = {"noise": [ONE, -ONE, 2 * ONE], "sigma": [0.5, 0.25], "clip": 2.0}


def test_three_events_worked_by_hand():
    """The third event's gradient is taken where node 0 was after the first, two averages before."""
    plain, private = ad_psgd(EVENTS, **HAPPENED), adp2_sgd(EVENTS, **HAPPENED, **HIDDEN)
    np.testing.assert_allclose(plain[..., 0], [[0, 0], [3 / 2, 0], [3 / 4, -1 / 4], [1 / 2, 1 / 4]], rtol=1e-14)
    by_hand = [[0, 0], [1 / 2, 0], [1 / 4, -5 / 8], [-1 / 16, -3 / 16]]
    np.testing.assert_allclose(private[..., 0], by_hand, rtol=1e-14)


@pytest.mark.parametrize("read", [-1, 2])
def test_nobody_reads_the_future(read):
    events = [EVENTS[0], Event(1, 0, read), EVENTS[2]]
    with pytest.raises(ValueError, match=f"event 1 has read={read}: from 0 to 1"):
        ad_psgd(events, **HAPPENED)


@settings(max_examples=25, deadline=None)
@hypothesis_given(
    pairs=st.lists(st.permutations(range(3)), min_size=1, max_size=12),
    still=st.sets(st.integers(0, 11)),
)
def test_without_staleness_an_event_moves_the_mean_by_its_step_over_n_alone(pairs, still):
    """γ = 0 keeps the mean, whoever averages with whom; otherwise it moves by −γ g/n."""
    problem, events = many(), [Event(i, j, t) for t, (i, j, _) in enumerate(pairs)]
    step_size = [0.0 if t in still else 0.5 for t in range(len(events))]
    x = ad_psgd(
        events,
        gradient=problem.gradient,
        x0=problem.x0,
        batch=[1.0] * 3,
        draws=[[1]] * len(events),
        step_size=step_size,
    )
    for t, (i, j, _) in enumerate(events):
        moved = step_size[t] * problem.gradient(x[t, i], i, 1)
        np.testing.assert_allclose(x[t + 1].mean(0), x[t].mean(0) - moved / 3, rtol=0, atol=1e-14)
        np.testing.assert_allclose(x[t + 1, i] + moved, x[t + 1, j], rtol=0, atol=1e-14)


@pytest.mark.parametrize(
    "method",
    [
        lambda g: dp_srm(g, alpha=0.3),
        lambda g: ldp_svrg(g, period=4),
        lambda g: ldp_spider(g, period=4),
        lambda g: soteriafl("sgd", g, compressor=as_sent, shift_rate=0.2).history,
        lambda g: soteriafl("svrg", g, compressor=as_sent, shift_rate=0.2, coins=[False, True] * 3).history,
        lambda g: soteriafl("saga", g, compressor=as_sent, shift_rate=0.2, table_init="zeros").history,
    ],
    ids=["dp-srm", "ldp-svrg", "ldp-spider", "soteriafl-sgd", "soteriafl-svrg", "soteriafl-saga"],
)
def test_without_noise_and_with_everybody_a_server_does_gradient_descent(method):
    full = everybody(many())
    np.testing.assert_allclose(method(full), mean_sgd(full), rtol=1e-13)


def test_without_noise_and_with_everybody_a_node_alone_does_gradient_descent():
    full = everybody(many())
    pool = dp_sgd(
        gradient=full.gradient,
        x0=full.x0,
        samples=full.samples,
        batch=9.0,
        draws=[range(9)] * 6,
        step_size=full.step_size,
        noise=np.zeros((6, 2)),
        sigma=0.0,
        clip=None,
    )
    x = full.x0
    for k, step_size in enumerate(full.step_size):
        every = [full.gradient(x, i, j) for i, J in enumerate(full.samples) for j in range(J)]
        x = x - step_size * np.mean(every, axis=0)
        np.testing.assert_allclose(pool[k + 1], x, rtol=1e-13)
    for i, J in enumerate(full.samples):
        alone = replace(
            full,
            gradient=lambda x, _, j, i=i: full.gradient(x, i, j),
            samples=[J],
            batch=[J],
            draws=[[range(J)]] * 6,
        ).without_privacy()
        np.testing.assert_allclose(local(full)[:, i], mean_sgd(alone), rtol=1e-13)


@pytest.mark.parametrize("shift_rate", [0.0, 0.3])
def test_soteriafl_without_compression_is_the_mean_of_noisy_clipped_sgd(shift_rate):
    given = many()
    out = soteriafl("sgd", given, compressor=as_sent, shift_rate=shift_rate)
    np.testing.assert_allclose(out.history, mean_sgd(given), rtol=1e-12)
    assert np.any(out.shifts) == (shift_rate > 0)


def test_dp_srm_lies_between_dp_sgd_and_spider():
    given = many()
    np.testing.assert_allclose(dp_srm(given, alpha=1.0, difference_clip=0.1), mean_sgd(given), rtol=1e-12)
    spider = ldp_spider(given, period=len(given.step_size), difference_clip=0.1)
    np.testing.assert_allclose(dp_srm(given, alpha=0.0, difference_clip=0.1), spider, rtol=1e-12)


@pytest.mark.parametrize("method", [ldp_svrg, ldp_spider])
def test_an_anchor_forgets_what_came_before_it(method):
    given = many()
    history = method(given, period=2)
    later = replace(given, x0=history[4], draws=given.draws[4:], noise=given.noise[4:], step_size=given.step_size[4:])
    np.testing.assert_allclose(method(later, period=2), history[4:], rtol=1e-13)
    assert not np.allclose(method(given, period=6), history)


def test_d_psgd_on_a_complete_graph_is_centralised_sgd_where_curvature_is_shared():
    """Everybody starts a round from one average, but takes its gradient at its own model before averaging.

    So the mean is SGD's exactly where mean_i g_i(x_i) = mean_i g_i(x̄), and only near it elsewhere.
    """
    given, complete = many().without_privacy(), [np.full((3, 3), 1 / 3)] * 6
    shared = replace(given, gradient=lambda x, i, j: 0.7 * (x - np.array([i, j])), batch=[1.0] * 3)
    shared = replace(shared, draws=[[[k % J] for J in shared.samples] for k in range(6)])
    x = d_psgd(shared, complete)
    np.testing.assert_allclose(x.mean(1), mean_sgd(shared), rtol=1e-13)
    for k, step_size in enumerate(shared.step_size):
        steps = [step_size * shared.mean(x[k, i], k, i) for i in shared.nodes]
        np.testing.assert_allclose(x[k + 1] + steps, [x[k].mean(0)] * 3, rtol=0, atol=1e-14)
    assert not np.allclose(d_psgd(given, complete).mean(1), mean_sgd(given))
