"""The reference against numbers worked out by hand and against laws that need no code to be believed."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from reference import clipped, per_sample_gradient, run

# Column-stochastic but not doubly: w ≠ 1 from the first step on.
IRREGULAR = np.array([[0.5, 0.25], [0.5, 0.75]])
CENTRES = [[1.0, 3.0], [-2.0]]
NODES = {"x0": np.zeros(1), "samples": [2, 1], "batch": [4.0, 1.0]}
TWO_STEPS = {"draws": [[[1], [0]], [[0, 1], []]], "step_size": [1.0, 1.0], "P": [IRREGULAR] * 2, "steps": 2}
NOISE = {"noise": [[np.ones(1), -np.ones(1)], [np.zeros(1)] * 2], "sigma": [0.5, 0.25]}
EVERY = ["sgp", "privsgp", "privsgp-vr", "privsgp-sag"]


def quadratic(z, i, j):
    """∇ ½|z − centre|²."""
    return z - CENTRES[i][j]


@pytest.mark.parametrize(
    ("algorithm", "options", "x", "tables"),
    [
        ("sgp", {}, [19 / 96, -35 / 96], []),
        ("privsgp", {}, [-19 / 192, -145 / 192], []),
        ("privsgp-vr", {}, [13 / 192, -257 / 192], [[-11 / 12, -2], [2]]),
        ("privsgp-vr", {"difference_clip": 0.5, "table_init": "zeros"}, [-3 / 32, -17 / 32], [[-0.5, -1], [0.5]]),
        ("privsgp-vr", {"difference_scale": 0.5, "table_init": "zeros"}, [-23 / 96, -19 / 12], [[-17 / 12, -2], [2]]),
        ("privsgp-sag", {"table_init": "zeros"}, [-3 / 64, -101 / 64], [[-1.25, -2], [2]]),
    ],
)
def test_two_steps_worked_by_hand(algorithm, options, x, tables):
    out = run(algorithm, gradient=quadratic, **NODES, **TWO_STEPS, **NOISE, clip=2.0, **options)
    np.testing.assert_allclose(out.x[:, 0], x, rtol=1e-14)
    np.testing.assert_allclose(out.w, [11 / 16, 21 / 16], rtol=1e-15)
    np.testing.assert_allclose(out.z[:, 0], np.divide(x, [11 / 16, 21 / 16]), rtol=1e-14)
    assert [t.shape for t in out.tables] == [(len(t), 1) for t in tables]
    for got, expected in zip(out.tables, tables, strict=True):
        np.testing.assert_allclose(got[:, 0], expected, rtol=1e-14)
    assert out.history.shape == (3, 2, 1)
    np.testing.assert_array_equal(out.history[[0, 2]], [np.zeros((2, 1)), out.z])


@pytest.mark.parametrize("algorithm", EVERY)
def test_full_batch_on_a_complete_graph_is_gradient_descent(algorithm):
    rng = np.random.default_rng(0)
    centres, scale = rng.normal(size=(3, 4, 2)), rng.uniform(0.5, 1, size=(3, 4, 2))
    x, steps = np.ones(2), 5
    out = run(
        algorithm,
        gradient=lambda z, i, j: scale[i, j] * (z - centres[i, j]),
        x0=x,
        samples=[4] * 3,
        batch=[4.0] * 3,
        draws=[[range(4)] * 3] * steps,
        step_size=[0.3] * steps,
        P=[np.full((3, 3), 1 / 3)] * steps,
        steps=steps,
        noise=np.zeros((steps, 3, 2)),
        sigma=[0.0] * 3,
    )
    for _ in range(steps):
        x = x - 0.3 * np.mean(scale * (x - centres), axis=(0, 1))
    np.testing.assert_allclose(out.z, [x] * 3, rtol=1e-13)


def test_mixing_alone_leaves_every_z_at_x0_while_w_moves():
    still = NODES | {"x0": np.array([0.7])}
    out = run("sgp", gradient=lambda z, i, j: 0 * z, **still, **TWO_STEPS)
    np.testing.assert_allclose(out.z, [[0.7], [0.7]], rtol=1e-15)
    assert abs(out.w[0] - 1) > 0.3


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), C=st.sampled_from([0.1, 0.5, 1.0, 2.0]))
def test_a_table_of_clipped_differences_stays_in_the_ball_and_2G_does_not_clip(seed, C):
    """The paper's estimator is C = 2G; below it an entry moves along a chord of the ball."""
    phase = np.random.default_rng(seed).uniform(0, 6, size=(2, 4, 3))
    arguments = {
        "gradient": lambda z, i, j: 2 * np.sin(5 * z + phase[i, j]),
        "x0": np.zeros(3),
        "samples": [4, 4],
        "batch": [1.5, 2.5],
        "draws": [[range(4)] * 2] * 3,
        "noise": np.zeros((3, 2, 3)),
        "sigma": [0.0] * 2,
        "step_size": [0.5] * 3,
        "P": [IRREGULAR] * 3,
        "steps": 3,
        "clip": 1.0,
    }
    out = run("privsgp-vr", **arguments, difference_clip=C)
    paper = run("privsgp-vr", **arguments)
    assert np.linalg.norm(out.tables, axis=2).max() <= 1 + 1e-12
    assert np.allclose(out.x, paper.x, rtol=1e-9, atol=1e-10) or C < 2.0
    assert not np.allclose(out.x, paper.x) or C > 0.1


