"""The reference of run.toml says all there is."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

import pytest

from privsgp.runs import config as configs
from privsgp.runs.config import SECTIONS, Config

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "docs"))
from keys import markdown, reference, sections  # noqa: E402

PLAN = ROOT / "experiments" / "results.toml"  # of `make results`: a list of commands, no run
CONFIGS = sorted({*ROOT.glob("examples/*.toml"), *ROOT.glob("experiments/**/*.toml")} - {PLAN})


def documented():
    return {(section, key.name) for section, _, groups in reference() for _, keys in groups for key in keys}


def test_every_key_of_every_component_is_there_with_a_meaning():
    own = {(name, key) for name, s in SECTIONS.items() for one in s.components for key in s.options(one).model_fields}
    base = {(name, key) for name, kind in sections().items() for key in kind.model_fields}
    assert own | base <= documented()
    bare = [key for section, _, groups in reference() for _, keys in groups for key in keys if not key.meaning]
    assert not bare


def test_no_component_has_a_key_of_its_section():
    for section in SECTIONS.values():
        for name in section.components:
            own = section.options(name)
            assert not set(own.model_fields) & set(section.base.model_fields), name


def test_the_page_names_every_key():
    page = markdown()
    assert all(f"| `{key}` |" in page for _, key in documented())


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.name)
def test_our_own_files_are_read(path):
    configs.parse(tomllib.loads(path.read_text()))


def test_a_configuration_survives_a_process_and_a_file(tmp_path):
    import pickle

    made = configs.parse({"privacy": {"epsilon": 1.0}, "algorithm": {"difference_clip": 0.5, "steps": "auto"}})
    again = pickle.loads(pickle.dumps(made))  # noqa: S301 - our own
    assert isinstance(again, Config)
    assert (again, again.algorithm.auto) == (made, ("steps",))
    path = tmp_path / "config.toml"
    path.write_text(made.toml())
    assert configs.read(path).algorithm.difference_clip == 0.5
