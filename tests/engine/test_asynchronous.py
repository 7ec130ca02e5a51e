"""Nodes that act one at a time: the same models as the plain loop over events, and each node's own releases counted."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import reference
import reference_asynchronous
import runs
from privsgp.engine.folder import Folder
from privsgp.engine.trainer import Trainer
from privsgp.errors import Refused
from privsgp.randomness.coins import draw
from privsgp.randomness.noise import Keyed
from privsgp.runs import build
from privsgp.runs import config as configs
from privsgp.runs import problem as problems
from privsgp.runs import train as training
from privsgp.runs.resolve import resolve

SIZES = [40, 60, 30, 50]
STRAGGLER = {"spread": 1.0, "stragglers": [2], "slowdown": 4.0, "latency": 0.3}


def _training(folder, name, *, kind=Trainer, privacy=None, clock=STRAGGLER, graph="ring", **algorithm):
    config = configs.parse(
        {
            "seed": 3,
            "data": {"nodes": 4, "sizes": SIZES},
            "model": {"name": "mlp", "hidden": 3},
            "graph": {"name": graph},
            "privacy": privacy or {"sigma": [0.1, 0.0, 0.3, 0.05], "clip": 0.5},
            "algorithm": {"name": name, "batch": 9, "steps": 6, "step_size": 0.8} | algorithm,
            "clock": clock,
            "engine": {"device": "cpu", "dtype": "float64"},
        }
    )
    place = Folder(folder / name)
    place.path.mkdir()
    place.prepare()
    place.identify({})
    spec = build.build_run(resolve(config, problems.load_problem(config)))
    first = spec.step_size(0)
    return kind(replace(spec, step_size=lambda k: first * (1 - k / 8)), place)  # each step has its own


def _expected(spec):
    """The plain loop with the run's own events, coins and noise; a node reads just after its own last event."""
    learning, source, events = spec.learning, Keyed(spec.seed), spec.clock.every
    mechanisms = spec.protection.mechanisms
    noise = torch.empty(len(events), sum(p.numel() for p in learning.model.parameters()), dtype=torch.float64)
    read, last = [], dict.fromkeys(range(spec.nodes), 0)
    for t, (_, i, _, number) in enumerate(events):
        source.fill_normal(noise[t : t + 1], [i], number)
        read.append(last[i])
        last[i] = t + 1

    def gradient(x, i, j):
        sample = learning.inputs[i, j].numpy(), learning.targets[i, j].numpy()
        return reference.per_sample_gradient(learning.model, learning.loss, x, *sample)

    return reference_asynchronous.adp2_sgd(
        [reference_asynchronous.Event(e.node, e.partner, r) for e, r in zip(events, read, strict=True)],
        gradient=gradient,
        x0=torch.nn.utils.parameters_to_vector(learning.model.parameters()).detach().double().numpy(),
        batch=[m.batch for m in mechanisms],
        draws=[draw(source, mechanisms[e.node], e.node, e.number) for e in events],
        step_size=[spec.step_size(t // spec.nodes) for t in range(len(events))],
        noise=noise.numpy(),
        sigma=[m.sigma for m in mechanisms],
        clip=None if np.isinf(mechanisms[0].clip) else mechanisms[0].clip,
    )


@pytest.mark.parametrize("name", ["ad-psgd", "adp2-sgd"])
@pytest.mark.parametrize("clock", [STRAGGLER, {"spread": 2.0}, {}])
def test_models_are_those_of_the_plain_loop(tmp_path, name, clock):
    run = _training(tmp_path, name, clock=clock)
    wanted = _expected(run.spec)
    state = run.run().state
    np.testing.assert_allclose(state.x.numpy(), wanted[-1], rtol=0, atol=1e-10)
    assert torch.equal(state.z, state.x)
    assert np.abs(wanted[-1] - wanted[0]).max() > 0.1


def test_without_noise_and_with_a_huge_clip_it_is_ad_psgd_to_the_last_bit(tmp_path):
    private = _training(tmp_path, "adp2-sgd", privacy={"sigma": 0.0, "clip": 1e9}).run()
    plain = _training(tmp_path, "ad-psgd").run()
    assert torch.equal(private.state.x, plain.state.x)


class _Watched(Trainer):
    """Keeps every g̃ and the models it was computed at and subtracted from."""

    def _block(self, *given):
        self.kept, self._noise = [], self.randomness.noise
        self.randomness.noise = self._watched
        return super()._block(*given)

    def _watched(self, number, g, node):
        self._noise(number, g, node)
        self.kept.append((g[0].clone(), self.algorithm.read[node].clone(), self.state.x[node].clone()))


@pytest.mark.parametrize("clock", [STRAGGLER, {}])
def test_averaging_keeps_the_mean_and_a_gradient_moves_it_by_its_share(tmp_path, clock):
    run = _training(tmp_path, "adp2-sgd", kind=_Watched, clock=clock)
    before = run.state.x.mean(0)
    after = run.run().state.x.mean(0)
    sizes = [run.spec.step_size(t // 4) for t in range(len(run.kept))]
    moved = sum(size * g for size, (g, _, _) in zip(sizes, run.kept, strict=True))
    torch.testing.assert_close(after, before - moved / 4, rtol=0, atol=1e-12)


def test_a_node_that_nobody_disturbs_is_never_stale(tmp_path):
    """All others need for ever, so that one event follows the other: it reads what it changes."""
    lonely = {"stragglers": [0, 2, 3], "slowdown": 1e6}
    run = _training(tmp_path, "ad-psgd", kind=_Watched, clock=lonely)
    run.run()
    assert {event.node for event in run.spec.clock.every} == {1}
    assert all(torch.equal(read, held) for _, read, held in run.kept)
    assert not all(torch.equal(read, held) for _, read, held in _stale(tmp_path))


def _stale(folder):
    run = _training(folder, "adp2-sgd", kind=_Watched)
    run.run()
    return run.kept


def test_a_straggler_releases_less_and_needs_less_noise(tmp_path):
    config = runs.small(tmp_path, ASYNCHRONOUS)
    summary = runs.train(config, tmp_path / "out")
    releases, sigma = summary["releases"], summary["sigma"]
    assert sum(releases) == 4 * 30
    assert releases == runs.charged(tmp_path / "out") == [len(runs.sent(tmp_path / "out", i)) for i in range(4)]
    assert releases[2] == min(releases) < sorted(releases)[1]
    assert [sorted(sigma).index(s) for s in sigma] == [sorted(releases).index(r) for r in releases]
    assert all(1.8 < spent <= 2.0 for spent in summary["epsilon_spent"])
    rows = [json.loads(line) for line in (tmp_path / "out" / "metrics.jsonl").read_text().splitlines()[1:]]
    times = [row["virtual_seconds"] for row in rows]
    assert times == sorted(times)
    assert summary["virtual_seconds"] == times[-1] > 0
    assert summary["bytes_sent"] == 2 * 4 * 30 * 650 * 4


ASYNCHRONOUS = (
    runs.SMALL.replace("sigma = 0.05", "epsilon = 2.0\nspare = 0.2").replace('"privsgp"', '"adp2-sgd"')
    + '[graph]\nname = "ring"\n[clock]\nspread = 1.0\nstragglers = [2]\nslowdown = 4.0\n'
)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--set=graph.name=exponential"], "graph.name = 'exponential'"),
        (["--set=privacy.accountant=published"], "privacy.accountant = 'published' with algorithm.name = 'adp2-sgd'"),
    ],
)
def test_what_it_cannot_do_is_refused(tmp_path, options, words):
    ran = runs.command("train", runs.small(tmp_path, ASYNCHRONOUS), "--out", tmp_path / "out", *options)
    assert ran.code == 2
    assert words in ran.err


def test_several_processes_are_refused():
    config = configs.parse({"privacy": {"sigma": 0.1}, "algorithm": {"name": "adp2-sgd"}})
    with pytest.raises(Refused, match="'adp2-sgd' with 2 processes"):
        training._circumstances(SimpleNamespace(config=config), SimpleNamespace(alone=False, size=2))


def test_synchronous_methods_run_on_the_same_clock(tmp_path):
    """A straggler holds everyone up: thirty steps of four seconds."""
    config = runs.small(tmp_path, runs.SMALL)
    clock = runs.changes(clock__stragglers=[2], clock__slowdown=4.0)
    assert runs.train(config, tmp_path / "plain")["virtual_seconds"] == 30.0
    assert runs.train(config, tmp_path / "slow", *clock)["virtual_seconds"] == 120.0
    assert (tmp_path / "plain/model.safetensors").read_bytes() == (tmp_path / "slow/model.safetensors").read_bytes()
