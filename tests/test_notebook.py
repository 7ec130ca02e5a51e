"""From a notebook: mistakes are refused with a remedy in Python's terms, and a bar shows how far a run is."""

from __future__ import annotations

import ast
import inspect
import pathlib
import re
import sys
import types

import numpy as np
import pytest
import torch
from torch import nn

import privsgp
from privsgp import devices, errors
from privsgp.errors import Refused
from privsgp.models import in_any_precision
from privsgp.report import terminal

rng = np.random.default_rng(0)
X, Y = rng.normal(size=(80, 10)).astype(np.float32), np.arange(80) % 2
QUICK = {"nodes": 2, "seed": 0, "privacy": {"sigma": 0.1}, "algorithm": {"name": "privsgp", "steps": 3}}


def _train(out, model=None, data=(X, Y, X, Y), **more):
    return privsgp.train(nn.Linear(10, 2) if model is None else model, data, out=out, **QUICK | more)


@pytest.mark.parametrize(
    ("model", "data", "what", "remedy"),
    [
        ("mlp", (X, Y), "model='mlp'", "privsgp.models.make('mlp'"),
        (nn.Linear, (X, Y), "model=<class", "an instance, not its class"),
        (nn.Linear(11, 2), (X, Y), "does not take samples of shape (10,)", "first layer the width of a sample"),
        (nn.Linear(10, 1), (X, Y), "1 output for 2 classes", "one for each class, or take loss='binary'"),
        (nn.LSTM(10, 2), (X, Y), "the model returns a tuple", "one tensor"),
        (nn.Linear(10, 2), (X, Y + 0.5), "is no class number", "task='regression'"),
        (nn.Linear(10, 2), ([[1.0, 2.0], [3.0]], [0, 1]), "x is no array", "every row the same length"),
        (nn.Linear(10, 2), (np.array([[1, "a"]], dtype=object), [0]), "holds objects", "as numbers"),
    ],
)
def test_a_mistake_is_refused_with_a_remedy(tmp_path, model, data, what, remedy):
    with pytest.raises(Refused) as refused:
        _train(tmp_path / "out", model, data)
    assert what in refused.value.what
    assert remedy in refused.value.remedy
    assert not (tmp_path / "out").exists()


def test_what_the_remedy_names_is_there():
    model = privsgp.models.make("mlp", input_shape=(10,), outputs=2, seed=0)
    assert isinstance(model, nn.Module)


def test_more_than_there_is_memory_for_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(devices, "free_memory", lambda: 2000)
    with pytest.raises(Refused, match="of memory are free") as refused:
        _train(tmp_path / "out")
    assert "fewer samples" in refused.value.remedy


def test_a_folder_in_use_is_said_without_the_command_lines_options(tmp_path):
    _train(tmp_path / "out")
    with pytest.raises(Refused) as refused:
        _train(tmp_path / "out")
    assert refused.value.remedy == "add resume=True to continue it, or choose another out=…"
    assert str(refused.value).endswith(refused.value.remedy)
    assert "--" not in str(refused.value)


def test_options_become_arguments():
    refused = Refused("{ledger} with {test_is_public}", "add {resume} or {out}", ledger="runs/a", test_is_public=True,
                      resume=True, out=None)  # fmt: skip
    assert str(refused) == "--ledger runs/a with data.test = 'public'\n  → add --resume or --out"
    assert str(refused.from_python()) == "ledger=runs/a with test_is_public=True\n  → add resume=True or out=…"


ROOMS = ("accounting", "data", "engine", "features", "runs", "transport", "graph", "errors")
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef)


def test_refusals_name_options_as_their_caller_writes_them():
    """`Refused` does. Words that only the command line can cause may name its options."""
    package = pathlib.Path(errors.__file__).parent
    files = [path for path in package.rglob("*.py") if path.relative_to(package).parts[0].removesuffix(".py") in ROOMS]
    arguments = set(inspect.signature(privsgp.train).parameters) | {"from", "from-records"}
    for file in files:
        tree = ast.parse(file.read_text())
        documented = {ast.get_docstring(n, clean=False) for n in ast.walk(tree) if isinstance(n, DOCUMENTED)}
        texts = [n.value for n in ast.walk(tree) if isinstance(n, ast.Constant) and n.value not in documented]
        named = {name for text in texts if isinstance(text, str) for name in re.findall(r"--([a-z][a-z-]+)", text)}
        assert not named & arguments or file.name in ("first.py", "errors.py"), file


