"""Several views of a sample: the numbers they are, and a sample that counts once in a run."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn

import privsgp
import runs
from privsgp import models
from privsgp.errors import Refused
from privsgp.features.views import Views, of_the_mean_view, over_views
from privsgp.gradients import Layout, stack

X = torch.arange(2 * 3 * 4, dtype=torch.float32).view(2, 3, 4)
FEATURES = {"name": "random-conv", "filters": 6, "patch": 3, "grid": 2}


def test_a_mirror_image():
    out = Views("mirror", nn.Flatten())(X)
    torch.testing.assert_close(out[:, 0], X.flatten(1))
    torch.testing.assert_close(out[:, 1].view_as(X), X.flip(2))


@pytest.mark.parametrize("x", [X, X[:, None].expand(-1, 2, -1, -1)], ids=["one channel", "channels"])
def test_shifts_by_a_pixel_repeat_the_edge(x):
    out = Views("shifts", nn.Identity())(x)
    assert out.shape == (2, 5, *x.shape[1:])
    torch.testing.assert_close(out[:, 0], x)
    torch.testing.assert_close(out[:, 1, ..., 1:, :], x[..., :-1, :])
    torch.testing.assert_close(out[:, 1, ..., 0, :], x[..., 0, :])
    torch.testing.assert_close(out[:, 4, ..., :-1], x[..., 1:])


def test_gradients_of_views_are_averaged_before_the_clip():
    """The rule for several rows against one backward pass for each view."""
    model = models.make("mlp", input_shape=(5,), outputs=3, seed=0, hidden=4, rows=True).double()
    loss, layout = over_views(models.per_sample("cross-entropy")), Layout.of(model)
    rng = np.random.default_rng(0)
    x, y = torch.from_numpy(rng.standard_normal((4, 2, 5))), torch.tensor([0, 1, 2, 1])
    gradient = stack(model, loss, (x, y))(layout.flatten(model)[None], x[None], y[None])
    expected = []
    for sample, target in zip(x, y, strict=True):
        model.zero_grad()
        views = [models.per_sample("cross-entropy")(model(view[None]), target[None]).sum() for view in sample]
        (sum(views) / 2).backward()
        expected.append(torch.cat([p.grad.reshape(-1) for p in model.parameters()]))
    torch.testing.assert_close(gradient.dense()[0], torch.stack(expected))
    gradient.clip_(0.1, torch.ones(1, 4, dtype=torch.bool))
    assert float(gradient.dense().norm(dim=-1).max()) <= 0.1 * (1 + 1e-9)


def test_what_is_right_is_asked_of_the_mean_view():
    outputs = torch.tensor([[[3.0, 0.0], [0.0, 1.0]]])
    assert of_the_mean_view(models.correct("cross-entropy"))(outputs, torch.tensor([0])).tolist() == [True]


def _images(tmp_path):
    x, y = load_digits(return_X_y=True)
    images = (x / 16).reshape(-1, 8, 8).astype(np.float32)
    np.savez(tmp_path / "images.npz", x=images[300:], y=y[300:], x_test=images[:300], y_test=y[:300])
    return runs.small(tmp_path), runs.changes(data__name=str(tmp_path / "images.npz"))


@pytest.mark.parametrize(("model", "algorithm"), [("logistic", "privsgp"), ("mlp", "privsgp-sag")])
def test_a_run_with_views(tmp_path, monkeypatch, model, algorithm):
    monkeypatch.setenv("PRIVSGP_CACHE", str(tmp_path / "cache"))
    config, options = _images(tmp_path)
    options += runs.changes(
        features__name="random-conv", features__filters=6, features__patch=3, features__grid=2, model__name=model,
        algorithm__name=algorithm,
    )  # fmt: skip
    plain = runs.train(config, tmp_path / "plain", *options)
    several = runs.train(config, tmp_path / "several", *options, *runs.changes(features__views="shifts"))
    assert several["dim"] == plain["dim"]
    assert several["epsilon_spent"] == pytest.approx(plain["epsilon_spent"], rel=0.01)  # κ of many positions
    assert several["test_accuracy"] > 0.3
    assert several["test_loss"] != plain["test_loss"]


def test_what_views_exclude(tmp_path):
    config, options = _images(tmp_path)
    named = [*options, *runs.changes(features__name="random-conv", features__views="mirror")]
    for more, words in (
        (runs.changes(algorithm__name="privsgp-vr", algorithm__difference_clip=0.5), "features.views = 'mirror'"),
        (runs.changes(model__name="cnn", features__patch=3), "for several views"),
        (runs.changes(features__name="none"), "features.views = 'mirror' with features.name = 'none'"),
    ):
        ran = runs.command("train", config, "--out", tmp_path / "out", *named, *more)
        assert ran.code == 2
        assert words in ran.err
    assert not (tmp_path / "out").exists()


def test_an_encoder_of_ones_own(tmp_path):
    x, y = load_digits(return_X_y=True)
    x = (x / 16).astype(np.float32)
    encoder = nn.Sequential(nn.Linear(64, 20), nn.BatchNorm1d(20), nn.Tanh())
    settings = {"nodes": 4, "seed": 0, "privacy": {"sigma": 0.1}, "algorithm": {"name": "privsgp", "steps": 5}}
    data = (x[300:], y[300:], x[:300], y[:300])
    result = privsgp.train(nn.Linear(20, 10), data, features=encoder, out=tmp_path / "one", **settings)
    assert result.summary["dim"] == 210
    assert 'name = "module"' in (tmp_path / "one" / "config.toml").read_text()
    mixing = nn.Sequential(nn.Linear(64, 20), nn.Softmax(0))
    with pytest.raises(Refused, match="depend on the other samples"):
        privsgp.train(nn.Linear(20, 10), data, features=mixing, out=tmp_path / "two", **settings)
    images = tuple(a.reshape(-1, 8, 8) if a.ndim == 2 else a for a in data)
    named = privsgp.train(nn.Linear(48, 10), images, features=FEATURES, out=tmp_path / "three", **settings)
    assert named.summary["dim"] == 490
