"""The examples in the docs run, page by page in an empty folder, and print what the page says they print.

A block runs if `<!-- run -->` stands before it. A `toml` block is written to the file that the mark names,
`<!-- run: site.toml -->`; `python` blocks of a page share their names; of `console` blocks every line behind `$ ` is
run. Other lines of a console block, and a block marked `<!-- output -->`, are what must have been printed, in this
order; `…` stands for anything.
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

DOCS = pathlib.Path(__file__).parent.parent / "docs"
BLOCK = re.compile(r"^ *<!-- (run|output)(?:: (\S+))? -->\n+ *```(\w+)[^\n]*\n(.*?)^ *```", re.DOTALL | re.MULTILINE)
PAGES = sorted(str(p.relative_to(DOCS)) for p in DOCS.rglob("*.md") if BLOCK.search(p.read_text()))


def _console(text):
    said = ""
    for line in text.splitlines():
        if line.startswith("$ "):
            program, *arguments = shlex.split(line[2:], comments=True)
            assert program == "privsgp"
            ran = runs.command(*arguments)
            assert ran.code == 0, ran.err
            said += ran.out + ran.err
    return said


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
    with mock.patch.dict(ALGORITHMS), mock.patch.dict(RULES):  # pages that add to them leave them as they were
        for kind, file, language, indented in BLOCK.findall((DOCS / page).read_text()):
            text = textwrap.dedent(indented)
            if kind == "output":
                _refuse_other(said, text)
            elif language == "toml":
                pathlib.Path(file).write_text(text)
            elif language == "python":
                said = _python(text, names)
            else:
                said = _console(text)
                _refuse_other(said, "\n".join(line for line in text.splitlines() if not line.startswith("$ ")))


def test_the_pages_that_show_code_are_run():
    assert {"howto/model.md", "howto/notebook.md"} <= set(PAGES)
    assert {"tutorial.md", "howto/plan.md", "howto/report.md", "howto/algorithm.md", "howto/layer-rule.md"} <= set(
        PAGES
    )
