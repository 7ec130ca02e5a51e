"""Feature maps by name: fixed, one sample at a time, the same bits wherever they are made."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from privsgp import features
from privsgp.errors import Refused
from privsgp.features import maps, synthetic
from privsgp.features.maps import make_encoder

SMALL = {"like": "strokes", "components": 12}
IMAGES = torch.from_numpy(np.random.default_rng(1).standard_normal((6, 1, 16, 16), np.float32))


@pytest.fixture(autouse=True)
def _few_made_up_images(monkeypatch):
    monkeypatch.setattr(maps, "MADE_UP", 64)


@pytest.mark.parametrize(
    ("choice", "width"),
    [
        ({}, 81 * 16),
        (SMALL, 12),
    ],
    ids=["scattering", "whitened"],
)
def test_rows_have_one_length_and_depend_on_their_own_sample_alone(choice, width):
    encoder = features.make((1, 16, 16), 3, **choice)
    out = encoder(IMAGES)
    assert out.shape == (6, width)
    torch.testing.assert_close(out.norm(dim=1), torch.full((6,), width**0.5))
    alone = torch.cat([encoder(image[None]) for image in IMAGES])
    torch.testing.assert_close(out, alone, rtol=0, atol=1e-4)


@pytest.mark.parametrize("choice", [SMALL, {}], ids=["whitened", "plain"])
def test_scale_and_offset_of_an_image_do_not_matter(choice):
    encoder = features.make((1, 16, 16), 3, **choice)
    torch.testing.assert_close(encoder(300 * IMAGES - 2), encoder(100 * IMAGES), rtol=0, atol=5e-3)


def test_an_image_without_contrast_has_finite_features():
    for choice in (SMALL, {}):
        assert features.make((1, 16, 16), 3, **choice)(torch.zeros(2, 1, 16, 16)).isfinite().all()


def test_the_same_seed_gives_the_same_bits_on_any_number_of_threads():
    threads = torch.get_num_threads()
    found = []
    try:
        for number in (1, 2):
            torch.set_num_threads(number)
            maps._measured.cache_clear()
            found.append(features.digest(features.make((1, 16, 16), 3, **SMALL)))
    finally:
        torch.set_num_threads(threads)
    assert len(set(found)) == 1
    assert features.digest(features.make((1, 16, 16), 4, **SMALL)) not in found


def test_whitening_brings_made_up_features_to_one_scale():
    rng = np.random.default_rng(0)
    x = torch.from_numpy((rng.standard_normal((500, 20)) * np.linspace(3, 0.5, 20) + 1).astype(np.float32))
    mean, directions = maps.fit(x, 8, 1.0)
    y = (maps.unit(x) - mean) @ directions
    assert float(y.mean(0).abs().max()) < 1e-5
    deviation = y.std(0)
    assert float(deviation.max() / deviation.min()) < 1.2
    _, plain = maps.fit(x, 8, 0.0)
    torch.testing.assert_close(plain.T @ plain, torch.eye(8), rtol=0, atol=1e-4)


@pytest.mark.parametrize("kind", synthetic.KINDS)
def test_made_up_images_are_images(kind):
    images = synthetic.make(kind, 300, (3, 12, 16), seed=1)
    assert images.shape == (300, 3, 12, 16)
    assert float(images.min()) >= 0
    assert float(images.max()) <= 1
    assert float(images.flatten(1).std(1).min()) > 0.01
    assert torch.equal(images, synthetic.make(kind, 300, (3, 12, 16), seed=1))


@pytest.mark.parametrize(
    ("choice", "shape", "words"),
    [
        (SMALL, (64,), r"features.name = 'scattering' does not take samples of shape \[64\]"),
        ({"like": "strokes", "components": 33}, (8, 8), "features.components = 33"),
    ],
)
def test_what_cannot_be_is_refused(choice, shape, words):
    with pytest.raises(Refused, match=words):
        features.make(shape, 0, **choice)


@pytest.mark.parametrize(("name", "options"), [("random-conv", {"filters": 9}), ("efficientnet-lite0", {"size": 64})])
def test_maps_of_earlier_versions_are_refused_by_name(name, options):
    with pytest.raises(Refused, match=f"features.name = '{name}' is unknown"):
        make_encoder(name, options, (8, 8))


@pytest.mark.parametrize("like", [None, "leaves"])
def test_an_image_and_its_mirror_image_have_the_same_features_where_that_is_asked_for(like):
    options = {"like": like} | ({} if like is None else {"components": 12})
    encoder = features.make((1, 16, 16), 3, mirror=True, **options)
    torch.testing.assert_close(encoder(IMAGES), encoder(IMAGES.flip(-1)), rtol=0, atol=1e-3)
    plain = features.make((1, 16, 16), 3, **options)
    assert float((plain(IMAGES) - plain(IMAGES.flip(-1))).abs().max()) > 0.1
    assert features.digest(plain) != features.digest(encoder)
