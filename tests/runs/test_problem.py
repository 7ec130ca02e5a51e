"""Where records lie: what may move them, and that a ledger follows them."""

from __future__ import annotations

import json
import tomllib

import numpy as np
import pytest
import torch

import privsgp
import runs
from privsgp.data import from_arrays
from privsgp.errors import Refused
from privsgp.runs import config
from privsgp.runs import problem as problems

UNSEEDED = runs.SMALL.replace("seed = 7\n", "").replace("sigma = 0.05", "epsilon = 2.0")


def _parts(**changed):
    values = tomllib.loads(UNSEEDED)
    for key, value in changed.items():
        section, name = key.split("__")
        values[section][name] = value
    return problems.load_problem(config.parse(values)).parts


@pytest.mark.parametrize(
    "changed",
    [
        {"algorithm__step_size": 0.4},
        {"algorithm__name": "privsgp-vr"},
        {"privacy__epsilon": 3.0},
        {"model__name": "mlp"},
    ],
)
def test_without_a_seed_records_stay_where_they_are_whatever_else_changes(changed):
    for before, after in zip(_parts(), _parts(**changed), strict=True):
        assert np.array_equal(before, after)


def test_a_folder_of_the_name_of_a_built_in_data_set_is_where_its_files_lie(tmp_path):
    (tmp_path / "a9a").mkdir()
    (tmp_path / "a9a" / "a9a").write_text("-1 3:1\n+1 123:1\n" * 4)
    (tmp_path / "a9a" / "a9a.t").write_text("+1 1:1\n")
    asked = config.parse(tomllib.loads(runs.SMALL), ["data.name=a9a", "data.sizes=", "model.loss=binary"])
    assert problems.load_problem(asked, tmp_path).samples == [2, 2, 2, 2]


@pytest.mark.parametrize(("trust", "together"), [("secure aggregation", 4), ("per-node", 1)])
def test_what_only_a_sum_may_show_is_counted_as_a_sum_and_no_secret_is_hashed(trust, together, tmp_path):
    path = runs.small(tmp_path, UNSEEDED.replace('name = "privsgp"', f'name = "dp-srm"\ntrust = "{trust}"'))
    runs.train(path, tmp_path / "out", "--set=algorithm.steps=3")
    assert [digest for _, _, digest in runs.sent(tmp_path / "out")] == [""] * 3
    told = json.loads(runs.command("ledger", tmp_path / "out", "--json").out)
    assert [node["aggregated"] for node in told] == [together] * 4


def test_resume_says_what_there_is_to_resume(tmp_path):
    path, out = runs.small(tmp_path), tmp_path / "out"
    assert f"there is no run in {out} to resume" in runs.command("train", path, "--out", out, "--resume").err
    assert f"the run in {out} is finished" in runs.command("train", path, "--out", out, "--resume").err


LABELS = np.array([0, 1] * 60)
MINE = UNSEEDED.replace("sizes = [300, 300, 300, 300]\n", "").replace("steps = 30", "steps = 3")


def _loaded(folder, labels, stored=None, seed=None, **data):
    """Load a data set of one's own from a file, without a seed."""
    arrays = {"x": np.random.default_rng(0).standard_normal((len(labels), 6)), "y": np.array(labels)}
    np.savez(folder / "own.npz", **arrays | (stored or {}))
    values = tomllib.loads(MINE) | {"seed": seed}
    values["data"] |= {"name": str(folder / "own.npz")} | data
    return problems.load_problem(config.parse(values))


def _neighbours():
    """Labels that differ from LABELS in one record."""
    return [np.where(np.arange(120) == j, 2, LABELS) for j in range(0, 120, 13)]


