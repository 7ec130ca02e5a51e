"""Methods from outside the package: held to what the built-in ones are."""

from __future__ import annotations

import importlib.metadata
import json
import subprocess
import sys

import numpy as np
import pytest
import torch

import privsgp
import runs
from privsgp import plugins
from privsgp.algorithms import ALGORITHMS, PrivSGP
from privsgp.errors import Refused
from privsgp.options import Options, option
from privsgp.randomness import NOISES, REGISTERED
from privsgp.randomness.noise import IndependentNoise, NodeNoise
from privsgp.runs import config as configs

REAL = plugins.entry_points


class DecayOptions(Options):
    decay: float = option(0.01, "λ")


class Decayed(PrivSGP):
    name = "privsgp-decayed"
    Options = DecayOptions


def offer(monkeypatch, *entries):
    """Let these be the entry points of installed packages."""
    theirs = {"privsgp.algorithms": entries}
    monkeypatch.setattr(plugins, "entry_points", lambda *, group: theirs.get(group) or REAL(group=group))
    plugins.offered.cache_clear()


@pytest.fixture(autouse=True)
def unchanged(monkeypatch):
    monkeypatch.setattr(ALGORITHMS, "_registered", {})
    yield
    for name in (*REGISTERED,):
        del REGISTERED[name], NOISES[name]
    plugins.offered.cache_clear()


def test_its_options_are_keys_of_run_toml():
    values = {"privacy": {"epsilon": 1.0}, "algorithm": {"name": "privsgp-decayed", "decay": 0.5}}
    with pytest.raises(Refused, match="privsgp-decayed"):
        configs.parse(values)
    privsgp.register(Decayed)
    assert configs.parse(values).options("algorithm") == {"decay": 0.5}
    with pytest.raises(Refused, match=r"algorithm\.decay = 0\.5 with algorithm\.name = 'privsgp'"):
        configs.parse(values | {"algorithm": {"name": "privsgp", "decay": 0.5}})


class EvenSteps(IndependentNoise):
    name = "even-steps"

    def of_nodes(self, nodes, mechanisms, source, exchange=None):
        inner = super().of_nodes(nodes, mechanisms, source, exchange)

        class Halved(NodeNoise):
            def add_(self, g, nodes, step):
                if step % 2 == 0:
                    inner.add_(g, nodes, step)

        return Halved()


def test_a_noise_of_your_own_is_added_in_simulations_and_refused_elsewhere(tmp_path):
    given = {"privacy": {"sigma": 1.0, "noise": "even-steps"}, "seed": 1, "nodes": 2}
    with pytest.raises(Refused, match="even-steps"):
        configs.parse({"privacy": given["privacy"], "seed": 1})
    assert privsgp.register_noise(privsgp.register_noise(EvenSteps)) is EvenSteps
    with pytest.raises(Refused, match="give a seed"):
        configs.parse({"privacy": given["privacy"]})
    x, moved = np.zeros((40, 3), np.float32), []
    for steps in (1, 2, 3):
        model = torch.nn.Linear(3, 2, bias=False)
        torch.nn.init.zeros_(model.weight)
        algorithm = {"name": "privsgp", "steps": steps, "batch": 4}
        result = privsgp.train(model, (x, x[:, 0].astype(int)), out=tmp_path / str(steps), algorithm=algorithm, **given)
        assert result.summary["noise"] == "even-steps"
        moved.append(result.model.weight)
    assert moved[0].any()
    torch.testing.assert_close(moved[1], moved[0])  # the second step adds nothing
    assert not torch.allclose(moved[2], moved[0])