@pytest.mark.parametrize("algorithm", EVERY)
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_non_finite_gradient_counts_as_zero(algorithm, bad):
    def broken(z, i, j):
        return np.array([bad]) if (i, j) == (0, 1) else quadratic(z, i, j)

    def zeroed(z, i, j):
        return np.zeros(1) if (i, j) == (0, 1) else quadratic(z, i, j)

    arguments = NODES | TWO_STEPS | NOISE | {"clip": 2.0}
    out, expected = (run(algorithm, gradient=f, **arguments) for f in (broken, zeroed))
    np.testing.assert_array_equal(out.x, expected.x)


def test_clipped():
    v = np.array([3.0, 4.0])
    np.testing.assert_allclose(clipped(v, 1.0), [0.6, 0.8], rtol=1e-15)
    np.testing.assert_array_equal(clipped(v, 5.0), v)
    np.testing.assert_array_equal(clipped(v, None), v)
    np.testing.assert_array_equal(clipped(v, 0.0), [0, 0])
    np.testing.assert_array_equal(clipped(np.array([1.0, np.nan]), 1.0), [0, 0])


def test_per_sample_gradient_of_a_linear_layer_in_parameter_order():
    """Cross-entropy of a linear layer: weight (p − e_y) ⊗ a, then bias p − e_y."""
    module = torch.nn.Linear(3, 2)
    before = [p.clone() for p in module.parameters()]
    x, a = np.linspace(-1, 1, 8), np.array([0.5, -1.0, 2.0])
    logits = x[:6].reshape(2, 3) @ a + x[6:]
    delta = np.exp(logits) / np.exp(logits).sum() - [0, 1]
    loss = torch.nn.CrossEntropyLoss(reduction="none")
    got = per_sample_gradient(module, loss, x, a.astype(np.float32), np.int64(1))
    assert got.dtype == np.float64
    np.testing.assert_allclose(got, np.append(np.outer(delta, a), delta), rtol=1e-13)
    assert all(torch.equal(p, q) and p.dtype == torch.float32 for p, q in zip(module.parameters(), before, strict=True))


@pytest.mark.parametrize("algorithm", ["sgp", "privsgp", "privsgp-sag"])
def test_difference_clip_belongs_to_vr_alone(algorithm):
    with pytest.raises(ValueError, match=r"difference_clip=0\.5"):
        run(algorithm, gradient=quadratic, **NODES, **TWO_STEPS, difference_clip=0.5)
    with pytest.raises(ValueError, match=r"difference_scale=0\.5"):
        run(algorithm, gradient=quadratic, **NODES, **TWO_STEPS, difference_scale=0.5)
