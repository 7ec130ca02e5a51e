"""The encoder that was trained on made-up images: a fixed map of each image alone, from the pinned file."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from privsgp.errors import Refused
from privsgp.features import encoder
from privsgp.features.encode import encode, frozen
from privsgp.features.maps import make_encoder
from privsgp.runs import config as configs
from privsgp.runs.problem import load_problem
from privsgp.runs.result import load
from privsgp.runs.train import run

SHAPE = (3, 32, 32)


@pytest.fixture(scope="module")
def module():
    return make_encoder("synthetic-encoder", {}, SHAPE)[0]


@pytest.fixture(scope="module")
def images():
    return torch.rand(4, *SHAPE, generator=torch.Generator().manual_seed(0))


@torch.no_grad()
def test_rows_have_one_length_and_no_unit_of_pixels(module, images):
    rows = module(images)
    assert rows.shape == (4, 1024)
    torch.testing.assert_close(rows.norm(dim=1), torch.full((4,), 32.0))
    torch.testing.assert_close(module(255 * images - 7), rows, atol=1e-2, rtol=0)
    torch.testing.assert_close(module(images.flip(-1)), rows, atol=1e-2, rtol=0)
    assert not torch.allclose(rows[0], rows[1], atol=0.1)


def test_a_row_depends_on_its_image_alone_also_after_train(module, images):
    module.train()
    frozen(module, images)  # refuses a module that mixes samples
    assert not any(part.training for part in module.modules())
    rows = encode(module, images.numpy(), torch.device("cpu"))
    others = np.concatenate([images[:1].numpy(), 1 - images[1:].numpy()])
    np.testing.assert_allclose(encode(module, others, torch.device("cpu"))[0], rows[0], atol=1e-2)


@torch.no_grad()
def test_grey_images_of_any_size_and_fewer_directions():
    module, shape = make_encoder("synthetic-encoder", {"components": 100, "power": 0.5}, (28, 28))
    assert shape == (100,)
    assert torch.isfinite(module(torch.zeros(1, 28, 28))).all()
    grey = torch.rand(2, 28, 28)
    torch.testing.assert_close(module(grey), module(grey[:, None].expand(-1, 3, -1, -1)))


def test_too_many_directions_texts_and_another_file_are_refused(monkeypatch):
    with pytest.raises(Refused, match=r"features\.components = 1025"):
        make_encoder("synthetic-encoder", {"components": 1025}, SHAPE)
    with pytest.raises(Refused, match="it is for images"):
        make_encoder("synthetic-encoder", {}, (7,))
    monkeypatch.setattr(encoder, "_SHA256", "0" * 64)
    with pytest.raises(Refused, match="is not the expected file"):
        make_encoder("synthetic-encoder", {}, SHAPE)


def test_a_run_stores_the_map_by_name_and_its_model_takes_images(tmp_path):
    rng = np.random.default_rng(0)
    for site in range(2):
        np.savez(tmp_path / f"{site}.npz", x=rng.random((12, 12, 12), np.float32), y=np.arange(12) % 2, classes=2)
    changes = {
        "seed": 0, "data": {"path": str(tmp_path / "{node}.npz"), "nodes": 2},
        "features": {"name": "synthetic-encoder", "components": 16}, "model": {"name": "logistic"},
        "privacy": {"epsilon": 3.0}, "algorithm": {"name": "privsgp", "batch": 4, "steps": 2, "step_size": 0.1},
    }  # fmt: skip
    config = configs.parse({"name": "pictures", **changes})
    run(config, load_problem(config), tmp_path / "run")
    assert load(tmp_path / "run").predict(np.zeros((3, 12, 12), np.float32)).shape == (3,)
