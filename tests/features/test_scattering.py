"""Scattering against kymatio's numbers, and against what any scattering must do."""

from __future__ import annotations

import importlib.util
import sys
import types

import numpy as np
import pytest
import torch

from privsgp.errors import Refused
from privsgp.features.scattering import Scattering

# kymatio 0.3.0's ScatteringTorch2D of 2 scales on `_image` of 28 × 28 pixels: three paths at one place, sum.
GOLDEN = (-0.223169, 0.0186315, 0.0278838, 172.368)


def _image(height, width):
    rows, columns = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    return (torch.sin(0.9 * rows) + torch.cos(0.31 * rows * columns))[None, None]


def test_numbers_of_kymatio():
    out = Scattering(28, 28)(_image(28, 28))[0]
    found = [float(out[p, 1, 1]) for p in (0, len(out) // 2, -1)] + [float(out.sum())]
    np.testing.assert_allclose(found, GOLDEN, rtol=1e-4, atol=1e-4)


def test_equal_to_kymatio_where_it_is_installed(monkeypatch):
    spec = importlib.util.find_spec("kymatio")
    if spec is None:
        pytest.skip("kymatio is not installed")
    for name in ("kymatio", "kymatio.scattering2d"):  # its top-level import is broken with current SciPy
        module = types.ModuleType(name)
        module.__path__ = [f"{spec.submodule_search_locations[0]}{name.removeprefix('kymatio').replace('.', '/')}"]
        monkeypatch.setitem(sys.modules, name, module)
    from kymatio.scattering2d.frontend.torch_frontend import ScatteringTorch2D

    x = torch.from_numpy(np.random.default_rng(0).standard_normal((3, 2, 28, 20), np.float32))
    ours, theirs = Scattering(28, 20)(x), ScatteringTorch2D(2, (28, 20))(x)
    torch.testing.assert_close(ours, theirs.flatten(1, 2), rtol=0, atol=1e-4)


def test_shape_and_paths():
    assert Scattering(16, 24)(torch.zeros(3, 2, 16, 24)).shape == (3, 2 * 81, 4, 6)


def test_wavelets_do_not_see_a_constant_and_moduli_not_its_sign():
    scattering = Scattering(16, 16)
    flat = scattering(torch.full((1, 1, 16, 16), 3.0))[0]
    torch.testing.assert_close(flat[0], torch.full((4, 4), 3.0), rtol=1e-3, atol=0)
    assert float(flat[1:].abs().max()) < 1e-4
    x = _image(16, 16)
    torch.testing.assert_close(scattering(x)[:, 1:], scattering(-x)[:, 1:], rtol=0, atol=1e-6)


def test_each_orientation_answers_to_its_own_waves():
    scattering = Scattering(32, 32)
    rows, columns = torch.meshgrid(torch.arange(32.0), torch.arange(32.0), indexing="ij")
    angles = [(3 - theta) * torch.pi / 8 for theta in range(8)]
    waves = torch.stack([torch.cos(2.3 * (np.cos(a) * rows + np.sin(a) * columns)) for a in angles])[:, None]
    energy = scattering(waves)[:, 1:9].sum((2, 3))
    assert energy.argmax(1).tolist() == list(range(8))


def test_small_images_are_refused():
    with pytest.raises(Refused, match="scattering of images of 4 × 8") as refused:
        Scattering(4, 8)
    assert refused.value.remedy == "each side needs 5 or more"
