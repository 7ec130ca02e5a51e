"""Where noise is secret, sums on a GPU are in float64, and count what its tensor cores may round each sample by."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from gradients.modules import LAYERS, RULED, around, build, cross_entropy, samples
from privsgp.gradients import Layout
from privsgp.gradients.per_sample import PerSample, in_float64
from privsgp.gradients.positions import Positions
from privsgp.gradients.rules.ruled import Ruled

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
    pytest.mark.usefixtures("entered"),
]
CUDA = torch.device("cuda")
MODELS = {name: (factory, 6) for name, factory in RULED.items()} | {name: (f, 12) for name, f in LAYERS.items()}


def _on_the_cpu(pieces):
    names = [[name for name in ("delta", "input") if hasattr(p, name)] for p in pieces]
    moved = [replace(p, **{name: getattr(p, name).cpu() for name in own}) for p, own in zip(pieces, names, strict=True)]
    return [in_float64(piece) for piece in moved]


@pytest.mark.usefixtures("_tensor_cores")
@pytest.mark.parametrize("radius", [1e6, 0.01])  # all as they are, all clipped
@pytest.mark.parametrize("name", MODELS)
def test_clipped_gradients_add_up_as_on_the_cpu_in_float64(name, radius):
    factory, numbers = MODELS[name]
    model = build(factory, dtype=torch.float32)
    z, (inputs, targets) = around(model, 3), samples(3, 4, numbers, dtype=torch.float32)
    model.to(CUDA)
    g = Ruled(model, Layout.of(model), cross_entropy)(z.to(CUDA), inputs.to(CUDA), targets.to(CUDA))
    g.exact = True
    g.clip_(radius, torch.ones(3, 4, dtype=torch.bool, device=CUDA))
    kept = _on_the_cpu(g.pieces)
    wanted = PerSample(kept).sum()
    assert g.sum().dtype == torch.float64
    rounded = 2.0**-9 * radius if any(isinstance(p, Positions) for p in kept) else 0.0  # TF32, of each sample
    atol = 4 * rounded if radius < 1 else 2.0**-8 * float(wanted.abs().max()) if rounded else 0.0
    torch.testing.assert_close(g.sum().cpu(), wanted, rtol=1e-12, atol=atol + 1e-13 * float(wanted.abs().max()))
    each = torch.cat([piece.dense() for piece in kept], -1).norm(dim=-1)
    assert (each <= radius * (1 + 1e-6)).all()


@pytest.mark.usefixtures("_tensor_cores")
@pytest.mark.parametrize(("kernel", "stride", "pixels"), [(3, 1, 4), (3, 1, 8), (3, 2, 9), (1, 1, 5)])
def test_what_is_added_of_a_sample_has_the_same_bits_whoever_stands_beside_it(kernel, stride, pixels):
    from privsgp.gradients.positions import Window

    window = Window((kernel, kernel), (stride, stride), (kernel // 2, kernel // 2))
    a = torch.randn(9, 2, 40, pixels, pixels, device=CUDA)
    out = (pixels + 2 * (kernel // 2) - kernel) // stride + 1
    delta = torch.randn(9, 2, 70, out, out, device=CUDA)
    delta[:, :, ::2] -= delta[:, :, ::2].mean((-2, -1), keepdim=True)

    def total(delta, a):
        piece = Positions(delta.transpose(0, 1), a.transpose(0, 1), window, bias=False)
        summed = torch.empty(2, piece.size, dtype=torch.float64, device=CUDA)
        piece.sum_into(summed, exact=True)
        return summed, piece.squared_norm(exact=True).sqrt()

    own = [total(delta[j : j + 1], a[j : j + 1])[0] for j in range(9)]
    whole, norms = total(delta, a)
    torch.testing.assert_close(whole, torch.stack(own).sum(0), rtol=0, atol=1e-12 * float(whole.abs().max()))
    without = total(torch.cat([0 * delta[:1], delta[1:]]), a)[0]
    assert float((whole - without - own[0]).abs().max()) <= 1e-12 * float(whole.abs().max())
    for j, row in enumerate(own):
        assert (row.norm(dim=-1) <= norms[:, j]).all()


KEPT = [
    ("privsgp-vr", {"table": "factored"}),
    ("privsgp-vr", {"table": "dense"}),
    ("privsgp-sag", {}),
    ("privsgp", {}),
]


@pytest.mark.parametrize(("algorithm", "kept"), KEPT)
@pytest.mark.parametrize(("model", "shape"), [("mlp", (6,)), ("cnn", (1, 16, 16))])
def test_a_run_with_secret_noise(tmp_path, algorithm, kept, model, shape, small_job, monkeypatch):
    from privsgp.engine.folder import Folder
    from privsgp.engine.trainer import Trainer
    from privsgp.randomness import on_device

    seen, step = [], on_device.step_

    def watched(x, g, *rest, **options):
        seen.append(g.dtype)
        step(x, g, *rest, **options)

    monkeypatch.setattr(on_device, "step_", watched)
    folder = Folder(tmp_path / "run")
    with folder.locked():
        folder.prepare()
        folder.identify({})
        run = Trainer(small_job(algorithm, 8, seed=None, model=model, shape=shape, **kept), folder)
        run.run()
    assert run.algorithm.recorded._graph is not None
    assert run.state.x.isfinite().all()
    assert seen == [torch.float64] * 8
