"""Types of all settings: made from the configuration's own fields, and what `privsgp.train` takes."""

from __future__ import annotations

import inspect
import pathlib
import runpy
import typing

import privsgp
from privsgp.runs import typed
from privsgp.runs.config import Config


def test_the_types_are_those_that_the_configuration_gives():
    made = runpy.run_path(str(pathlib.Path(__file__).parents[2] / "docs" / "typed.py"))["typed"]()
    assert inspect.getsource(typed) == made, "run `make typed`"


def test_every_section_is_an_argument_of_its_own():
    taken = inspect.signature(privsgp.train).parameters
    assert set(Config.model_fields) - {"data", "model"} <= set(taken)
    assert not [p for p in taken.values() if p.kind is p.VAR_KEYWORD]
    for section in ("features", "privacy", "algorithm", "clock", "plan", "engine"):
        assert f"{section.capitalize()}Section" in taken[section].annotation


def test_a_section_has_every_key_of_every_component():
    hints = typing.get_type_hints(typed.AlgorithmSection)
    assert {"name", "batch", "momentum", "difference_clip", "period", "table", "average_share"} <= set(hints)
    assert "auto" in str(hints["steps"])
