"""A model's file that somebody else wrote: whatever its card says, it is refused, and takes no memory for it."""

from __future__ import annotations

import json

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import privsgp
import runs
from privsgp.errors import Refused
from privsgp.runs import card as cards
from privsgp.runs import rows, views


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    runs.train(runs.small(folder), folder / "run", "--set=algorithm.steps=2", "--set=model.name=mlp")
    return folder / "run"


@pytest.fixture
def said(run):
    """Return a function that changes what the model's file says of itself."""
    path = run / "model.safetensors"
    with safe_open(path, "pt") as file:
        card = json.loads(file.metadata()["privsgp"])
    tensors = load_file(path)

    def change(**changes):
        save_file(tensors, path, {"privsgp": json.dumps(card | changes)})

    yield change
    change()


@pytest.mark.parametrize(
    "changes",
    [
        {"model": {"name": "mlp", "hidden": [10**6, 10**6]}},  # 4 TB
        {"model": {"name": "mlp", "hidden": [1] * 200_000}},  # minutes, and gigabytes of layers
        {"model": {"name": "mlp", "device": "meta"}},
        {"model": {"name": "mlp", "nonsense": 1}},
        {"model": {"name": "mlp", "hidden": "many"}},
        {"model": {"name": "resnet18"}, "input_shape": [2**20, 8, 8]},
        {"classes": 2**20, "input_shape": [2**26]},
        {"features": {"name": "scattering"}, "input_shape": [1, 2**13, 2**13]},
        {"features": {}},
    ],
)
def test_a_card_that_describes_another_model_is_refused(run, said, changes):
    said(**changes)
    with pytest.raises(Refused, match=r"model\.safetensors"):
        privsgp.load(run)


def test_the_file_itself_can_be_read(run, said):
    said()
    privsgp.load(run)


@pytest.mark.parametrize("text", ["[[[", "a = " + 5000 * "[" + 5000 * "]"])
def test_a_schema_that_is_none_is_refused(text):
    with pytest.raises(Refused, match="not TOML"):
        rows.schema_of({"schema_text": text})


def test_names_of_classes_are_names_in_a_model_card(run):
    with safe_open(run / "model.safetensors", "pt") as file:
        told = json.loads(file.metadata()["privsgp"])
    hostile = ["<img src=x>", "a\n\n## Privacy\n\nε = 0.01"]
    view = views.of(json.loads((run / "summary.json").read_text()), run)
    text = cards.markdown(told | {"class_names": hostile}, view)
    assert "<img" not in text
    assert text.count("\n## Privacy") == 1


def test_names_of_classes_do_nothing_to_a_terminal(run, said, tmp_path):
    np.savez(tmp_path / "x.npz", x=np.zeros((1, 64), np.float32))
    said(class_names=["\x1b[2J", *"abcdefghi"])
    ran = runs.command("predict", run, tmp_path / "x.npz")
    assert ran.code == 0, ran.err
    assert "\x1b" not in ran.out
    said(class_names=["one"])
    assert runs.command("predict", run, tmp_path / "x.npz").code == 2
