"""Charts: everything inside its frame, labels apart, numbers beside the drawing."""

from __future__ import annotations

import itertools
import json
import math
import re
from xml.etree import ElementTree as ET

from hypothesis import example, given
from hypothesis import strategies as st

from privsgp.report import charts, page
from privsgp.report.charts import HEIGHT, WIDTH, Axis, Chart, _apart, number, percent
from privsgp.report.reading import read
from privsgp.report.sections import Group, Series, group

VALUES = st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=20)


def _series(values, name="a"):
    return Series(name, [float(i) for i in range(len(values))], values, values, values)


def curves(chart, series):
    return _html(charts.curves(chart, series))


def bars(chart, spent):
    return _html(charts.bars(chart, spent))


def _html(figure):
    return page.TEMPLATES.get_template("parts.html").module.figure(figure)


def _coordinates(html):
    points = re.findall(r'points="([^"]+)"', html)
    return [tuple(map(float, p.split(","))) for text in points for p in text.split()]


@given(VALUES, st.booleans(), st.booleans())
@example([1.0, math.nextafter(1.0, 2.0)], False, False)
@example([-3.0, -3.0], False, False)
@example([0.0], True, True)
@example([1e-30, 2e-30], True, False)
def test_curves_stay_inside(values, log, zero):
    html = curves(Chart("t", log=log, zero=zero), [_series(values), _series(values[::-1], "b")])
    for x, y in _coordinates(html):
        assert 0 <= x <= WIDTH
        assert 0 <= y <= HEIGHT


@given(st.floats(1e-9, 1e9), st.floats(1.01, 1e6), st.booleans())
def test_ticks_are_few_and_inside(low, factor, log):
    axis = Axis(low, low * factor, 0, 100, log=log)
    ticks = axis.ticks()
    assert len(ticks) <= 12
    for tick in ticks:
        assert -1e-6 <= axis.at(tick) <= 100 + 1e-6


@given(st.lists(st.floats(12, 240), min_size=1, max_size=12))
def test_labels_do_not_cover_each_other(heights):
    placed = sorted(_apart(heights))
    assert all(b - a >= 15 - 1e-9 for a, b in itertools.pairwise(placed))
    assert placed[-1] <= HEIGHT - 38  # the x axis


def test_a_chart_is_xml_with_a_name_values_to_hover_and_a_table():
    html = curves(Chart("Loss & more", write=percent), [_series([0.25, 0.5]), _series([0.1], "<b>")])
    figure = ET.fromstring(html)  # noqa: S314 - our own
    assert figure.find("svg").get("aria-label").startswith("Loss & more. a: 25.0 % at first, 50.0 % at last; <b>")
    told = json.loads(figure.get("data-hover"))
    assert told["at"] == ["step 0", "step 1"]
    assert [s["value"] for s in told["series"]] == [["25.0 %", "50.0 %"], ["10.0 %", None]]
    cells = ["".join(cell.itertext()) for cell in figure.iter("td")]
    assert cells == ["25.0 %", "10.0 %", "50.0 %", ""]


def test_a_bar_for_every_node_and_no_bar_where_there_is_no_bound():
    html = bars(Chart("t", x_label="site"), [("0", 1.0, 2.0), ("1", None, None), ("2", 1.5, 2.0)])
    figure = ET.fromstring(html).find("svg")  # noqa: S314 - our own
    tops = [float(bar.get("y")) for bar in figure.iter("rect")]
    lines = [float(line.get("y1")) for line in figure.iter("line") if line.get("class") == "budget"]
    assert len(tops) == len(lines) == 2
    assert lines[0] == lines[1] < tops[1] < tops[0]
    assert "no finite bound" in html


def test_many_curves_are_told_apart_by_their_dashes():
    html = curves(Chart("t"), [_series([1.0, 2.0 + i], f"run {i}") for i in range(20)])
    lines = re.findall(r'class="line (s\d d\d)"', html.split("</svg>")[0])
    assert len(set(lines)) == len(lines) == 20
    assert "label" not in re.findall(r'class="(\w+)', html)


def test_an_axis_with_room_goes_beyond_its_last_value():
    for last in (7.91, 8.0, 0.3, 1e-6):
        drawn = charts.curves(Chart("t", room=True), [Series("a", [last], [1.0], [1.0], [1.0])])
        assert drawn.hover["x"][0][-1] < WIDTH - 14 - 3


def test_numbers_for_people():
    assert [number(v) for v in (1234.0, 0.01234, 1.5e-7, 3.0)] == ["1,234", "0.0123", "1.5e-07", "3"]


def test_runs_that_differ_in_their_seed_are_one_band(made):
    a, b, other = read(made()), read(made("other", seed=8)), read(made("sharper", privacy__sigma=0.01))
    groups = group([a, b, other])
    assert [len(g.runs) for g in groups] == [2, 1]
    curve = groups[0].curve("test_accuracy")
    pairs = [dict(run.column("test_accuracy")) for run in (a, b)]
    assert curve.x == [6, 12, 18, 24, 30]
    assert curve.low == [min(p[k] for p in pairs) for k in curve.x]
    assert curve.y == [(pairs[0][k] + pairs[1][k]) / 2 for k in curve.x]
    assert curve.banded
    assert groups[1].changes(groups[0]) == ["privacy.sigma: 0.05 → 0.01"]


def test_a_metric_nobody_measured_has_no_curve(made):
    assert Group("x", [read(made())]).curve("nonsense") is None
