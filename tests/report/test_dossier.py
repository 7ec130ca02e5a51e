"""The officer's folder: facts are filled in, other questions are asked, and the record fits the registry."""

import json
import os
from pathlib import Path

import jsonschema
import pytest
import yaml

from privsgp.errors import Refused
from privsgp.report.dossier import write_dossier
from runs import command

SCHEMA = yaml.safe_load((Path(__file__).parent / "registry-schema.yaml").read_text())
RUN = """name = "lung"
[data]
path = "{site}.npz"
sites = ["aachen", "basel", "cork"]
classes = 2
[privacy]
epsilon = [1.0, 2.0, 2.0]
[model]
name = "logistic"
[algorithm]
name = "privsgp"
steps = 8
batch = 20
step_size = 0.5
local_steps = 2
[study]
purpose = 'To predict: "lung" function # 1, FEV1 < 80 % ![x](https://tracks.example/x.png)'
contact = "<script>a</script>\\n# head"
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    import numpy as np

    place = tmp_path_factory.mktemp("dossier")
    rng = np.random.default_rng(0)
    for site in ("aachen", "basel", "cork"):
        x = rng.standard_normal((60, 3)).astype(np.float32)
        np.savez(place / f"{site}.npz", x=x, y=(x[:, 0] > 0).astype(np.int64))
    (place / "run.toml").write_text(RUN)
    before = os.environ.get("PRIVSGP_STATE")
    os.environ["PRIVSGP_STATE"] = str(place / "state")
    assert command("train", place / "run.toml", "--out", place / "run").code == 0
    yield place
    os.environ.pop("PRIVSGP_STATE") if before is None else os.environ.update(PRIVSGP_STATE=before)


def record(folder):
    found = yaml.safe_load((folder / "registry.yaml").read_text())
    jsonschema.validate(found, SCHEMA)
    return found["deployment"]


def test_a_run_gives_a_record_that_the_registry_takes(place, monkeypatch):
    monkeypatch.setenv("PRIVSGP_STATE", str(place / "state"))
    ran = command("dossier", place / "run", "--out", place / "filed")
    assert ran.code == 0, ran.err
    found, annex = record(place / "filed"), (place / "filed" / "assessment.md").read_text()
    assert found["basic"]["intended_use"].startswith('To predict: "lung" function # 1, FEV1 < 80 %')
    assert "FEV1 &lt; 80 %" in annex
    assert "](" not in annex  # it would fetch a picture from elsewhere
    assert found["basic"]["data_curators"] == ["aachen", "basel", "cork"]
    spent = found["privacy_loss"]["privacy_parameters"]
    assert 1.0 < spent["epsilon"] <= 2.0
    assert spent["delta"] == 1e-5
    assert "weights of the model, 4 times" in annex
    assert "no signed agreement: one process had the records of all" in annex
    assert "The process had the records of all." in found["basic"]["description"]
    assert "all 8 noised steps of the run. " in found["deployment_model"]["release_type_details"]
    assert "{" not in annex
    assert "<script>" not in annex
    assert "\n# head" not in annex
    assert "60 records: the one that has spent most" in annex
    assert {path.name for path in (place / "filed").iterdir()} == {
        "registry.yaml", "assessment.md", "report.html", "model-card.md"
    }  # fmt: skip
    assert ran.err.count("open: ") == annex.count("OPEN: ") > 8


def test_the_record_never_rounds_a_small_epsilon_down_or_into_a_word(place):
    from privsgp.report import dossier

    number = dossier._TEXTS.filters["number"]
    for value in (3.0000001, 4.3e-8, 123456.7):
        found = yaml.safe_load(f"a: {number(value)}")["a"]
        assert found >= value
        assert found == pytest.approx(value, rel=1e-3)


def test_an_audit_is_repeated_and_one_of_another_run_refused(place):
    node = {"node": 0, "epsilon_claimed": 1.0, "white_box": 0.4}
    found = {"format": "privsgp-audit", "algorithm": "privsgp", "steps": 8, "canaries": 10, "confidence": 0.99}
    found |= {"alarm": True, "nodes": [node]}
    (place / "audit.json").write_text(json.dumps(found))
    write_dossier(place / "run", place / "audited", place / "audit.json")
    assert "it found a contradiction" in (place / "audited" / "assessment.md").read_text()
    (place / "audit.json").write_text(json.dumps(found | {"steps": 9}))
    with pytest.raises(Refused, match="with 9 steps, and the study is of privsgp with 8"):
        write_dossier(place / "run", place / "other", place / "audit.json")
    assert not (place / "other").exists()


def test_simulations_and_folders_in_use_are_refused(place):
    assert command("train", place / "run.toml", "--set", "seed=1", "--out", place / "simulated").code == 0
    with pytest.raises(Refused, match="protects nobody"):
        write_dossier(place / "simulated", place / "never")
    config = place / "simulated" / "config.toml"
    config.write_text("\n".join(line for line in config.read_text().splitlines() if not line.startswith("seed")))
    with pytest.raises(Refused, match="protects nobody"):  # its ledgers say so too
        write_dossier(place / "simulated", place / "never")
    assert not (place / "never").exists()
    with pytest.raises(Refused, match="not empty"):
        write_dossier(place / "run", place)


def test_a_study_gives_a_dossier_before_it_is_signed(place, monkeypatch):
    monkeypatch.chdir(place)
    sites = [place / "homes" / name for name in ("aachen", "basel", "cork")]
    for number, home in enumerate(sites):
        address = f"127.0.0.1:98{number}"
        assert command("site", "init", "--name", home.name, "--address", address, "--home", home).code == 0
        assert command("site", "card", "--home", home).code == 0
    cards = [word for home in sites for word in ("--site", place / f"{home.name}.card")]
    changes = ("--set", "data.sizes=[60, 60, 60]", "--data", place / "aachen.npz", "-o", place / "lung.study")
    ran = command("agree", "propose", place / "run.toml", *cards, *changes)
    assert ran.code == 0, ran.err
    assert 'To predict: "lung" function # 1' in ran.out
    assert command("dossier", place / "lung.study", "--out", place / "before").code == 0
    found = record(place / "before")
    assert found["basic"]["data_curators"] == ["aachen", "basel", "cork"]
    assert found["privacy_loss"]["privacy_parameters"] == {"epsilon": 2.0, "delta": 1e-5}
    assert "proposed 20" in (place / "before" / "assessment.md").read_text()
