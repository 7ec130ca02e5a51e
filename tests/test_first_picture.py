"""The picture on the documentation's first page shows the numbers of the runs."""

from __future__ import annotations

import importlib
import json
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).parent.parent


@pytest.fixture
def script(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "experiments")
    return importlib.import_module("first_picture")


def _written(path):
    """The numbers with two decimals that an SVG has as text."""
    return sorted(re.findall(r"<text[^>]*>(\d+\.\d\d)</text>", path.read_text()))


def _measured(script):
    rows = json.loads(script.RESULTS.read_text())["rows"]
    wanted = [row for row in rows if row["part"] in script.SHOWN and row["kind"] in script.KINDS]
    return sorted(f"{100 * row['accuracy']['mean']:.2f}" for row in wanted)


def test_the_picture_says_what_was_measured(script):
    assert len(_measured(script)) >= 9
    assert _written(script.PICTURE) == _measured(script)
    assert "results/shared-noise/accuracy.svg" in (ROOT / "docs" / "index.md").read_text()


def test_what_is_drawn_now_is_what_lies_there(script, tmp_path):
    script.draw(script.values(json.loads(script.RESULTS.read_text())["rows"]), tmp_path / "now.svg")
    assert _written(tmp_path / "now.svg") == _written(script.PICTURE)
