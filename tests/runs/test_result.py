"""A run's model on its way out: loaded without unpickling, ready to predict, measured, drawn."""

from __future__ import annotations

import csv
import json
import pathlib
import subprocess
import sys

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import nn

import privsgp
import runs
from privsgp import data
from privsgp.accounting.shown import up
from privsgp.engine.folder import Folder
from privsgp.errors import Refused
from privsgp.runs import rows

ROOT = pathlib.Path(__file__).parent.parent.parent
FEATURES = ("--set=features.name=scattering",)


@pytest.fixture(scope="module")
def digits():
    return data.load("digits")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Return a function that trains a small run with options, once, and returns its folder."""
    place, kept = tmp_path_factory.mktemp("results"), {}

    def make(name, *options):
        if name not in kept:
            kept[name] = place / name
            runs.train(runs.small(place), kept[name], "--set=algorithm.steps=5", *options)
        return kept[name]

    return make


def test_a_loaded_run_says_what_its_summary_says(made, digits):
    result = privsgp.load(made("plain"))
    found = result.evaluate((digits.x_test, digits.y_test))
    for name in ("accuracy", "auc", "log_loss"):
        assert found[name] == pytest.approx(result.summary[name])
    assert found["confusion"] == result.summary["confusion"]
    assert (result.predict(digits.x_test) == digits.y_test).mean() == result.summary["test_accuracy"]
    np.testing.assert_allclose(result.predict_proba(digits.x_test).sum(1), 1)
    assert not result.model.training or not any(isinstance(m, nn.Dropout) for m in result.model.modules())


@pytest.mark.parametrize("model", ["mlp", "logistic"])
def test_the_module_that_is_loaded_has_the_released_weights(made, model):
    folder = made(model, f"--set=model.name={model}")
    state, tensors = privsgp.load(folder).model.state_dict(), load_file(folder / "model.safetensors")
    assert all(torch.equal(state[name], value) for name, value in tensors.items())
    assert state.keys() == tensors.keys()


def test_features_are_part_of_the_module(tmp_path):
    images = np.random.default_rng(0).random((60, 1, 8, 8)).astype(np.float32)
    y = np.arange(60) % 3
    np.savez(tmp_path / "images.npz", x=images, y=y, x_test=images, y_test=y)
    config = runs.small(tmp_path, runs.SMALL.replace("nodes = 4\nsizes = [300, 300, 300, 300]", "nodes = 2"))
    runs.train(config, tmp_path / "out", *FEATURES, f"--set=data.name={tmp_path / 'images.npz'}")
    result = privsgp.load(tmp_path / "out")
    assert result.card["input_shape"] == [1, 8, 8]
    assert result.evaluate((images, y))["log_loss"] == pytest.approx(result.summary["log_loss"], rel=1e-5)


def test_a_module_of_ones_own_is_asked_for(tmp_path, digits):
    torch.manual_seed(0)
    encoder, model = nn.Linear(64, 12), nn.Sequential(nn.Linear(12, 8), nn.Linear(8, 10))
    model[0].requires_grad_(requires_grad=False)
    arrays = (digits.x, digits.y, digits.x_test, digits.y_test)
    settings = {"nodes": 2, "seed": 1, "privacy": {"sigma": 0.1}, "algorithm": {"name": "privsgp", "steps": 2}}
    trained = privsgp.train(model, arrays, features=encoder, out=tmp_path / "out", **settings)
    with pytest.raises(Refused, match=r"load\(run, model=MyModule\(\)\)"):
        privsgp.load(tmp_path / "out")
    with pytest.raises(Refused, match="features=encoder"):
        privsgp.load(tmp_path / "out", model)
    loaded = privsgp.load(tmp_path / "out", model, encoder)
    assert torch.equal(loaded.outputs(digits.x_test), trained.outputs(digits.x_test))
    with pytest.raises(Refused, match="not the encoder of the run"):
        privsgp.load(tmp_path / "out", model, nn.Linear(64, 12))
    other = nn.Sequential(nn.Linear(12, 8), nn.Linear(8, 10))
    with pytest.raises(Refused, match="the frozen parts of Sequential"):
        privsgp.load(tmp_path / "out", other, encoder)


def test_samples_of_another_shape_and_labels_of_other_classes_are_refused(made, digits):
    result = privsgp.load(made("plain"))
    with pytest.raises(Refused, match=r"shape \(63,\), the model takes \(64,\)"):
        result.predict(digits.x_test[:, 1:])
    with pytest.raises(Refused, match=r"outside 0\.\.9"):
        result.evaluate((digits.x_test[:3], [0, 10, 1]))
    with pytest.raises(Refused, match="3 samples and 2 targets"):
        result.evaluate((digits.x_test[:3], [0, 1]))


def test_what_is_no_finished_run_is_refused(made, tmp_path):
    with pytest.raises(Refused, match="is no run folder"):
        privsgp.load(tmp_path)
    with pytest.raises(Refused, match="leave it out"):
        privsgp.load(made("plain"), nn.Linear(64, 10))


def test_a_model_file_tells_what_it_is_and_is_the_same_for_every_life(made):
    with safe_open(made("plain") / "model.safetensors", "pt") as file:
        told = file.metadata()
    assert list(told) == ["privsgp"]  # several would be written in any order
    card = json.loads(told["privsgp"])
    assert (card["input_shape"], card["classes"], card["loss"]) == ([64], 10, "cross-entropy")
    assert card["privacy"] == {
        "simulation": True, "noise": True, "epsilon": None, "delta": 1e-05, "relation": "zero-out", "trust": "per-node",
    }  # fmt: skip


def test_a_model_file_that_lies_about_its_shape_is_refused(made, tmp_path):
    from safetensors.torch import save_file

    from privsgp.runs import card as cards

    folder = made("plain")
    path = tmp_path / "model.safetensors"
    card = cards.read(folder / "model.safetensors")
    for wrong in ({"input_shape": [2**40]}, {"input_shape": []}, {"loss": "pickle"}, {"version": 9}):
        save_file(load_file(folder / "model.safetensors"), path, cards.metadata(card | wrong))
        with pytest.raises(Refused, match=r"damaged|is of version 9"):
            cards.read(path)
    save_file(load_file(folder / "model.safetensors"), path, {"privsgp": "model 1"})
    with pytest.raises(Refused, match="does not describe its model"):
        cards.read(path)


def test_the_model_card_says_what_was_spent_and_that_a_simulation_is_none(made):
    text = (made("plain") / "model-card.md").read_text()
    summary = json.loads(Folder(made("plain")).summary.read_text())
    assert f"ε = {up(max(summary['epsilon_spent']))}" in text
    assert "- simulation, not private: " in text
    secret = made("secret", "--set=seed=", "--set=privacy.sigma=", "--set=privacy.epsilon=2.0")
    text = (secret / "model-card.md").read_text()
    assert "simulation" not in text
    assert "δ = 1e-05 for each record of a site (zero-out, certified)" in text


def test_predictions_are_a_table(made, digits, tmp_path):
    np.savez(tmp_path / "x.npz", x=digits.x_test[:7])
    ran = runs.command("predict", made("plain"), tmp_path / "x.npz", "-o", tmp_path / "out.csv")
    assert ran.code == 0, ran.err
    with (tmp_path / "out.csv").open() as file:
        table = list(csv.DictReader(file))
    assert [int(row["class"]) for row in table] == privsgp.load(made("plain")).predict(digits.x_test[:7]).tolist()
    assert sum(float(table[0][f"p{c}"]) for c in range(10)) == pytest.approx(1, abs=1e-4)
    assert runs.command("predict", made("plain"), tmp_path / "x.npz").out.startswith("row,class,p0")
    assert runs.command("predict", made("plain"), tmp_path / "gone.npz").code == 2


def test_evaluation_is_on_public_data_and_never_on_what_was_trained_on(made, digits, tmp_path, monkeypatch):
    np.savez(tmp_path / "public.npz", x=digits.x_test, y=digits.y_test)
    ran = runs.command("evaluate", made("plain"), tmp_path / "public.npz", "--json")
    assert json.loads(ran.out)["auc"] == pytest.approx(privsgp.load(made("plain")).summary["auc"])
    assert "no ε covers" in ran.err
    monkeypatch.chdir(tmp_path)
    for node in range(2):
        np.savez(f"site-{node}.npz", x=digits.x[node::20], y=digits.y[node::20], classes=10)
    private = ("--set=seed=", "--set=privacy.sigma=", "--set=privacy.epsilon=3.0", "--set=data.sizes=")
    where = ("--set=data.nodes=2", "--set=data.path=site-{node}.npz", "--set=algorithm.steps=2")
    runs.train(runs.small(tmp_path), tmp_path / "out", *private, *where)
    np.savez("copy.npz", x=digits.x[1::20][::-1], y=digits.y[1::20][::-1])
    for file in ("site-1.npz", "copy.npz"):
        ran = runs.command("evaluate", tmp_path / "out", file)
        assert (ran.code, ran.out) == (2, "")
        assert "No ε covers metrics on them" in ran.err
    assert runs.command("evaluate", tmp_path / "out", "public.npz").code == 0
    monkeypatch.setenv("PRIVSGP_STATE", str(tmp_path / "another user"))  # who got the run from its sites
    ran = runs.command("evaluate", tmp_path / "out", "copy.npz")
    assert ran.code == 0
    assert "nothing was compared" in ran.err


def test_a_notebook_gets_a_table_and_charts(made):
    result = privsgp.load(made("plain"))
    html = result._repr_html_()
    assert html.count('<tr><th style="text-align:left">') == len(result.view.facts)
    assert "simulation, not private" in html
    assert "Accuracy on test data" in html
    assert html.count("<figure>") == html.count("<polyline") - 4 == 5  # two have two curves, two a diagonal
    assert "{" not in repr(result)


def test_what_a_run_is_called_is_no_markup(made):
    result = privsgp.load(made("plain"))
    result.summary["name"] = "<script>alert(1)</script>"
    assert "<script>" not in result._repr_html_()


def test_a_table_goes_through_the_schema_that_the_model_carries(tmp_path):
    pytest.importorskip("pyarrow")
    hospitals = ROOT / "examples" / "hospitals"
    for name in ("run.toml", "schema.toml"):
        (tmp_path / name).write_text((hospitals / name).read_text())
    subprocess.run([sys.executable, hospitals / "make_data.py", "--out", tmp_path], check=True)
    out = tmp_path / "runs" / "out"
    summary = runs.train(tmp_path / "run.toml", out, "--set=algorithm.steps=5")
    (tmp_path / "schema.toml").unlink()  # the model's file has it
    ran = runs.command("evaluate", out, tmp_path / "test.csv", "--json")
    assert json.loads(ran.out)["auc"] == pytest.approx(summary["auc"])
    assert runs.command("predict", out, tmp_path / "test.csv", "-o", tmp_path / "out.csv").code == 0
    with (tmp_path / "out.csv").open() as file:
        first = next(csv.DictReader(file))
    names = privsgp.load(out).card["class_names"]
    assert first["class"] in names
    assert sum(float(first[f"p({name})"]) for name in names) == pytest.approx(1, abs=1e-4)
    import pyarrow.csv

    frame = pyarrow.csv.read_csv(tmp_path / "test.csv")
    assert len(privsgp.load(out).predict(frame)) == frame.num_rows
    assert "by the public schema" in (out / "model-card.md").read_text()


def test_rows_come_in_one_form(made, tmp_path):
    card = privsgp.load(made("plain")).card
    (tmp_path / "x.csv").write_text("1,2\n")
    with pytest.raises(Refused, match="was not trained on tables"):
        rows.encoded_rows(tmp_path / "x.csv", card)
    with pytest.raises(Refused, match="is not a file that this model can read"):
        rows.encoded_rows(pathlib.Path(__file__), card)
    np.savez(tmp_path / "x.npz", x=np.zeros((2, 64), np.uint8))
    with pytest.raises(Refused, match="no array y"):
        rows.labelled_rows(tmp_path / "x.npz", card)
