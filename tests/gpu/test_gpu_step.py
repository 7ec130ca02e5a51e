"""The step on a GPU against the obvious one: noise, update and mixing in one kernel, directions replayed."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import pytest
import torch

import philox
from privsgp import graph
from privsgp.engine.step import peers
from privsgp.randomness.noise import Keyed
from privsgp.randomness.on_device import philox_key
from privsgp.transport.in_process import InProcess

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
CUDA = torch.device("cuda")


@pytest.mark.parametrize("d", [1, 127, 129, 5000])
def test_noise_of_the_kernel_is_that_of_the_reference(d):
    source, nodes = Keyed(7), [0, 3, 11]
    got, wanted = torch.empty(2, 3, d, device=CUDA)
    source.fill_normal(got, nodes, 1)
    philox.fill_normal(wanted, int(philox_key(source.seed, CUDA)), nodes, 1)
    torch.testing.assert_close(got, wanted, rtol=0, atol=2e-6)


@pytest.mark.parametrize("name", ["exponential", "ring", "ring-directed"])
def test_one_pass_does_lines_8_to_14(name):
    from privsgp.kernels.push import push

    n, d, gamma, step = 6, 1003, 0.3, 4
    network, source = graph.make(name, n), Keyed(1)
    x, g, noise, x_out, z_out = torch.randn(5, n, d, device=CUDA)
    w = torch.rand(n, device=CUDA, dtype=torch.float64) + 0.5
    w_out, sigma = torch.empty_like(w), torch.rand(n, device=CUDA)
    senders, shares = (torch.from_numpy(a).to(CUDA) for a in peers(network, step))
    push(
        x, g, w, out=(x_out, w_out, z_out), sigma=sigma, source=senders, share=shares,
        key=philox_key(source.seed, CUDA), step=step, gamma=gamma,
    )  # fmt: skip
    source.fill_normal(noise, range(n), step)
    wanted, weights = InProcess(network, x).mix(step, x - gamma * (g + sigma[:, None] * noise), w)
    torch.testing.assert_close(x_out, wanted, rtol=0, atol=3e-6)
    torch.testing.assert_close(w_out, weights, rtol=0, atol=1e-12)
    torch.testing.assert_close(z_out, wanted / weights.float()[:, None], rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("algorithm", "own"),
    [("privsgp-vr", {"difference_scale": 1.0}), ("privsgp-vr", {"difference_scale": 0.3}),
     ("privsgp-vr", {"difference_scale": 0.3, "table_dtype": "bfloat16"}),
     ("privsgp-sag", {}), ("privsgp", {}), ("sgp", {})],
)  # fmt: skip
def test_a_run_on_the_device_is_the_algorithm_s_own(tmp_path, algorithm, own, small_job):
    """Both take the same coins and noise; what differs is the order of roundings."""
    from privsgp.engine.folder import Folder
    from privsgp.engine.trainer import Trainer

    def state(name, *, plain):
        folder = Folder(tmp_path / name)
        with folder.locked():
            folder.prepare()
            folder.identify({})
            run = Trainer(small_job(algorithm, **own), folder)
            assert run.step != run.algorithm.step
            if plain:
                run.step = run.algorithm.step
            return run.run().state

    fast, plain = state("fast", plain=False), state("plain", plain=True)
    torch.testing.assert_close(fast.x, plain.x, rtol=0, atol=1e-4)
    torch.testing.assert_close(fast.z, plain.z, rtol=0, atol=1e-4)
    digest = hashlib.sha256(fast.x.cpu().numpy().tobytes()).digest()
    again = state("again", plain=False)
    assert hashlib.sha256(again.x.cpu().numpy().tobytes()).digest() == digest


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize(("model", "shape"), [("mlp", (6,)), ("cnn", (1, 16, 16))])
def test_a_recorded_direction_is_the_algorithm_s_own(tmp_path, model, shape, exact, small_job):
    """With momentum steps are the algorithm's; in float64 sums as where noise is secret."""
    from privsgp.engine.folder import Folder
    from privsgp.engine.trainer import Trainer

    def state(name, *, plain):
        folder = Folder(tmp_path / name)
        with folder.locked():
            folder.prepare()
            folder.identify({})
            run = Trainer(replace(small_job("privsgp-vr", model=model, shape=shape), momentum=0.5), folder)
            run.randomness.secret = exact
            recorded = run.algorithm.recorded
            if plain:
                run.algorithm.recorded = run.algorithm.direction
            run.run()
            if not plain:
                assert recorded._graph is not None
                assert recorded._g.dtype == (torch.float64 if exact else torch.float32)
            return run.state

    fast, plain = state("fast", plain=False), state("plain", plain=True)
    torch.testing.assert_close(fast.x, plain.x, rtol=0, atol=1e-4)


@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
def test_the_step_never_waits_for_the_device(tmp_path, small_job):
    from privsgp.engine.drive import drive
    from privsgp.engine.folder import Folder
    from privsgp.engine.trainer import Trainer

    folder = Folder(tmp_path / "run")
    with folder.locked():
        folder.prepare()
        folder.identify({})
        run = Trainer(small_job("privsgp-vr", steps=64), folder)
        run._begin()
        with run.budget_guard:
            assert run.budget_guard.reserve(0)
            for k in range(8):
                run.state = drive(run.step(k, run.state), k, run.driver)
            torch.cuda.set_sync_debug_mode("error")
            try:
                for k in range(8, 20):
                    run.state = drive(run.step(k, run.state), k, run.driver)
            finally:
                torch.cuda.set_sync_debug_mode("default")
