"""The page in a real browser: no complaint, nothing fetched, and everything that moves does."""

from __future__ import annotations

import pytest
from browser import CHROMIUM, browser
from harmful_words import HOSTILE, saying

from privsgp.report import page
from privsgp.report.reading import read

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here: `make browser` installs one")


@pytest.fixture(scope="module")
def tab():
    with browser() as tab:
        yield tab


@pytest.fixture(scope="module")
def alone(made, tmp_path_factory):
    out = tmp_path_factory.mktemp("page") / "alone.html"
    page.write([made("pushed", graph__name="random")], out)
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
def test_no_number_breaks_and_no_command_is_cut(tab, alone, width):
    tab.open(alone, width=width)
    heights = tab.value("[...document.querySelectorAll('.headline .whole')].map(e => e.getClientRects().length)")
    assert heights == [1, 1]
    assert tab.value("[...document.querySelectorAll('pre')].every(e => e.scrollWidth <= e.clientWidth)")


def test_several_runs_open_too(tab, made, secret, tmp_path):
    page.write([made(), made("other", seed=8), secret], tmp_path / "r.html")
    tab.open(tmp_path / "r.html")
    assert tab.complaints == []
    assert tab.value("document.querySelectorAll('.band').length") > 0
    assert tab.value("document.querySelectorAll('details.run').length") == 2


def test_words_from_outside_are_words(tab, made, secret, tmp_path):
    (tmp_path / "r.html").write_text(page.page([saying(read(folder), HOSTILE) for folder in (made(), secret)]))
    tab.open(tmp_path / "r.html")
    assert tab.complaints == []
    assert tab.value("typeof pwned") == "undefined"
    assert tab.value("document.querySelector('pre').textContent").startswith(f"# privsgp {HOSTILE}, torch {HOSTILE}")


def test_the_slider_shows_another_step(tab, alone):
    tab.open(alone)
    assert tab.value("document.querySelector('.said').textContent").startswith("step 0: 4 messages")
    before = tab.value("document.querySelector('.circle g').innerHTML")
    tab.value("s = document.querySelector('input'); s.value = 7; s.dispatchEvent(new Event('input'))")
    assert tab.value("document.querySelector('.said').textContent").startswith("step 7")
    assert tab.value("document.querySelector('.circle g').innerHTML") != before
    heights = tab.value("[...document.querySelectorAll('.weights rect')].map(r => +r.getAttribute('height'))")
    assert len(heights) == 4
    assert max(heights) > min(heights)
    assert tab.value("document.querySelector('.cursor').style.visibility") == "visible"
    assert tab.value("document.querySelector('.cursor text').textContent") == "step 7"


def test_a_telephone_gets_a_drawing_of_its_own_with_letters_one_can_read(tab, alone):
    tab.open(alone, width=390)
    assert tab.value("[...document.querySelectorAll('.chart .wide')].every(s => s.clientWidth === 0)")
    size = "s.querySelector('text').getBoundingClientRect().height"
    assert tab.value(f"[...document.querySelectorAll('.chart .narrow')].every(s => {size} > 11)")
    box = tab.value("(b => [b.right, b.top])(document.querySelector('.chart .narrow').getBoundingClientRect())")
    tab.call("Input.dispatchMouseEvent", type="mouseMoved", x=box[0] - 2, y=box[1] + 50)
    assert "step 30" in tab.value("document.querySelector('.tip').textContent")


@pytest.mark.parametrize("width", [1280, 390])
def test_no_label_lies_on_another_text_or_outside_its_chart(tab, made, secret, tmp_path, width):
    page.write([made(), made("short", algorithm__steps=9), secret], tmp_path / "r.html")
    tab.open(tmp_path / "r.html", width=width)
    overlaps = """[...document.querySelectorAll('.charts svg')].filter(s => s.clientWidth).flatMap(s => {
      const texts = [...s.querySelectorAll('text')].filter(t => t.textContent);
      const boxes = texts.map(t => t.getBoundingClientRect()), frame = s.closest('figure').getBoundingClientRect();
      return texts.filter((t, i) => t.classList.contains('label') && (boxes[i].right > frame.right ||
        boxes.some((b, j) => j !== i && b.left < boxes[i].right && boxes[i].left < b.right &&
          b.top + 2 < boxes[i].bottom && boxes[i].top + 2 < b.bottom))).map(t => t.textContent);
    })"""
    assert tab.value(overlaps) == []


def test_play_moves_the_slider_and_pause_stops_it(tab, alone):
    tab.open(alone)
    tab.value("document.querySelector('button').click()")
    moved = "new Promise(done => setTimeout(() => done(document.querySelector('input').value), 900))"
    answer = tab.call("Runtime.evaluate", expression=moved, awaitPromise=True, returnByValue=True)
    assert int(answer["result"]["value"]) > 0
    tab.value("document.querySelector('button').click()")
    assert tab.value("document.querySelector('button').getAttribute('aria-label')") == "Play"


def test_values_under_the_pointer_and_by_the_arrow_keys(tab, alone):
    tab.open(alone)
    box = tab.value("(b => [b.right, b.top])(document.querySelector('.chart svg').getBoundingClientRect())")
    tab.call("Input.dispatchMouseEvent", type="mouseMoved", x=box[0] - 2, y=box[1] + 50)
    tip = "document.querySelector('.tip')"
    assert tab.value(f"{tip}.hidden") is False
    assert "step 30" in tab.value(f"{tip}.textContent")
    assert "average model: " in tab.value(f"{tip}.textContent")
    tab.value("document.querySelector('.chart svg').focus()")
    tab.call("Input.dispatchKeyEvent", type="keyDown", key="ArrowLeft")
    assert "step 24" in tab.value(f"{tip}.textContent")
