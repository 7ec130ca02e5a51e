"""Secret noise on a GPU: words of ChaCha20 as `cryptography` has them, drawn once as on a CPU.

Where Triton is installed, `TRITON_INTERPRET=1` runs the kernel's test without a GPU.
"""

from __future__ import annotations

import os
import struct

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

from privsgp.errors import Refused
from privsgp.randomness import noise, on_device
from privsgp.randomness.noise import Secure, add_noise_
from privsgp.randomness.normals import box_muller as _box_muller

pytestmark = pytest.mark.usefixtures("entered")

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
CUDA = torch.device("cuda")
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


def _reference(key, d, node, step):
    """The normals of a row, eight to a block of the key stream: columns p, p + E, … p + 7E."""
    blocks = 32 * -(-d // 256)
    stream = Cipher(algorithms.ChaCha20(key, struct.pack("<4I", 0, node, step, 0)), mode=None).encryptor()
    words = np.frombuffer(stream.update(bytes(64 * blocks)), np.int64).reshape(blocks * 4, 2)
    normals = np.empty((blocks * 4, 2))
    _box_muller(normals, words, np.float64, deep=True)
    return torch.from_numpy(normals.reshape(blocks, 8).T.reshape(-1)[:d].copy())


@pytest.mark.skipif(not torch.cuda.is_available() and not INTERPRETED, reason="needs a GPU, or Triton's interpreter")
@pytest.mark.parametrize("step", [0, 1, 16, 2**31, 2**32 - 1])
@pytest.mark.parametrize("d", [1, 31, 255, 256, 257, 1025, 70001])
def test_normals_are_those_of_the_cipher(d, step):
    source, nodes = Secure(), [0, 3, 2**32 - 1]
    room = torch.full((3 * d + 2,), torch.nan, dtype=torch.float64, device="cpu" if INTERPRETED else CUDA)
    out = room[1:-1].view(3, d)
    if INTERPRETED:
        on_device.fill_secret(out, noise.Streams(source._keys), nodes, step)
    else:
        source.fill_normal(out, nodes, step)
    for row, node in zip(out.cpu(), nodes, strict=True):
        wanted = _reference(source._keys["noise"], d, node, step)
        torch.testing.assert_close(row, wanted, rtol=1e-13, atol=1e-15)
    assert room[[0, -1]].isnan().all()


@pytest.mark.skipif(not torch.cuda.is_available() and not INTERPRETED, reason="needs a GPU, or Triton's interpreter")
@pytest.mark.parametrize("d", [1, 257, 3001])
def test_lines_8_and_9_in_one_kernel(d):
    from privsgp.kernels import chacha

    device = torch.device("cpu") if INTERPRETED else CUDA
    key = torch.arange(8, dtype=torch.int32, device=device) * 0x1234567 - 2**30
    x, g = torch.randn(3, d, device=device), torch.randn(3, d, dtype=torch.float64, device=device)
    g[0, 0], nodes = 2.0**50, torch.tensor([0, 3, 2**32 - 1], device=device)
    sigma, normals = [0.3, 0.01, 3.0], torch.empty_like(g)
    chacha.fill_normal(normals, nodes, key, 7)
    wanted = normals * torch.tensor(sigma, dtype=torch.float64, device=device)[:, None] + g
    on_device.snap_(wanted, sigma)
    wanted = x - 0.5 * wanted.float()
    chacha.step(x, g, nodes, on_device.levels(sigma, device), key, 7, 0.5)
    off = (x - wanted).abs() > 1e-6 * (1 + wanted.abs())
    assert float(off.double().mean()) < 1e-3  # a sum at a cell's edge may round either way


@needs_gpu
def test_a_secret_step_is_the_algorithm_s_own_but_for_noise(tmp_path, small_job, monkeypatch):
    from privsgp.engine.folder import Folder
    from privsgp.engine.step import _OnDevice
    from privsgp.engine.trainer import Trainer

    def state(name, *, plain):
        folder = Folder(tmp_path / name)
        with folder.locked(), monkeypatch.context() as same:
            folder.prepare()
            folder.identify({})
            same.setattr(noise.os, "urandom", lambda count: bytes(range(count)))
            same.setattr(noise.time, "time_ns", lambda: 0)
            same.setattr(noise.time, "perf_counter_ns", lambda: 0)
            run = Trainer(small_job("privsgp-vr", 8, seed=None), folder)
            assert isinstance(run.step.__self__, _OnDevice)
            if plain:
                run.step = run.algorithm.step
            return run.run().state

    fast, plain = state("fast", plain=False), state("plain", plain=True)
    torch.testing.assert_close(fast.x, plain.x, rtol=0, atol=1e-4)
    torch.testing.assert_close(fast.z, plain.z, rtol=0, atol=1e-4)


@needs_gpu
def test_secret_noise_is_drawn_once():
    source, out = Secure(), torch.empty(1, 5, dtype=torch.float64, device=CUDA)
    source.fill_normal(out, [2], 4)
    for place in (out, torch.empty(1, 5, dtype=torch.float64)):
        with pytest.raises(Refused, match="already used"):
            source.fill_normal(place, [2], 4)
    with pytest.raises(Refused, match="step = 4294967296"):
        source.fill_normal(out, [2], 2**32)


@needs_gpu
def test_noise_has_its_size_on_the_grid():
    g, sigma = torch.zeros(3, 1 << 20, dtype=torch.float64, device=CUDA), [0.5, 2.0, 0.0]
    g[2] = 0.3
    add_noise_(g, Secure(), [0, 1, 2], 0, sigma=sigma)
    torch.testing.assert_close(g.std(1)[:2].cpu(), torch.tensor(sigma[:2], dtype=torch.float64), rtol=5e-3, atol=0)
    assert float(torch.corrcoef(g[:2])[0, 1].abs()) < 5e-3
    assert torch.equal(g[1] * 8, (g[1] * 8).round())  # 2.0 / 16
    assert bool((g[2] == 0.3).all())
