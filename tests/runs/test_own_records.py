"""The nodes' own records pass for nothing public, from Python and from run.toml, and stay those a run began with."""

from __future__ import annotations

from unittest import mock

import numpy as np
import pytest
import torch
from torch import nn

import privsgp
import runs
from privsgp.data import Dataset, from_arrays
from privsgp.data.loading import holds_records_of
from privsgp.engine.budget_guard import BudgetGuard
from privsgp.errors import Refused

rng = np.random.default_rng(0)
X, Y = rng.normal(size=(160, 6)).astype(np.float32), np.arange(160) % 2
SITES = [(X[40 * i : 40 * i + 40], Y[40 * i : 40 * i + 40]) for i in range(4)]


def train(out, data, algorithm=None, **more):
    own = {"name": "privsgp", "steps": 2, "batch": 8, "step_size": 0.1} | (algorithm or {})
    return privsgp.train(
        nn.Linear(6, 2), data, out=out, privacy={"epsilon": more.pop("epsilon", 5.0)}, algorithm=own,
        engine={"device": "cpu"}, progress=False, **more,
    )  # fmt: skip


@pytest.fixture
def files(tmp_path):
    found = [tmp_path / f"own-{node}.npz" for node in range(4)]
    for file, (x, y) in zip(found, SITES, strict=True):
        np.savez(file, x=x, y=y, classes=2)
    return found


def test_records_from_python_are_no_public_data_of_a_plan(tmp_path, files):
    np.savez(tmp_path / "copy.npz", x=X[rng.permutation(40)], y=np.zeros(40, int))
    plan = {"algorithm": {"step_size": "auto"}, "classes": 2}
    for data in (files, SITES, dict(enumerate(files))):
        for name in ("own-0.npz", "copy.npz"):
            with pytest.raises(Refused, match="the nodes' own data"):
                train(tmp_path / "out", data, plan={"data": str(tmp_path / name)}, **plan)
    with pytest.raises(Refused, match="the nodes' own data"):  # no ε covers a choice by them
        train(tmp_path / "out", files, plan={"data": "private"}, **plan)
    assert not (tmp_path / "out" / "plan.json").exists()


def test_a_file_of_some_records_of_each_site_is_the_sites_own(tmp_path, files):
    np.savez(tmp_path / "mixed.npz", x=np.concatenate([x[:10] for x, _ in SITES]), y=np.zeros(40, int))
    assert not any(holds_records_of(tmp_path / "mixed.npz", [file]) for file in files)
    assert holds_records_of(tmp_path / "mixed.npz", files)
    np.savez(tmp_path / "other.npz", x=X + 1, y=Y)
    assert not holds_records_of(tmp_path / "other.npz", files)


@pytest.mark.parametrize("data", [(X, Y), from_arrays(X, Y, X[:100], Y[:100], classes=2), [(X[:80], Y[:80])]])
def test_public_test_data_are_no_training_records(tmp_path, data):
    test = {} if isinstance(data, Dataset) else {"test": (X[:80], Y[:80]), "classes": 2}
    with pytest.raises(Refused, match="a node's own"):
        train(tmp_path / "out", data, nodes=1, test_is_public=True, **test)


def test_a_data_set_with_test_data_takes_no_others(tmp_path):
    own = from_arrays(X, Y, X + 1, Y, classes=2)
    with pytest.raises(Refused, match="data have test data too"):
        train(tmp_path / "out", own, nodes=2, test=(X + 2, Y), test_is_public=True)
    bare = from_arrays(X, Y, classes=2)
    result = train(tmp_path / "out", bare, nodes=2, test=(X + 2, Y), test_is_public=True)
    right = result.model(torch.from_numpy(X + 2)).argmax(1).numpy() == Y
    assert result.summary["test_accuracy"] == pytest.approx(right.mean())


@pytest.mark.parametrize(("x", "y", "words"), [(np.inf, 0, "not finite"), (1.0, 2, "outside 0..1")])
def test_a_data_set_made_by_hand_is_looked_at(tmp_path, x, y, words):
    bad, labels = X.copy(), Y.copy()
    bad[3], labels[3] = x, y
    with pytest.raises(Refused, match=words):
        train(tmp_path / "out", Dataset("mine", bad, labels, None, None, 2), nodes=2)


SMALL = """
[data]
name = "own.npz"
nodes = 2
test_path = "public.npz"
{classes}
[privacy]
epsilon = 3.0
[algorithm]
name = "privsgp"
steps = 2
batch = 8
step_size = 0.1
"""


def test_all_of_a_public_test_file_is_looked_at(tmp_path):
    np.savez(tmp_path / "own.npz", x=X, y=Y)
    np.savez(tmp_path / "public.npz", x=X + 1, y=Y, x_test=X, y_test=Y)
    ran = runs.command("train", runs.small(tmp_path, SMALL.format(classes="classes = 2")), "--out", tmp_path / "out")
    assert ran.code == 2
    assert "a node's own" in ran.err


def test_classes_are_not_counted_in_a_sites_own_test_labels(tmp_path):
    np.savez(tmp_path / "own.npz", x=X, y=Y, x_test=X + 2, y_test=np.arange(160) % 5)
    np.savez(tmp_path / "public.npz", x=X + 1, y=Y)
    ran = runs.command("train", runs.small(tmp_path, SMALL.format(classes="")), "--out", tmp_path / "out")
    assert ran.code == 2
    assert "data.classes" in ran.err