@pytest.mark.parametrize("kind", ["dirichlet", "sorted"])
def test_labels_move_records_and_so_need_a_seed(tmp_path, kind):
    """Whoever knows all records but one learns that one's label from where records lie (J_i is public)."""
    before = _loaded(tmp_path, LABELS, seed=1, classes=3, partition=kind).parts
    others = [_loaded(tmp_path, labels, seed=1, classes=3, partition=kind).parts for labels in _neighbours()]
    assert not all(np.array_equal(a, b) for after in others for a, b in zip(before, after, strict=False))
    with pytest.raises(Refused, match=f"data.partition = '{kind}' without seed"):
        _loaded(tmp_path, LABELS, classes=3, partition=kind)


def test_an_even_partition_looks_at_no_label(tmp_path):
    before = _loaded(tmp_path, LABELS, classes=3).parts
    for labels in _neighbours():
        after = _loaded(tmp_path, labels, classes=3).parts
        assert all(np.array_equal(a, b) for a, b in zip(before, after, strict=True))


TEST = {"x_test": np.zeros((3, 6)), "y_test": np.array([0, 1, 2])}


@pytest.mark.parametrize("stored", [{}, TEST])
def test_without_a_seed_no_record_decides_how_many_outputs_a_model_has(tmp_path, stored):
    for labels in (LABELS, _neighbours()[0]):
        with pytest.raises(Refused, match=r"own.npz: no data.classes") as refused:
            _loaded(tmp_path, labels, stored)
        assert "2" not in refused.value.what.rsplit("own.npz")[-1]  # nor does the refusal tell the labels


@pytest.mark.parametrize(
    ("stored", "data"),
    [({}, {"classes": 3}), ({"classes": 3}, {}), (TEST, {"test": "public"}), (TEST, {"classes": 3})],
)
def test_what_is_public_decides_it(tmp_path, stored, data):
    shapes = {
        tuple(p.shape for p in _loaded(tmp_path, labels, stored, **data).model.parameters())
        for labels in (LABELS, *_neighbours())
    }
    assert shapes == {(torch.Size([3, 6]), torch.Size([3]))}


def test_a_missing_class_of_the_test_labels_is_not_looked_for_among_the_records(tmp_path):
    """Whether a run is refused must not depend on whether a record has the label that is missing."""
    missing = TEST | {"y_test": np.array([0, 2, 2])}
    for labels in (np.zeros(120, int), np.arange(120) % 3):
        with pytest.raises(Refused, match=r"own.npz: a label in y_test is 2 but none is 1"):
            _loaded(tmp_path, labels, missing, test="public")


@pytest.mark.parametrize("by", ["arrays", "dataset", "sites"])
def test_the_same_from_python(tmp_path, by):
    x = np.random.default_rng(0).standard_normal((120, 6)).astype(np.float32)
    given = {"arrays": (x, LABELS), "dataset": from_arrays(x, LABELS), "sites": {0: (x, LABELS), 1: (x, LABELS)}}[by]
    settings = {"privacy": {"epsilon": 2.0}, "algorithm": {"name": "privsgp", "steps": 2, "batch": 5}}
    settings |= {} if by == "sites" else {"nodes": 2}
    with pytest.raises(Refused, match=r"no data.classes"):
        privsgp.train(torch.nn.Linear(6, 2), given, out=tmp_path / "out", **settings)
    ran = privsgp.train(torch.nn.Linear(6, 2), given, out=tmp_path / "out", classes=2, **settings)
    assert ran.summary["releases"] == [2, 2]
    assert config.read(ran.folder / "config.toml").data.classes == 2


def test_a_model_with_fewer_outputs_than_classes_is_refused_before_a_record_shows_it(tmp_path):
    x = np.random.default_rng(0).standard_normal((120, 6)).astype(np.float32)
    settings = {"nodes": 2, "privacy": {"epsilon": 2.0}, "algorithm": {"name": "privsgp", "steps": 2, "batch": 5}}
    with pytest.raises(Refused, match="2 outputs for 3 classes"):
        privsgp.train(torch.nn.Linear(6, 2), (x, LABELS), out=tmp_path / "out", classes=3, **settings)
