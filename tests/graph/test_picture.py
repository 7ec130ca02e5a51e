from __future__ import annotations

import pytest

from privsgp.errors import Refused
from privsgp.graph import draw, make


def _size(path):
    header = path.read_bytes()[:24]
    assert header.startswith(b"\x89PNG")
    return int.from_bytes(header[16:20]), int.from_bytes(header[20:24])


def test_a_panel_for_each_step_and_one_for_all(tmp_path):
    draw(make("exponential", 4), tmp_path / "period.png")
    draw(make("exponential", 4), tmp_path / "one.png", steps=1)
    (wide, high), (single, tall) = _size(tmp_path / "period.png"), _size(tmp_path / "one.png")
    assert wide > 2.5 * high
    assert single < tall


@pytest.mark.parametrize(("name", "nodes"), [("random", 5), ("complete", 30), ("ring-directed", 1), ("ring", 80)])
def test_every_kind_of_graph_can_be_drawn(tmp_path, name, nodes):
    draw(make(name, nodes), tmp_path / "graph.png")
    assert min(_size(tmp_path / "graph.png")) > 300


@pytest.mark.parametrize("name", ["graph.xyz", "missing/graph.png"])
def test_a_picture_that_cannot_be_written_is_refused(tmp_path, name):
    with pytest.raises(Refused, match=r"graph.*cannot be written"):
        draw(make("ring", 3), tmp_path / name)
    assert not list(tmp_path.iterdir())
