"""The sections of run.toml as objects: what `privsgp.train` takes."""

from __future__ import annotations

import inspect

import numpy as np
import pytest
from pydantic import ValidationError
from torch import nn

import privsgp
from privsgp.algorithms import ALGORITHMS
from privsgp.runs import config as configs
from privsgp.runs import sections

GIVEN = {
    "privacy": sections.Privacy(sigma=0.1, noise="pairwise", honest=2),
    "algorithm": sections.Algorithm(name="privsgp", steps=3, step_size=0.5),
    "graph": sections.Graph(name="random", degree=2),
}


def test_every_section_is_an_argument_of_its_own():
    taken = inspect.signature(privsgp.train).parameters
    assert set(configs.Config.model_fields) - {"data", "model", "evaluation", "sum", "study"} <= set(
        taken
    )  # of files alone
    assert not [p for p in taken.values() if p.kind is p.VAR_KEYWORD]
    for section in ("features", "privacy", "algorithm", "clock", "plan", "engine"):
        assert section.capitalize() in taken[section].annotation


@pytest.mark.parametrize("name", sorted(set(configs.SECTIONS) - {"data", "model", "algorithm"}))
def test_a_section_has_every_key_of_every_component(name):
    for chosen in configs.SECTIONS[name].components:
        component = configs.SECTIONS[name].options(chosen)
        taken = set(getattr(sections, name.capitalize()).model_fields)
        assert set(component.model_fields) - {"shares"} <= taken  # of run.toml: graph= takes the matrices themselves


def test_objects_are_what_dictionaries_are(tmp_path):
    rng = np.random.default_rng(0)
    data = [(rng.normal(size=(20, 4)).astype(np.float32), np.arange(20) % 2) for _ in range(4)]
    values = {name: sections.plain(section) for name, section in GIVEN.items()}
    assert values["algorithm"]["step_size"] == 0.5
    ran = []
    for how, given in (("objects", GIVEN), ("dictionaries", values)):
        privsgp.train(nn.Linear(4, 2), data, out=tmp_path / how, classes=2, seed=1, **given)
        ran.append((tmp_path / how / "config.toml").read_text())
    assert ran[0] == ran[1]


def test_what_is_left_to_the_planner_stays_open():
    section = sections.Algorithm(name="privsgp", steps="auto", batch=8.0)
    assert sections.plain(section) == {"batch": 8.0, "name": "privsgp", "steps": "auto"}


def test_a_section_has_every_key_of_privsgps_own_methods_and_takes_those_of_others():
    for name in ("sgp", "privsgp", "privsgp-vr", "privsgp-sag"):
        assert set(ALGORITHMS[name].Options.model_fields) <= set(sections.Algorithm.model_fields)
    given = sections.plain(sections.Algorithm(name="ldp-svrg", period=3))
    assert configs.parse({"privacy": {"sigma": 1.0}, "algorithm": given}).algorithm.period == 3
    with pytest.raises(privsgp.Refused, match="periods"):
        configs.parse({"privacy": {"sigma": 1.0}, "algorithm": {"name": "ldp-svrg", "periods": 3}})


def test_a_key_that_nobody_knows_is_refused():
    with pytest.raises(ValidationError, match="clips"):
        sections.Privacy(epsilon=1.0, clips=1.0)
