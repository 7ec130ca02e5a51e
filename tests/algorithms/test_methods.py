"""The methods the paper compares with: laws that need no reference to be believed."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from small_network import Setting, cross_entropy, trained
from torch.func import functional_call

from privsgp.algorithms import ALGORITHMS, Release
from privsgp.graph import make

SILENT = (0.0,) * 4
HUGE = 1e9


def slopes(setting, x):
    """∇f_i of every node's whole data at its row of x, [4, d]."""
    out = []
    for i, J in enumerate(setting.samples):
        z = x[i].clone().requires_grad_()
        outputs = functional_call(setting.model, setting.layout.views(z), (setting.inputs[i, :J],))
        out.append(torch.autograd.grad(cross_entropy(outputs, setting.targets[i, :J]).mean(), z)[0])
    return torch.stack(out)


def descent(setting, average):
    """Gradient descent on full batches; `average` maps the nodes' gradients to those they follow."""
    x = setting.layout.flatten(setting.model).expand(4, -1)
    for k in range(setting.steps):
        x = x - setting.step_size(k) * average(slopes(setting, x))
    return x


def full(**values):
    return Setting(rate=1.0, sigma=SILENT, clip=HUGE, **values)


def test_alone_without_noise_every_node_descends_its_own_loss():
    setting = full()
    torch.testing.assert_close(trained(setting, "local")[1].z, descent(setting, lambda g: g), rtol=0, atol=1e-12)


SERVER = [name for name, algorithm in ALGORITHMS.items() if algorithm.network == "server"]


@pytest.mark.parametrize("name", SERVER)
def test_with_a_server_full_batches_without_noise_are_gradient_descent(name):
    setting = full(steps=12)
    _, state = trained(setting, name)  # SoteriaFL without compression
    wanted = descent(setting, lambda g: g.mean(0, keepdim=True).expand_as(g))
    torch.testing.assert_close(state.z, wanted, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", ["soteriafl-sgd", "soteriafl-svrg", "soteriafl-saga"])
def test_soteriafl_without_compression_is_what_it_compresses(name):
    """The server follows the mean of the noised estimates, here plain SGD's and SAGA's."""
    setting = Setting(graph=make("complete", 4))
    _, state = trained(setting, name)
    root = {"soteriafl-sgd": "privsgp", "soteriafl-saga": "privsgp-vr"}.get(name)
    if root:  # push-sum on a complete graph averages exactly, too
        torch.testing.assert_close(state.x, trained(setting, root)[1].x, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", ["dp-srm", "ldp-svrg", "ldp-spider", "soteriafl-svrg"])
def test_a_difference_clip_of_twice_the_clip_does_nothing(name):
    setting = Setting()
    clipped, plain = (trained(setting, name, difference_clip=c)[1].x for c in (2 * setting.clip, None))
    torch.testing.assert_close(clipped, plain, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", ["d-psgd", "dp2-sgd"])
def test_on_a_complete_graph_with_the_same_data_everywhere_it_is_centralised_descent(name):
    setting = full(graph=make("complete", 4), samples=(6,) * 4)
    setting.inputs[:], setting.targets[:] = setting.inputs[:1].clone(), setting.targets[:1].clone()
    _, state = trained(setting, name)
    torch.testing.assert_close(state.z, descent(setting, lambda g: g), rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", ["d-psgd", "dp2-sgd"])
def test_gradients_are_taken_before_the_averaging(name):
    setting = full(graph=make("ring", 4))
    W, x = torch.from_numpy(setting.graph.matrix(0)), setting.layout.flatten(setting.model).expand(4, -1)
    for k in range(setting.steps):
        x = W @ x - setting.step_size(k) * slopes(setting, x)
    _, state = trained(setting, name)
    torch.testing.assert_close(state.x, x, rtol=0, atol=1e-12)
    assert torch.equal(state.w, torch.ones(4, dtype=torch.float64))


@pytest.mark.parametrize(("private", "root"), [("dp2-sgd", "d-psgd"), ("local", "dp-sgd")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_without_noise_and_with_a_huge_clip_it_is_its_root_to_the_last_bit(private, root, dtype):
    setting = Setting(graph=make("ring", 4), sigma=SILENT, clip=HUGE, dtype=dtype)
    assert torch.equal(trained(setting, private)[1].z, trained(setting, root)[1].z)


@pytest.mark.parametrize("name", ["dp2-sgd", "local"])
def test_the_noise_of_a_step_is_in_what_is_released_at_it(name):
    """One step moves x by −γσN more, after the averaging; that, and nothing without it, is released."""
    sigma = (0.1, 0.2, 0.4, 0.8)
    released = []

    def kept(_k, event):
        if isinstance(event, Release):
            released.append(event.message.clone())

    noisy, silent = (
        trained(Setting(graph=make("ring", 4), sigma=s, steps=1), name, watch=kept) for s in (sigma, SILENT)
    )
    setting = Setting()
    noise = torch.empty(4, setting.layout.dim, dtype=torch.float64)
    setting.source.fill_normal(noise, range(4), 0)
    moved = -setting.step_size(0) * torch.tensor(sigma, dtype=torch.float64)[:, None] * noise
    torch.testing.assert_close(noisy[1].x - silent[1].x, moved, rtol=0, atol=1e-13)
    assert torch.equal(released[0], noisy[1].x)
    assert torch.equal(released[1], silent[1].x)


@pytest.mark.parametrize("name", [name for name, algorithm in ALGORITHMS.items() if not algorithm.asynchronous])
def test_every_step_releases_once_and_after_it_nothing_bare_is_sent(name):
    """What is handed to others at step k was released at step k − 1 or k, or is x⁰."""
    log = []
    setting = Setting(graph=make("ring", 4))
    trained(setting, name, watch=lambda k, event: log.append((type(event), k, event[0].clone())))
    assert [k for kind, k, _ in log if kind is Release] == list(range(setting.steps))
    released = setting.layout.flatten(setting.model).expand(4, -1)
    for kind, _, x in log:
        if kind is Release:
            released = x
        else:
            assert torch.equal(x, released)
    assert np.isfinite(released.numpy()).all()


EVENTS = {"directed": "Release Exchange", "undirected": "Exchange Release", "server": "Release ToServer"}


@pytest.mark.parametrize("name", [name for name, algorithm in ALGORITHMS.items() if not algorithm.asynchronous])
def test_the_events_of_a_step(name):
    seen = []
    trained(Setting(graph=make("ring", 4), steps=2), name, watch=lambda _k, event: seen.append(type(event).__name__))
    assert seen == EVENTS.get(ALGORITHMS[name].network, "Release").split() * 2
