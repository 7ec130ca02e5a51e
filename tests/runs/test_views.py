"""The view of a finished run: what each site has spent, rounded up, and what people are shown."""

from __future__ import annotations

import dataclasses
import json
import pathlib

import pytest

from privsgp.runs import views

SUMMARY = {
    "name": "x", "simulation": False, "algorithm": "privsgp", "trust": "per-node", "graph": "ring", "nodes": 2,
    "steps": 5, "dim": 3, "model": "of the last step", "epsilon_spent": [2.50001, 1.0], "epsilon_budget": [3.0, 3.0],
    "delta": [1e-5, 1e-5], "releases": [5, 5], "sigma": [0.1, 0.2], "relation": "zero-out", "virtual_seconds": 5.0,
    "seconds": 1.0, "bytes_sent": 1000,
}  # fmt: skip
OWN = {
    "name": "basel", "node": 0, "roster": [{"name": "basel"}, {"name": "cork"}],
    "refused": {"late": 2}, "messages": {"posted": 7, "taken": 6, "missed": 1}, "warnings": [],
}  # fmt: skip


def _of(**changes):
    return views.of(SUMMARY | changes, pathlib.Path("out"))


def test_numbers_of_privacy_are_rounded_up():
    view = _of(epsilon_spent=[2.50001, 1.0], sites=["basel", "cork"])
    assert dict(view.facts)["sites"] == "basel ε = 2.501 of 3, cork ε = 1 of 3"
    assert view.privacy[0].startswith("ε = 1 … 2.501, δ = 1e-05 for")
    with pytest.raises(dataclasses.FrozenInstanceError):
        view.sites[0].epsilon = 1.0


@pytest.mark.parametrize(
    ("spent", "said"),
    [
        (None, ["none: this method adds no noise. Treat messages and the model as you treat the records"]),
        ([None, 1.0], ["no finite bound is known for at least one site: treat what it sent as you treat its records"]),
        ([2.5, 1.0], ["ε = 1 … 2.5, δ = 1e-05 for each record of a site (zero-out, certified)"]),
    ],
)
def test_the_guarantee_in_words(spent, said):
    assert _of(epsilon_spent=spent).privacy[: len(said)] == said


def test_the_clip_and_its_source_are_shown(tmp_path):
    assert dict(_of(clip=2.5).facts)["clip"] == "2.5 (set in run.toml)"
    assert dict(_of(clip=2.5, site=OWN).facts)["clip"] == "2.5 (set in the agreement)"
    assert "clip" not in dict(_of(clip=None).facts)
    plan = {
        "algorithm": "privsgp", "steps": 5, "step_size": 0.1, "batch": 8.0, "why": "", "accountant": "certified",
        "estimated_on": {"kind": "synthetic", "name": "synthetic", "words": ""}, "methods": [], "warnings": [],
        "clip_from": "2.5 (twice the median)",
    }  # fmt: skip
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    assert dict(views.of(SUMMARY | {"clip": 2.5}, tmp_path).facts)["clip"] == "2.5 (twice the median)"


def test_a_site_knows_its_own_epsilon_alone():
    view = _of(epsilon_spent=[2.5, None], sites=["basel", "cork"], site=OWN)
    assert (len(view.sites), view.elsewhere) == (1, 1)
    assert view.privacy[0].startswith("ε = 2.5, δ = 1e-05 for each record of this site")
    facts = dict(view.facts)
    assert facts["sites"] == "basel ε = 2.5 of 3"
    assert facts["messages"] == "7 sent, 6 accepted, 1 missed at a deadline; refused: 2 × late"
    assert "no finite" in _of(epsilon_spent=[None, 1.0], site=OWN).privacy[0]


def test_shared_noise_says_whom_it_trusts():
    curve = {"honest": 2, "curve": [[1, None], [2, 1.23451]]}
    said = _of(pairwise=curve, trust="honest sites").privacy
    assert any(line.startswith("it holds only if 2 of 2 sites are honest, the site itself included. ") for line in said)
    assert "ε of the site that has spent most, if this number of sites is honest: 1: no finite bound, 2: 1.235" in said


def test_what_is_not_known_has_no_row():
    rows = _of().facts
    assert all(value not in ("", "–", None) for _, value in rows)
    assert "accuracy" not in dict(rows)
