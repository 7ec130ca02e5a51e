"""The examples in the docs run, page by page in an empty folder, and print what the page says they print.

A block runs if `<!-- run -->` stands before it. A `toml` block is written to the file that the mark names,
`<!-- run: site.toml -->`; `python` blocks of a page share their names; of other blocks every line behind `$ `, or that
begins with `privsgp`, is run. Other lines of them, and a block marked `<!-- output -->`, are what must have been
printed, in this order; `…` stands for anything. (What no test runs says so on its page: test_docs_commands.py.)
"""

from __future__ import annotations

import contextlib
import io
import pathlib
import re
import shlex
import textwrap
from unittest import mock

import pytest

import runs
from privsgp.algorithms import ALGORITHMS
from privsgp.gradients.rules.ruled import RULES

ROOT = pathlib.Path(__file__).parent.parent
BLOCK = re.compile(r"^ *<!-- (run|output)(?:: (\S+))? -->\n+ *```(\w*)[^\n]*\n(.*?)^ *```", re.DOTALL | re.MULTILINE)
FILES = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
PAGES = sorted(str(p.relative_to(ROOT)) for p in FILES if BLOCK.search(p.read_text()))
TOLD = ("$ ", "privsgp ")


def _console(text):
    said = ""
    for line in text.replace("\\\n", " ").splitlines():
        if line.startswith(TOLD):
            program, *arguments = shlex.split(line.removeprefix("$ "), comments=True)
            assert program == "privsgp"
            *arguments, file = arguments if arguments[-2:-1] == [">"] else [*arguments, ">", None]
            ran = runs.command(*arguments[:-1])
            assert ran.code == 0, ran.err
            said += ran.out + ran.err
            if file:
                pathlib.Path(file).write_text(ran.out)
    return said


def _output(text):
    lines = text.replace("\\\n", " ").splitlines()
    return "\n".join(line for line in lines if not line.startswith(TOLD))


def _python(text, names):
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        exec(compile(text, "docs", "exec", dont_inherit=True), names)  # noqa: S102 - our own pages
    return said.getvalue()


def _refuse_other(said, expected):
    """The lines expected are lines that were printed, in this order, however wide their columns are."""
    lines = [re.escape(" ".join(line.split())).replace("…", "[^\n]*") for line in expected.splitlines()]
    printed = "\n".join(" ".join(line.split()) for line in said.splitlines())
    assert re.search(".*".join(lines), printed, re.DOTALL), f"the page says\n{expected}\nand it printed\n{said}"


@pytest.mark.parametrize("page", PAGES)
def test_what_a_page_shows_is_what_happens(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names, said = {"__name__": "docs"}, ""
    # Pages that add to them leave them as they were.
    with mock.patch.dict(ALGORITHMS._registered), mock.patch.dict(RULES):
        for kind, file, language, indented in BLOCK.findall((ROOT / page).read_text()):
            text = textwrap.dedent(indented)
            if kind == "output":
                _refuse_other(said, text)
            elif language == "toml":
                pathlib.Path(file).write_text(text)
            elif language == "python":
                said = _python(text, names)
            else:
                said = _console(text)
                _refuse_other(said, _output(text))


def test_the_pages_that_show_code_are_run():
    howto = ("model", "notebook", "plan", "report", "algorithm", "layer-rule")
    assert {"docs/tutorial.md", *(f"docs/howto/{name}.md" for name in howto)} <= set(PAGES)
