"""docs/trusted-base.md names every file of the package once, with its lines, and is what the script writes."""

from __future__ import annotations

import importlib.util
import inspect
import pathlib
import sys

import pytest
import torch

from privsgp.accounting.statements import statements
from privsgp.runs import config as configs
from privsgp.runs import problem as problems
from privsgp.runs import train

ROOT = pathlib.Path(__file__).parent.parent
ASK = {("features/maps.py", "make_encoder"), ("gradients/persons.py", "of_samples")}  # they only ask what is chosen


@pytest.fixture(scope="module")
def base():
    spec = importlib.util.spec_from_file_location("trusted_base", ROOT / "docs" / "trusted_base.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_what_the_script_writes(base):
    assert base.PAGE.read_text() == base.page(), "run: python docs/trusted_base.py"


def test_every_file_is_trusted_once_or_has_a_reason_not_to_be(base):
    files = {str(path.relative_to(base.PACKAGE)) for path in base.PACKAGE.rglob("*.py")}
    trusted = [name for layer in base.TRUSTED.values() for name in layer]
    assert len(trusted) == len(set(trusted))
    assert set(trusted) <= files
    assert [name for name in files - set(trusted) if base.reason(name) is None] == []


def test_a_plain_run_calls_no_function_of_a_choice(base, tmp_path):
    codes = set()

    def see(frame, event, _argument):
        if event == "call":
            codes.add(frame.f_code)

    values = {"data": {"nodes": 4}, "privacy": {"epsilon": 3.0}, "algorithm": {"name": "privsgp-vr", "steps": 6}}
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # so that all of it runs in this thread
    sys.setprofile(see)
    try:
        config = configs.parse(values)
        train.run(config, problems.load_problem(config), tmp_path / "run")
        assert all(0 < one.epsilon <= 3 for one in statements(tmp_path / "run"))
    finally:
        sys.setprofile(None)
        torch.set_num_threads(threads)
    functions = [code for code in codes if code.co_flags & inspect.CO_OPTIMIZED]  # no body of a module or a class
    called = {
        (str(path.relative_to(base.PACKAGE)), code.co_qualname)
        for code in functions
        if (path := pathlib.Path(code.co_filename)).is_relative_to(base.PACKAGE)
    }
    chosen = {name for layer, files in base.TRUSTED.items() if layer != base.PLAIN for name in files}
    assert {one for one in called if one[0] in chosen} - ASK == set()
    assert {"randomness/noise.py", "accounting/ledger.py", "engine/budget_guard.py"} <= {name for name, _ in called}


def test_a_line_of_code_is_no_blank_comment_or_docstring(base, tmp_path):
    path = tmp_path / "some.py"
    path.write_text(
        '"""A module."""\n\n# why\nx = """two\nlines"""\n\n\ndef f():\n    """Say it."""\n    return x  # so\n'
    )
    assert base.code_lines(path) == 4
