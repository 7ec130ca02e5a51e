"""Features of samples: computed once, kept for their owner alone; encoders that mix samples are refused."""

from __future__ import annotations

import stat

import numpy as np
import pytest
import torch
from torch import nn

from privsgp.errors import Refused
from privsgp.features.encode import cache_folder, encode, encode_once, frozen, output_shape

CPU = torch.device("cpu")
X = np.random.default_rng(0).standard_normal((300, 5), np.float32)
MADE_UP = torch.from_numpy(X[:4])


def _linear():
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        return nn.Linear(5, 3).requires_grad_(requires_grad=False)


class _Centred(nn.Module):
    def forward(self, x):
        return x - x.mean(0)


class _Tossed(nn.Module):
    def forward(self, x):
        return x + torch.rand_like(x)


def test_kept_features_are_the_same_bits_and_for_their_owner_alone(tmp_path, monkeypatch):
    folder, module = tmp_path / "features", _linear()
    made = encode(module, X, CPU)
    assert made.shape == (300, 3)
    np.testing.assert_allclose(made, module(torch.from_numpy(X)).numpy(), rtol=1e-3)
    np.testing.assert_array_equal(encode_once(module, X, CPU, folder), made)
    (path,) = folder.iterdir()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    monkeypatch.setattr("privsgp.features.encode.encode", None)
    np.testing.assert_array_equal(encode_once(module, X, CPU, folder), made)


def test_other_samples_and_other_maps_have_files_of_their_own(tmp_path):
    module = _linear()
    encode_once(module, X, CPU, tmp_path)
    other = encode_once(module, X[::-1].copy(), CPU, tmp_path)
    np.testing.assert_array_equal(other[::-1], encode_once(module, X, CPU, tmp_path))
    module.bias += 1
    assert (encode_once(module, X, CPU, tmp_path) != other[::-1]).any()
    assert len(list(tmp_path.iterdir())) == 3


def test_a_damaged_file_or_a_folder_that_cannot_be_written_is_no_obstacle(tmp_path):
    module = _linear()
    made = encode_once(module, X, CPU, tmp_path / "there")
    for path in (tmp_path / "there").iterdir():
        path.write_bytes(b"\x93NUMPY not much of a file")
    np.testing.assert_array_equal(encode_once(module, X, CPU, tmp_path / "there"), made)
    (tmp_path / "file").write_text("")
    np.testing.assert_array_equal(encode_once(module, X, CPU, tmp_path / "file"), made)


@pytest.mark.parametrize("bits", [0o777, 0o775, 0o757])
def test_a_folder_that_others_may_write_to_is_not_read(tmp_path, monkeypatch, bits):
    folder, module = tmp_path / "features", _linear()
    made = encode_once(module, X, CPU, folder)
    monkeypatch.setattr("privsgp.features.encode.encode", lambda *_: 2 * made)
    np.testing.assert_array_equal(encode_once(module, X, CPU, folder), made)
    folder.chmod(bits)
    np.testing.assert_array_equal(encode_once(module, X, CPU, folder), 2 * made)


def test_where_features_are_kept(monkeypatch, tmp_path):
    monkeypatch.setenv("PRIVSGP_CACHE", str(tmp_path))
    assert cache_folder() == tmp_path / "features"
    monkeypatch.delenv("PRIVSGP_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "privsgp" / "features"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / ".cache" / "privsgp" / "features"


def test_what_is_not_finite_counts_as_zero_and_what_is_huge_is_held():
    x = np.array([[np.nan, 1.0], [1e30, -1e30]], np.float32)
    np.testing.assert_array_equal(encode(nn.Identity(), x, CPU), [[0.0, 1.0], [65504.0, -65504.0]])


def test_batch_norm_in_evaluation_mode_is_a_fixed_map():
    module = nn.Sequential(_linear(), nn.BatchNorm1d(3), nn.Dropout(0.5)).train()
    still = frozen(module, MADE_UP)
    assert not still.training
    assert module.training
    assert not any(p.requires_grad for p in still.parameters())
    assert output_shape(still, (5,)) == (3,)


@pytest.mark.parametrize(
    ("module", "words"),
    [
        (_Centred(), "depend on the other samples"),
        (_Tossed(), "depend on the other samples"),
        (nn.Flatten(0), "do not give one row per sample"),
    ],
)
def test_an_encoder_that_is_no_map_of_each_sample_is_refused(module, words):
    with pytest.raises(Refused, match=words):
        frozen(module, MADE_UP)