@pytest.mark.parametrize("where", ['name = "own.npz"', 'path = "own-{node}.npz"'])
def test_own_records_are_no_public_test_set_of_their_own_file(tmp_path, where):
    for name in ("own", "own-0", "own-1"):
        np.savez(tmp_path / f"{name}.npz", x=X, y=Y, x_test=X[::-1], y_test=Y[::-1])
    text = SMALL.format(classes="classes = 2").replace('name = "own.npz"', where)
    config = runs.small(tmp_path, text.replace('test_path = "public.npz"', 'test = "public"'))
    ran = runs.command("train", config, "--out", tmp_path / "out")
    assert ran.code == 2
    assert "data.test = 'public': half of these records are a node's own" in ran.err
    assert runs.command("train", config, "--out", tmp_path / "out", "--set=seed=3").code == 0  # it protects nobody


def test_a_sites_own_test_set_does_not_hide_among_those_of_others(tmp_path):
    fresh = rng.normal(size=(700, 6)).astype(np.float32)
    np.savez(tmp_path / "own-0.npz", x=X, y=Y, x_test=X[:100], y_test=Y[:100])
    np.savez(tmp_path / "own-1.npz", x=X + 1, y=Y, x_test=fresh, y_test=np.arange(700) % 2)
    text = SMALL.format(classes="classes = 2").replace('name = "own.npz"', 'path = "own-{node}.npz"')
    config = runs.small(tmp_path, text.replace('test_path = "public.npz"', 'test = "public"'))
    ran = runs.command("train", config, "--out", tmp_path / "out")
    assert ran.code == 2
    assert "own-0.npz, data.test = 'public': half of these records are a node's own" in ran.err


LONG = {"name": "privsgp-vr", "steps": 40}


def interrupt(out, data, **more):
    """Leave a run that stopped half-way."""
    with (
        mock.patch.object(BudgetGuard, "record", side_effect=[None, None, KeyboardInterrupt]),
        pytest.raises(KeyboardInterrupt),
    ):
        train(out, data, LONG, **more)
    assert (out / "config.toml").exists()


def divided(x):
    return {"data": (x, Y), "nodes": 2, "classes": 2}


def made(x):
    return {"data": from_arrays(x, Y, classes=2), "nodes": 2}


def brought(x):
    return {"data": [(x[:80], Y[:80]), (x[80:], Y[80:])], "classes": 2}


@pytest.mark.parametrize("bring", [divided, made, brought])
def test_arrays_stay_those_a_run_began_with(tmp_path, bring):
    """Tables hold what they gave: taken out by others, a record's share would leave its clip."""
    interrupt(tmp_path / "out", **bring(X))
    moved = X.copy()
    moved[[3, 4]] = moved[[4, 3]]
    for other in (moved, X + 1):
        with pytest.raises(Refused, match=r"other records of node \d than it began with"):
            train(tmp_path / "out", algorithm=LONG, resume=True, **bring(other))
    result = train(tmp_path / "out", algorithm=LONG, resume=True, **bring(X))
    np.savez(tmp_path / "some.npz", x=X[10:30], y=Y[10:30])
    for data in (tmp_path / "some.npz", (X[10:30], Y[10:30])):
        with pytest.raises(Refused, match="No ε covers metrics on them"):
            result.evaluate(data)
    assert result.evaluate((X + 1, Y))


def test_files_stay_those_a_run_began_with(tmp_path, files):
    out, said = tmp_path / "out", "than it began with"
    interrupt(out, files, classes=2)
    for changed in (files[::-1], SITES[::-1], [SITES[1], *files[1:]]):
        with pytest.raises(Refused, match=said):
            train(out, changed, LONG, resume=True, classes=2)
    np.savez(files[0], x=X[:40], y=1 - Y[:40], classes=2)  # labels are of a record
    with pytest.raises(Refused, match=said):
        train(out, files, LONG, resume=True, classes=2)
    np.savez(files[0], x=2 * X[:40], y=Y[:40], classes=2)
    with pytest.raises(Refused, match=said):
        train(out, files, LONG, resume=True, classes=2)
    np.savez_compressed(files[0], x=X[:40].astype(np.float64), y=Y[:40], classes=2)  # the same in other bytes
    train(out, files, LONG, resume=True, classes=2)


def test_features_do_not_hide_which_records_they_are_of(tmp_path):
    features = nn.Linear(6, 6)
    more = {"nodes": 2, "classes": 2, "features": features}
    interrupt(tmp_path / "out", (X, Y), **more)
    with pytest.raises(Refused, match="than it began with"):
        train(tmp_path / "out", (X + 1, Y), LONG, resume=True, **more)
    result = train(tmp_path / "out", (X, Y), LONG, resume=True, **more)
    with pytest.raises(Refused, match="No ε covers metrics on them"):
        result.evaluate((X, Y))


def test_pooled_records_are_every_sites(tmp_path, files):
    train(tmp_path / "out", files, {"name": "dp-sgd"})
    result = privsgp.load(tmp_path / "out", nn.Linear(6, 2))
    for file in files:
        with pytest.raises(Refused, match="No ε covers metrics on them"):
            result.evaluate(file)


def test_records_with_few_values_are_alike_by_chance(tmp_path):
    """Four columns of yes and no: fresh ones are like somebody's."""
    own, fresh = (rng.integers(0, 2, size=(200, 4)).astype(np.float32) for _ in range(2))
    y = np.arange(200) % 2
    more = {"data": (own, y), "nodes": 2, "classes": 2, "test_is_public": True}
    result = privsgp.train(
        nn.Linear(4, 2), out=tmp_path / "out", privacy={"epsilon": 5.0}, test=(fresh, y), progress=False,
        algorithm={"name": "privsgp", "steps": 2, "batch": 8, "step_size": 0.1}, engine={"device": "cpu"}, **more,
    )  # fmt: skip
    assert result.evaluate((fresh[:50], y[:50]))
    with pytest.raises(Refused, match="No ε covers metrics on them"):
        result.evaluate((own, y))
