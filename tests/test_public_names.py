"""The public names of `privsgp`: documented as a user types them, with examples that run."""

from __future__ import annotations

import doctest
import inspect

import pytest

import privsgp
from privsgp.algorithms import ALGORITHMS
from privsgp.options import Options
from privsgp.randomness import NOISES, REGISTERED

NAMES = [name for name in privsgp.__all__ if name != "__version__"]


def test_dir_shows_the_public_names():
    assert dir(privsgp) == sorted(privsgp.__all__)


@pytest.mark.parametrize("name", NAMES)
def test_help_has_a_summary_arguments_and_an_example(name):
    public = getattr(privsgp, name)
    told = inspect.getdoc(public)
    parts = ["Args:", "Example:"] if inspect.isclass(public) else ["Args:", "Returns:", "Raises:", "Example:"]
    assert all(f"\n{part}\n" in told for part in parts)
    assert len(told.partition("\n")[0]) < 120
    if not issubclass(public if inspect.isclass(public) else int, Options):
        given = [p for p in inspect.signature(public).parameters if p != "self"]
        assert all(f"\n    {argument}: " in told for argument in given)


@pytest.mark.parametrize("name", ["outputs", "predict", "predict_proba", "calibrate", "evaluate", "export"])
def test_methods_of_a_result_have_arguments_and_errors(name):
    told = inspect.getdoc(getattr(privsgp.Result, name))
    assert all(f"\n{part}\n" in told for part in ("Args:", "Raises:"))


def test_the_examples_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(ALGORITHMS, "_registered", dict(ALGORITHMS._registered))
    finder, runner = doctest.DocTestFinder(recurse=False), doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    for name in ["train", *(name for name in NAMES if name != "train")]:  # others read its run
        (found,) = finder.find(getattr(privsgp, name), name, module=False, globs={})
        assert found.examples
        runner.run(found)
    del NOISES["mine"], REGISTERED["mine"]
    assert not runner.failures
