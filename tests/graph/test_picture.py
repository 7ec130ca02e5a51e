from __future__ import annotations

from xml.etree import ElementTree as ET

import pytest

from privsgp.errors import Refused
from privsgp.graph import draw, make

SVG = "{http://www.w3.org/2000/svg}"


def drawn(path):
    return ET.parse(path).getroot()  # noqa: S314 - our own


def test_an_arrow_for_each_message_in_the_colour_of_its_step(tmp_path):
    draw(make("exponential", 4), tmp_path / "period.svg")
    paths = list(drawn(tmp_path / "period.svg").iter(f"{SVG}path"))
    lines = [path.get("stroke") for path in paths if path.get("fill") == "none"]
    assert sorted(lines.count(colour) for colour in set(lines)) == [2, 4]  # two nodes apart: one line for both ways
    assert len(paths) - len(lines) == 4  # heads


@pytest.mark.parametrize(("name", "nodes"), [("random", 5), ("complete", 30), ("ring-directed", 1), ("ring", 80)])
def test_every_kind_of_graph_can_be_drawn(tmp_path, name, nodes):
    draw(make(name, nodes), tmp_path / "graph.svg")
    assert len(list(drawn(tmp_path / "graph.svg").iter(f"{SVG}circle"))) >= nodes


@pytest.mark.parametrize(("name", "why"), [("graph.png", "no .svg"), ("missing/graph.svg", "cannot be written")])
def test_a_picture_that_cannot_be_written_is_refused(tmp_path, name, why):
    with pytest.raises(Refused, match=f"graph.*{why}"):
        draw(make("ring", 3), tmp_path / name)
    assert not list(tmp_path.iterdir())
