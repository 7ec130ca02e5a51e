"""The page with the accuracy of public encoders shows what the runs gave, and its commands are configurations."""

from __future__ import annotations

import json
import pathlib
import re

import pytest

from privsgp.runs import config as configs

ROOT = pathlib.Path(__file__).parent.parent
FOUND = json.loads((ROOT / "docs" / "results" / "encoders.json").read_text())
PAGE = (ROOT / "docs" / "results-accuracy.md").read_text()
TABLE = PAGE.split("<!-- encoders -->\n")[1].split("<!-- end of encoders -->")[0]


def line(row):
    """Return the line of a row but for its command."""
    each = [100 * value for value in row["accuracies"]]
    said = f"**{sum(each) / len(each):.1f}** ({', '.join(f'{value:.2f}' for value in each)})"
    return f"| {row['epsilon']:g} | {row['steps']} | {row['step_size']:g} | {row['clip']:g} | {said} |"


def test_the_page_has_every_row_of_the_runs_and_no_other():
    shown = [text for text in TABLE.splitlines() if "**" in text]
    assert [text[: text.rindex(" | ") + 2] if text.endswith("` |") else text[:-2] for text in shown] == [
        line(row) for row in FOUND["rows"]
    ]


def test_what_stands_beside_the_numbers():
    assert FOUND["public_pretraining"] == "ImageNet"
    assert "public pre-training on ImageNet" in TABLE
    assert {(row["chosen_on"], tuple(row["seeds"]), row["device"]) for row in FOUND["rows"]} == {
        ("test images", (1, 2), "NVIDIA H200")
    }
    assert "looked at on test images" in PAGE


@pytest.mark.parametrize("number", range(4))
def test_the_commands_give_the_settings_of_their_rows(number):
    row = FOUND["rows"][number]
    text = [text for text in TABLE.splitlines() if "**" in text][number]
    config = configs.read(ROOT / FOUND["config"], re.findall(r"\w+\.\w+=[\d.]+", text))
    assert (config.privacy.epsilon, config.algorithm.steps) == (row["epsilon"], row["steps"])
    assert (config.algorithm.step_size, config.privacy.clip) == (row["step_size"], row["clip"])
    assert (config.features.name, config.data.nodes, config.privacy.delta) == (
        FOUND["features"], FOUND["nodes"], FOUND["delta"],
    )  # fmt: skip
