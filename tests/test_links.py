"""The link checker finds what is broken, and the pages beside the site have no broken link."""

from __future__ import annotations

import pathlib
import runpy

import pytest

ROOT = pathlib.Path(__file__).parent.parent
CHECK = runpy.run_path(str(ROOT / ".ci" / "links.py"))


@pytest.mark.parametrize(
    ("link", "broken"),
    [
        ("b.html", False), ("b.html#there", False), ("#here", False), ("sub/", False), ("https://example.org/x", False),
        ("c.html", True), ("b.html#gone", True), ("#gone", True), ("picture.svg", True), ("sub/#gone", True),
    ],
)  # fmt: skip
def test_a_broken_link_of_the_site_is_found(tmp_path, link, broken):
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "index.html").write_text("<h1>sub</h1>")
    (tmp_path / "b.html").write_text("<h2 id=there>b</h2>")
    (tmp_path / "a.html").write_text(f"<h2 id=here>a</h2><a href='{link}'>x</a><img src='{link}'>")
    assert CHECK["site"](tmp_path) == [f"a.html: {link}"] * 2 * broken


def test_the_pages_beside_the_site_have_no_broken_link(tmp_path):
    assert CHECK["beside"](ROOT) == []
    for name in CHECK["BESIDE"]:
        (tmp_path / name).write_text("# Here\n[a](#here) [b](README.md#gone) [c](gone.md)\n")
    assert CHECK["beside"](tmp_path)[:2] == ["README.md: README.md#gone", "README.md: gone.md"]
