"""The page in a real browser: no complaint, nothing fetched, and everything that moves does."""

from __future__ import annotations

import pytest
from harmful_words import HOSTILE, saying

from browser import CHROMIUM, browser
from privsgp.report import page
from privsgp.runs.views import read

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here: `make browser` installs one")


@pytest.fixture(scope="module")
def tab():
    with browser() as tab:
        yield tab


@pytest.fixture(scope="module")
def alone(made, tmp_path_factory):
    out = tmp_path_factory.mktemp("page") / "alone.html"
    page.write(made("pushed", graph__name="random"), out)
    return out


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 360])
def test_it_opens_without_complaint_asks_for_nothing_and_fits(tab, alone, width, scheme):
    tab.open(alone, width=width, scheme=scheme)
    assert tab.complaints == []
    assert [url for url in tab.asked if not url.startswith("data:")] == [alone.as_uri()]
    assert tab.value("document.documentElement.scrollWidth") <= width
    assert tab.value("document.querySelector('.banner').offsetHeight") > 0
    dark = tab.value("getComputedStyle(document.body).backgroundColor.match(/\\d+/)[0]")
    assert (int(dark) < 100) == (scheme == "dark")


@pytest.mark.parametrize("width", [1280, 390])
def test_no_command_is_cut_and_no_chart_is_wider_than_the_page(tab, alone, width):
    tab.open(alone, width=width)
    assert tab.value("[...document.querySelectorAll('pre')].every(e => e.scrollWidth <= e.clientWidth)")
    inside = f"e.getBoundingClientRect().right <= {width}"
    assert tab.value(f"[...document.querySelectorAll('figure svg')].every(e => {inside})")
    assert tab.value("document.querySelectorAll('figure svg').length") > 5


def test_words_from_outside_are_words(tab, made, tmp_path):
    (tmp_path / "r.html").write_text(page.page(saying(read(made()), HOSTILE)))
    tab.open(tmp_path / "r.html")
    assert tab.complaints == []
    assert tab.value("typeof pwned") == "undefined"
    assert tab.value("document.querySelector('h1').textContent") == HOSTILE


def test_the_numbers_of_a_chart_can_be_unfolded(tab, alone):
    tab.open(alone)
    height = "document.querySelector('figure details').offsetHeight"
    before = tab.value(height)
    tab.value("document.querySelector('figure summary').click()")
    assert tab.value(height) > before + 50