def test_what_is_no_method_is_refused():
    class Nameless(PrivSGP):
        name = ""

    class Impostor(PrivSGP):
        name = "privsgp-vr"

    class Bare(Options):
        decay: float = 0.1

    class Undocumented(PrivSGP):
        name = "privsgp-undocumented"
        Options = Bare

    class Shared(EvenSteps):
        name = "pairwise"

    for wrong, why in ((Nameless, "name"), (Impostor, "privsgp-vr"), (Undocumented, "no description"), (int, "int")):
        with pytest.raises(Refused, match=why):
            privsgp.register(wrong)
    for wrong, why in ((Shared, "pairwise"), (int, "int")):
        with pytest.raises(Refused, match=why):
            privsgp.register_noise(wrong)


def test_installed_packages_offer_theirs(monkeypatch):
    class Entry:
        name, value = "privsgp-decayed", f"{__name__}:Decayed"

        def load(self):
            return Decayed

    offer(monkeypatch, Entry())
    assert configs.parse({"privacy": {"sigma": 1.0}, "algorithm": {"name": "privsgp-decayed"}}).algorithm.decay == 0.01
    numbers = ["--samples", 100, "--batch", 10, "--steps", 5, "--sigma", 0.5, "--json"]
    theirs, ours = (
        json.loads(runs.command("account", *numbers, "--algorithm", name).out)
        for name in ("privsgp-decayed", "privsgp")
    )
    assert theirs["epsilon"] == ours["epsilon"]


def test_their_own_options_are_counted(monkeypatch):
    class Rarer(ALGORITHMS["ldp-svrg"]):
        name = "ldp-rarer"

    privsgp.register(Rarer)
    numbers = ["--samples", 100, "--batch", 10, "--steps", 8, "--sigma", 0.5, "--json"]
    for given in ((), ("--set", "algorithm.period=4"), ("--set", "algorithm.difference_clip=0.3")):
        theirs, ours = (
            json.loads(runs.command("account", *numbers, *given, "--algorithm", name).out)
            for name in ("ldp-rarer", "ldp-svrg")
        )
        assert theirs["epsilon"] == ours["epsilon"]
    ran = runs.command("account", *numbers, "--set", "algorithm.alpha=0.5", "--algorithm", "ldp-rarer")
    assert (ran.code, "algorithm.alpha" in ran.err) == (2, True)


def test_a_package_that_is_broken_is_named(monkeypatch):
    broken = importlib.metadata.EntryPoint("theirs", "no_such_package:Method", "privsgp.algorithms")
    offer(monkeypatch, broken)
    assert configs.parse({"privacy": {"sigma": 1.0}}).algorithm.name == "privsgp-vr"  # the others need not suffer
    with pytest.raises(Refused, match="no_such_package"):
        configs.parse({"privacy": {"sigma": 1.0}, "algorithm": {"name": "theirs"}})


def test_no_package_takes_a_name_that_is_taken(monkeypatch):
    """Neither an entry point nor `register` replaces a method of privsgp or of another package."""

    class Local(PrivSGP):
        name = "local"

    with pytest.raises(Refused, match="'local'"):
        privsgp.register(Local)
    theirs = importlib.metadata.EntryPoint("local", "elsewhere:Local", "privsgp.algorithms")
    offer(monkeypatch, theirs, *importlib.metadata.entry_points(group="privsgp.algorithms"))
    with pytest.raises(Refused, match="two installed packages offer 'local'"):
        list(ALGORITHMS)
    misnamed = importlib.metadata.EntryPoint("global", "privsgp.research.single:Local", "privsgp.algorithms")
    offer(monkeypatch, misnamed)
    with pytest.raises(Refused, match="offers a method called 'local'"):
        ALGORITHMS["global"]


def test_a_run_imports_no_other_method_than_its_own():
    code = """
import sys
from privsgp import later
with later.package("torch"):
    from privsgp.runs import config
for name, imported in (("privsgp-vr", False), ("local", True)):
    config.parse({"seed": 0, "privacy": {"sigma": 1.0}, "algorithm": {"name": name}})
    assert ("privsgp.research.single" in sys.modules) is imported
assert not {"torch", "privsgp.research.anchors"} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True)
