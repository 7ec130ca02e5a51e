"""Charts: everything inside its frame, numbers below the drawing, curves that nobody needs colours to tell apart."""

from __future__ import annotations

import math
import re
from xml.etree import ElementTree as ET

from hypothesis import example, given
from hypothesis import strategies as st

from privsgp.runs.charts import HEIGHT, WIDTH, figure, figures, number, percent, ticks
from privsgp.runs.views import read

VALUES = st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=20)


def _points(values):
    return [(float(i), value) for i, value in enumerate(values)]


@given(VALUES)
@example([1.0, math.nextafter(1.0, 2.0)])
@example([-3.0, -3.0])
@example([0.0])
@example([1e-30, 2e-30])
@example([1e-30, 1.0])
@example([0.0, 1e6])
def test_curves_stay_inside(values):
    html = figure("t", {"a": _points(values), "b": _points(values[::-1])})
    for text in re.findall(r'points="([^"]+)"', html):
        for x, y in (map(float, point.split(",")) for point in text.split()):
            assert 0 <= x <= WIDTH
            assert 0 <= y <= HEIGHT


@given(st.floats(1e-9, 1e9), st.floats(1.01, 1e6))
def test_ticks_are_few_and_enclose_the_values(low, factor):
    found = ticks([low, low * factor])
    assert 2 <= len(found) <= 12
    assert found[0] <= low * (1 + 1e-6)
    assert found[-1] >= low * factor * (1 - 1e-6)


def test_a_chart_is_xml_with_a_name_and_a_table():
    chart = figure("Loss & more", {"a": [(0.0, 0.25), (1.0, 0.5)], "<b>": [(0.0, 0.1)]}, write=percent)
    drawn = ET.fromstring(chart)  # noqa: S314 - our own
    assert drawn.find("svg").get("aria-label").startswith("Loss & more. a: 25.0 % at first, 50.0 % at last; <b>")
    cells = ["".join(cell.itertext()) for cell in drawn.iter("td")]
    assert cells == ["25.0 %", "10.0 %", "50.0 %", ""]


def test_curves_differ_in_dashes_too():
    html = figure("t", {f"run {i}": [(0.0, 1.0), (1.0, 2.0 + i)] for i in range(3)})
    looks = re.findall(r'<polyline [^>]*stroke="([^"]+)"[^>]*stroke-dasharray="([^"]+)"', html)
    assert len({colour for colour, _ in looks}) == len({dashes for _, dashes in looks}) == 3


def test_a_long_curve_is_thinned_and_keeps_its_end():
    html = figure("t", {"a": [(float(i), float(i)) for i in range(1001)]})
    (points,) = re.findall(r'points="([^"]+)"', html)
    assert 100 < len(points.split()) <= 200
    assert '<th scope="row">1,000</th>' in html


def test_numbers_for_people():
    assert [number(v) for v in (1234.0, 0.01234, 1.5e-7, 3.0)] == ["1,234", "0.0123", "1.5e-07", "3"]


def test_a_metric_nobody_measured_has_no_curve(made, secret):
    assert read(made()).curve("nonsense") == []
    simulated, private = ("".join(figures(read(folder))) for folder in (made(), secret))
    assert "Loss. test: " in simulated
    assert "Loss. test: " in private
    assert "; training: " in simulated
    assert "training" not in private
