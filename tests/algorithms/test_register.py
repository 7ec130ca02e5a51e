"""Methods from outside the package: held to what the built-in ones are."""

from __future__ import annotations

import importlib.metadata
import json

import pytest

import privsgp
import runs
from privsgp import algorithms
from privsgp.algorithms import ALGORITHMS, PrivSGP
from privsgp.errors import Refused
from privsgp.options import Options, option
from privsgp.runs import config as configs


class DecayOptions(Options):
    decay: float = option(0.01, "λ")


class Decayed(PrivSGP):
    name = "privsgp-decayed"
    Options = DecayOptions


@pytest.fixture(autouse=True)
def unchanged(monkeypatch):
    monkeypatch.setattr(algorithms, "ALGORITHMS", ALGORITHMS)
    before = dict(ALGORITHMS)
    yield
    ALGORITHMS.clear()
    ALGORITHMS.update(before)
    algorithms.load_plugins.cache_clear()


def test_its_options_are_keys_of_run_toml():
    values = {"privacy": {"epsilon": 1.0}, "algorithm": {"name": "privsgp-decayed", "decay": 0.5}}
    with pytest.raises(Refused, match="privsgp-decayed"):
        configs.parse(values)
    privsgp.register(Decayed)
    assert configs.parse(values).options("algorithm") == {"decay": 0.5}
    with pytest.raises(Refused, match=r"algorithm\.decay = 0\.5 with algorithm\.name = 'privsgp'"):
        configs.parse(values | {"algorithm": {"name": "privsgp", "decay": 0.5}})


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

    for wrong, why in ((Nameless, "name"), (Impostor, "privsgp-vr"), (Undocumented, "without a meaning"), (int, "int")):
        with pytest.raises(Refused, match=why):
            privsgp.register(wrong)


def test_installed_packages_offer_theirs(monkeypatch):
    class Entry:
        name, value = "privsgp-decayed", "elsewhere:Decayed"

        def load(self):
            return Decayed

    monkeypatch.setattr(algorithms, "entry_points", lambda *, group: [Entry()] if group == "privsgp.algorithms" else [])
    algorithms.load_plugins.cache_clear()
    assert configs.parse({"privacy": {"sigma": 1.0}, "algorithm": {"name": "privsgp-decayed"}}).algorithm.decay == 0.01
    numbers = ["--samples", 100, "--batch", 10, "--steps", 5, "--sigma", 0.5, "--json"]
    theirs, ours = (
        json.loads(runs.command("account", *numbers, "--algorithm", name).out)
        for name in ("privsgp-decayed", "privsgp")
    )
    assert theirs["epsilon"] == ours["epsilon"]


def test_a_package_that_is_broken_is_named(monkeypatch):
    broken = importlib.metadata.EntryPoint("theirs", "no_such_package:Method", "privsgp.algorithms")
    monkeypatch.setattr(algorithms, "entry_points", lambda *, group: [broken])
    algorithms.load_plugins.cache_clear()
    with pytest.raises(Refused, match="no_such_package"):
        configs.parse({"privacy": {"sigma": 1.0}})
