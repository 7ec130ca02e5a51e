"""The script that trains the encoder on made-up images: what it draws, how it continues, and the file it writes."""

from __future__ import annotations

import argparse

import pytest
import torch
from safetensors.torch import save_file

from privsgp.features import encoder

EXPERIMENT = "synthetic_encoder"
CPU = torch.device("cpu")


@pytest.fixture
def few(experiment, monkeypatch):
    """The script, four images at a time."""
    monkeypatch.setattr(experiment, "AT_ONCE", 4)
    return experiment


def test_images_come_from_the_seed_alone(few):
    first, again, other = (few.Images(CPU, seed).bank(8) for seed in (0, 0, 1))
    assert first.shape == (8, 3, few.SIDE, few.SIDE)
    assert first.dtype == torch.uint8
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert all(image.float().std() > 1 for image in first)
    seen = few.views(first, torch.Generator().manual_seed(0))
    assert seen.shape == (8, 3, few.SEEN, few.SEEN)
    assert 0 <= seen.min() < seen.max() <= 1


def test_the_loss_wants_views_alike_and_images_apart(few):
    apart = torch.nn.functional.normalize(torch.randn(16, 8, generator=torch.Generator().manual_seed(0)), dim=1)
    assert few.loss_of(apart, apart) < few.loss_of(apart, apart.roll(1, 0))
    assert few.loss_of(apart, apart) < few.loss_of(*2 * [torch.ones(16, 8) / 8**0.5])


def test_training_that_was_stopped_continues_with_its_weights(few, tmp_path):
    torch.manual_seed(0)
    learner, other = few.Learner(), few.Learner()
    optimizers = [torch.optim.SGD(one.parameters(), 0.1, momentum=0.9) for one in (learner, other)]
    few.save(tmp_path, learner, optimizers[0], 7)
    assert few.restore(tmp_path, other, optimizers[1]) == 7
    assert all(
        torch.equal(a, b) for a, b in zip(learner.state_dict().values(), other.state_dict().values(), strict=True)
    )
    options = argparse.Namespace(out=tmp_path, seed=0, compile=False, seconds=-1.0, iterations=9)
    assert few.train(few.Images(CPU, 0).bank(4), options) is None  # the time is over: there is more to do
    assert few.restore(tmp_path, other, optimizers[1]) == 7


def test_packed_arrays_come_back_within_half_a_step(few):
    for seed in range(20):
        generator = torch.Generator().manual_seed(seed)
        values = {"a": torch.randn(3, 2, 2, generator=generator), "b": torch.randn(5, generator=generator)}
        back = encoder.unpacked(few.packed(values))
        torch.testing.assert_close(back["b"], values["b"])
        step = values["a"].flatten(1).abs().amax(1) / 127
        assert ((back["a"] - values["a"]).flatten(1).abs().amax(1) <= 0.5001 * step).all()


def test_the_file_it_writes_makes_features(few, tmp_path, monkeypatch):
    monkeypatch.setattr(few, "KEPT", 6)
    network, bank = few.Learner().encoder.eval(), few.Images(CPU, 0).bank(8)
    arrays = network.state_dict() | few.measured(network, bank)
    kept = {name: value for name, value in arrays.items() if not name.endswith("num_batches_tracked")}
    save_file(few.packed(kept), tmp_path / "file")
    monkeypatch.setattr(encoder, "packaged", lambda *_: (tmp_path / "file").read_bytes())
    rows = encoder.SyntheticEncoder(6, 1.0)(bank.float() / 255)
    torch.testing.assert_close(rows.norm(dim=1), torch.full((8,), 6**0.5))
    assert not torch.allclose(rows[0], rows[1], atol=0.1)
