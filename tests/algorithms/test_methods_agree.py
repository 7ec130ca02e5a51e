"""The methods the paper compares with against their plain loops, on nodes that differ in everything."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from small_network import Setting, entries, public, trained

import reference
import reference_alone
import reference_gossip
import reference_server
import reference_soteria
from privsgp.algorithms import ALGORITHMS
from privsgp.graph import make
from privsgp.randomness.coins import draw
from privsgp.research.soteriafl import _CompressionOptions
from reference_given import Given
from settings import settings_of


def given(setting, name, **options):
    """What a plain loop is given: the coins and the noise that the engine's run drew."""
    mechanisms = setting.mechanisms(ALGORITHMS[name], settings_of(name, clip=setting.clip, **options))
    nodes = range(len(mechanisms))
    noise = torch.empty(setting.steps, len(nodes), setting.layout.dim, dtype=torch.float64)
    for k in range(setting.steps):
        setting.source.fill_normal(noise[k], nodes, k)

    def gradient(x, i, j):
        sample = setting.inputs[i, j].numpy(), setting.targets[i, j].numpy()
        return reference.per_sample_gradient(setting.model, setting.loss, x, *sample)

    return Given(
        gradient=gradient,
        x0=setting.layout.flatten(setting.model).double().numpy(),
        samples=setting.samples,
        batch=[m.batch for m in mechanisms],
        draws=[[draw(setting.source, m.at(k), i, k) for i, m in enumerate(mechanisms)] for k in range(setting.steps)],
        step_size=[setting.step_size(k) for k in range(setting.steps)],
        noise=noise.numpy(),
        sigma=[m.sigma for m in mechanisms],
        clip=setting.clip,
    )


def assert_last(state, wanted):
    np.testing.assert_allclose(state.x.numpy(), np.broadcast_to(wanted, state.x.shape), rtol=0, atol=1e-10)
    assert torch.equal(state.z, state.x)


@pytest.mark.parametrize("rules", [True, False])
@pytest.mark.parametrize("name", ["d-psgd", "dp2-sgd"])
@pytest.mark.parametrize("graph", ["ring", "torus"])
def test_gossip_agrees_with_its_plain_loop(name, graph, rules):
    setting = Setting(graph=make(graph, 4))
    W = [setting.graph.matrix(k) for k in range(setting.steps)]
    loop = {"d-psgd": reference_gossip.d_psgd, "dp2-sgd": reference_gossip.dp2_sgd}[name]
    assert_last(trained(setting, name, rules=rules)[1], loop(given(setting, name), W)[-1])


def test_alone_agrees_with_its_plain_loop():
    setting = Setting()
    assert_last(trained(setting, "local")[1], reference_alone.local(given(setting, "local"))[-1])


def test_dp_sgd_agrees_with_its_plain_loop_on_a_node_that_holds_everything():
    setting = Setting(samples=(26,), sigma=(0.1,), graph=make("complete", 1))
    told = given(setting, "dp-sgd")
    wanted = reference_alone.dp_sgd(
        gradient=lambda x, i, j: told.gradient(x, 0, j + (0, 6, 15, 19)[i]), x0=told.x0, samples=(6, 9, 4, 7),
        batch=told.batch[0], draws=[drawn[0] for drawn in told.draws], step_size=told.step_size,
        noise=[n[0] for n in told.noise], sigma=0.1, clip=told.clip,
    )  # fmt: skip
    assert_last(trained(setting, "dp-sgd")[1], wanted[-1])


ANCHORED = [
    {},
    {"difference_clip": 0.2},
]


def anchors(setting, options):
    """The plain loops' words for the options of anchors."""
    return {"anchor_batch": list(setting.samples), "difference_clip": options.get("difference_clip")}


@pytest.mark.parametrize("options", ANCHORED)
@pytest.mark.parametrize("rules", [True, False])
def test_spider_agrees_with_its_plain_loop(options, rules):
    setting = Setting()
    wanted = reference_server.ldp_spider(
        given(setting, "ldp-spider", period=3, **options), period=3, **anchors(setting, options)
    )
    assert_last(trained(setting, "ldp-spider", rules=rules, period=3, **options)[1], wanted[-1])


@pytest.mark.parametrize("options", [{}, {"difference_clip": 0.2}])
def test_svrg_agrees_with_its_plain_loop(options):
    setting = Setting()
    told = given(setting, "ldp-svrg", period=3, **options)
    assert_last(
        trained(setting, "ldp-svrg", period=3, **options)[1],
        reference_server.ldp_svrg(told, period=3, **options)[-1],
    )


@pytest.mark.parametrize("options", ANCHORED)
@pytest.mark.parametrize("alpha", [0.3, 1.0])
def test_srm_agrees_with_its_plain_loop(options, alpha):
    setting = Setting()
    told = given(setting, "dp-srm", alpha=alpha, **options)
    wanted = reference_server.dp_srm(told, alpha=alpha, **anchors(setting, options))
    assert_last(trained(setting, "dp-srm", alpha=alpha, **options)[1], wanted[-1])


def compress_one(setting, settings):
    """The engine's compressor for one node, as the plain loop wants it."""
    C = settings.own(_CompressionOptions).make(setting.layout.dim)

    def one(k, i, v):
        rows = torch.zeros(len(setting.samples), len(v), dtype=torch.float64)
        rows[i] = torch.from_numpy(v)
        return C(rows, public("compressor", k))[i].numpy()

    return one


@pytest.mark.parametrize(
    "compression",
    [{}, {"kept": 0.3}],
)
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("soteriafl-sgd", {}),
        ("soteriafl-svrg", {}),
        ("soteriafl-svrg", {"difference_clip": 0.2}),
        ("soteriafl-saga", {}),
        ("soteriafl-saga", {"difference_clip": 0.2, "table_init": "zeros"}),
        ("soteriafl-svrg", {"difference_scale": 0.4}),
        ("soteriafl-saga", {"difference_scale": 0.4}),
    ],
)
def test_soteriafl_agrees_with_its_plain_loop(name, options, compression):
    setting, options = Setting(steps=8), options | compression
    run, state = trained(setting, name, **options)
    coins = [run.renews(k) for k in range(setting.steps)] if name == "soteriafl-svrg" else []
    assert not coins or 0 < sum(coins) < setting.steps
    out = reference_soteria.soteriafl(
        name.removeprefix("soteriafl-"),
        given(setting, name, **options),
        compressor=compress_one(setting, run.settings),
        shift_rate=run.shift_rate,
        coins=coins,
        **{key: options[key] for key in ("difference_clip", "difference_scale", "table_init") if key in options},
    )
    assert_last(state, out.history[-1])
    np.testing.assert_allclose(run.shift.numpy(), out.shifts, rtol=0, atol=1e-10)
    np.testing.assert_allclose(run.server_shift.numpy(), out.server_shift, rtol=0, atol=1e-10)
    for i, table in enumerate(out.tables):
        np.testing.assert_allclose(entries(run)[i, : len(table)].numpy(), table, rtol=0, atol=1e-10)
