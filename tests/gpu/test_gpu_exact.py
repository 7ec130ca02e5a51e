"""Where noise is secret, norms and sums on a GPU are those of float64, whatever its tensor cores may round by."""

from __future__ import annotations

import pytest
import torch

from gradients.modules import LAYERS, RULED, around, build, cross_entropy, samples
from privsgp.gradients import Layout
from privsgp.gradients.per_sample import in_float64, sum_pieces
from privsgp.gradients.rules.ruled import Ruled

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
CUDA = torch.device("cuda")
MODELS = {name: (factory, 6) for name, factory in RULED.items()} | {name: (f, 12) for name, f in LAYERS.items()}


def _on_the_cpu(pieces):
    moved = [p.with_factors({name: f.cpu() for name, f in p.factors(data=True).items()}) for p in pieces]
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
    wanted = sum_pieces(kept)
    assert g.sum().dtype == torch.float64
    torch.testing.assert_close(g.sum().cpu(), wanted, rtol=1e-12, atol=1e-13 * float(wanted.abs().max()))
    each = torch.cat([piece.dense() for piece in kept], -1).norm(dim=-1)
    assert (each <= radius * (1 + 1e-6)).all()


KEPT = [
    ("privsgp-vr", {"table": "factored"}),
    ("privsgp-vr", {"table": "dense"}),
    ("privsgp-sag", {"table": "block", "block": 1}),
    ("privsgp", {}),
]


@pytest.mark.parametrize(("algorithm", "kept"), KEPT)
@pytest.mark.parametrize(("model", "shape"), [("mlp", (6,)), ("cnn", (1, 16, 16))])
def test_a_run_with_secret_noise(tmp_path, algorithm, kept, model, shape, small_job, monkeypatch):
    from privsgp.engine.folder import Folder
    from privsgp.engine.trainer import Trainer
    from privsgp.randomness import independent

    seen, add = [], independent.add_noise_

    def watched(g, *rest, **options):
        seen.append(g.dtype)
        add(g, *rest, **options)

    monkeypatch.setattr(independent, "add_noise_", watched)
    folder = Folder(tmp_path / "run")
    with folder.locked():
        folder.prepare()
        folder.identify({}, None)
        run = Trainer(small_job(algorithm, 8, seed=None, model=model, shape=shape, **kept), folder)
        run.run()
    assert run.algorithm.recorded._graph is not None
    assert run.state.x.isfinite().all()
    assert seen == [torch.float64] * 8
