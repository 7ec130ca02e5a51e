"""The picture on the documentation's first page shows the numbers of the runs."""

from __future__ import annotations

import json
import pathlib
import re

ROOT = pathlib.Path(__file__).parent.parent
EXPERIMENT = "first_picture"


def _written(path):
    """The numbers with two decimals that an SVG has as text."""
    return sorted(re.findall(r"<text[^>]*>(\d+\.\d\d)</text>", path.read_text()))


def _measured(experiment):
    rows = json.loads(experiment.record.RESULTS.read_text())["rows"]
    rows = [row for row in rows if row["data"] in experiment.SHOWN and row["kind"] in experiment.KINDS]
    wanted = [row for row in rows if row["partition"] in ("even", None)]
    return sorted(f"{100 * row['accuracy']['mean']:.2f}" for row in wanted)


def test_the_picture_says_what_was_measured(experiment):
    assert len(_measured(experiment)) == 36
    assert _written(experiment.PICTURE) == _measured(experiment)
    assert f"results/{experiment.PICTURE.name}" in (ROOT / "docs" / "index.md").read_text()


def test_what_is_drawn_now_is_what_lies_there(experiment, tmp_path):
    experiment.draw(experiment.values(json.loads(experiment.record.RESULTS.read_text())["rows"]), tmp_path / "now.svg")
    assert _written(tmp_path / "now.svg") == _written(experiment.PICTURE)
