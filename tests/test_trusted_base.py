"""docs/trusted-base.md names every file of the package once, with its lines, and is what the script writes."""

from __future__ import annotations

import importlib.util
import pathlib

import pytest

ROOT = pathlib.Path(__file__).parent.parent


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
    assert set(base.CHOSEN) <= set(base.TRUSTED[base.CPU])
    assert [name for name in files - set(trusted) if base.reason(name) is None] == []


def test_a_line_of_code_is_no_blank_comment_or_docstring(base, tmp_path):
    path = tmp_path / "some.py"
    path.write_text(
        '"""A module."""\n\n# why\nx = """two\nlines"""\n\n\ndef f():\n    """Say it."""\n    return x  # so\n'
    )
    assert base.code_lines(path) == 4