def test_a_loss_of_ones_own_without_correct_says_that_accuracy_is_unknown(tmp_path, caplog):
    result = _train(tmp_path / "out", loss=lambda o, t: nn.functional.cross_entropy(o, t, reduction="none"))
    assert "accuracy is unknown" in caplog.text
    assert "accuracy" not in repr(result)
    assert "accuracy" not in result.summary


@pytest.mark.parametrize(
    ("loss", "outputs", "y", "metric"),
    [
        (nn.CrossEntropyLoss(weight=torch.tensor([1.0, 9.0], dtype=torch.float64), reduction="none"), 2, Y, "auc"),
        (nn.BCEWithLogitsLoss(pos_weight=torch.tensor(9.0), reduction="none"), 1, Y, "auc"),
        (nn.HuberLoss(reduction="none"), 1, X[:, 0], "r2"),
        (nn.L1Loss(reduction="none"), 2, X[:, :2], "r2"),
    ],
)
def test_what_outputs_mean_is_known_of_torchs_own_losses(tmp_path, caplog, loss, outputs, y, metric):
    result = _train(tmp_path / "out", nn.Linear(10, outputs), (X, y, X, y), loss=loss)
    assert metric in result.summary
    assert result.predict(X).shape == y.shape
    assert "unknown" not in caplog.text


def test_a_loss_of_numbers_for_one_output_is_that_of_each_sample():
    loss = in_any_precision(nn.L1Loss(reduction="none"))
    outputs, targets = torch.tensor([[1.0], [4.0]]), torch.tensor([0.0, 1.0])
    assert loss(outputs, targets).tolist() == [1.0, 3.0]
    assert loss(outputs[:, 0], targets).tolist() == [1.0, 3.0]  # of a model whose outputs have no second axis
    assert loss(outputs[0], targets[0]).item() == 1.0  # as `torch.func.vmap` shows it


def test_a_loss_of_ones_own_may_be_of_numbers(tmp_path):
    asked = {"loss": lambda o, t: (o[..., 0] - t).abs(), "data": (X, X[:, 0])}
    assert _train(tmp_path / "out", nn.Linear(10, 1), task="regression", **asked).predict(X).shape == (80, 1)
    with pytest.raises(Refused, match="task='regression' does not fit loss='binary'"):
        _train(tmp_path / "no", nn.Linear(10, 1), loss="binary", task="regression")
    with pytest.raises(Refused, match="the loss fails on outputs"):
        _train(tmp_path / "no", nn.Linear(10, 3), (X, X[:, 0]), loss=nn.L1Loss(reduction="none"))


class _Handle:
    def __init__(self, shown):
        self.seen = [shown._repr_html_()]

    def update(self, shown):
        self.seen.append(shown._repr_html_())


def test_a_notebook_shows_a_bar_that_ends_at_the_last_step(tmp_path, monkeypatch):
    handles = []

    def display(shown, display_id):
        assert display_id
        handles.append(_Handle(shown))
        return handles[-1]

    for name in ("ipykernel", "IPython", "IPython.display"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    sys.modules["IPython.display"].display = display
    sys.modules["IPython.display"].HTML = lambda html: types.SimpleNamespace(_repr_html_=lambda: html)
    assert terminal.in_notebook()
    _train(tmp_path / "out")
    assert "step 0 of 3" in handles[0].seen[0]
    assert "step 3 of 3" in handles[0].seen[-1]
    assert "accuracy" in handles[0].seen[-1]
    _train(tmp_path / "silent", progress=False)
    assert len(handles) == 1


def test_without_a_screen_nothing_is_shown(tmp_path, capsys):
    _train(tmp_path / "out")
    assert capsys.readouterr().err == ""
